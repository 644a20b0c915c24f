"""Open slots: their samples in one pool of rows, and their other facts by workload, until the slot closes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from streams.config import StreamConfig
from streams.ingest.aggregate_kernel import PooledSamples
from streams.ingest.pool_kernel import (
    ACCEPTED,
    DUPLICATE,
    LATE,
    NOBODY,
    REFUSED,
    PoolRows,
    SlotList,
    index_rows,
    open_slot,
    release_slots,
    rows_from,
    take_run,
)
from streams.ingest.series import Roster
from streams.records.facts import BatchQueue, FleetFacts, OutcomeFact, SloCounts
from streams.records.samples import Bools, Hists, Ints, SampleRun
from streams.records.schema import Facts, FleetRecord, SourceRecord
from streams.records.series_index import SeriesIndex

__all__ = ["MAX_SOURCES_PER_WORKLOAD", "VERDICTS", "OpenSlot", "OpenSlots"]


# Capacity of a new pool and of its list of open slots; both double when they are full.
_INITIAL_ROWS = 1024
_INITIAL_SLOTS = 64


class SamplePool:
    """The samples of all open slots of a partition in one set of columns, and the list of open slots.

    Rows are reused as slots close.

    Args:
        width: F, columns of the samples.
        step_ms: slot length.

    Attributes:
        rows, slots: arguments of the compiled loops; `take` and `open` may replace them by larger ones.
    """

    def __init__(self, width: int, step_ms: int) -> None:
        self._step_ms = step_ms
        self._width = width
        self.rows = self._empty(_INITIAL_ROWS)
        self.slots = SlotList(*(np.zeros(_INITIAL_SLOTS, np.int64) for _ in SlotList._fields))

    def _empty(self, size: int) -> PoolRows:
        return PoolRows(
            series=np.full(size, NOBODY),
            ts_ms=np.zeros(size, np.int64),
            values=np.zeros((size, self._width)),
            following=np.full(size, NOBODY),
            free=np.arange(size - 1, -1, -1),
            places=np.full(2 * size, NOBODY),
            counts=np.array([size, 0]),
        )

    @property
    def num_slots(self) -> int:
        """Open slots."""
        return int(self.rows.counts[1])

    def series(self) -> Ints:
        """Series numbers of all samples."""
        numbers: Ints = self.rows.series[self.rows.series != NOBODY]
        return numbers

    def take(self, run: SampleRun, closed: Ints) -> tuple[Ints, Ints]:
        """Put samples into their slots.

        Args:
            closed: [R] newest closed slot when each record was read.

        Returns:
            [R, 4] number of samples of each record by verdict; [n] the row of each sample, -1 where it was not taken.
        """
        n = len(run.series)
        self._make_room(n)
        tally, row_of = np.zeros((len(run.sizes), 4), np.int64), np.empty(n, np.int64)
        take_run(
            self.rows,
            self.slots,
            self._step_ms,
            run.offsets,
            run.sizes,
            closed,
            np.ascontiguousarray(run.series),
            np.ascontiguousarray(run.ts_ms),
            np.ascontiguousarray(run.values),
            tally,
            row_of,
        )
        return tally, row_of

    def open(self, slot: int, offset: int) -> int:
        """Place of a slot in the list; the record at `offset` opens it if it is not open yet."""
        newest = self.num_slots - 1
        if newest >= 0 and self.slots.slot[newest] == slot:
            return newest  # The usual case, ten times as fast as the compiled search.
        self._make_room(1)
        place: int = open_slot(self.rows, self.slots, slot, offset)
        return place

    def rows_from(self, row: int, size: int) -> Ints:
        """`size` rows of a slot in log order, from this one on."""
        slot_rows: Ints = rows_from(self.rows, row, size)
        return slot_rows

    def samples(self) -> PooledSamples:
        """The columns that closing a slot reads."""
        rows = self.rows
        return PooledSamples(rows.series, rows.ts_ms, rows.values, rows.following)

    def release(self, heads: Ints) -> None:
        """Free the rows of closed slots, by the first row of each."""
        release_slots(self.rows, heads)

    def drop_slots(self, num: int) -> None:
        """Remove the first `num` slots from the list; their samples stay until they are released."""
        left = self.num_slots - num
        for column in self.slots:
            column[:left] = column[num : num + left]
        self.rows.counts[1] = left

    def _make_room(self, num: int) -> None:
        free, num_slots = self.rows.counts.tolist()
        if num_slots + num > len(self.slots.slot):
            more = np.zeros(num_slots + num, np.int64)
            self.slots = SlotList(*(np.concatenate((column, more)) for column in self.slots))
        if free >= num:
            return
        before, size = self.rows, len(self.rows.series)
        grown = size
        while grown - size + free < num:
            grown *= 2
        rows = self._empty(grown)
        for column, old in zip(rows[:4], before[:4], strict=True):
            column[:size] = old
        # The new rows go to the bottom of the stack, so that the rows that were free before are used first.
        new = grown - size
        rows.free[:new] = np.arange(grown - 1, size - 1, -1)
        rows.free[new : new + free] = before.free[:free]
        rows.counts[:] = new + free, num_slots
        index_rows(rows)
        self.rows = rows


# Sources of one workload in one slot: a publisher that makes up a new name per sample must not fill the memory.
MAX_SOURCES_PER_WORKLOAD = 4096

# The fate of a sample, named like the counter that it increases; `samples` means taken.
Verdict = Literal["samples", "late", "duplicate", "refused"]


@dataclass(slots=True)
class OpenWorkloadFacts:
    """Facts of one workload in an open slot: replica counts, outcomes, queued work and SLO counts."""

    fleet: dict[tuple[int, str], FleetFacts] = field(default_factory=dict)
    outcomes: set[OutcomeFact] = field(default_factory=set)
    reports: dict[tuple[int, str, type], BatchQueue | SloCounts] = field(default_factory=dict)

    def add_fleet(self, source: str, facts: FleetFacts) -> Verdict:
        """Add the replica counts that a source reports."""
        if (facts.ts_ms, source) in self.fleet:
            return "duplicate"
        if len(self.fleet) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.fleet[facts.ts_ms, source] = facts
        return "samples"

    def add_outcome(self, fact: OutcomeFact) -> Verdict:
        """Add the outcome of a command."""
        if fact in self.outcomes:
            return "duplicate"
        if len(self.outcomes) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.outcomes.add(fact)
        return "samples"

    def __len__(self) -> int:
        return len(self.fleet) + len(self.outcomes) + len(self.reports)

    def add_report(self, report: BatchQueue | SloCounts) -> Verdict:
        """Add what a source reports of the workload as a whole."""
        if (report.ts_ms, report.source, type(report)) in self.reports:
            return "duplicate"
        if len(self.reports) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.reports[report.ts_ms, report.source, type(report)] = report
        return "samples"

    def newest_ts_ms(self) -> int:
        """Event time of the newest fact."""
        return max(fact.ts_ms for fact in (*self.fleet.values(), *self.reports.values(), *self.outcomes))

    def queues(self) -> tuple[BatchQueue, ...]:
        """The latest queue of each source, by its name."""
        return tuple(r for r in self._newest(BatchQueue) if isinstance(r, BatchQueue))

    def slo(self) -> tuple[SloCounts, ...]:
        """The latest SLO counts of each source, by its name."""
        return tuple(r for r in self._newest(SloCounts) if isinstance(r, SloCounts))

    def _newest(self, kind: type) -> list[BatchQueue | SloCounts]:
        if not self.reports:
            return []
        by_time = sorted(self.reports.items(), key=lambda entry: entry[0][0])
        newest = {key[1]: report for key, report in by_time if key[2] is kind}
        return [newest[source] for source in sorted(newest)]

    def newest_fleet(self) -> FleetFacts | None:
        """The latest replica counts; of two sources at the same instant the one last by name."""
        return self.fleet[max(self.fleet)] if self.fleet else None

    def sorted_outcomes(self) -> tuple[OutcomeFact, ...]:
        """Outcomes by time, so that a page does not depend on the order of arrival."""
        return tuple(sorted(self.outcomes, key=_outcome_order))


def _outcome_order(fact: OutcomeFact) -> tuple[int, str, str, int, float]:
    return (
        fact.ts_ms,
        fact.command_id,
        fact.status,
        -1 if fact.replicas_ready is None else fact.replicas_ready,
        -1.0 if fact.lead_time_s is None else fact.lead_time_s,
    )


_BEFORE_FIRST_OFFSET = -1


class Admission:
    """Admission in a flood of new names: a full slot still takes the workloads of the last L pages.

    A worker that starts loads its newest pages, then reads records again that lie before the end of these pages. It
    must judge them as the worker did that wrote the pages, so the pages before each record count.

    Declared workloads are taken in any case.

    Args:
        roster: workloads by the newest page that holds them.
        context_steps: L.
        declared: workloads that the settings declare.
    """

    def __init__(self, roster: Roster, context_steps: int, declared: Collection[str] = ()) -> None:
        self._declared = frozenset(declared)
        self._roster = roster
        self._context_steps = context_steps
        self._read_again_to = -1
        self._page_ends: list[int] = []
        # Workloads of the pages that end after the offset where reading starts: (end offset, slot) of these pages, and
        # of the newest page before them.
        self._pages: dict[str, list[tuple[int, int]]] = {}

    def restore(self, workloads: Sequence[str], slot: int, end_offset: int, resume_offset: int) -> None:
        """Load a page, oldest first, before the roster does; reading will start at `resume_offset`."""
        if end_offset < resume_offset:
            return
        self._read_again_to = end_offset
        self._page_ends.append(end_offset)
        for workload in workloads:
            if workload not in self._pages:
                self._pages[workload] = [(_BEFORE_FIRST_OFFSET, self._roster.newest_slot(workload))]
            self._pages[workload].append((end_offset, slot))

    def page_ends(self, offsets: Ints) -> Ints:
        """Where records that are read again, of these ascending offsets, see another page than the one before."""
        if not len(offsets) or offsets[0] > self._read_again_to:
            return np.zeros(0, np.int64)
        return np.searchsorted(offsets, self._page_ends, side="right")

    def admits(self, workload: str, slot: int, offset: int) -> bool:
        """Whether the workload is declared, or was in one of the L pages before this slot when the record was read."""
        if workload in self._declared:
            return True
        if offset <= self._read_again_to and workload in self._pages:
            newest = max(page for end_offset, page in self._pages[workload] if end_offset < offset)
        else:
            newest = self._roster.newest_slot(workload)
        return newest >= slot - self._context_steps


# New names are admitted when their slot closes, because only closed slots are the same for a worker that starts again.
# Until then an open slot takes at most this many times `max_workloads`.
_MAX_OPEN_NAMES_RATIO = 2

# Verdicts by the number that the compiled loop gives them.
VERDICTS: tuple[Verdict, ...] = ("samples", "late", "duplicate", "refused")
assert (ACCEPTED, LATE, DUPLICATE, REFUSED) == (0, 1, 2, 3)


@dataclass(slots=True)
class SlotFacts:
    """The content of an open slot beside its columns: facts and histograms, and names where a limit may refuse some.

    Attributes:
        workloads: in order of first appearance, which is the order of admission; None for one with samples only.
            The samples up to row `last_row` of the pool are listed, `num_listed` in all.
        sources: series by workload number, of the same samples.
        hists: by row of the pool.
    """

    workloads: dict[str, OpenWorkloadFacts | None] = field(default_factory=dict)
    sources: dict[int, set[int]] = field(default_factory=dict)
    hists: dict[int, Hists] = field(default_factory=dict)
    num_listed: int = 0
    last_row: int = NOBODY

    def entry(self, workload: str) -> OpenWorkloadFacts:
        """The facts of a workload, to add to."""
        facts = self.workloads.get(workload)
        if facts is None:
            facts = self.workloads[workload] = OpenWorkloadFacts()
        return facts


@dataclass(slots=True)
class OpenSlot:
    """A slot that is about to be closed: its samples are `size` rows of the pool, the first one `head`."""

    head: int = NOBODY
    size: int = 0
    facts: SlotFacts | None = None


def _in_order(numbers: Ints) -> Ints:
    """The distinct numbers in order of first appearance."""
    unique, firsts = np.unique(numbers, return_index=True)
    ordered: Ints = unique[np.argsort(firsts)]
    return ordered


class OpenSlots:
    """The open slots of one partition.

    Args:
        config: slot length and limits.
        admission: of workloads into a slot that is full.
        index: of the series that runs name.
        pool: holds the samples.
    """

    def __init__(self, config: StreamConfig, admission: Admission, index: SeriesIndex, pool: SamplePool) -> None:
        self._step_ms = config.step_ms
        self.most_names = _MAX_OPEN_NAMES_RATIO * config.max_workloads
        self._admission = admission
        self._index = index
        self._pool = pool
        self._facts: dict[int, SlotFacts] = {}

    def names(self) -> Iterator[str]:
        """Workloads of open slots; some of those with samples only are left out."""
        return (workload for facts in self._facts.values() for workload in facts.workloads)

    def roomy(self) -> bool:
        """True while no limit can refuse a sample, so that whole runs may be added at once."""
        return self._index.num_workloads <= self.most_names and self._index.most_sources <= MAX_SOURCES_PER_WORKLOAD

    def add_run(self, run: SampleRun, last_closed: Ints) -> Ints:
        """Put samples into their slots; only while `roomy`.

        Args:
            last_closed: [R] newest closed slot when each record was read.

        Returns:
            [R, verdicts] number of samples of each record by verdict.
        """
        tally, row_of = self._pool.take(run, last_closed)
        for sample, hists in run.hists:
            self._add_hists(int(run.ts_ms[sample]), int(row_of[sample]), hists)
        return tally

    def add_bounded(self, run: SampleRun, last_closed: int) -> Ints:
        """As `add_run`, when limits may refuse some samples; all records see the same pages (`Admission.page_ends`)."""
        slots = run.ts_ms // self._step_ms
        record_of = np.repeat(np.arange(len(run.sizes)), run.sizes)
        taken = np.ones(len(slots), np.bool_)
        for slot in np.unique(slots[slots > last_closed]).tolist():
            samples = np.flatnonzero(slots == slot)
            offset = int(run.offsets[record_of[samples[0]]])
            taken[samples] = self._within_limits(slot, offset, run.series[samples])
        tally = self.add_run(run.with_samples(taken), np.full(len(run.sizes), last_closed))
        tally[:, REFUSED] += np.bincount(record_of[~taken], minlength=len(run.sizes))
        return tally

    def _within_limits(self, slot: int, offset: int, series: Ints) -> Bools:
        """[n] which samples of an open slot no limit refuses, by their series [n]; the first record is at `offset`."""
        facts = self._facts.setdefault(slot, SlotFacts())
        self._list_names(self._pool.open(slot, offset), facts)
        numbers = self._index.workload_of[series]
        room = self.most_names - len(facts.workloads)
        refused: list[int] = []
        unique = _in_order(numbers)
        for number, name in zip(unique.tolist(), self._index.names_of(unique), strict=True):
            if name not in facts.workloads:
                room -= 1
                if room < 0 and not self._admission.admits(name, slot, offset):
                    refused.append(number)
        taken = ~np.isin(numbers, refused)
        if self._index.most_sources > MAX_SOURCES_PER_WORKLOAD:
            taken &= ~np.isin(series, self._excess_sources(facts, series[taken]))
        return taken

    def _excess_sources(self, facts: SlotFacts, series: Ints) -> list[int]:
        """The series beyond the limit of sources per workload, of those that a slot shall take."""
        excess: list[int] = []
        num_new: dict[int, int] = {}
        unique = _in_order(series)
        for number, source in zip(self._index.workload_of[unique].tolist(), unique.tolist(), strict=True):
            known = facts.sources.get(number, ())
            if source not in known:
                num_new[number] = num_new.get(number, 0) + 1
                if len(known) + num_new[number] > MAX_SOURCES_PER_WORKLOAD:
                    excess.append(source)
        return excess

    def _add_hists(self, ts_ms: int, row: int, hists: Hists) -> None:
        if row != NOBODY:
            self._facts.setdefault(ts_ms // self._step_ms, SlotFacts()).hists[row] = hists

    def add_facts(self, record: Facts, last_closed: int, offset: int) -> list[Verdict]:
        """Put the facts of a record into the slots of their instants; returns the verdicts, in order."""
        workload = record.workload
        self._index.publisher(workload)
        verdicts: list[Verdict] = []
        if isinstance(record, FleetRecord):
            for source, facts in record.facts:
                place = self._slot_facts(facts.ts_ms, workload, last_closed, offset)
                verdicts.append(
                    place.entry(workload).add_fleet(source, facts) if isinstance(place, SlotFacts) else place
                )
        elif isinstance(record, SourceRecord):
            place = self._slot_facts(record.word.ts_ms, workload, last_closed, offset)
            verdicts.append(place.entry(workload).add_report(record.word) if isinstance(place, SlotFacts) else place)
        else:
            place = self._slot_facts(record.fact.ts_ms, workload, last_closed, offset)
            verdicts.append(place.entry(workload).add_outcome(record.fact) if isinstance(place, SlotFacts) else place)
        return verdicts

    def take_until(self, slot: int, offset: int) -> list[tuple[int, OpenSlot, int]]:
        """Remove the slots up to this one to close them, ascending, at the record of this offset.

        Returns:
            Per slot its number, itself, and from where reading gives every slot back that is open after it.
        """
        slots = self._pool.slots
        num = self._pool.num_slots
        first_offsets = slots.first_offset[:num]
        resume = np.minimum.accumulate(np.append(first_offsets, offset)[::-1])[::-1]
        closing = int(np.searchsorted(slots.slot[:num], slot, side="right"))
        closing_slots: list[tuple[int, OpenSlot, int]] = []
        for at, (number, head, size, after) in enumerate(
            zip(
                slots.slot[:closing].tolist(),
                slots.head[:closing].tolist(),
                slots.size[:closing].tolist(),
                resume[1 : closing + 1].tolist(),
                strict=True,
            )
        ):
            if number in self._facts and self._facts[number].workloads:
                self._list_names(at, self._facts[number])
            closing_slots.append((number, OpenSlot(head, size, self._facts.pop(number, None)), after))
        if closing:
            self._pool.drop_slots(closing)
        return closing_slots

    def first_offset(self, offset: int) -> int:
        """Where reading must start to get every open slot back; this offset when none is open."""
        opened: list[int] = self._pool.slots.first_offset[: self._pool.num_slots].tolist()
        return min([*opened, offset])

    def _slot_facts(self, ts_ms: int, workload: str, last_closed: int, offset: int) -> SlotFacts | Verdict:
        slot = ts_ms // self._step_ms
        if slot <= last_closed:
            return "late"
        at = self._pool.open(slot, offset)
        facts = self._facts.setdefault(slot, SlotFacts())
        self._list_names(at, facts)
        full = workload not in facts.workloads and len(facts.workloads) >= self.most_names
        return "refused" if full and not self._admission.admits(workload, slot, offset) else facts

    def _list_names(self, at: int, facts: SlotFacts) -> None:
        """List the names of the samples that the slot at this position has received since the last call."""
        slots, rows = self._pool.slots, self._pool.rows
        more = int(slots.size[at]) - facts.num_listed
        if not more:
            return
        first = int(slots.head[at] if facts.last_row == NOBODY else rows.following[facts.last_row])
        new_rows = self._pool.rows_from(first, more)
        for series in dict.fromkeys(rows.series[new_rows].tolist()):
            number = int(self._index.workload_of[series])
            facts.workloads.setdefault(self._index.name_of(number), None)
            facts.sources.setdefault(number, set()).add(series)
        facts.num_listed += more
        facts.last_row = int(new_rows[-1])
