"""Reads stretches of Kafka logs outside the group: how stages restore what they had published."""

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
from streams.runtime.transport import stop_in_time

_FETCH_BYTES = 8 << 20
# The broker answers a connection's requests one after the other: at the end of a log, each question about offsets would
# wait behind a fetch that waits for new records. Half a second each made a restore take 40 s.
_FETCH_WAIT_MS = 10
# What the client waits before it asks again for what it was not told at once, as of each topic that it turns to.
_RETRY_MS = 10


class LogReader:
    """A groupless consumer with explicit positions.

    Positions are always sought explicitly: `assign` followed by "seek to beginning" races with the client's own
    reset policy and can read nothing without an error.

    Args:
        client_options: of aiokafka's consumer.
        on_answer: called whenever the broker has answered something.
    """

    def __init__(self, client_options: dict[str, Any], on_answer: Callable[[], None] = lambda: None) -> None:
        self._on_answer = on_answer
        self._consumer = aiokafka.AIOKafkaConsumer(
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            fetch_max_bytes=8 * _FETCH_BYTES,
            retry_backoff_ms=_RETRY_MS,
            **client_options,
        )

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        # The client's coordinator task must have begun before `stop` cancels it: one that never ran makes it raise.
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
        end = await self._consumer.end_offsets([tp])
        self._on_answer()
        return begin[tp], end[tp]

    async def offset_at(self, topic: str, partition: int, stamp_ms: int) -> int:
        """Offset of the first record stamped at or after the instant (the end offset if there is none)."""
        tp = TopicPartition(topic, partition)
        found = await self._consumer.offsets_for_times({tp: max(0, stamp_ms)})
        self._on_answer()
        hit = found.get(tp)
        if hit is not None:
            return int(hit.offset)
        return (await self.bounds(topic, partition))[1]

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncGenerator[LogRecord, None]:
        """Every retained record with `start <= offset < end`, in order.

        Raises:
            ContractBroken: the log no longer reaches back to `start`, or does not go on to `end`.
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
        position = start
        try:
            while position < end:
                for records in (await self._consumer.getmany(tp, timeout_ms=500)).values():
                    self._on_answer()
                    for r in records:
                        if r.offset >= end:
                            return
                        yield LogRecord(r.offset, r.timestamp, r.key, r.value)
                # What was buffered is handed out without waiting: heartbeats and probes need their turn.
                await asyncio.sleep(0)
                position = await self._consumer.position(tp)
        except OffsetOutOfRangeError as error:
            raise ContractBroken(
                f"{topic}/{partition}: offset {position} was removed while it was read; raise the topic's "
                "retention.bytes, or accept a new start with `harmony state reset`"
            ) from error
        finally:
            self._consumer.pause(tp)


# Whether a log still holds what state wants to read next, when it is restored and while its worker runs.


_REPORT_INTERVAL_S = 60.0


class LossReport:
    """Telemetry that retention removes before it is read: all of it is counted, and said once a minute at most."""

    def __init__(self, meter: Meter, now_s: Callable[[], float] = monotonic) -> None:
        self._meter = meter
        self._now_s = now_s
        self._said_s: dict[tuple[str, int], float] = {}

    def count(self, num_offsets: int) -> None:
        """Offsets that are lost; those of transaction markers, which are no records, cannot be told apart."""
        self._meter.count("telemetry_lost_total", num_offsets)

    def while_running(self, topic: str, partition: int, lane: Lane, wanted: int, first: int) -> None:
        """The log of a running lane has lost the offsets from `wanted` on and goes on at `first`.

        Raises:
            ContractBroken: nobody may skip them.
        """
        lost = _removed_offsets(wanted, first)
        if not isinstance(lane.kernel, LossTolerantKernel):
            raise _loss_error(topic, partition, lost)
        lane.skip_lost(wanted, first)
        self.count(first - wanted)
        now_s = self._now_s()
        if now_s - self._said_s.get((topic, partition), -_REPORT_INTERVAL_S) >= _REPORT_INTERVAL_S:
            self._said_s[topic, partition] = now_s
            _report_loss(topic, partition, lost, "Workers are too slow, or telemetry is kept too short (retention)")


async def check_retention(topic: str, partition: int, kernel: Kernel, reader: LogReader) -> int:
    """A kernel that may skip what is lost is told to, and the operator hears of it.

    Returns:
        How many offsets are lost.

    Raises:
        ContractBroken: the log ends before, or has lost what nobody may skip.
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
    """The operator hears that forecasts of a partition rest on less than those of a worker that ran on."""
    _write_line(
        f"history is lost: {topic}/{partition}: {lost_rows} of the ten-minute means of the past week were removed by "
        "retention; forecasts go on with a shorter past. Raise the topic's retention.bytes"
    )


def _removed_offsets(wanted: int, begin: int) -> str:
    return f"offsets {wanted} to {begin - 1} were removed by retention before they were read"


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
    """Offset of the first record that is left: a log may begin with markers of transactions, which nobody can read."""
    async with aclosing(reader.read(topic, partition, begin, end)) as records:
        async for record in records:
            return record.offset
    return end
