"""A block of closed slots as the columns of its pages: what was told per workload, what is remembered per source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streams.close_columns import CELLS, OLDER, PRESENT, ROWS, SERIES, Columns
from streams.ingest.slots import SlotNews
from streams.pages.facts_codec import FactColumns, SeriesColumns
from streams.pages.page import BatchQueue, FleetFacts, HistogramState, OutcomeFact, SloCounts
from streams.records.samples import Bools, Ints, Singles
from streams.records.series_index import SeriesIndex

_NOBODY: Ints = np.zeros(0, np.int64)

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
        self._same: list[bool]
        self._refused: list[int]
        # Names of the slot looked at last, by their numbers. Its series are remembered, so that none of these numbers
        # has come to mean anything else when the next slot closes.
        self._numbers: tuple[Ints, Ints] = _NOBODY, _NOBODY
        self._workloads: tuple[str, ...] = ()
        self._sources: tuple[str, ...] = ()
        self._rows: bytes
        self._names_of: dict[bytes, tuple[str, ...]] = {}

    def load(self, block: Columns, num_slots: int) -> None:
        """Take up a block of slots that was just closed."""
        self._block = block
        self._cuts = block.cuts[: num_slots + 1].tolist()
        self._same = block.same[:num_slots].tolist()
        self._refused = block.refused[:num_slots].tolist()

    def workloads(self, at: int) -> tuple[str, ...]:
        """Workloads of a slot's page, ascending; slots are looked at in order."""
        if not self._same[at]:
            rows, series = self._part(at, ROWS), self._part(at, SERIES)
            numbers = self._block.workload[rows], self._block.series[series]
            if not all(map(np.array_equal, numbers, self._numbers)):
                self._numbers = numbers[0].copy(), numbers[1].copy()
                self._workloads = tuple(self._index.names_of(numbers[0]))
                self._sources = tuple(self._index.sources_of(numbers[1]))
            self._rows = self._block.row[series].tobytes()
        return self._workloads

    def values(self, at: int) -> tuple[Singles, Bools]:
        """Values [k, N] and mask of a slot's page."""
        rows = self._part(at, ROWS)
        return self._block.values[rows], self._block.observed[rows]

    def refused(self, at: int) -> int:
        """Samples of a slot whose workloads were not admitted."""
        return self._refused[at]

    def _part(self, at: int, of: int) -> slice:
        return slice(self._cuts[at][of], self._cuts[at + 1][of])

    def facts(self, at: int, workloads: Sequence[str], news: SlotNews | None) -> FactColumns:
        """The facts of a slot; `news` is None where there is none but of samples."""
        block, rows = self._block, self._part(at, ROWS)
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
            num_samples=num_samples.tobytes(),
            newest_ts_ms=newest.tobytes(),
            sources_seen=block.sources_seen[rows].tobytes(),
            sources_known=block.sources_known[rows].tobytes(),
            flags=block.flags[rows].tobytes(),
            fleet=tuple(fleet),
            outcomes=tuple(outcomes),
            batch=tuple(batch),
            slo=tuple(slo),
        )

    def series(self, at: int, hists: HistRows) -> SeriesColumns:
        """The series of a slot, after its `workloads`."""
        block, hist_rows, older = self._block, *hists
        late = block.older[self._part(at, OLDER)].tolist() if self._cuts[at][OLDER] < self._cuts[at + 1][OLDER] else ()
        return SeriesColumns(
            workload_rows=self._rows,
            sources=self._sources,
            ts_ms=block.series_ms[self._part(at, SERIES)].tobytes(),
            names=self._used(block.used[at]),
            counters=block.cells[self._part(at, CELLS)].tobytes(),
            present=block.present[self._part(at, PRESENT)].tobytes(),
            hists=tuple(hist_rows),
            older_ts_ms=tuple(sorted([*older, *((row, self._counters[c], ts_ms) for row, c, ts_ms in late)])),
        )

    def _used(self, used: Bools) -> tuple[str, ...]:
        found = self._names_of.get(key := used.tobytes())
        if found is None:
            found = tuple(name for name, there in zip(self._counters, used.tolist(), strict=True) if there)
            self._names_of[key] = found
        return found
