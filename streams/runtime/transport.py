"""The only module that touches private hooks of Faust and aiokafka: whole fetched batches for Faust agents.

Position and commit come from our pages, never from Faust's acknowledgements (docs/adr/0001). Contract tests pin every
hook that is marked * here.

| hook of Faust 0.15.3 | use |
|---|---|
| `Transport.Consumer` | our consumer class |
| `Consumer._drain_messages`* | one event per fetched chunk of a partition, contiguous offsets only |
| `Consumer.perform_seek` | position = the resume offset of the restored state |
| `Consumer._new_offset`*, `_filter_tps_with_pending_acks`*, `ack` | commit = newest confirmed resume offset |
| `Consumer._commit_offsets`*, `_committed_offset`* | offsets that the group has taken; a refused commit is repeated |
| `Consumer._thread`*, aiokafka's subscription state* and sender task* | state of consumer and producer for watchdogs |
| `Consumer._new_consumer_thread` | our fetch thread |
| `Consumer._get_active_partitions`*, `on_buffer_drop` | reading continues as soon as a buffer has room |
| `TableManager.on_start`, `_update_channels`* | joins the group at once |
| `Producer._ensure_producer`* | aiokafka's producer, which takes whole batches |

| hook of aiokafka 0.14 | use |
|---|---|
| `fetcher.MemoryRecords`* | fetched bytes come in our batches |
| `_DefaultRecordBatchPy._maybe_uncompress`*, `_buffer`*, `_pos`*, `_num_records`* | bytes of a batch, unpacked |
| `_DefaultRecordPy`* | a record as its consumers know it |
| `Fetcher._records`*, `PartitionRecords._consumer_record`* | records come out as `LogRecord`s |
| `Fetcher._fetch_max_wait_ms`* | no partition waits long behind an idle one |
| `Fetcher._fetch_waiters`*, `_notify`* | the fetcher looks at the records that it already holds |
| `Fetcher._isolation_level`* | committed records only, and both ends of a log |
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import faust
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from aiokafka.errors import CorruptRecordException
from aiokafka.record import default_records
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint
from faust.tables import TableManager
from faust.transport.consumer import ensure_TP
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP, ConsumerMessage

from streams.log import LogRecord
from streams.runtime.transactions import LogEnd, Place
from streams.runtime.unpacked import MAX_UNPACKED_BYTES, fields_without_headers, oversize_value, unpacks_beyond

# Records with header names that are not UTF-8. Brokers accept them, but aiokafka raises at the first one, after every
# restart again. One such record of any publisher would end all workers. HARMONY reads no header of telemetry, so such
# a record is read without its headers.
#
# Batches that unpack to more than a worker has memory. Kafka bounds a batch by its compressed size. Such a batch is not
# unpacked: one record stands for it, too large to be accepted, that says so. It is refused and counted like any other.


_BATCH_HEADER_BYTES: Final = 61  # of message format 2
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_BEFORE_LENGTH_COUNTS: Final = 12

_library = cast("Any", default_records)


def tolerate_unreadable_headers() -> None:
    """Let all consumers of this process read records whose header names are not UTF-8."""
    cast("Any", fetcher).MemoryRecords = ReadableRecords


class ReadableRecords:
    """The bytes of one partition in a fetch response: batches, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._batches, self._data, self._at = MemoryRecords(data), data, 0

    def has_next(self) -> bool:
        return bool(self._batches.has_next())

    def size_in_bytes(self) -> int:
        return int(self._batches.size_in_bytes())

    def next_batch(self) -> Any:
        batch = self._batches.next_batch()
        if batch is None:
            return None
        start = self._at
        self._at += _BEFORE_LENGTH_COUNTS + _LENGTH.unpack_from(self._data, start + _LENGTH_AT)[0]
        return _ReadableBatch(batch, memoryview(self._data)[start : self._at])


