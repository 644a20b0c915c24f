"""What is remembered of sources and workloads between slots: a pure function of the last L pages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from streams.ingest.aggregate_kernel import NEVER, Remembered
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
        """Newest closed slot that held the workload, `NEVER` where it is of none."""
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
        self._named: tuple[list[str], tuple[str, ...], Ints] = ([], (), np.zeros(0, np.int64))

    def _grow(self) -> None:
        more = self._index.capacity - len(self._heard)
        if more:
            width = len(self._counters)
            self._heard = np.concatenate((self._heard, np.full(more, NEVER)))
            self.values = np.concatenate((self.values, np.full((more, width), np.nan)))
            self.times = np.concatenate((self.times, np.zeros((more, width), np.int64)))

    def living(self) -> Ints:
        """Series heard in the last L slots."""
        return np.flatnonzero(self._heard != NEVER)

    def load(self, slot: int, states: PageSeries) -> None:
        """Take in what a page says of its series."""
        series, ts_ms, columns = self._numbers_of(states), states.ts_ms(), states.columns
        self._grow()
        self._heard[series] = slot
        self.values[series] = np.nan
        at = {name: n for n, name in enumerate(self._counters)}
        counters, there = states.counters()
        for k, name in enumerate(columns.names):
            if name in at:
                told = series[there[:, k]], at[name]
                self.values[told], self.times[told] = counters[there[:, k], k], ts_ms[there[:, k]]
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
        """[m] series numbers; of one page after the other they are mostly the same."""
        names = states.workloads(), states.columns.sources
        if names != self._named[:2]:
            self._named = *names, np.array(list(map(self._index.series, *names)), np.int64)
        return self._named[2]

    def columns(self) -> Remembered:
        """What is remembered, for every series number there is; to read and to write."""
        self._grow()
        return Remembered(self.values, self.times, self._heard)

    def put_hists(self, series: int, hists: dict[str, tuple[HistogramState, int]]) -> None:
        """Store the histograms that a series ends a closed slot with."""
        if hists:
            self.hists[series] = hists
        else:
            self.hists.pop(series, None)

    def forget_hists(self, up_to_slot: int) -> None:
        """Drop the histograms of series not heard after this slot."""
        for series in [series for series in self.hists if self._heard[series] <= up_to_slot]:
            del self.hists[series]
