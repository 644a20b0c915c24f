"""Reads stretches of Kafka logs outside the group: how stages restore what they had published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Self

import aiokafka
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from streams.farewell import take_leave
from streams.log import ContractBroken, LogRecord

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
        await take_leave(self._consumer.stop())

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