class _ReadableBatch:
    """A batch of the library, read again without headers where a header name is not UTF-8."""

    def __init__(self, batch: Any, data: memoryview) -> None:
        self._batch, self._data = batch, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        packed = self._data[_BATCH_HEADER_BYTES:]
        if unpacks_beyond(self._batch.compression_type, packed, MAX_UNPACKED_BYTES):
            yield _stand_in(self._data)
            return
        record = None
        try:
            for record in self._batch:
                yield record
        except (UnicodeDecodeError, CorruptRecordException):  # the library's Python version raises the latter
            last_offset = -1 if record is None else record.offset
            yield from (record for record in _records_without_headers(self._data) if record.offset > last_offset)


def _stand_in(data: memoryview) -> Any:
    """The record that stands for all of a batch."""
    batch = _library._DefaultRecordBatchPy(data)
    value = oversize_value(batch._num_records, batch.base_offset, len(data), batch.compression_type)
    return _library._DefaultRecordPy(batch.base_offset, batch.max_timestamp, batch.timestamp_type, None, value, [])


def _records_without_headers(data: memoryview) -> Iterator[Any]:
    """The records of a batch of message format 2, without their headers."""
    batch = _library._DefaultRecordBatchPy(data)
    batch._maybe_uncompress()
    found = fields_without_headers(batch._buffer, batch._pos, batch._num_records, decode_varint, CorruptRecordException)
    for record in found:
        stamp_ms = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + record.behind_ms
        offset = batch.base_offset + record.behind
        yield _library._DefaultRecordPy(offset, stamp_ms, batch.timestamp_type, record.key, record.value, [])


# Time limit for stopping a Kafka client: a worker ends within five seconds.
STOP_LIMIT_S = 2.0


async def stop_in_time(stopping: Awaitable[None], limit_s: float = STOP_LIMIT_S) -> None:
    """Wait until a client has stopped, at most `limit_s` seconds.

    Over TLS aiokafka also waits up to 30 s for the broker to close the connection. That is longer than a worker may
    take to end. The client has left its group and committed its offsets before that wait.
    """
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopping, limit_s)


def unisolated(consumer: Any) -> Any:
    """The fetcher of a started consumer for requests of offsets that do not stop at an open transaction.

    A consumer of committed records is given the last stable offset as the end of a log; this one, the high watermark.
    """
    asking = copy.copy(consumer._fetcher)
    asking._isolation_level = READ_UNCOMMITTED
    return asking


def fetched_ends(consumer: Any, tps: Iterable[Any]) -> dict[Place, LogEnd]:
    """The ends of partitions as of the last fetch; without those that were not fetched yet."""
    return {
        (tp.topic, tp.partition): LogEnd(last_stable, high_watermark)
        for tp in tps
        if (last_stable := consumer.last_stable_offset(tp)) is not None
        and (high_watermark := consumer.highwater(tp)) is not None
    }


# The fetch thread. aiokafka sends one request at a time to a broker. A request for partitions at their end delays the
# others for as long as the broker may wait, and Faust allows 1.5 s.
_MAX_WAIT_MS: Final = 100


class LogRecordTopics(Protocol):
    """The interface of the consumer for its fetch thread."""

    def lean_topics(self) -> frozenset[str]:
        """Topics whose records the fetcher turns into `LogRecord`s."""
        ...


