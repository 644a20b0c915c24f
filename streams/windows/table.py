"""The window table: per workload the last L slots of every indicator, and a week of 10-minute means of demand.

It is read like a table (`table[workload]`, iteration, `len`) and has no changelog of its own: it is rebuilt from pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streams.catalogue import SOURCES, Indicator, Source
from streams.pages.facts_codec import PageFacts
from streams.pages.page import Page, WorkloadFacts
from streams.records.facts import BatchQueue, FleetFacts
from streams.windows.cells import full_observed, full_values, grow_rows, pack_full
from streams.windows.coarse import CoarseRing, CoarseRow, RunningCoarse

# Sources in the order of their columns.
_ORDER: tuple[Source, ...] = tuple(sorted(SOURCES))
_SOURCE_INDEX = {source: n for n, source in enumerate(_ORDER)}
# Reports of a fleet in a slot: none, no pending replicas, some pending replicas.
_SILENT, _IDLE, _PENDING = range(3)


@dataclass(frozen=True, slots=True)
class LastSample:
    """A source's newest slot with samples, and the event time of the newest of them."""

    slot: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class RecentFacts:
    """The facts of the last L slots about one workload.

    Attributes:
        fleet: replicas as last reported; None without a report.
        pending_since_ms: start of the unbroken period in which the fleet reports pending replicas; None without any.
        last_samples: the last sample of each source that had some.
        newest: facts of the newest slot by source.
        batch: the newest queue of each source of batch work, by its name.
    """

    fleet: FleetFacts | None
    pending_since_ms: int | None
    last_samples: Mapping[Source, LastSample]
    newest: Mapping[Source, WorkloadFacts]
    batch: tuple[BatchQueue, ...] = ()


