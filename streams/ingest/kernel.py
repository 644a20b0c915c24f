"""The ingest kernel: one partition of one telemetry topic, folded record by record into pages.

    records ─▶ stretches: samples as columns, bad records beside them ─┐
            └▶ one by one: ticks and facts ────────────────────────────┴▶ open slots ─▶ stream time ─▶ pages

Its pages are a function of the log alone: not of batch boundaries, restarts, clocks or the order of arrival within
the grace. A record is tested against the stream time before it, then moves stream time, then slots close.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter, lt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streams.catalogue import Indicator, Source, of_source
from streams.config import LATENESS_BOUNDS_MS, StreamConfig
from streams.ingest.aggregate import SlotCloser
from streams.ingest.incomplete import IncompleteSources
from streams.ingest.page_writer import DueSlot, PageWriter
from streams.ingest.slots import VERDICTS, Admission, OpenSlot, OpenSlots, SamplePool
from streams.log import ContractBroken, Emission, LogRecord, OutRecord
from streams.pages.chain import newest_chain
from streams.pages.page import Counters, Page
from streams.records.dead_letters import DeadLetterBox
from streams.records.decode import RecordDecoder
from streams.records.facts import Control
from streams.records.fast_reader import SampleReader
from streams.records.samples import Ints, SampleRun
from streams.records.schema import FleetRecord, TickRecord
from streams.records.series_index import SeriesIndex
from streams.records.sorter import RecordSorter, SampleStretch, SideRecord, TimedRecord
from streams.records.unknown_names import UnknownName
from streams.topics import Topics

MAX_CONTROLS_PER_PAGE = 64  # of operators, in telemetry; at most some 3 kB each


class IngestCounts:
    """The counters of one chain: cumulative over all workers of a partition, each record counted once.

    Attributes:
        base_offset: end of the last page of an earlier worker, which has counted the records up to here.
    """

    def __init__(self) -> None:
        self.base_offset = -1
        self._counts = dict.fromkeys(Counters.__struct_fields__, 0)

    def restore(self, counters: Counters, base_offset: int) -> None:
        """Continue with the counters of a page."""
        self.base_offset = base_offset
        self._counts = {name: getattr(counters, name) for name in self._counts}

    @property
    def counters(self) -> Counters:
        """Counts so far."""
        return Counters(**self._counts)

    def add(self, name: str, amount: int, offset: int) -> None:
        """Count something of the record at this offset."""
        if offset > self.base_offset:
            self._counts[name] += amount

    def add_side_records(self, side_records: Iterable[SideRecord]) -> None:
        """Count records without samples or facts."""
        for side_record in side_records:
            if side_record.offset > self.base_offset:
                self._counts["records"] += 1
                if side_record.outcome != "controls":
                    self._counts[side_record.outcome] += 1
                if side_record.outcome == "future":
                    self._counts["dead"] += 1

    def add_refused(self, amount: int) -> None:
        """Count samples or controls that were refused, each once."""
        self._counts["refused"] += amount

    def first_new(self, run: SampleRun) -> int:
        """Number of the first record of a run that no earlier worker has counted."""
        return int(np.searchsorted(run.offsets, self.base_offset, side="right"))

    def add_records(self, run: SampleRun, verdicts: Ints, first: int, end: int) -> None:
        """Count some records of a run, none of them counted before.

        Args:
            verdicts: [R, verdicts] number of samples of each record by verdict.
        """
        if end <= first:
            return
        self._counts["records"] += end - first
        for name, amount in zip(VERDICTS, verdicts[first:end].sum(axis=0).tolist(), strict=True):
            self._counts[name] += amount
        if run.unknown is not None:
            self._counts["unknown_names"] += int(run.unknown[first:end].sum())


class LatenessHistogram:
    """Histogram of how far samples lie behind stream time. For metrics only: a restart begins at zero."""

    __slots__ = ("_counts", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self._sum_ms = 0

    def add(self, stream_time_ms: int | NDArray[np.int64], times_ms: ArrayLike) -> None:
        """Add samples of these event times [n], read at this stream time, one or [n]; one ahead of it is not late."""
        late_ms = np.asarray(stream_time_ms - np.asarray(times_ms, np.int64))
        new_counts = np.bincount(np.searchsorted(LATENESS_BOUNDS_MS, late_ms), minlength=len(self._counts))
        self._counts = [a + b for a, b in zip(self._counts, new_counts.tolist(), strict=True)]
        self._sum_ms += int(np.maximum(late_ms, 0).sum())

    def take(self) -> tuple[list[int], int]:
        """Counts per bucket (up to each bound, and above the last) and their sum in ms, since the last call."""
        counts, sum_ms = self._counts, self._sum_ms
        self._counts, self._sum_ms = [0] * len(counts), 0
        return counts, sum_ms


class TelemetryProblem(NamedTuple):
    """Telemetry of one workload that was accepted and cannot be used.

    Attributes:
        kind: of the records.
        incomplete: sources that lack what they need; None = none does.
        needs: alternatives of what they need, each of fields that belong together.
        unknown: names that are not known, the newest first.
    """

    kind: str
    workload: str
    incomplete: IncompleteSources | None
    needs: tuple[tuple[str, ...], ...]
    unknown: tuple[UnknownName, ...]


_offset = attrgetter("offset")


class IngestKernel:
    """Folds one partition of one telemetry topic.

    Args:
        partition: of the telemetry topic, and so of `pages`.
        source: which telemetry topic.
        config: slot length, grace, skew and limits.
        catalogue: all indicators; the source's own become the page's columns.
        topics: names of the topics written to.
        declared: workloads that the settings declare; they are admitted first.

    Attributes:
        next_offset: records below this offset are refused.
        stream_time_ms: T, largest event time accepted; None before the first.
        last_closed: newest closed slot; None before the first valid record or tick.
        behind_ms: how far stream time lay behind the broker's stamp of the newest record.
        lateness: of the samples folded by this process; for metrics only.
    """

    def __init__(
        self,
        partition: int,
        source: Source,
        config: StreamConfig,
        catalogue: tuple[Indicator, ...],
        topics: Topics,
        declared: Collection[str] = (),
    ) -> None:
        self.partition = partition
        self.source: Source = source
        self.next_offset = 0
        self.stream_time_ms: int | None = None
        self.last_closed: int | None = None
        self.behind_ms = 0
        self.lateness = LatenessHistogram()
        self._config = config
        indicators = of_source(catalogue, source)
        self._writer = PageWriter(partition, source, config, indicators, topics)
        self._index = SeriesIndex(declared)
        self._reader = SampleReader(catalogue, source, config.max_record_bytes, config.skew_ms, self._index)
        self._pool = SamplePool(len(self._reader.fields), config.step_ms)
        self._closer = SlotCloser(config, indicators, self._reader.fields, self._index, self._pool)
        from_topic = topics.telemetry_requests if source == "requests" else topics.telemetry_gpu
        self._dead = DeadLetterBox(topics.dead_letters, from_topic, partition)
        decoder = RecordDecoder(catalogue, source, config.max_record_bytes)
        self._unknown = decoder.unknown
        self._sorter = RecordSorter(config, self._reader, decoder, self._dead)
        self._admission = Admission(self._closer.roster, config.context_steps, declared)
        self._open = OpenSlots(config, self._admission, self._index, self._pool)
        self._controls: list[Control] = []
        self._resume_offset: int | None = None
        self._first_offset: int | None = None
        self._names_dropped_at: int | None = None  # newest closed slot when unused names were last dropped
        self._counts = IngestCounts()

    @classmethod
    def restore(
        cls,
        partition: int,
        source: Source,
        config: StreamConfig,
        catalogue: tuple[Indicator, ...],
        topics: Topics,
        pages: Iterable[tuple[Page, str]],
        declared: Collection[str] = (),
    ) -> IngestKernel:
        """The kernel as it was when it closed the newest page with a complete chain; it reads on at `resume_offset`.

        Args:
            pages: (page, digest) of this source and partition in log order, reaching back L pages or to the first.

        Raises:
            ContractBroken: pages exist, but no chain of them is complete.
        """
        kernel = cls(partition, source, config, catalogue, topics, declared)
        chain = newest_chain(pages, source, partition, config.context_steps)
        if not chain:
            return kernel
        newest, digest = chain[-1]
        for page, _ in chain:
            if page.slot > newest.slot - config.context_steps:
                kernel._admission.restore(page.workloads, page.slot, page.end_offset, newest.resume_offset)
                kernel._closer.restore(page.slot, page.workloads, page.series)
        kernel.last_closed = newest.slot
        # The smallest stream time that closes the slot: the record that closed it closes the rest again.
        kernel.stream_time_ms = config.slot_end_ms(newest.slot) + config.grace_ms
        kernel.behind_ms = newest.end_stamp_ms - kernel.stream_time_ms
        kernel.next_offset = kernel._resume_offset = newest.resume_offset
        kernel._writer.follow(newest.slot, digest)
        kernel._counts.restore(newest.counters, newest.end_offset)
        kernel._sorter.published_offset = newest.end_offset
        return kernel

    @property
    def resume_offset(self) -> int | None:
        """Where a successor would start reading; None before the first record."""
        return self._resume_offset if self._resume_offset is not None else self._first_offset

    def skip_lost(self, first_offset: int) -> None:
        """Continue at the first record that the log still holds; the steps before it stay unobserved."""
        self.next_offset = self._resume_offset = first_offset

    @property
    def counters(self) -> Counters:
        """Cumulative counts up to the newest record folded."""
        return self._counts.counters

    @property
    def dead_letter_counts(self) -> dict[str, int]:
        """Dead-lettered records by code, of this process."""
        return dict(self._dead.counts)

    def problems(self) -> list[TelemetryProblem]:
        """Telemetry that this process has accepted and that cannot be used; for people only."""
        unknown = self._unknown.recent()
        needs = self._closer.check.needs
        problems = [
            TelemetryProblem(self.source, found.workload, found, needs, unknown.pop((self.source, found.workload), ()))
            for found in self._closer.check.found()
        ]
        return problems + [TelemetryProblem(*key, None, (), names) for key, names in sorted(unknown.items())]

    @property
    def num_pages(self) -> int:
        """Pages written by this process."""
        return self._writer.num_pages

    @property
    def num_workloads(self) -> int:
        """Workloads in the last L closed slots."""
        return len(self._closer.roster)

    def fold(self, records: Sequence[LogRecord]) -> list[Emission]:
        """Fold records in log order.

        Returns:
            What to publish, in order: one emission per record that closed slots, and one for dead letters left over.

        Raises:
            ContractBroken: an offset that was folded before.
        """
        emissions: list[Emission] = []
        if not records:
            return emissions
        self._check_offsets(records)
        self._drop_unused_names()
        for part in self._sorter.sort(records):
            if isinstance(part, SampleStretch):
                self._fold_stretch(part, emissions)
            else:
                self._fold_timed(part, emissions)
        if self.stream_time_ms is not None:
            self.behind_ms = records[-1].stamp_ms - self.stream_time_ms
        leftover = self._dead.take()
        if leftover:
            emissions.append(Emission((leftover,), (), self._resume_point()))
        return emissions

    def _drop_unused_names(self) -> None:
        # Closing a slot leaves unused names behind. Unless they are dropped, every sample must be checked on its own.
        may_make_room = self.last_closed != self._names_dropped_at and not self._open.roomy()
        if not (may_make_room or self._index.crowded(self._open.most_names)):
            return
        self._names_dropped_at = self.last_closed
        names = [*self._closer.roster, *self._open.names()]
        free = self._index.sweep([self._closer.living(), self._pool.series()], names)
        self._closer.check.forget(free.tolist())

    def _check_offsets(self, records: Sequence[LogRecord]) -> None:
        first, last = records[0].offset, records[-1].offset
        if first < self.next_offset:
            raise ContractBroken(
                f"{self.source}/{self.partition}: offset {first} came after {self.next_offset - 1}; restart the worker"
            )
        if not all(map(lt, map(_offset, records), map(_offset, records[1:]))):
            raise ContractBroken(f"{self.source}/{self.partition}: offsets do not ascend; restart the worker")
        if self._first_offset is None:
            self._first_offset = first
        self.next_offset = last + 1

    # Samples, many at once, and side records.

    def _fold_stretch(self, stretch: SampleStretch, emissions: list[Emission]) -> None:
        side_records = deque(stretch.side_records)
        run = stretch.run
        if run is not None and self._open.roomy():
            self._fold_run(run, side_records, emissions)
        elif run is not None:
            # What the limits refuse depends on the pages before a record, so the run is cut where there is another one.
            closed = self._times(run)[1]
            closing = np.flatnonzero(closed[1:] > closed[:-1]) + 1
            cuts = np.unique(np.concatenate((closing, self._admission.page_ends(run.offsets), [0, len(run.sizes)])))
            for first, end in pairwise(cuts.tolist()):
                self._fold_run(run.part(first, end), side_records, emissions)
        self._count_side_records(side_records, None)

    def _count_side_records(self, side_records: deque[SideRecord], end_offset: int | None) -> None:
        """Count the side records below this offset, and keep their controls, as many as a page may hold."""
        batch: list[SideRecord] = []
        while side_records and (end_offset is None or side_records[0].offset < end_offset):
            batch.append(side_records.popleft())
        self._counts.add_side_records(batch)
        for side_record in batch:
            if side_record.control is None or side_record.offset <= self._counts.base_offset:
                continue
            if len(self._controls) < MAX_CONTROLS_PER_PAGE:
                self._controls.append(side_record.control)
            else:
                self._counts.add_refused(1)

    def _times(self, run: SampleRun) -> tuple[Ints, Ints]:
        """[R + 1] stream time before and after each record of a run, and the newest slot closed at that time."""
        marks = np.maximum.reduceat(run.ts_ms, run.starts())  # [R]
        time_ms = self.stream_time_ms if self.stream_time_ms is not None else int(marks[0])
        times: Ints = np.maximum.accumulate(np.concatenate(([time_ms], marks)))
        return times, (times - self._config.grace_ms) // self._config.step_ms - 1

    def _fold_run(self, run: SampleRun, side_records: deque[SideRecord], emissions: list[Emission]) -> None:
        num_records = len(run.sizes)
        times, closed = self._times(run)
        self._start_at(int(times[0]))
        if self._open.roomy():
            tally = self._open.add_run(run, closed[:-1])
        else:
            tally = self._open.add_bounded(run, int(closed[0]))
        new = self._counts.first_new(run)
        if new < num_records:
            first = int(run.sizes[:new].sum())
            self.lateness.add(np.repeat(times[new:-1], run.sizes[new:]), run.ts_ms[first:])
        done = new
        due: list[DueSlot] = []
        for number in np.flatnonzero(closed[1:] > closed[:-1]).tolist():
            self._counts.add_records(run, tally, done, number + 1)
            done = max(done, number + 1)
            self.stream_time_ms = int(times[number + 1])
            offset, stamp_ms = int(run.offsets[number]), int(run.stamps[number])
            self._count_side_records(side_records, offset)
            due += self._due(int(closed[number + 1]), offset, stamp_ms)
        self._close(due, emissions)
        self._counts.add_records(run, tally, done, num_records)
        self.stream_time_ms = int(times[-1])

    # Ticks and facts.

    def _fold_timed(self, timed: TimedRecord, emissions: list[Emission]) -> None:
        record, decoded, mark = timed
        self._counts.add("records", 1, record.offset)
        closed = self._start_at(mark)
        if not isinstance(decoded, TickRecord):
            if isinstance(decoded, FleetRecord) and decoded.unknown_names:
                self._counts.add("unknown_names", decoded.unknown_names, record.offset)
            for verdict in self._open.add_facts(decoded, closed, record.offset):
                self._counts.add(verdict, 1, record.offset)
        if self.stream_time_ms is None or mark > self.stream_time_ms:
            self.stream_time_ms = mark
            self._close(self._due(self._config.last_closed(mark), record.offset, record.stamp_ms), emissions)

    def _start_at(self, mark: int) -> int:
        # The first event time only sets the position: the slots before it get no page.
        if self.last_closed is None:
            self.last_closed = self._config.last_closed(mark)
        return self.last_closed

    # Closing.

    def _due(self, slot: int, offset: int, stamp_ms: int) -> list[DueSlot]:
        """Slots that the record at this offset closes, up to this one: those that hold something, and of the empty
        ones the last L."""
        before = self.last_closed
        if before is None or slot <= before:
            return []
        empty_too = range(max(before + 1, slot - self._config.context_steps + 1), slot + 1)
        resume = self._open.first_offset(offset)
        opened = {number: (open_slot, after) for number, open_slot, after in self._open.take_until(slot, offset)}
        due: list[DueSlot] = []
        counters = self.counters
        for closing in sorted({*empty_too, *opened}):
            samples, resume = opened.get(closing, (OpenSlot(), resume))
            self._resume_offset = resume
            controls, self._controls = tuple(self._controls), []
            due.append(DueSlot(closing, samples, offset, stamp_ms, resume, controls, counters))
        due[-1].letters = self._dead.take(offset)
        self.last_closed = slot
        return due

    def _close(self, due: Sequence[DueSlot], emissions: list[Emission]) -> None:
        """Write the pages of slots; those that one record has closed are one emission."""
        commits: list[OutRecord] = []
        num_refused = 0
        for slot, closed in zip(due, self._closer.close([(d.slot, d.opened) for d in due]), strict=True):
            num_refused += closed.num_refused
            commits += self._writer.page(slot, closed, num_refused)
            if slot.letters is not None:
                letters = (slot.letters,) if slot.letters else ()
                emissions.append(Emission(letters, commits, slot.resume_offset, slot.stamp_ms))
                commits = []
        self._counts.add_refused(num_refused)

    def _resume_point(self) -> int:
        resume = self.resume_offset
        return self.next_offset if resume is None else resume
