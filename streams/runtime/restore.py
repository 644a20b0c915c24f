"""Reads stretches of Kafka logs outside the group, to restore state, and checks that the logs still hold the rest."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import monotonic
from types import TracebackType
from typing import Any, Self

import aiokafka
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from streams.log import ContractBroken, LogRecord
from streams.meter import Meter
from streams.runtime.lane import Kernel, Lane, LossTolerantKernel
from streams.runtime.transactions import TransactionWatch
from streams.runtime.transport import fetched_ends, stop_in_time, unisolated

_FETCH_BYTES = 8 << 20
# The broker answers the requests of a connection one after the other, so at the end of a log every request for offsets
# waits behind a fetch. With the default of half a second a restore takes 40 s.
_FETCH_WAIT_MS = 10
# Pause before the client repeats a request that was not answered at once, such as the first one for a topic.
_RETRY_MS = 10
_REQUEST_MS = 40_000
# Time for a transaction in a log that is read to its end. Nobody but workers writes to those logs, and they use none.
_TRANSACTION_LIMIT_S = 15.0


class LogReader:
    """A groupless consumer of committed records with explicit positions.

    The end of a log is its high watermark, not its last stable offset: state behind an open transaction is waited for.
    Without it a worker would resume from older state than its own, and could contradict what it has published.

    Positions are always sought explicitly: `assign` followed by "seek to beginning" races with the client's own
    reset policy and can read nothing without an error.

    Args:
        client_options: of aiokafka's consumer.
        on_answer: called whenever the broker has answered something.
    """

    def __init__(self, client_options: dict[str, Any], on_answer: Callable[[], None] = lambda: None) -> None:
        self._on_answer = on_answer
        self._brokers = client_options.get("bootstrap_servers")
        self._consumer = aiokafka.AIOKafkaConsumer(
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            fetch_max_bytes=8 * _FETCH_BYTES,
            retry_backoff_ms=_RETRY_MS,
            isolation_level="read_committed",
            **client_options,
        )

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        # `stop` raises if it cancels the client's coordinator task before that task has begun.
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await stop_in_time(self._consumer.stop())

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First retained offset and the offset after the last record."""
        tp = TopicPartition(topic, partition)
        begin = await self._consumer.beginning_offsets([tp])
        end = await unisolated(self._consumer).end_offsets([tp], _REQUEST_MS)
        self._on_answer()
        return begin[tp], end[tp]

    async def offset_at(self, topic: str, partition: int, stamp_ms: int) -> int:
        """Offset of the first record stamped at or after the instant (the end offset if there is none)."""
        tp = TopicPartition(topic, partition)
        offsets = await unisolated(self._consumer).get_offsets_by_times({tp: max(0, stamp_ms)}, _REQUEST_MS)
        self._on_answer()
        hit = offsets.get(tp)
        if hit is not None:
            return int(hit.offset)
        return (await self.bounds(topic, partition))[1]

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncGenerator[LogRecord, None]:
        """Every retained record with `start <= offset < end`, in order.

        Raises:
            ContractBroken: the log no longer reaches back to `start`, does not go on to `end`, or is held up by an open
                transaction.
        """
        if start >= end:
            return
        begin, log_end = await self.bounds(topic, partition)
        if begin > start:
            raise ContractBroken(
                f"{topic}/{partition}: offset {start} is needed but retention has removed everything before {begin}; "
                "raise the topic's retention.bytes, or accept a new start with `harmony state reset`"
            )
        if log_end < end:
            raise ContractBroken(
                f"{topic}/{partition}: offsets up to {end - 1} are needed but the log ends at {log_end}: the topic was "
                "emptied or created anew; restore it, or accept a new start with `harmony state reset`"
            )
        tp = TopicPartition(topic, partition)
        self._consumer.assign([tp])
        self._consumer.seek(tp, start)
        position, transactions = start, TransactionWatch()
        try:
            while position < end:
                for records in (await self._consumer.getmany(tp, timeout_ms=500)).values():
                    self._on_answer()
                    for r in records:
                        if r.offset >= end:
                            return
                        yield LogRecord(r.offset, r.timestamp, r.key, r.value)
                # Buffered records come without waiting, so heartbeats and probes get their turn here.
                await asyncio.sleep(0)
                position = await self._consumer.position(tp)
                self._check_transaction(tp, position, transactions)
        except OffsetOutOfRangeError as error:
            raise ContractBroken(
                f"{topic}/{partition}: offset {position} was removed while it was read; raise the topic's "
                "retention.bytes, or accept a new start with `harmony state reset`"
            ) from error
        finally:
            self._consumer.pause(tp)

    def _check_transaction(self, tp: TopicPartition, position: int, watch: TransactionWatch) -> None:
        """Raise an error where a transaction holds up the reading at `position` for long."""
        ends = {place: end for place, end in fetched_ends(self._consumer, [tp]).items() if position >= end.last_stable}
        for one in watch.look(ends, monotonic()):
            self._on_answer()
            if one.open_s > _TRANSACTION_LIMIT_S:
                raise ContractBroken(one.sentence(str(self._brokers)))


