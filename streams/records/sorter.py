"""Sorts telemetry records by what they do: bring samples, move nothing at all, or move time one by one.

Samples become runs as long as possible. What moves nothing (dead letters, tombstones, control records) is carried
beside a run instead of ending it, so that a flood of bad records does not cut the good ones into single samples.
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
from streams.records.samples import SampleRun, merged
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

# Bound the memory of a stretch, whatever its records hold: as columns, and as objects of the slow way.
_STRETCH_SAMPLES = 8_192
_SLOW_SAMPLES = 4_096


class Aside(msgspec.Struct, frozen=True, gc=False):
    """A record that moves nothing: `outcome` is the counter that tells of it; of a control record its word is kept."""

    offset: int
    outcome: Literal["dead", "future", "tombstones", "controls"]
    control: Control | None = None


class Stretch(NamedTuple):
    """Consecutive records: samples in log order, and between them what moves nothing. At least one of both."""

    run: SampleRun | None
    asides: Sequence[Aside]


class TimedRecord(NamedTuple):
    """A record of facts, or a tick, and the event time that it proves."""

    record: LogRecord
    decoded: Facts | TickRecord
    mark_ms: int


class RecordSorter:
    """Sorts the records of one partition.

    Args:
        config: skew.
        reader, decoder: the fast way and the slow way.
        box: takes the dead letters.

    Attributes:
        counted_to: records up to this offset were counted, and their dead letters published, by an earlier life.
    """

    def __init__(self, config: StreamConfig, reader: SampleReader, decoder: RecordDecoder, box: DeadLetterBox) -> None:
        self.counted_to = -1
        self._skew_ms = config.skew_ms
        self._reader = reader
        self._decode = decoder.decode
        self._box = box

    def sort(self, records: Sequence[LogRecord]) -> Iterator[Stretch | TimedRecord]:
        """Split records, whose offsets ascend, into stretches and records that move time one by one, in log order."""
        waiting = _Waiting(self._reader)
        for reading in self._reader.read(records):
            waiting.read(reading.run)
            for record in reading.rest:
                found = self._sorted(record)
                if isinstance(found, Aside):
                    waiting.asides.append(found)
                    continue
                if isinstance(found, SampleRecord):
                    waiting.add_slow(record, found)
                    if waiting.num_slow < _SLOW_SAMPLES:
                        continue
                yield from waiting.take(record.offset)
                if isinstance(found, TimedRecord):
                    yield found
            if waiting.num_samples + len(waiting.asides) >= _STRETCH_SAMPLES:
                yield from waiting.take()
        yield from waiting.take()

    def _sorted(self, record: LogRecord) -> SampleRecord | Aside | TimedRecord:
        offset, stamp_ms = record.offset, record.stamp_ms
        kept = offset > self.counted_to and self._box.keeps(offset)
        decoded = self._decode(record.value, record.key, stamp_ms, kept)
        if isinstance(decoded, DeadLetter):
            return self._refused(record, decoded, "dead")
        if isinstance(decoded, SampleRecord):
            mark = max([sample.ts_ms for sample in decoded.samples])
        elif isinstance(decoded, Tombstone):
            return Aside(offset, "tombstones")
        elif isinstance(decoded, ControlRecord):
            return Aside(offset, "controls", decoded.control)
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

    def _refused(self, record: LogRecord, letter: DeadLetter, outcome: Literal["dead", "future"]) -> Aside:
        self._box.add(record, letter, record.offset <= self.counted_to)
        return Aside(record.offset, outcome)


class _Waiting:
    """What the next stretch will be made of."""

    def __init__(self, reader: SampleReader) -> None:
        self.asides: list[Aside] = []
        self.num_samples = self.num_slow = 0
        self._reader = reader
        self._runs: list[SampleRun] = []
        self._slow: list[tuple[LogRecord, SampleRecord]] = []

    def read(self, run: SampleRun | None) -> None:
        """Add what the fast way has read."""
        if run is not None:
            self._runs.append(run)
            self.num_samples += len(run.series)

    def add_slow(self, record: LogRecord, decoded: SampleRecord) -> None:
        """Add a record that was decoded the slow way."""
        self._slow.append((record, decoded))
        self.num_slow += len(decoded.samples)

    def take(self, end_offset: int | None = None) -> Iterator[Stretch]:
        """What waits, at most up to this offset; of the last run, what lies beyond it goes on waiting."""
        if not (self._runs or self._slow or self.asides):
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
        asides = self.asides
        self.asides, self._slow, self.num_slow = [], [], 0
        self.num_samples = sum(len(run.series) for run in self._runs)
        if runs or asides:
            yield Stretch(merged(runs) if runs else None, asides)
