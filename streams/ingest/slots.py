"""Slots that are still open: what has been heard for each, kept as it came until the slot closes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from streams.config import StreamConfig
from streams.ingest.aggregate_kernel import PooledSamples
from streams.ingest.pool_kernel import (
    DUPLICATE,
    LATE,
    NOBODY,
    REFUSED,
    TAKEN,
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
from streams.records.samples import Hists, Ints, SampleRun
from streams.records.schema import Facts, FleetRecord, SourceRecord
from streams.records.series_index import SeriesIndex

__all__ = ["MAX_SOURCES_PER_WORKLOAD", "VERDICTS", "OpenSlot", "OpenSlots"]


# The samples of all open slots of a partition in one set of columns, whose rows are used again as slots close.


_FIRST_ROWS = 1024
_FIRST_SLOTS = 64


class SamplePool:
    """Rows for samples, and the list of open slots.

    Args:
        width: F, columns of the samples.
        step_ms: slot length.

    Attributes:
        rows, slots: as the loops take them; they are others after `take` or `open`.
    """

    def __init__(self, width: int, step_ms: int) -> None:
        self._step_ms = step_ms
        self._width = width
        self.rows = self._empty(_FIRST_ROWS)
        self.slots = SlotList(*(np.zeros(_FIRST_SLOTS, np.int64) for _ in SlotList._fields))

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
            [R, 4] samples of each record by what became of them, as the loop numbers it; [n] the row of each sample,
            -1 where it was not taken.
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
            return newest  # as it mostly is: to ask the compiled search takes ten times as long
        self._make_room(1)
        place: int = open_slot(self.rows, self.slots, slot, offset)
        return place

    def rows_from(self, row: int, size: int) -> Ints:
        """`size` rows of a slot in log order, from this one on."""
        found: Ints = rows_from(self.rows, row, size)
        return found

    def samples(self) -> PooledSamples:
        """The columns that closing a slot reads."""
        rows = self.rows
        return PooledSamples(rows.series, rows.ts_ms, rows.values, rows.following)

    def release(self, heads: Ints) -> None:
        """Free the rows of closed slots, by the first row of each."""
        release_slots(self.rows, heads)

    def drop_slots(self, num: int) -> None:
        """Take the first slots off the list; their samples stay until they are closed."""
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
        # The new rows lie below those that were free before: these are used first.
        new = grown - size
        rows.free[:new] = np.arange(grown - 1, size - 1, -1)
        rows.free[new : new + free] = before.free[:free]
        rows.counts[:] = new + free, num_slots
        index_rows(rows)
        self.rows = rows


# What an open slot holds of a workload beside its samples: replica counts, outcomes, queued work and SLO counts.


# One workload's sources may come and go, but a publisher that invents a new name per sample must not fill the memory.
MAX_SOURCES_PER_WORKLOAD = 4096

# What became of a sample, by the name of the counter that says so; `samples` is: taken.
Verdict = Literal["samples", "late", "duplicate", "refused"]


@dataclass(slots=True)
class WorkloadNews:
    """What an open slot holds of one workload beside its samples."""

    fleet: dict[tuple[int, str], FleetFacts] = field(default_factory=dict)
    outcomes: set[OutcomeFact] = field(default_factory=set)
    words: dict[tuple[int, str, type], BatchQueue | SloCounts] = field(default_factory=dict)

    def add_fleet(self, source: str, facts: FleetFacts) -> Verdict:
        """Keep what a source says of the replicas."""
        if (facts.ts_ms, source) in self.fleet:
            return "duplicate"
        if len(self.fleet) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.fleet[facts.ts_ms, source] = facts
        return "samples"

    def add_outcome(self, fact: OutcomeFact) -> Verdict:
        """Keep what became of a command."""
        if fact in self.outcomes:
            return "duplicate"
        if len(self.outcomes) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.outcomes.add(fact)
        return "samples"

    def __len__(self) -> int:
        return len(self.fleet) + len(self.outcomes) + len(self.words)

    def add_word(self, word: BatchQueue | SloCounts) -> Verdict:
        """Keep what a source says of the workload as a whole."""
        if (word.ts_ms, word.source, type(word)) in self.words:
            return "duplicate"
        if len(self.words) >= MAX_SOURCES_PER_WORKLOAD:
            return "refused"
        self.words[word.ts_ms, word.source, type(word)] = word
        return "samples"

    def newest_ts_ms(self) -> int:
        """Of all that is here."""
        return max(fact.ts_ms for fact in (*self.fleet.values(), *self.words.values(), *self.outcomes))

    def queues(self) -> tuple[BatchQueue, ...]:
        """The latest word of each source on queued work, by name."""
        return tuple(word for word in self._newest(BatchQueue) if isinstance(word, BatchQueue))

    def slo(self) -> tuple[SloCounts, ...]:
        """The latest counts of each source by SLO class, by name."""
        return tuple(word for word in self._newest(SloCounts) if isinstance(word, SloCounts))

    def _newest(self, kind: type) -> list[BatchQueue | SloCounts]:
        if not self.words:
            return []
        newest = {key[1]: word for key, word in sorted(self.words.items(), key=lambda e: e[0][0]) if key[2] is kind}
        return [newest[source] for source in sorted(newest)]

    def newest_fleet(self) -> FleetFacts | None:
        """The latest word on replicas; of two sources at the same instant the one last by name."""
        return self.fleet[max(self.fleet)] if self.fleet else None

    def sorted_outcomes(self) -> tuple[OutcomeFact, ...]:
        """By time, so that a page does not depend on arrival order."""
        return tuple(sorted(self.outcomes, key=_outcome_order))


def _outcome_order(fact: OutcomeFact) -> tuple[int, str, str, int, float]:
    return (
        fact.ts_ms,
        fact.command_id,
        fact.status,
        -1 if fact.replicas_ready is None else fact.replicas_ready,
        -1.0 if fact.lead_time_s is None else fact.lead_time_s,
    )


# Who is still served in a flood of names: workloads that a page held before the record at hand was read.


_FROM_THE_START = -1


class Regulars:
    """Workloads of the last L pages, as they stood at any record that may be read.

    A worker that starts knows its newest pages before it reads, once more, records that lie before the end of them.
    It has to judge these as the life did that wrote the pages: what it took and refused is in the next ones.

    Args:
        roster: workloads by the newest page that holds them.
        context_steps: L.
    """

    def __init__(self, roster: Roster, context_steps: int) -> None:
        self._roster = roster
        self._context_steps = context_steps
        self._read_again_to = -1
        # Of workloads of pages that end behind where reading starts: (end offset, slot) of these pages, and where there
        # is one, of the newest page before them.
        self._pages: dict[str, list[tuple[int, int]]] = {}

    def remember(self, workloads: Sequence[str], slot: int, end_offset: int, resume_offset: int) -> None:
        """Take in a page, oldest first, before the roster does; reading will start at `resume_offset`."""
        if end_offset < resume_offset:
            return
        self._read_again_to = end_offset
        for workload in workloads:
            if workload not in self._pages:
                self._pages[workload] = [(_FROM_THE_START, self._roster.newest_slot(workload))]
            self._pages[workload].append((end_offset, slot))

    def hold(self, workload: str, slot: int, offset: int) -> bool:
        """Whether the workload was in one of the L pages before this slot when the record at this offset was read."""
        if offset <= self._read_again_to and workload in self._pages:
            newest = max(page for end_offset, page in self._pages[workload] if end_offset < offset)
        else:
            newest = self._roster.newest_slot(workload)
        return newest >= slot - self._context_steps


# New names are judged when their slot closes: only what closed slots hold is the same for a reader that starts again.
# Until then an open slot takes at most this many times `max_workloads`.
_NAMES_HELD_RATIO = 2

# By the number that the loop gives what became of a sample.
VERDICTS: tuple[Verdict, ...] = ("samples", "late", "duplicate", "refused")
assert (TAKEN, LATE, DUPLICATE, REFUSED) == (0, 1, 2, 3)


@dataclass(slots=True)
class SlotNews:
    """What a slot holds that is not a column; only of slots that had facts, histograms, or no room to spare.

    Attributes:
        workloads: in order of first appearance, which is the order of admission; None where only samples were heard.
            Those of samples up to row `last_row` of the pool, `num_listed` in all.
        sources: series by workload number, of the same samples.
        hists: by row of the pool.
    """

    workloads: dict[str, WorkloadNews | None] = field(default_factory=dict)
    sources: dict[int, set[int]] = field(default_factory=dict)
    hists: dict[int, Hists] = field(default_factory=dict)
    num_listed: int = 0
    last_row: int = NOBODY

    def of(self, workload: str) -> WorkloadNews:
        """The workload's entry, to add to."""
        news = self.workloads.get(workload)
        if news is None:
            news = self.workloads[workload] = WorkloadNews()
        return news