class _LogRecordResults(OrderedDict[Any, Any]):
    """Fetched results that were not taken yet; their records become `LogRecord`s without a larger object in between."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__()
        self._topics = topics

    def __setitem__(self, tp: Any, result: Any) -> None:
        records = getattr(result, "_partition_records", None)  # an error has none
        if records is not None and tp.topic in self._topics:
            records._consumer_record = _log_record
        super().__setitem__(tp, result)


def _log_record(_tp: Any, record: Any) -> LogRecord:
    return LogRecord(record.offset, record.timestamp, record.key, record.value)


class FetchThread(driver.AIOKafkaConsumerThread):
    """The fetch thread of one consumer."""

    async def on_start(self) -> None:
        tolerate_unreadable_headers()
        await super().on_start()
        topics = cast("LogRecordTopics", self.consumer).lean_topics()
        fetcher = self._ensure_consumer()._fetcher
        fetcher._records = _LogRecordResults(topics)
        fetcher._fetch_max_wait_ms = _MAX_WAIT_MS
        # Faust sets this itself only together with its own transactions (docs/adr/0043).
        fetcher._isolation_level = READ_COMMITTED

    async def on_thread_stop(self) -> None:
        await stop_in_time(super().on_thread_stop())

    async def log_ends(self, tps: Collection[TP]) -> dict[Place, LogEnd]:
        """Both ends of each partition, as the broker knows them now."""
        return cast("dict[Place, LogEnd]", await self.call_thread(self._log_ends, tps))

    async def _log_ends(self, tps: Collection[TP]) -> dict[Place, LogEnd]:
        consumer = self._ensure_consumer()
        # In this order, so that records that come between the two answers do not look held up.
        high_watermarks = await unisolated(consumer).end_offsets(tps, consumer._request_timeout_ms)
        last_stable = await consumer.end_offsets(tps)
        return {(tp.topic, tp.partition): LogEnd(last_stable[tp], end) for tp, end in high_watermarks.items()}

    def wake_fetcher(self) -> None:
        """Let the fetcher hand out the records that it holds, now that a partition has room; callable from any thread.

        A fetcher that was asked for other partitions waits for the broker's next answer, but requests nothing while it
        holds records. Faust itself waits for a full second here.
        """
        self.thread_loop.call_soon_threadsafe(self._wake_fetcher)

    def _wake_fetcher(self) -> None:
        if self._consumer is None:
            return
        fetcher = self._consumer._fetcher
        for waiter in tuple(fetcher._fetch_waiters):
            fetcher._notify(waiter)


# Timestamp type of Kafka for the broker's own stamp.
_LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Contiguous records of one partition, fetched together under one group generation."""

    topic: str
    partition: int
    records: list[LogRecord]
    generation: int


class BatchMessage(ConsumerMessage):
    """Carries a `FetchedBatch` through Faust; its offset is the batch's last."""


class BatchSchema(faust.Schema[Any, Any]):
    """Passes a fetched batch to the agent unchanged, because HARMONY decodes the bytes itself."""

    def compile(self, app: Any, **kwargs: Any) -> Callable[..., Any]:
        plain = super().compile(app, **kwargs)

        async def decode(message: Any, *, propagate: bool = False) -> Any:
            if isinstance(message, BatchMessage):
                return app.create_event(None, message.value, message.headers, message)
            return await plain(message, propagate=propagate)

        return decode


def to_message(tp: TP, records: list[LogRecord], generation: int) -> BatchMessage:
    """The message of contiguous records of one partition."""
    batch = cast("Any", FetchedBatch(tp.topic, tp.partition, records, generation))
    return BatchMessage(
        topic=tp.topic,
        partition=tp.partition,
        offset=records[-1].offset,
        timestamp=records[0].stamp_ms / 1000.0,
        timestamp_type=_LOG_APPEND_TIME,
        headers=[],
        key=None,
        value=batch,
        checksum=None,
        serialized_key_size=0,
        serialized_value_size=0,
        tp=tp,
        generation_id=generation,
    )


MAX_BATCH_RECORDS = 4096


