"""The ingest kernel: one partition of one telemetry topic, folded record by record into pages.

    records ─▶ runs of samples as columns ──────────────────┐
            └▶ one by one: dead letter, tick, control, facts ┴▶ open slots ─▶ stream time ─▶ pages

Its pages are a function of the log alone: not of batch boundaries, restarts, clocks or the order of arrival within
the grace. A record is tested against the stream time before it, then moves stream time, then slots close.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from streams.catalogue import Indicator, Source, of_source
from streams.closing import SlotCloser
from streams.config import StreamConfig
from streams.dead_letters import DeadLetterBox
from streams.decode import RecordDecoder
from streams.ingest_counts import IngestCounts
from streams.lateness import LatenessTally
from streams.log import ContractBroken, Emission, LogRecord, OutRecord
from streams.page_chain import newest_chain
from streams.page_codec import encode_page
from streams.pages import Control, Counters, Page
from streams.records import (
    DeadLetter,
    Decoded,
    FleetRecord,
    OutcomeRecord,
    SampleRecord,
    SourceRecord,
    TickRecord,
    Tombstone,
)
from streams.sample_reader import SampleReader
from streams.sample_run import SampleRun
from streams.series_index import SeriesIndex
from streams.slots import VERDICTS, OpenSlots
from streams.topics import Topics


class IngestKernel:
    """Folds one partition of one telemetry topic.

    Args:
        partition: of the telemetry topic, and so of `pages`.
        source: which telemetry topic.
        config: slot length, grace, skew and limits.
        catalogue: all indicators; the source's own become the page's columns.
        topics: names of the topics written to.

    Attributes:
        next_offset: records below this offset are refused.
        stream_time_ms: T, largest event time accepted; None before the first.
        last_closed: newest closed slot; None before the first valid record or tick.
        lateness, num_pages: of the samples folded and the pages written in this life; for measuring only.
    """

    def __init__(
        self,
        partition: int,
        source: Source,
        config: StreamConfig,
        catalogue: tuple[Indicator, ...],
        topics: Topics,
    ) -> None:
        self.partition = partition
        self.source: Source = source
        self.next_offset = 0
        self.stream_time_ms: int | None = None
        self.last_closed: int | None = None
        self.lateness = LatenessTally()
        self.num_pages = 0
        self._config = config
        self._topics = topics
        self._indicators = of_source(catalogue, source)
        self._index = SeriesIndex()
        self._decoder = RecordDecoder(catalogue, source, config.max_record_bytes)
        self._reader = SampleReader(catalogue, source, config.max_record_bytes, config.skew_ms, self._index)
        self._closer = SlotCloser(config, self._indicators, self._reader.fields, self._index)
        from_topic = topics.telemetry_requests if source == "requests" else topics.telemetry_gpu
        self._dead = DeadLetterBox(topics.dead_letters, from_topic, partition)
        self._open = OpenSlots(config, self._closer.roster, self._index)
        self._controls: list[Control] = []
        self._prev: tuple[int, str] | None = None
        self._resume_offset: int | None = None
        self._first_offset: int | None = None
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
    ) -> IngestKernel:
        """The kernel as it was when it closed the newest page with a complete chain; it reads on at `resume_offset`.

        Args:
            pages: (page, digest) of this source and partition in log order, reaching back L pages or to the first.

        Raises:
            ContractBroken: pages exist, but no chain of them is complete.
        """
        kernel = cls(partition, source, config, catalogue, topics)
        chain = newest_chain(pages, source, partition, config.context_steps)
        if not chain:
            return kernel
        newest, digest = chain[-1]
        for page, _ in chain:
            if page.slot > newest.slot - config.context_steps:
                kernel._closer.remember(page.slot, page.workloads, page.series)
        kernel.last_closed = newest.slot
        # The smallest stream time that closes the slot: the record that closed it will close the rest again.
        kernel.stream_time_ms = config.slot_end_ms(newest.slot) + config.grace_ms
        kernel.next_offset = kernel._resume_offset = newest.resume_offset
        kernel._prev = (newest.slot, digest)
        kernel._counts.restore(newest.counters, newest.end_offset)
        return kernel

    @property
    def resume_offset(self) -> int | None:
        """Where a successor would start reading; None before the first record."""
        return self._resume_offset if self._resume_offset is not None else self._first_offset

    def skip_lost(self, first_offset: int) -> None:
        """Read on at the first record that the log still holds; what lay between stays unobserved."""
        self.next_offset = self._resume_offset = first_offset

    @property
    def counters(self) -> Counters:
        """Cumulative counts up to the newest record folded."""
        return self._counts.counters

    @property
    def dead_letter_counts(self) -> dict[str, int]:
        """Dead-lettered records by code, in this life."""
        return dict(self._dead.counts)

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
        self._forget_names()
        for part in self._reader.read(records):
            if isinstance(part, SampleRun):
                self._fold_run(part, emissions)
            else:
                self._fold_one(part, emissions)
        leftover = self._dead.take()
        if leftover:
            emissions.append(Emission((leftover,), (), self._resume_point()))
        return emissions

    def _forget_names(self) -> None:
        opened = list(self._open.open_slots())
        living = [self._closer.living(), *(numbers for slot in opened for numbers in slot.samples.series())]
        names = [*self._closer.roster, *(workload for slot in opened for workload in slot.workloads)]
        self._index.sweep(living, names, self._open.most_names)

    def _move_to(self, first_offset: int, next_offset: int) -> None:
        if first_offset < self.next_offset:
            raise ContractBroken(
                f"{self.source}/{self.partition}: offset {first_offset} came after {self.next_offset - 1}; "
                "restart the worker"
            )
        if self._first_offset is None:
            self._first_offset = first_offset
        self.next_offset = next_offset

    # Records of samples, many at once.

    def _fold_run(self, run: SampleRun, emissions: list[Emission]) -> None:
        num_records = len(run.sizes)
        roomy = self._open.roomy()
        if num_records > 1 and not roomy:
            for number in range(num_records):
                self._fold_run(run.record(number), emissions)
            return
        if num_records > 1 and int(np.diff(run.offsets).min()) <= 0:
            raise ContractBroken(f"{self.source}/{self.partition}: offsets do not ascend; restart the worker")
        self._move_to(int(run.offsets[0]), int(run.offsets[-1]) + 1)
        marks = np.maximum.reduceat(run.ts_ms, run.starts())  # [R]
        time_ms = self.stream_time_ms if self.stream_time_ms is not None else int(marks[0])
        self._started(time_ms)
        times = np.maximum.accumulate(np.concatenate(([time_ms], marks)))  # [R + 1], before and after each record
        closed = (times - self._config.grace_ms) // self._config.step_ms - 1
        record_of = np.repeat(np.arange(num_records), run.sizes)
        if roomy:
            verdicts = self._open.add_run(run, record_of, closed[record_of])
        else:
            verdicts = self._open.add_carefully(run, int(closed[0]))
        new = self._counts.first_new(run)
        counted = record_of >= new
        if counted.any():
            self.lateness.add(times[record_of[counted]], run.ts_ms[counted])
        tally = np.bincount(record_of * len(VERDICTS) + verdicts, minlength=num_records * len(VERDICTS))
        tally = tally.reshape(num_records, len(VERDICTS))
        done = new
        for number in np.flatnonzero(closed[1:] > closed[:-1]).tolist():
            self._counts.add_records(run, tally, done, number + 1)
            done = max(done, number + 1)
            self.stream_time_ms = int(times[number + 1])
            offset, stamp_ms = int(run.offsets[number]), int(run.stamps[number])
            commits = self._close_up_to(int(closed[number + 1]), offset, stamp_ms)
            if commits:
                emissions.append(self._emission(commits, stamp_ms))
        self._counts.add_records(run, tally, done, num_records)
        self.stream_time_ms = int(times[-1])

    # Any other record.

    def _fold_one(self, record: LogRecord, emissions: list[Emission]) -> None:
        decoded = self._decoder.decode(record.value, record.key, record.stamp_ms)
        if isinstance(decoded, SampleRecord):
            ahead_ms = max([sample.ts_ms for sample in decoded.samples]) - record.stamp_ms
            if ahead_ms <= self._config.skew_ms:
                self._fold_run(self._reader.run_of(decoded, record), emissions)
                return
        self._move_to(record.offset, record.offset + 1)
        mark = self._take(record, decoded)
        if mark is not None and (self.stream_time_ms is None or mark > self.stream_time_ms):
            self.stream_time_ms = mark
            commits = self._close_up_to(self._config.last_closed(mark), record.offset, record.stamp_ms)
            if commits:
                emissions.append(self._emission(commits, record.stamp_ms))

    def _take(self, record: LogRecord, decoded: Decoded) -> int | None:
        """Sort one record into the open slots; returns the event time it proves, if any."""
        self._counts.add("records", 1, record.offset)
        if isinstance(decoded, SampleRecord):
            mark = max([sample.ts_ms for sample in decoded.samples])
        elif isinstance(decoded, FleetRecord):
            mark = max(facts.ts_ms for _, facts in decoded.facts)
        elif isinstance(decoded, SourceRecord):
            mark = decoded.word.ts_ms
        elif isinstance(decoded, OutcomeRecord):
            mark = decoded.fact.ts_ms
        elif isinstance(decoded, TickRecord):
            mark = min(decoded.ts_ms, record.stamp_ms)
            self._started(mark)
            return mark
        else:
            if isinstance(decoded, DeadLetter):
                self._refuse(record, decoded)
            elif isinstance(decoded, Tombstone):
                self._counts.add("tombstones", 1, record.offset)
            elif record.offset > self._counts.base_offset:
                self._controls.append(decoded.control)
            return None
        ahead_ms = mark - record.stamp_ms
        if ahead_ms > self._config.skew_ms or isinstance(decoded, SampleRecord):
            self._counts.add("future", 1, record.offset)
            self._refuse(
                record,
                DeadLetter("future", f"{ahead_ms} ms ahead of the broker's stamp, the limit is {self._config.skew_ms}"),
            )
            return None
        if isinstance(decoded, FleetRecord) and decoded.unknown_names:
            self._counts.add("unknown_names", decoded.unknown_names, record.offset)
        for verdict in self._open.add_facts(decoded, self._started(mark), record.offset):
            self._counts.add(verdict, 1, record.offset)
        return mark

    def _started(self, mark: int) -> int:
        # The first event time heard only says where we are: what lies before it belongs to no page.
        if self.last_closed is None:
            self.last_closed = self._config.last_closed(mark)
        return self.last_closed

    def _refuse(self, record: LogRecord, letter: DeadLetter) -> None:
        self._counts.add("dead", 1, record.offset)
        self._dead.add(record, letter, published_before=record.offset <= self._counts.base_offset)

    # Closing.

    def _close_up_to(self, slot: int, offset: int, stamp_ms: int) -> list[OutRecord]:
        """Close every slot up to this one: those that hold something, and of the empty ones the last L."""
        before = self.last_closed
        if before is None or slot <= before:
            return []
        empty_too = range(max(before + 1, slot - self._config.context_steps + 1), slot + 1)
        commits: list[OutRecord] = []
        for closing in sorted({*empty_too, *(s for s in self._open if s <= slot)}):
            commits += self._close(closing, offset, stamp_ms)
        self.last_closed = slot
        return commits

    def _close(self, slot: int, offset: int, stamp_ms: int) -> list[OutRecord]:
        closed = self._closer.close(slot, self._open.take(slot, offset))
        self._counts.add_refused(closed.num_refused)
        self._resume_offset = self._open.first_offset(offset)
        page = Page(
            source=self.source,
            partition=self.partition,
            slot=slot,
            prev=self._prev[0] if self._prev else None,
            prev_digest=self._prev[1] if self._prev else None,
            end_offset=offset,
            end_stamp_ms=stamp_ms,
            resume_offset=self._resume_offset,
            step_ms=self._config.step_ms,
            grace_ms=self._config.grace_ms,
            indicators=tuple(i.name for i in self._indicators),
            workloads=closed.workloads,
            values=closed.values.values,
            observed=closed.values.observed,
            facts=(),
            controls=tuple(self._controls),
            counters=self.counters,
        )
        self._controls = []
        encoded = encode_page(page, self._topics.partitions, columns=(closed.facts, closed.series))
        self._prev = (slot, encoded.digest)
        self.num_pages += 1
        return [OutRecord(self._topics.pages, key, value, self.partition) for key, value in encoded.records]

    def _emission(self, commits: list[OutRecord], stamp_ms: int) -> Emission:
        letters = self._dead.take()
        return Emission((letters,) if letters else (), commits, self._resume_point(), stamp_ms)

    def _resume_point(self) -> int:
        resume = self.resume_offset
        return self.next_offset if resume is None else resume
