"""A block of closed slots as the columns of its pages: what was told per workload, what is remembered per source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streams.close_loop import Columns
from streams.facts_codec import FactColumns, SeriesColumns
from streams.pages import BatchQueue, FleetFacts, HistogramState, OutcomeFact, SloCounts
from streams.sample_run import Bools, Floats, Ints, Singles
from streams.series_index import SeriesIndex
from streams.slots import SlotNews

# Rows of histograms, and which of them are older than their series' newest sample.
HistRows = tuple[list[tuple[int, str, HistogramState]], list[tuple[int, str, int]]]


class BlockOfPages:
    """The pages of a block, cut out of its columns one after the other.

    Args:
        counters: names of the counters.
        index: names the workloads and series.
    """

    def __init__(self, counters: Sequence[str], index: SeriesIndex) -> None:
        self._counters = tuple(counters)
        self._index = index
        self._block: Columns
        self._cuts: list[list[int]]
        self._whole = False
        self._names: tuple[str, ...] = ()
        self._cells: Floats

    def load(self, block: Columns) -> None:
        """Take up a block that was just closed."""
        self._block = block
        self._cuts = block.cuts.tolist()
        m = self._cuts[-1][1]
        # The ordinary case, in which no slot needs a closer look: each counter is there in every series, told by its
        # newest sample, or in none.
        there = block.there[:m]
        in_all = there.all(axis=0)
        used = np.flatnonzero(in_all)
        told = block.times[:m, used] == block.series_ms[:m, None]
        self._whole = bool(m and not there[:, ~in_all].any() and told.all())
        if self._whole:
            self._names = tuple(self._counters[column] for column in used.tolist())
            self._cells = np.ascontiguousarray(block.counters[:m, used], "<f8")

    def workloads(self, at: int) -> tuple[str, ...]:
        """Workloads of a slot's page, ascending."""
        return tuple(self._index.names_of(self._block.workload[self._cuts[at][0] : self._cuts[at + 1][0]]))

    def values(self, at: int) -> tuple[Singles, Bools]:
        """Values [k, N] and mask of a slot's page."""
        rows = slice(self._cuts[at][0], self._cuts[at + 1][0])
        return self._block.values[rows], self._block.observed[rows]

    def facts(self, at: int, workloads: Sequence[str], news: SlotNews | None) -> FactColumns:
        """The facts of a slot; `news` is None where there is none but of samples."""
        block, rows = self._block, slice(self._cuts[at][0], self._cuts[at + 1][0])
        num_samples, newest = block.num_samples[rows], block.newest_ms[rows]
        fleet: list[tuple[int, FleetFacts]] = []
        outcomes: list[tuple[int, tuple[OutcomeFact, ...]]] = []
        batch: list[tuple[int, tuple[BatchQueue, ...]]] = []
        slo: list[tuple[int, tuple[SloCounts, ...]]] = []
        for row, workload in enumerate(workloads if news is not None else ()):
            told = news.workloads.get(workload) if news is not None else None
            if told is None:
                continue
            if not num_samples[row]:
                newest[row] = told.newest_ts_ms()
            replicas = told.newest_fleet()
            if replicas is not None:
                fleet.append((row, replicas))
            if told.outcomes:
                outcomes.append((row, told.sorted_outcomes()))
            if queues := told.queues():
                batch.append((row, queues))
            if counts := told.slo():
                slo.append((row, counts))
        return FactColumns(
            num_samples=num_samples.astype("<i4", copy=False).tobytes(),
            newest_ts_ms=newest.astype("<i8", copy=False).tobytes(),
            sources_seen=block.sources_seen[rows].astype("<i4", copy=False).tobytes(),
            sources_known=block.sources_known[rows].astype("<i4", copy=False).tobytes(),
            flags=block.flags[rows].tobytes(),
            fleet=tuple(fleet),
            outcomes=tuple(outcomes),
            batch=tuple(batch),
            slo=tuple(slo),
        )

    def series(self, at: int, hists: HistRows) -> SeriesColumns:
        """The series of a slot."""
        block, series = self._block, slice(self._cuts[at][1], self._cuts[at + 1][1])
        hist_rows, older = hists
        if self._whole and series.start < series.stop:
            names, cells = self._names, self._cells[series]
            present = np.full(cells.size // 8 + 1, 0xFF, np.uint8)[: (cells.size + 7) // 8]
            if cells.size % 8:
                present[-1] = 0xFF << (8 - cells.size % 8) & 0xFF
        else:
            there = block.there[series]
            used = np.flatnonzero(there.any(axis=0))
            stale = there & (block.times[series] != block.series_ms[series, None])
            older = [*older, *self._older(stale, block.times[series])]
            names = tuple(self._counters[column] for column in used.tolist())
            cells = block.counters[series][:, used].astype("<f8", copy=False)
            present = np.packbits(there[:, used])
        return SeriesColumns(
            workload_rows=block.row[series].astype("<i4", copy=False).tobytes(),
            sources=tuple(self._index.sources_of(block.series[series])),
            ts_ms=block.series_ms[series].astype("<i8", copy=False).tobytes(),
            names=names,
            counters=cells.tobytes(),
            present=present.tobytes(),
            hists=tuple(hist_rows),
            older_ts_ms=tuple(sorted(older)),
        )

    def _older(self, stale: Bools, times: Ints) -> list[tuple[int, str, int]]:
        return [(row, self._counters[c], int(times[row, c])) for row, c in np.argwhere(stale).tolist()]