class BatchConsumer(driver.Consumer):
    """Delivers contiguous offsets only, and commits the offsets that the stages have marked safe."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._expected: dict[TP, int] = {}
        self._safe: dict[TP, int] = {}
        self._reseeked: dict[TP, tuple[int, int]] = {}
        self._has_room = asyncio.Event()
        self.delivering: TP | None = None  # a partition whose lane has no room; others wait for it
        super().__init__(*args, **kwargs)

    def _new_consumer_thread(self) -> FetchThread:
        return FetchThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def _port(self) -> BatchPort:
        return cast("BatchPort", cast("Any", self.app).batch_port)

    def _is_batch(self, tp: TP) -> bool:
        return tp.topic in self._port.topics

    def lean_topics(self) -> frozenset[str]:
        """Topics whose records the fetcher turns into `LogRecord`s."""
        return self._port.topics

    # Commit: the resume offset of the newest confirmed commit record.

    def mark_safe(self, tp: TP, offset: int, generation: int) -> None:
        """Allow `offset` to be committed; a mark from an older generation is ignored."""
        if generation == self.app.consumer_generation_id:
            self._safe[tp] = offset
        # Faust's compiled stream adds each acknowledged offset here without calling `ack`, and never removes it.
        self._acked.pop(tp, None)
        self._acked_index.pop(tp, None)

    def ack(self, message: Any) -> bool:
        if not self._is_batch(message.tp):
            return bool(super().ack(message))
        message.acked = True
        self._unacked_messages.discard(message)
        return True

    def _new_offset(self, tp: TP) -> int | None:
        return self._safe.get(tp) if self._is_batch(tp) else super()._new_offset(tp)

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        yield from super()._filter_tps_with_pending_acks(topics)
        yield from [tp for tp in self._safe if topics is None or tp in topics or tp.topic in topics]

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        before = {tp: self._committed_offset[tp] for tp in offsets}
        done = bool(await super()._commit_offsets(offsets, start_new_transaction))
        if not done:
            # Faust counts a refused commit as done, and repeats it only when there is a newer offset.
            self._committed_offset.update(before)
        return done

    def commit_state(self, tp: TP) -> tuple[int | None, int | None]:
        """Newest offset that may be committed, and newest offset that is committed."""
        return self._safe.get(tp), self._committed_offset.get(tp)

    # State for watchdogs.

    async def log_ends(self, tps: Collection[TP]) -> dict[Place, LogEnd]:
        """The ends of each partition; asks the broker, through the thread that also fetches."""
        return await cast("FetchThread", self._thread).log_ends(tps) if tps else {}

    def unfetched(self, tp: TP, end: int) -> int:
        """Records before `end` that were not fetched yet. Transaction markers, which are no records, do not count."""
        subscription = self._thread._ensure_consumer()._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        if assignment is None or tp not in assignment.tps:
            return 0
        state = assignment.state_value(tp)
        return max(0, end - state.position) if state.has_valid_position else 0

    def untaken(self, tp: TP, next_offset: int) -> int:
        """Records delivered to the agent that its lane has not been given."""
        expected = self._expected.get(tp)
        return max(0, expected - next_offset) if expected is not None else 0

    # Position: the resume offset of the restored state.

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        for tp in map(ensure_TP, revoked):
            self._expected.pop(tp, None)
            self._safe.pop(tp, None)
        await super().on_partitions_revoked(revoked)

    async def perform_seek(self) -> None:
        """Called after the state was restored and before the flow resumes."""
        self._expected.clear()
        await super().perform_seek()
        seek_offsets: dict[TP, int] = {}
        stateless: list[TP] = []
        for tp in map(ensure_TP, self.assignment()):
            if not self._is_batch(tp):
                continue
            offset = self._port.start_offset(tp)
            if offset is not None:
                seek_offsets[tp] = offset
                continue
            committed = self._committed_offset[tp]
            if committed:
                self._port.on_missing_state(tp, committed)
            stateless.append(tp)
        if stateless:
            earliest = await self._thread.earliest_offsets(*stateless)
            seek_offsets.update({ensure_TP(tp): offset for tp, offset in earliest.items()})
        if seek_offsets:
            await self._thread.seek_wait(seek_offsets)
        self._expected.update(seek_offsets)
        self._reseeked.clear()

    # Delivery: one event per fetched chunk.

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set() or self.should_stop):
                await self.sleep(0)
                fetched = await self._next_records()
                if not fetched or self.should_stop:
                    continue
                if not self.flow_active:
                    # Faust seeks to the committed offset here, which races with the restore. Dropping is enough,
                    # because perform_seek always runs before the flow resumes.
                    continue
                for tp, records in fetched.items():
                    await self._deliver(ensure_TP(tp), records)
        except asyncio.CancelledError:
            if not self.app.should_stop:
                raise
        except Exception as error:
            if not (self.app.should_stop and isinstance(error, self.consumer_stopped_errors)):
                raise

    async def _next_records(self) -> Any:
        """Records of the partitions whose buffer has room; none after a second."""
        if self.flow_active and not self._get_active_partitions():
            # Faust itself sleeps for a second while no partition has room.
            self._has_room.clear()
            await self.wait_first(self._has_room.wait(), timeout=1.0)
            return None
        fetched, _active = await self._wait_next_records(1.0)
        return fetched

    def on_buffer_drop(self, tp: TP) -> None:
        super().on_buffer_drop(tp)
        self._has_room.set()
        cast("FetchThread", self._thread).wake_fetcher()

    async def _deliver(self, tp: TP, records: list[LogRecord]) -> None:
        generation = self.app.consumer_generation_id
        expected = self._expected.get(tp)
        if expected is None:
            return
        if records[0].offset < expected:
            records = [r for r in records if r.offset >= expected]
            if not records:
                return
        jump = (expected, records[0].offset)
        if records[0].offset > expected and self._reseeked.get(tp) != jump:
            # This may be a fetch from before the seek. After one more try the offsets are taken to be removed.
            self._reseeked[tp] = jump
            await self._thread.seek_wait({tp: expected})
            return
        if records[0].offset > expected:
            await self._report_removed(tp, expected, records[0].offset)
        self.app.monitor.track_tp_end_offset(tp, self.highwater(tp))
        for start in range(0, len(records), MAX_BATCH_RECORDS):
            if not self.flow_active or self.app.consumer_generation_id != generation or tp not in self._expected:
                return
            message = to_message(tp, records[start : start + MAX_BATCH_RECORDS], generation)
            self.delivering = tp
            try:
                await self.wait_first(self.callback(message), self.suspend_flow.wait())
            finally:
                self.delivering = None
            self._delivered(tp, message.offset)

    async def _report_removed(self, tp: TP, expected: int, first: int) -> None:
        """Report missing offsets, unless they are transaction markers inside the log."""
        begin = (await self._thread.earliest_offsets(tp)).get(tp, 0)
        if begin > expected:
            self._port.on_removed(tp, expected, first)

    def _delivered(self, tp: TP, offset: int) -> None:
        # A rebalance during delivery suspends the flow and clears the expected offsets; the agent drops the batch.
        if self.flow_active and tp in self._expected:
            self._expected[tp] = offset + 1
            self._read_offset[tp] = offset


def kafka_producer(app: faust.App) -> Any:
    """The started aiokafka producer behind an app's."""
    return cast("driver.Producer", app.producer)._ensure_producer()


