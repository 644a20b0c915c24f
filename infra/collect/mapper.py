"""The mapper: from `telemetry.raw`, in others' formats and keys, to the telemetry topics, keyed by workload.

At least once: an offset is committed when everything that was read before it is published. What is published twice
after a crash has the same workload, source and time, and the fold takes the first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError

from infra.collect.formats.raw_record import RawPoints, UnusableError, read_raw
from infra.collect.mapping.readings import Assembler
from infra.collect.publisher import RecordPublisher, pack
from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.settings.brokers import bootstrap_servers
from streams.log import LogRecord, OutRecord
from streams.records.dead_letters import DeadLetterBox
from streams.records.schema import DeadLetter
from streams.records.strict_json import MalformedError
from streams.runtime.transactions import TransactionWatch, overdue
from streams.runtime.transport import fetched_ends, stop_in_time, tolerate_unreadable_headers
from streams.topics import Topics

# Read with aiokafka: after a commit, the group consumer of kafka-python 3.0 was seen to stand still in its poll.
_POLL_MS = 200
_MOST_RECORDS = 2_000
# A mapper that died holds its partitions for so long.
_SESSION_MS = 10_000
_MOST_DETAIL_CHARS = 200
Log = tuple[str, int]


class RawFold:
    """The mapper without Kafka: records in, telemetry records and dead letters out.

    Args:
        decode: of a record's value and broker's stamp; `read_raw` tells formats apart by shape.
    """

    def __init__(
        self, assembler: Assembler, topics: Topics, decode: Callable[[bytes, int], RawPoints] = read_raw
    ) -> None:
        self._assembler, self._topics, self._decode = assembler, topics, decode
        self._boxes: dict[Log, DeadLetterBox] = {}
        self.read = self.points = 0
        self.refused: Counter[str] = Counter()
        self.passed_over: Counter[str] = Counter()

    def fold(self, topic: str, record: LogRecord, partition: int, now_s: float) -> None:
        """Take in one record."""
        self.read += 1
        if record.value is None:
            return
        try:
            raw = self._decode(record.value, record.stamp_ms)
        except MalformedError as error:
            self.refused[error.code] += 1
            if isinstance(error, UnusableError):
                self.passed_over.update(error.passed_over)
            box = self._boxes.get((topic, partition))
            if box is None:
                box = self._boxes[topic, partition] = DeadLetterBox(self._topics.dead_letters, topic, partition)
            detail = ascii(error.detail)[1:-1][:_MOST_DETAIL_CHARS]
            box.add(record, DeadLetter(error.code, detail), published_before=False)
            return
        self.points += len(raw.points)
        if raw.passed_over:
            self.passed_over.update(raw.passed_over)
        for point in raw.points:
            self._assembler.add(point, now_s, (topic, partition), record.offset)

    def take(self, now_s: float | None) -> list[OutRecord]:
        """What is complete; with None everything, complete or not."""
        readings = self._assembler.everything() if now_s is None else self._assembler.due(now_s)
        return pack(readings, self._topics)

    def take_letters(self) -> list[OutRecord]:
        """Dead letters since the last call, with the headers that all dead letters have."""
        return [out for box in self._boxes.values() for out in box.take()]

    def forget(self, log: Log) -> None:
        """Drop what waits for more pieces and has some of this log: its next reader reads them again."""
        self._assembler.forget(log)

    def committable(self, positions: Mapping[Log, int]) -> dict[Log, int]:
        """Per log, the offset from which a successor must read."""
        first = self._assembler.first_offsets()
        return {log: min(position, first.get(log, position)) for log, position in positions.items()}


class RawMapper(ConsumerRebalanceListener):
    """Reads `telemetry.raw` in a consumer group, so that several mappers share its partitions.

    Args:
        brokers: `host:port`, several separated by commas.
        publisher: takes telemetry and dead letters.
        security: keyword arguments of aiokafka's clients.
    """

    def __init__(
        self,
        fold: RawFold,
        topics: Topics,
        brokers: str,
        publisher: RecordPublisher,
        security: Mapping[str, Any] | None = None,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        self._fold, self._topics, self._brokers, self._publisher = fold, topics, brokers, publisher
        self._security, self._now_s = dict(security or {}), now_s
        self._positions: dict[Log, int] = {}
        self._committed: dict[Log, int] = {}
        self.published = 0
        self._transactions = TransactionWatch()
        self._held_up = False

    async def run(self, stop: asyncio.Event) -> None:
        """Map until told to stop, then publish and commit what is left.

        Raises:
            HarmonyError: Kafka cannot be read, or did not take a record: nothing more is committed, a restart goes on
                from there.
        """
        tolerate_unreadable_headers()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=await asyncio.to_thread(bootstrap_servers, self._brokers, self._security),
            client_id="harmony-mapper",
            group_id=f"{self._topics.prefix}mapper",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_SESSION_MS // 4,
            **self._security,
        )
        consumer.subscribe([self._topics.telemetry_raw], listener=self)
        try:
            with self._kafka():
                await consumer.start()
            while not stop.is_set():
                await self._step(consumer)
            await self._publish(consumer, everything=True)
        except CommitFailedError:
            # The group took the partitions away meanwhile; whoever has them now reads from the last commit.
            return
        finally:
            await stop_in_time(consumer.stop())

    @contextmanager
    def _kafka(self) -> Iterator[None]:
        """Around calls of the consumer alone: the same kinds of errors elsewhere are not Kafka's."""
        try:
            yield
        except CommitFailedError:
            raise
        except (KafkaError, ValueError, OSError) as error:
            raise HarmonyError(
                f"Kafka at {self._brokers} failed ({type(error).__name__}: {str(error).rstrip('.')}); start again to "
                "go on from the last commit."
            ) from error

    async def _step(self, consumer: AIOKafkaConsumer) -> None:
        with self._kafka():
            fetched = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)
        for tp, records in fetched.items():
            for r in records:
                self._fold.fold(tp.topic, LogRecord(r.offset, r.timestamp, r.key, r.value), tp.partition, self._now_s())
                self._positions[tp.topic, tp.partition] = r.offset + 1
        await self._publish(consumer, everything=False)
        self._look_at_transactions(consumer)

    def _look_at_transactions(self, consumer: AIOKafkaConsumer) -> None:
        late = overdue(self._transactions.look(fetched_ends(consumer, consumer.assignment()), self._now_s()))
        if late and not self._held_up:
            say("; ".join(one.sentence(self._brokers) for one in late) + ".")
        self._held_up = bool(late)

    async def _publish(self, consumer: AIOKafkaConsumer, *, everything: bool) -> None:
        due = self._fold.take(None if everything else self._now_s())
        committable = self._fold.committable(self._positions)
        records = [*self._fold.take_letters(), *due]
        if records:
            await asyncio.to_thread(self._publisher.publish, records)
            self.published += len(records)
        # Partitions may have gone to another mapper while the broker took the records.
        new = {
            log: offset
            for log, offset in committable.items()
            if log in self._positions and offset > self._committed.get(log, -1)
        }
        if new:
            with self._kafka():
                await consumer.commit({TopicPartition(*log): offset for log, offset in new.items()})
            self._committed |= new

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Another mapper takes these over, from the last commit: what waits here of them would only be a part."""
        for tp in revoked:
            log = tp.topic, tp.partition
            self._fold.forget(log)
            self._positions.pop(log, None)
            self._committed.pop(log, None)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Reading goes on from the group's commits."""
