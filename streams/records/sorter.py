"""Sorts telemetry records by their effect: samples, side records, and records that move time one by one.

Samples become runs as long as possible. Side records (dead letters, tombstones, controls) move no time. They are
carried beside a run instead of ending it, so that a flood of bad records does not cut the good ones into single
samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from streams.config import StreamConfig
from streams.log import LogRecord
from streams.records.dead_letters import DeadLetterBox
from streams.records.decode import RecordDecoder
from streams.records.facts import Control
from streams.records.fast_reader import SampleReader
from streams.records.samples import SampleRun, merge_runs
from streams.records.schema import (
    ControlRecord,
    DeadLetter,
    Facts,
    FleetRecord,
    SampleRecord,
    SourceRecord,
    TickRecord,
    Tombstone,
)

# Limits of a stretch, which bound its memory: samples as columns, and samples as objects of the slow decoder.
_MAX_STRETCH_SAMPLES = 8_192
_MAX_SLOW_SAMPLES = 4_096


_NO_CONTROLS = DeadLetter(
    "control", "operators write to the controls topic; advanced.stream.controls_in_telemetry accepts them here too"
)


class SideRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that moves no time. `outcome` names the counter that it increases; `control` is that of a control
    record.
    """

    offset: int
    outcome: Literal["dead", "future", "tombstones", "controls"]
    control: Control | None = None


class SampleStretch(NamedTuple):
    """Consecutive records: samples in log order, and the side records between them. At least one of both is there."""

    run: SampleRun | None
    side_records: Sequence[SideRecord]


class TimedRecord(NamedTuple):
    """A record of facts, or a tick, and the event time that it proves to have passed."""

    record: LogRecord
    decoded: Facts | TickRecord
    mark_ms: int


class RecordSorter:
    """Sorts the records of one partition.

    Args:
        config: skew, and whether telemetry may hold control records.
        reader, decoder: the fast and the slow way to read a record.
        box: collects the dead letters.

    Attributes:
        published_offset: an earlier worker has counted the records up to this offset and published their dead letters.
    """

    def __init__(self, config: StreamConfig, reader: SampleReader, decoder: RecordDecoder, box: DeadLetterBox) -> None:
        self.published_offset = -1
        self._skew_ms = config.skew_ms
        self._takes_controls = config.controls_in_telemetry
        self._reader = reader
        self._decode = decoder.decode
        self._box = box

    def sort(self, records: Sequence[LogRecord]) -> Iterator[SampleStretch | TimedRecord]:
        """Split records, whose offsets ascend, into stretches and records that move time one by one, in log order."""
        pending = _PendingStretch(self._reader)
        for reading in self._reader.read(records):
            pending.read(reading.run)
            for record in reading.rest:
                outcome = self._sorted(record)
                if isinstance(outcome, SideRecord):
                    pending.side_records.append(outcome)
                    continue
                if isinstance(outcome, SampleRecord):
                    pending.add_slow(record, outcome)
                    if pending.num_slow < _MAX_SLOW_SAMPLES:
                        continue
                yield from pending.take(record.offset)
                if isinstance(outcome, TimedRecord):
                    yield outcome
            if pending.num_samples + len(pending.side_records) >= _MAX_STRETCH_SAMPLES:
                yield from pending.take()
        yield from pending.take()

    def _sorted(self, record: LogRecord) -> SampleRecord | SideRecord | TimedRecord:
        offset, stamp_ms = record.offset, record.stamp_ms
        publishes = offset > self.published_offset and self._box.keeps(offset)
        decoded = self._decode(record.value, record.key, stamp_ms, publishes)
        if isinstance(decoded, DeadLetter):
            return self._refused(record, decoded, "dead")
        if isinstance(decoded, SampleRecord):
            mark = max([sample.ts_ms for sample in decoded.samples])
        elif isinstance(decoded, Tombstone):
            return SideRecord(offset, "tombstones")
        elif isinstance(decoded, ControlRecord):
            if not self._takes_controls:
                return self._refused(record, _NO_CONTROLS, "dead")
            return SideRecord(offset, "controls", decoded.control)
        elif isinstance(decoded, TickRecord):
            return TimedRecord(record, decoded, min(decoded.ts_ms, stamp_ms))
        elif isinstance(decoded, FleetRecord):
            mark = max(facts.ts_ms for _, facts in decoded.facts)
        elif isinstance(decoded, SourceRecord):
            mark = decoded.word.ts_ms
        else:
            mark = decoded.fact.ts_ms
        ahead_ms = mark - stamp_ms
        if ahead_ms > self._skew_ms:
            detail = f"{ahead_ms} ms ahead of the broker's stamp, the limit is {self._skew_ms}"
            return self._refused(record, DeadLetter("future", detail), "future")
        return decoded if isinstance(decoded, SampleRecord) else TimedRecord(record, decoded, mark)

    def _refused(self, record: LogRecord, letter: DeadLetter, outcome: Literal["dead", "future"]) -> SideRecord:
        self._box.add(record, letter, record.offset <= self.published_offset)
        return SideRecord(record.offset, outcome)


class _PendingStretch:
    """The content of the next stretch."""

    def __init__(self, reader: SampleReader) -> None:
        self.side_records: list[SideRecord] = []
        self.num_samples = self.num_slow = 0
        self._reader = reader
        self._runs: list[SampleRun] = []
        self._slow: list[tuple[LogRecord, SampleRecord]] = []

    def read(self, run: SampleRun | None) -> None:
        """Add a run of the fast reader."""
        if run is not None:
            self._runs.append(run)
            self.num_samples += len(run.series)

    def add_slow(self, record: LogRecord, decoded: SampleRecord) -> None:
        """Add a record of the slow decoder."""
        self._slow.append((record, decoded))
        self.num_slow += len(decoded.samples)

    def take(self, end_offset: int | None = None) -> Iterator[SampleStretch]:
        """The pending records, at most up to this offset; the rest of the last run stays pending."""
        if not (self._runs or self._slow or self.side_records):
            return
        runs, self._runs = self._runs, []
        if end_offset is not None and runs:
            last = runs.pop()
            cut = int(np.searchsorted(last.offsets, end_offset, side="right"))
            if cut:
                runs.append(last.part(0, cut))
            if cut < len(last.offsets):
                self._runs.append(last.part(cut, len(last.offsets)))
        if self._slow:
            runs.append(self._reader.run_of(self._slow))
        side_records = self.side_records
        self.side_records, self._slow, self.num_slow = [], [], 0
        self.num_samples = sum(len(run.series) for run in self._runs)
        if runs or side_records:
            yield SampleStretch(merge_runs(runs) if runs else None, side_records)
