"""What is remembered of sources and workloads between slots: a pure function of the last L pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from streams.pages import HistogramState, SeriesState
from streams.sample_run import Floats, Ints
from streams.series_index import SeriesIndex

# The slot of a series that was never heard.
_NEVER = -(1 << 62)


class Roster:
    """Workloads by the newest closed slot that held them. Slots must be marked in ascending order."""

    def __init__(self) -> None:
        self._last_seen: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._last_seen)

    def __contains__(self, workload: object) -> bool:
        return workload in self._last_seen

    def __iter__(self) -> Iterator[str]:
        return iter(self._last_seen)

    def holds(self, workloads: AbstractSet[str]) -> bool:
        """Whether all of them are known."""
        return workloads <= self._last_seen.keys()

    def mark(self, workloads: Collection[str], slot: int) -> None:
        """Note that a closed slot holds the workloads."""
        # Re-inserting keeps the dict ordered by slot, so that forgetting looks only at what it forgets.
        forget = self._last_seen.pop
        for workload in workloads:
            forget(workload, None)
        self._last_seen.update(dict.fromkeys(workloads, slot))

    def forget(self, up_to_slot: int) -> None:
        """Drop the workloads not seen after this slot."""
        old = []
        for workload, slot in self._last_seen.items():
            if slot > up_to_slot:
                break
            old.append(workload)
        for workload in old:
            del self._last_seen[workload]


class SeriesTable:
    """Last counter values and histograms of every series, by series number. Slots must be put in ascending order.

    Args:
        counters: names to remember, ascending; C of them.
        hist_fields: histograms to remember.
        index: of the series.

    Attributes:
        values: [capacity, C] newest value of each counter, NaN where none was heard.
        times: [capacity, C] its event time.
        hists: newest histograms by name, each with its event time.
    """

    def __init__(self, counters: Sequence[str], hist_fields: Sequence[str], index: SeriesIndex) -> None:
        self._counters = tuple(counters)
        self._hist_fields = frozenset(hist_fields)
        self._index = index
        self._heard: Ints = np.zeros(0, np.int64)
        self.values: Floats = np.zeros((0, len(counters)))
        self.times: Ints = np.zeros((0, len(counters)), np.int64)
        self.hists: dict[int, dict[str, tuple[HistogramState, int]]] = {}

    def _grow(self) -> None:
        more = self._index.capacity - len(self._heard)
        if more:
            width = len(self._counters)
            self._heard = np.concatenate((self._heard, np.full(more, _NEVER)))
            self.values = np.concatenate((self.values, np.full((more, width), np.nan)))
            self.times = np.concatenate((self.times, np.zeros((more, width), np.int64)))

    def living(self) -> Ints:
        """Series heard in the last L slots."""
        return np.flatnonzero(self._heard != _NEVER)

    def load(self, slot: int, states: Iterable[SeriesState]) -> None:
        """Take in what a page says of its series."""
        at = {name: n for n, name in enumerate(self._counters)}
        for state in states:
            series = self._index.series(state.workload, state.source)
            self._grow()
            self._heard[series] = slot
            self.values[series] = np.nan
            for name, value in state.counters.items():
                if name in at:
                    self.values[series, at[name]] = value
                    self.times[series, at[name]] = state.older_ts_ms.get(name, state.ts_ms)
            hists = {
                name: (hist, state.older_ts_ms.get(name, state.ts_ms))
                for name, hist in state.hists.items()
                if name in self._hist_fields
            }
            self.put_hists(series, hists)

    def before(self, series: Ints) -> tuple[Floats, Ints]:
        """[m, C] last values, NaN where none, and their event times, of these series."""
        self._grow()
        return self.values[series], self.times[series]

    def hear(self, slot: int, series: Ints) -> None:
        """Note that a closing slot holds these series."""
        self._grow()
        self._heard[series] = slot

    def put(self, series: Ints, values: Floats, times: Ints) -> None:
        """Store the counters that series end a closed slot with."""
        self.values[series] = values
        self.times[series] = times

    def put_hists(self, series: int, hists: dict[str, tuple[HistogramState, int]]) -> None:
        """Store the histograms that a series ends a closed slot with."""
        if hists:
            self.hists[series] = hists
        else:
            self.hists.pop(series, None)

    def heard_since(self, slot: int) -> Ints:
        """Series heard in this slot or later."""
        return np.flatnonzero(self._heard >= slot)

    def forget(self, up_to_slot: int) -> None:
        """Drop the series not heard after this slot."""
        old = np.flatnonzero((self._heard <= up_to_slot) & (self._heard != _NEVER))
        if len(old):
            self._heard[old] = _NEVER
            self.values[old] = np.nan
            for series in old.tolist():
                self.hists.pop(series, None)