@dataclass(slots=True)
class OpenSlot:
    """A slot that is about to be closed: its samples are `size` rows of the pool, the first one `head`."""

    head: int = NOBODY
    size: int = 0
    news: SlotNews | None = None


class OpenSlots:
    """The open slots of one partition.

    Args:
        config: slot length and limits.
        regulars: in a flood of new names these are still served.
        index: of the series that runs name.
        pool: holds the samples.
    """

    def __init__(self, config: StreamConfig, regulars: Regulars, index: SeriesIndex, pool: SamplePool) -> None:
        self._step_ms = config.step_ms
        self.most_names = _NAMES_HELD_RATIO * config.max_workloads
        self._regulars = regulars
        self._index = index
        self._pool = pool
        self._news: dict[int, SlotNews] = {}

    def names(self) -> Iterator[str]:
        """Workloads that open slots hold; some of those of which only samples were heard are left out."""
        return (workload for news in self._news.values() for workload in news.workloads)

    def roomy(self) -> bool:
        """True while no limit can refuse a sample, so that whole runs may be added at once."""
        return self._index.num_workloads <= self.most_names and self._index.most_sources <= MAX_SOURCES_PER_WORKLOAD

    def add_run(self, run: SampleRun, last_closed: Ints) -> Ints:
        """Put samples into their slots; only while `roomy`.

        Args:
            last_closed: [R] newest closed slot when each record was read.

        Returns:
            [R, verdicts] how many samples of each record met which.
        """
        tally, row_of = self._pool.take(run, last_closed)
        for sample, held in run.hists:
            self._keep_hists(int(run.ts_ms[sample]), int(row_of[sample]), held)
        return tally

    def add_carefully(self, run: SampleRun, last_closed: int) -> Ints:
        """As `add_run` for a single record, when limits may refuse some of its samples."""
        tally = np.zeros((1, len(VERDICTS)), np.int64)
        offset, hists = int(run.offsets[0]), dict(run.hists)
        closed, one = np.array([last_closed]), np.array([1])
        for i, (series, ts_ms) in enumerate(zip(run.series.tolist(), run.ts_ms.tolist(), strict=True)):
            number = int(self._index.workload_of[series])
            place = self._place(ts_ms, self._index.name_of(number), last_closed, offset)
            if not isinstance(place, SlotNews):
                tally[0, VERDICTS.index(place)] += 1
                continue
            sources = place.sources.get(number, ())
            if series not in sources and len(sources) >= MAX_SOURCES_PER_WORKLOAD:
                tally[0, REFUSED] += 1
                continue
            sample = slice(i, i + 1)
            single = SampleRun(
                run.offsets, run.stamps, one, run.series[sample], run.ts_ms[sample], run.values[sample]
            )  # fmt: skip
            found, row_of = self._pool.take(single, closed)
            tally += found
            if i in hists:
                self._keep_hists(ts_ms, int(row_of[0]), hists[i])
        return tally

    def _keep_hists(self, ts_ms: int, row: int, held: Hists) -> None:
        if row != NOBODY:
            self._news.setdefault(ts_ms // self._step_ms, SlotNews()).hists[row] = held

    def add_facts(self, record: Facts, last_closed: int, offset: int) -> list[Verdict]:
        """Put a record's facts into the slots of their instants; what became of each, in order."""
        workload = record.workload
        self._index.publisher(workload)
        verdicts: list[Verdict] = []
        if isinstance(record, FleetRecord):
            for source, facts in record.facts:
                place = self._place(facts.ts_ms, workload, last_closed, offset)
                verdicts.append(place.of(workload).add_fleet(source, facts) if isinstance(place, SlotNews) else place)
        elif isinstance(record, SourceRecord):
            place = self._place(record.word.ts_ms, workload, last_closed, offset)
            verdicts.append(place.of(workload).add_word(record.word) if isinstance(place, SlotNews) else place)
        else:
            place = self._place(record.fact.ts_ms, workload, last_closed, offset)
            verdicts.append(place.of(workload).add_outcome(record.fact) if isinstance(place, SlotNews) else place)
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
        taken: list[tuple[int, OpenSlot, int]] = []
        for at, (number, head, size, after) in enumerate(
            zip(
                slots.slot[:closing].tolist(),
                slots.head[:closing].tolist(),
                slots.size[:closing].tolist(),
                resume[1 : closing + 1].tolist(),
                strict=True,
            )
        ):
            if number in self._news and self._news[number].workloads:
                self._list(at, self._news[number])
            taken.append((number, OpenSlot(head, size, self._news.pop(number, None)), after))
        if closing:
            self._pool.drop_slots(closing)
        return taken

    def first_offset(self, offset: int) -> int:
        """Where reading must start to get every open slot back; this offset when none is open."""
        opened: list[int] = self._pool.slots.first_offset[: self._pool.num_slots].tolist()
        return min([*opened, offset])

    def _place(self, ts_ms: int, workload: str, last_closed: int, offset: int) -> SlotNews | Verdict:
        slot = ts_ms // self._step_ms
        if slot <= last_closed:
            return "late"
        at = self._pool.open(slot, offset)
        news = self._news.setdefault(slot, SlotNews())
        self._list(at, news)
        full = workload not in news.workloads and len(news.workloads) >= self.most_names
        return "refused" if full and not self._regulars.hold(workload, slot, offset) else news

    def _list(self, at: int, news: SlotNews) -> None:
        """Note the names of the samples that the slot at this place of the list was given since the last time."""
        slots, rows = self._pool.slots, self._pool.rows
        more = int(slots.size[at]) - news.num_listed
        if not more:
            return
        first = int(slots.head[at] if news.last_row == NOBODY else rows.following[news.last_row])
        found = self._pool.rows_from(first, more)
        for series in dict.fromkeys(rows.series[found].tolist()):
            number = int(self._index.workload_of[series])
            news.workloads.setdefault(self._index.name_of(number), None)
            news.sources.setdefault(number, set()).add(series)
        news.num_listed += more
        news.last_row = int(found[-1])