class NoTables(TableManager):
    """Starts at once; Faust itself waits a second for table declarations before it joins the group."""

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


class BatchTransport(driver.Transport):
    Consumer = BatchConsumer


@dataclass(frozen=True, slots=True)
class BatchPort:
    """The interface of the stages for the transport.

    Attributes:
        topics: names of the topics whose records arrive as fetched batches.
        start_offset: resume offset of the restored state of a partition; None = it has no state.
        on_missing_state: a group commit exists for a partition that has no state; must not return.
        on_removed: retention removed the records from the first offset on; the log continues at the second.
    """

    topics: frozenset[str]
    start_offset: Callable[[TP], int | None]
    on_missing_state: Callable[[TP, int], None]
    on_removed: Callable[[TP, int, int], None]


def install(app: faust.App, port: BatchPort) -> None:
    """Set the transport of an app."""
    cast("Any", app).batch_port = port
    app.transport = BatchTransport(app.conf.broker_consumer, app)


def highwater_lag(app: faust.App, next_offsets: Mapping[TP, int]) -> dict[TP, int]:
    """Records between the next offset of a lane and the end of the partition at the last fetch."""
    lag = {}
    for tp, offset in next_offsets.items():
        end = app.consumer.highwater(tp)
        if end is not None:
            lag[tp] = max(0, end - offset)
    return lag


def producer_failure(app: faust.App) -> str | None:
    """Why the producer can never send again, or None: its background task has ended."""
    client = getattr(cast("Any", app)._producer, "_producer", None)
    task = client._sender.sender_task if client is not None else None
    if task is None or not task.done() or task.cancelled():
        return None
    error = task.exception()
    return f"{type(error).__name__}: {error}" if error is not None else "its background task has ended"
