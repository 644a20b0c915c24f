"""State of workloads and series between slots: a pure function of the last L pages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from streams.ingest.aggregate_kernel import NEVER, CounterStates
from streams.pages.facts_codec import PageSeries
from streams.records.facts import HistogramState
from streams.records.samples import Floats, Ints
from streams.records.series_index import SeriesIndex


class Roster:
    """Workloads by the newest closed slot that held them.

    Args:
        index: numbers the workloads.
    """

    def __init__(self, index: SeriesIndex) -> None:
        self._index = index
        self._last_seen: Ints = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._last_seen != NEVER))

    def newest_slot(self, workload: str) -> int:
        """Newest closed slot that held the workload; `NEVER` where none did."""
        publisher = self._index.publishers.get(workload)
        return NEVER if publisher is None else int(self.last_seen()[publisher.number])

    def __iter__(self) -> Iterator[str]:
        return map(self._index.name_of, np.flatnonzero(self._last_seen != NEVER).tolist())

    def last_seen(self) -> Ints:
        """[names] newest closed slot of each workload number, `NEVER` for those of none; to read and to write."""
        more = self._index.num_names - len(self._last_seen)
        if more > 0:
            self._last_seen = np.concatenate((self._last_seen, np.full(more + len(self._last_seen), NEVER)))
        return self._last_seen

    def mark(self, workloads: Collection[str], slot: int) -> None:
        """Note that a closed slot holds the workloads; slots in ascending order."""
        numbers = self._index.numbers_of(tuple(workloads))
        self.last_seen()[numbers] = slot


class SeriesTable:
    """Last counter values and histograms of every series, by series number. Slots must be put in ascending order.

    Args:
        counters: names to remember, ascending; C of them.
        hist_fields: histograms to remember.
        index: of the series.

    Attributes:
        values: [capacity, C] newest value of each counter, NaN where none was observed.
        times: [capacity, C] its event time.
        hists: newest histograms by name, each with its event time.
    """

    def __init__(self, counters: Sequence[str], hist_fields: Sequence[str], index: SeriesIndex) -> None:
        self._counters = tuple(counters)
        self._hist_fields = frozenset(hist_fields)
        self._index = index
        self._last_slot: Ints = np.zeros(0, np.int64)
        self.values: Floats = np.zeros((0, len(counters)))
        self.times: Ints = np.zeros((0, len(counters)), np.int64)
        self.hists: dict[int, dict[str, tuple[HistogramState, int]]] = {}
        self._cached_numbers: tuple[list[str], tuple[str, ...], Ints] = ([], (), np.zeros(0, np.int64))

    def _grow(self) -> None:
        more = self._index.capacity - len(self._last_slot)
        if more:
            width = len(self._counters)
            self._last_slot = np.concatenate((self._last_slot, np.full(more, NEVER)))
            self.values = np.concatenate((self.values, np.full((more, width), np.nan)))
            self.times = np.concatenate((self.times, np.zeros((more, width), np.int64)))

    def living(self) -> Ints:
        """Numbers of the series with a sample in the last L slots."""
        return np.flatnonzero(self._last_slot != NEVER)

    def load(self, slot: int, states: PageSeries) -> None:
        """Load the series of a page."""
        series, ts_ms, columns = self._numbers_of(states), states.ts_ms(), states.columns
        self._grow()
        self._last_slot[series] = slot
        self.values[series] = np.nan
        at = {name: n for n, name in enumerate(self._counters)}
        counters, there = states.counters()
        for k, name in enumerate(columns.names):
            if name in at:
                cells = series[there[:, k]], at[name]
                self.values[cells], self.times[cells] = counters[there[:, k], k], ts_ms[there[:, k]]
        older = {(row, name): older_ms for row, name, older_ms in columns.older_ts_ms}
        for (row, name), older_ms in older.items():
            if name in at:
                self.times[series[row], at[name]] = older_ms
        hists: dict[int, dict[str, tuple[HistogramState, int]]] = {}
        for row, name, hist in columns.hists:
            if name in self._hist_fields:
                hists.setdefault(row, {})[name] = hist, older.get((row, name), int(ts_ms[row]))
        for row, number in enumerate(series.tolist() if hists or self.hists else ()):
            self.put_hists(number, hists.get(row, {}))

    def _numbers_of(self, states: PageSeries) -> Ints:
        """[m] series numbers, cached because consecutive pages mostly hold the same series."""
        names = states.workloads(), states.columns.sources
        if names != self._cached_numbers[:2]:
            self._cached_numbers = *names, np.array(list(map(self._index.series, *names)), np.int64)
        return self._cached_numbers[2]

    def columns(self) -> CounterStates:
        """The states of all series numbers; to read and to write."""
        self._grow()
        return CounterStates(self.values, self.times, self._last_slot)

    def put_hists(self, series: int, hists: dict[str, tuple[HistogramState, int]]) -> None:
        """Store the histograms that a series ends a closed slot with."""
        if hists:
            self.hists[series] = hists
        else:
            self.hists.pop(series, None)

    def forget_hists(self, up_to_slot: int) -> None:
        """Drop the histograms of series without a sample after this slot."""
        for series in [series for series in self.hists if self._last_slot[series] <= up_to_slot]:
            del self.hists[series]