class FactRing:
    """Facts of the last L slots, reduced to what readers ask for.

    | question | kept per row |
    |---|---|
    | last reported replicas | the newest fleet facts |
    | start of pending replicas | per slot and source: time of the report, and whether replicas were pending |
    | last sample of a source | its newest slot with samples, and the time of the newest sample |
    | queued work | the newest queue of each source of batch work |
    | facts of the newest slot | all of them |

    Args:
        context_steps: L.
        step_ms: slot length.
        capacity: rows.
    """

    def __init__(self, context_steps: int, step_ms: int, capacity: int) -> None:
        self._context_steps = context_steps
        self._step_ms = step_ms
        self._newest = _NEVER
        # Time of the fleet's report within the slot, and its kind; zero where there is none.
        offset = np.uint16 if step_ms <= 1 << 16 else np.uint32
        self._report_ms = np.zeros((capacity, context_steps, len(_ORDER)), offset)
        self._report = np.zeros((capacity, context_steps, len(_ORDER)), np.uint8)
        self._sample_slot = np.full((capacity, len(_ORDER)), _NEVER, np.int64)
        self._sample_ms = np.zeros((capacity, len(_ORDER)), np.int64)
        self._fleet: dict[int, tuple[FleetFacts, int]] = {}
        self._batch: dict[int, dict[str, BatchQueue]] = {}
        self._newest_facts: dict[Source, dict[int, WorkloadFacts]] = {source: {} for source in _ORDER}

    def grow(self, capacity: int) -> None:
        """Make room for more rows."""
        more = capacity - len(self._sample_slot)
        no_slots = np.full((more, len(_ORDER)), _NEVER, np.int64)
        self._sample_slot = np.concatenate([self._sample_slot, no_slots])
        self._sample_ms = np.concatenate([self._sample_ms, np.zeros_like(no_slots)])
        # These two are large: concatenating zeros would take memory for rows that are not written yet.
        self._report_ms = grow_rows(self._report_ms, capacity)
        self._report = grow_rows(self._report, capacity)

    def advance(self, slot: int, num_rows: int) -> None:
        """Make `slot` the newest, and drop the slots before the last L."""
        first = slot if self._newest == _NEVER else self._newest + 1
        for s in range(max(first, slot - self._context_steps + 1), slot + 1):
            self._report[:num_rows, s % self._context_steps] = _SILENT
        self._newest = slot
        for facts in self._newest_facts.values():
            facts.clear()

    def write(self, rows: NDArray[np.int64], slot: int, source: Source, facts: Sequence[WorkloadFacts]) -> None:
        """Store the facts of these rows in a slot within the last L."""
        n = _SOURCE_INDEX[source]
        columns = PageFacts.from_records(facts)
        if slot == self._newest:
            self._newest_facts[source].update(zip(rows.tolist(), columns, strict=True))
        sampled = columns.sampled()
        sampled_rows, newest_ms = rows[sampled], columns.newest_ts_ms()[sampled]
        newer = slot >= self._sample_slot[sampled_rows, n]
        self._sample_slot[sampled_rows[newer], n] = slot
        self._sample_ms[sampled_rows[newer], n] = newest_ms[newer]
        for k, queues in columns.columns.batch:
            newest_queues = self._batch.setdefault(int(rows[k]), {})
            for queue in queues:
                if queue.source not in newest_queues or queue.ts_ms > newest_queues[queue.source].ts_ms:
                    newest_queues[queue.source] = queue
        reports = columns.columns.fleet
        at = rows[[k for k, _ in reports]], slot % self._context_steps, n
        self._report_ms[at] = [fleet.ts_ms - slot * self._step_ms for _, fleet in reports]
        self._report[at] = [_PENDING if fleet.pending else _IDLE for _, fleet in reports]
        for row, (_, fleet) in zip(at[0].tolist(), reports, strict=True):
            # Of two sources at the same instant the first by name counts, whatever their order.
            newest = self._fleet.get(row)
            if newest is None or (fleet.ts_ms, -n) > (newest[0].ts_ms, -newest[1]):
                self._fleet[row] = fleet, n

    def clear(self, row: int) -> None:
        """Drop the facts of a row."""
        self._report[row] = _SILENT
        self._sample_slot[row] = _NEVER
        self._fleet.pop(row, None)
        self._batch.pop(row, None)
        for facts in self._newest_facts.values():
            facts.pop(row, None)

    def read(self, row: int) -> RecentFacts:
        """The facts of a row."""
        oldest = self._newest - self._context_steps + 1
        report = self._fleet.get(row)
        fleet = report[0] if report is not None and report[0].ts_ms >= oldest * self._step_ms else None
        last_samples = {
            source: LastSample(slot, ts_ms)
            for source, slot, ts_ms in zip(
                _ORDER, self._sample_slot[row].tolist(), self._sample_ms[row].tolist(), strict=True
            )
            if slot != _NEVER and slot >= oldest
        }
        since = self._pending_since_ms(row) if fleet is not None else None
        newest = {source: facts[row] for source, facts in self._newest_facts.items() if row in facts}
        batch = self._queues(row, oldest * self._step_ms) if row in self._batch else ()
        return RecentFacts(fleet, since, last_samples, newest, batch)

    def _queues(self, row: int, oldest_ms: int) -> tuple[BatchQueue, ...]:
        queues = {source: queue for source, queue in self._batch[row].items() if queue.ts_ms >= oldest_ms}
        self._batch[row] = queues
        return tuple(queues[source] for source in sorted(queues))

    def _pending_since_ms(self, row: int) -> int | None:
        for report in self._report[row, self._newest % self._context_steps, ::-1].tolist():
            if report:
                if report != _PENDING:
                    return None  # The usual case.
                break
        slots = np.arange(self._newest, self._newest - self._context_steps, -1)
        reports = self._report[row, slots % self._context_steps, ::-1].ravel()  # newest first
        reported = np.flatnonzero(reports)
        if not len(reported) or reports[reported[0]] != _PENDING:
            return None
        idle = np.flatnonzero(reports[reported] == _IDLE)
        last = int(reported[idle[0] - 1] if len(idle) else reported[-1])
        slot = int(slots[last // len(_ORDER)])
        n = len(_ORDER) - 1 - last % len(_ORDER)
        return slot * self._step_ms + int(self._report_ms[row, slot % self._context_steps, n])


_GROWTH_FACTOR = 1.25
_NEVER = -1


@dataclass(frozen=True, slots=True)
class Window:
    """One workload's view at the newest slot.

    Attributes:
        columns: indicator name -> column.
        values: float32 [L, N], oldest slot first, 0 where not observed.
        observed: bool [L, N].
        facts: facts of its slots beside the values.
        read_coarse: returns the newest 10-minute means of the C level-1 indicators, all without an argument, float32
            [1008, C], oldest first, 0 where not observed, and their mask, at the time of the call.
        observed_steps: number of slots in which each indicator was observed; counted unless it is given.
        read_day_ago: takes the column of a level-1 indicator and a number of rows; returns so many 10-minute means,
            from a day before the end of the newest slot on, None where not observed, at the time of the call.
    """

    workload: str
    columns: Mapping[str, int]
    values: NDArray[np.float32]
    observed: NDArray[np.bool_]
    facts: RecentFacts
    read_coarse: Callable[..., tuple[NDArray[np.float32], NDArray[np.bool_]]]
    observed_steps: Sequence[int] = ()
    read_day_ago: Callable[[int, int], tuple[float | None, ...]] = lambda _column, _rows: ()

    def __post_init__(self) -> None:
        if not self.observed_steps:
            object.__setattr__(self, "observed_steps", self.observed.sum(axis=0).tolist())

    def newest(self, indicator: str) -> float | None:
        """Value of an indicator in the newest slot; None when not observed or not in the catalogue."""
        n = self.columns.get(indicator)
        # `item` is faster than indexing, which makes a numpy scalar; this runs eight times per workload and slot.
        return self.values.item(-1, n) if n is not None and self.observed.item(-1, n) else None


class WindowTable:
    """Fine and coarse rings of one pages partition, filled from joined pages in slot order."""

    def __init__(self, catalogue: Sequence[Indicator], context_steps: int, step_ms: int, capacity: int = 64) -> None:
        self.catalogue = tuple(catalogue)
        self.context_steps = context_steps
        self.step_ms = step_ms
        self.newest: int | None = None
        self._column = {indicator.name: n for n, indicator in enumerate(self.catalogue)}
        coarse_names = tuple(i.name for i in self.catalogue if i.level == 1)
        self.num_coarse = len(coarse_names)
        self._row: dict[str, int] = {}
        self._paged: tuple[tuple[str, ...], NDArray[np.int64]] = (), np.zeros(0, np.int64)
        self._free: list[int] = []
        self._num_rows = 0
        self._last_seen = np.full(capacity, _NEVER, np.int64)
        self._cells = np.zeros((capacity, context_steps, len(self.catalogue)), np.float32)
        self._facts = FactRing(context_steps, step_ms, capacity)
        self._coarse = CoarseRing(coarse_names, step_ms, capacity)
        self._running: RunningCoarse | None = None

    # Reading.

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._row))

    def __contains__(self, workload: str) -> bool:
        return workload in self._row

    def __getitem__(self, workload: str) -> Window:
        return self.windows((workload,))[0]

    def windows(self, workloads: Sequence[str]) -> list[Window]:
        """Views of several workloads, read at once; the table never writes to their memory."""
        rows = [self._row[workload] for workload in workloads]
        length = self.context_steps
        slots = np.arange(self._require_newest() + 1, self._require_newest() + 1 + length) % length
        cells = self._cells[np.array(rows)[:, None], slots]  # [R, L, N]
        values, observed = full_values(cells), full_observed(cells)
        steps = observed.sum(axis=1, dtype=np.int32).tolist()
        end_ms = (self._require_newest() + 1) * self.step_ms
        return [
            Window(
                workload=workload,
                columns=self._column,
                values=values[k],
                observed=observed[k],
                facts=self._facts.read(row),
                read_coarse=partial(self._coarse.read, row),
                observed_steps=steps[k],
                read_day_ago=partial(self._coarse.day_ago, row, end_ms),
            )
            for k, (workload, row) in enumerate(zip(workloads, rows, strict=True))
        ]

    def last_seen(self, workload: str) -> int:
        """Newest slot in which the workload had a sample or a fact."""
        return int(self._last_seen[self._row[workload]])

    def newest_values(self, indicator: str) -> dict[str, float]:
        """Values of an indicator in the newest slot, by workload, where it is observed."""
        cells = self._cells[: self._num_rows, self._require_newest() % self.context_steps, self._column[indicator]]
        values, observed = full_values(cells).tolist(), full_observed(cells).tolist()
        return {w: values[row] for w, row in self._row.items() if observed[row]}

    # Filling.

    def advance(self, slot: int) -> None:
        """Make `slot` the newest, and drop the slots before the last L."""
        first = slot if self.newest is None else self.newest + 1
        for s in range(max(first, slot - self.context_steps + 1), slot + 1):
            self._cells[: self._num_rows, s % self.context_steps] = 0
        if self.newest is not None and not self._coarse.goes_on(self.newest, slot):
            # After a jump over slots, the sums belong to an earlier ten minutes that no slot has completed.
            self._coarse.restart()
            self._running = None
        self.newest = slot
        self._facts.advance(slot, self._num_rows)

    def write(self, page: Page) -> None:
        """Store a page whose slot lies within the last L slots; indicators are matched by name."""
        newest = self._require_newest()
        if not newest - self.context_steps < page.slot <= newest:
            return
        columns = [(k, self._column[name]) for k, name in enumerate(page.indicators) if name in self._column]
        if not page.workloads:
            return
        rows = self._rows_of(page.workloads)
        if columns:
            from_columns, to_columns = map(list, zip(*columns, strict=True))
            cells = pack_full(page.values[:, from_columns], page.observed[:, from_columns])
            self._cells[rows[:, None], page.slot % self.context_steps, to_columns] = cells
        self._last_seen[rows] = np.maximum(self._last_seen[rows], page.slot)
        self._facts.write(rows, page.slot, page.source, page.facts)

    def unseen(self) -> list[str]:
        """Workloads without a sample or fact in the last L slots, sorted."""
        last_seen = self._last_seen[: self._num_rows]
        is_gone = (last_seen != _NEVER) & (last_seen <= self._require_newest() - self.context_steps)
        return sorted(w for w, row in self._row.items() if is_gone[row]) if is_gone.any() else []

    def remove(self, workload: str) -> None:
        """Drop a workload and free its row."""
        row = self._row.pop(workload)
        self._paged = (), self._paged[1][:0]
        self._cells[row] = 0
        self._facts.clear(row)
        self._coarse.clear(row)
        self._last_seen[row] = _NEVER
        self._free.append(row)

    def reserve(self, workloads: int) -> None:
        """Make room for so many workloads at once, which saves copies."""
        if workloads > len(self._cells):
            self._grow(workloads)

    def _rows_of(self, workloads: tuple[str, ...]) -> NDArray[np.int64]:
        """Rows of a page's workloads, cached because consecutive pages mostly hold the same."""
        if workloads != self._paged[0]:
            self._paged = workloads, np.array([self._row_of(w) for w in workloads], np.int64)
        return self._paged[1]

    def _row_of(self, workload: str) -> int:
        row = self._row.get(workload)
        if row is None:
            row = self._free.pop() if self._free else self._num_rows
            if row == self._num_rows:
                self._num_rows += 1
            if row >= len(self._cells):
                # A small factor, because the old and the new copy are in memory at the same time.
                self._grow(int(_GROWTH_FACTOR * len(self._cells)) + 64)
            self._row[workload] = row
            if self._running is not None and workload in self._running.sums:
                self._coarse.restore_running(row, self._running, workload)
        return row

    def _grow(self, capacity: int) -> None:
        # New rows of cells take memory only when they are written.
        self._cells = grow_rows(self._cells, capacity)
        self._last_seen = np.concatenate([self._last_seen, np.full(capacity - len(self._last_seen), _NEVER)])
        self._facts.grow(capacity)
        self._coarse.grow(capacity)

    def _require_newest(self) -> int:
        if self.newest is None:
            raise LookupError("the window table has no slot yet")
        return self.newest

    # The coarse ring.

    def accumulate_coarse(self) -> CoarseRow | None:
        """Add the newest slot to its ten minutes; returns the row if this slot completes it."""
        slot = self._require_newest()
        cells = self._cells[: self._num_rows, slot % self.context_steps, : self.num_coarse]
        self._running = None
        return self._coarse.add(slot, self._row, full_values(cells), full_observed(cells))

    def write_coarse(self, row: CoarseRow) -> None:
        """Store ten minutes of means of the workloads of the table; rows come in ascending order of index."""
        self._coarse.write(row, self._row)

    def running_coarse(self) -> RunningCoarse:
        """The running ten minutes, for the commit record."""
        return self._coarse.running(self._row)

    def restore_running_coarse(self, running: RunningCoarse) -> None:
        """Restore the running ten minutes of a commit record; those of workloads that come later are set then."""
        self._running = running
        for workload, row in self._row.items():
            if workload in running.sums:
                self._coarse.restore_running(row, running, workload)
