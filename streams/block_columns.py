"""A block of closed slots as the columns of its pages: what was told per workload, what is remembered per source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streams.facts_codec import FactColumns, SeriesColumns
from streams.indicators import SlotValues
from streams.pages import BatchQueue, FleetFacts, HistogramState, OutcomeFact, SloCounts
from streams.sample_run import Floats, Ints
from streams.slot_block import SlotBlock
from streams.slot_table import Newest
from streams.slots import OpenSlot

_CENSORED, _RESET = 1, 2

# Rows of histograms, and which of them are older than their series' newest sample.
HistRows = tuple[list[tuple[int, str, HistogramState]], list[tuple[int, str, int]]]


class FactRows:
    """Per row of a block: samples, newest event time, sources and flags."""

    def __init__(self, block: SlotBlock, values: SlotValues) -> None:
        num_rows = block.row_cuts[-1]
        self._block = block
        self._num_samples = np.bincount(block.rows[block.series_of], minlength=num_rows).astype("<i4")
        self._newest = np.zeros(num_rows, np.int64)
        np.maximum.at(self._newest, block.rows, block.newest)
        self._sources_seen = np.bincount(block.rows, minlength=num_rows).astype("<i4")
        self._flags = (_CENSORED * values.censored + _RESET * values.reset).astype(np.uint8)

    def of(self, at: int, workloads: Sequence[str], opened: OpenSlot, sources_known: Ints) -> FactColumns:
        """The facts of one of the slots."""
        rows = slice(self._block.row_cuts[at], self._block.row_cuts[at + 1])
        num_samples, newest = self._num_samples[rows], self._newest[rows]
        fleet: list[tuple[int, FleetFacts]] = []
        outcomes: list[tuple[int, tuple[OutcomeFact, ...]]] = []
        batch: list[tuple[int, tuple[BatchQueue, ...]]] = []
        slo: list[tuple[int, tuple[SloCounts, ...]]] = []
        for row, workload in enumerate(workloads if any(opened.workloads.values()) else ()):
            news = opened.workloads.get(workload)
            if news is None:
                continue
            if not num_samples[row]:
                newest[row] = news.newest_ts_ms()
            told = news.newest_fleet()
            if told is not None:
                fleet.append((row, told))
            if news.outcomes:
                outcomes.append((row, news.sorted_outcomes()))
            if queues := news.queues():
                batch.append((row, queues))
            if counts := news.slo():
                slo.append((row, counts))
        return FactColumns(
            num_samples=num_samples.tobytes(),
            newest_ts_ms=newest.astype("<i8").tobytes(),
            sources_seen=self._sources_seen[rows].tobytes(),
            sources_known=sources_known.astype("<i4").tobytes(),
            flags=self._flags[rows].tobytes(),
            fleet=tuple(fleet),
            outcomes=tuple(outcomes),
            batch=tuple(batch),
            slo=tuple(slo),
        )


class SeriesRows:
    """Per series of a block: the newest value of each counter, with its own time where the newest sample left it out.

    Attributes:
        values, times: [m, C], NaN where none was ever heard.
    """

    def __init__(
        self, block: SlotBlock, counters: Sequence[str], newest: Newest, before: Floats, before_ts_ms: Ints
    ) -> None:
        self.values: Floats = np.where(newest.present, newest.last, before)
        self.times: Ints = np.where(newest.present, newest.last_ts_ms, before_ts_ms)
        self._block = block
        self._counters = tuple(counters)
        self._there = ~np.isnan(self.values)
        self._cells = np.where(self._there, self.values, 0.0).astype("<f8", copy=False)
        self._older = np.argwhere(self._there & (self.times != block.newest[:, None]))
        first_rows = np.repeat(block.row_cuts[:-1], np.diff(block.cuts))
        self._rows = (block.rows - first_rows).astype("<i4")

    def of(self, at: int, sources: Sequence[str], hists: HistRows) -> SeriesColumns:
        """The series of one of the slots; `sources` are their names."""
        first, end = self._block.cuts[at], self._block.cuts[at + 1]
        there, cells = self._there[first:end], self._cells[first:end]
        names = self._counters
        if not there.all():
            used = np.flatnonzero(there.any(axis=0))
            there, cells = there[:, used], cells[:, used]
            names = tuple(names[column] for column in used.tolist())
        elif not len(there):
            names = ()
        hist_rows, older = hists
        begin, stop = np.searchsorted(self._older[:, 0], (first, end))
        older = [
            *older,
            *(
                (series - first, self._counters[column], int(self.times[series, column]))
                for series, column in self._older[begin:stop].tolist()
            ),
        ]
        return SeriesColumns(
            workload_rows=self._rows[first:end].tobytes(),
            sources=tuple(sources),
            ts_ms=self._block.newest[first:end].astype("<i8").tobytes(),
            names=names,
            counters=cells.tobytes(),
            present=np.packbits(there).tobytes(),
            hists=tuple(hist_rows),
            older_ts_ms=tuple(sorted(older)),
        )