# Shortest time between two messages on losses of the same partition.
_REPORT_INTERVAL_S = 60.0


class LossReport:
    """Telemetry that retention removes before it is read: counts all of it, and reports it once a minute at most."""

    def __init__(self, meter: Meter, now_s: Callable[[], float] = monotonic) -> None:
        self._meter = meter
        self._now_s = now_s
        self._reported_s: dict[tuple[str, int], float] = {}

    def count(self, num_offsets: int) -> None:
        """Count lost offsets; those of transaction markers, which are no records, are included."""
        self._meter.count("telemetry_lost_total", num_offsets)

    def while_running(self, topic: str, partition: int, lane: Lane, expected_offset: int, first: int) -> None:
        """Handle a loss in a running lane: the log continues at `first`, not at `expected_offset`.

        Raises:
            ContractBroken: the kernel tolerates no loss.
        """
        lost = _removed_offsets(expected_offset, first)
        if not isinstance(lane.kernel, LossTolerantKernel):
            raise _loss_error(topic, partition, lost)
        lane.skip_lost(expected_offset, first)
        self.count(first - expected_offset)
        now_s = self._now_s()
        if now_s - self._reported_s.get((topic, partition), -_REPORT_INTERVAL_S) >= _REPORT_INTERVAL_S:
            self._reported_s[topic, partition] = now_s
            _report_loss(topic, partition, lost, "Workers are too slow, or telemetry is kept too short (retention)")


async def check_retention(topic: str, partition: int, kernel: Kernel, reader: LogReader) -> int:
    """Check that the log holds the next records of a kernel; a loss-tolerant kernel skips lost ones with a message.

    Returns:
        Number of lost offsets.

    Raises:
        ContractBroken: the log ends before the resume offset, or has lost records that the kernel needs.
    """
    resume = kernel.resume_offset
    if resume is None:
        return 0
    begin, end = await reader.bounds(topic, partition)
    if resume > end:
        raise ContractBroken(
            f"{topic}/{partition}: the state goes on at offset {resume} but the log ends at {end}: the topic was "
            "emptied or created anew; restore it, or accept a new start with `harmony state reset`"
        )
    if resume >= begin:
        return 0
    lost = _removed_offsets(resume, begin)
    if not isinstance(kernel, LossTolerantKernel):
        raise _loss_error(topic, partition, lost)
    kernel.skip_lost(await _first_record(topic, partition, reader, begin, end))
    _report_loss(topic, partition, lost, "Keep telemetry longer than workers may be down (retention.ms)")
    return begin - resume


def report_lost_history(topic: str, partition: int, lost_rows: int) -> None:
    """Report that forecasts of a partition rest on a shorter history than those of a worker without a restart."""
    _write_line(
        f"history is lost: {topic}/{partition}: {lost_rows} of the ten-minute means of the past week were removed by "
        "retention; forecasts go on with a shorter past. Raise the topic's retention.bytes"
    )


def _removed_offsets(expected_offset: int, begin: int) -> str:
    return f"offsets {expected_offset} to {begin - 1} were removed by retention before they were read"


def _loss_error(topic: str, partition: int, lost: str) -> ContractBroken:
    return ContractBroken(
        f"{topic}/{partition}: {lost}; raise the topic's retention.bytes, or accept a new start with "
        "`harmony state reset`"
    )


def _report_loss(topic: str, partition: int, lost: str, remedy: str) -> None:
    _write_line(
        f"telemetry is lost: {topic}/{partition}: {lost}; the steps that they belong to stay unobserved. {remedy}"
    )


def _write_line(sentence: str) -> None:
    sys.stderr.write(f"harmony worker: {sentence}\n")
    sys.stderr.flush()


async def _first_record(topic: str, partition: int, reader: LogReader, begin: int, end: int) -> int:
    """Offset of the first record: a log may begin with transaction markers, which are not readable."""
    async with aclosing(reader.read(topic, partition, begin, end)) as records:
        async for record in records:
            return record.offset
    return end
