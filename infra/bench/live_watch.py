"""Both ends of a live loop: samples and ticks published in time, and the decisions that come back."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from time import time
from typing import Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from infra.bench.preload import partition_of
from infra.lab.bench.live_loop import PARTITIONS, LiveLoop
from streams.records.schema import encode_tick


class _DecisionGlance(msgspec.Struct):
    workload: str
    origin_ts_ms: int


_decode_glance = msgspec.json.Decoder(_DecisionGlance).decode


class DecisionWatch:
    """Reads the decisions topic as it grows: when the broker stamped each decision of (workload, origin)."""

    def __init__(self, loop: LiveLoop) -> None:
        self._loop = loop
        self.stamps: dict[tuple[str, int], int] = {}
        self._counts: Counter[int] = Counter()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=loop.brokers, enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=50
        )

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        partitions = [TopicPartition(self._loop.topics.decisions, p) for p in range(PARTITIONS)]
        self._consumer.assign(partitions)
        for partition in partitions:
            self._consumer.seek(partition, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def poll(self, timeout_s: float) -> int:
        """Take what is new within the time; returns how many decisions that were."""
        fetched = await self._consumer.getmany(timeout_ms=int(timeout_s * 1000))
        new = 0
        for records in fetched.values():
            for record in records:
                identity = _identity(record.value)
                if identity is not None and identity not in self.stamps:
                    self.stamps[identity] = record.timestamp
                    self._counts[identity[1]] += 1
                    new += 1
        return new

    def delays_ms(self, publisher: Publisher, origins: Sequence[int]) -> list[int]:
        """From the tick that closed a slot to each of its decisions, by the broker's stamps."""
        return [
            self.stamps[name, origin] - publisher.ticks[origin][self._loop.partition[name]]
            for origin in origins
            for name in self._loop.names
            if (name, origin) in self.stamps
        ]

    async def until(self, origin_ts_ms: int, timeout_s: float) -> None:
        """Until every workload has a decision at this origin or a later one.

        Raises:
            HarmonyError: not within the time.
        """

        def missing() -> str:
            decided = {name for name, origin in self.stamps if origin >= origin_ts_ms}
            left = len(self._loop.names) - len(decided)
            return f"{left} workloads have no decision" if left else ""

        await self._poll_while(missing, timeout_s)

    async def until_level(self, publisher: Publisher, timeout_s: float) -> None:
        """Until all workloads are decided at the newest origin but one whose slot was closed, or the newest.

        Raises:
            HarmonyError: not within the time.
        """

        def behind() -> str:
            closed = sorted(publisher.ticks)[-2:]
            if any(self._counts[origin] == len(self._loop.names) for origin in closed):
                return ""
            decided = max((o for o, n in self._counts.items() if n == len(self._loop.names)), default=None)
            by = "nothing decided" if decided is None or not closed else f"{(closed[-1] - decided) / 1000:.0f} s behind"
            return f"the worker does not keep up: {by}"

        await self._poll_while(behind, timeout_s)

    async def _poll_while(self, lacking: Callable[[], str], timeout_s: float) -> None:
        """Poll until nothing is lacking; what is after the time is said in the error."""
        deadline = time() + timeout_s
        await self.poll(0.2)
        while what := lacking():
            if time() > deadline:
                raise self._loop.complaint(f"{what} after {timeout_s:.0f} s")
            await self.poll(0.2)


class Publisher:
    """Publishes live slots in time, and the ticks that close them."""

    def __init__(self, loop: LiveLoop) -> None:
        self._loop = loop
        self._producer = AIOKafkaProducer(bootstrap_servers=loop.brokers, acks=1, linger_ms=5)
        self.ticks: dict[int, dict[int, int]] = {}
        self.behind_ms = 0.0

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def run(self, first_slot: int) -> None:
        """Publish slots as their time comes, those that are late at once, until cancelled; `ticks` holds, by origin and
        partition, the newest broker stamp.
        """
        job, topics = self._loop.job, self._loop.topics
        for slot in itertools.count(first_slot):
            records = list(self._loop.slot_records(slot, job.sources))
            pieces = 50
            for piece in range(pieces):
                # A sample leaves when its time has come, not before.
                before_ms, now_ms = (job.step_ms * p // pieces for p in (piece, piece + 1))
                await self._sleep_until(slot * job.step_ms + now_ms)
                if before_ms < job.grace_ms <= now_ms:
                    await self._tick(slot)
                for key, value in records[piece * len(records) // pieces : (piece + 1) * len(records) // pieces]:
                    partition = partition_of(key, PARTITIONS)
                    await self._producer.send(topics.telemetry_requests, value, key=key, partition=partition)

    async def _tick(self, slot: int) -> None:
        """Close the slot before this one."""
        origin = slot * self._loop.job.step_ms
        value = encode_tick(origin + self._loop.job.grace_ms)
        topics = self._loop.topics
        sent = [
            (partition, await self._producer.send(topic, value, partition=partition))
            for topic in (topics.telemetry_requests, topics.telemetry_gpu)
            for partition in range(PARTITIONS)
        ]
        stamps = self.ticks.setdefault(origin, {})
        for partition, done in sent:
            stamp_ms = (await done).timestamp
            stamps[partition] = max(stamps.get(partition, 0), stamp_ms)

    async def _sleep_until(self, ts_ms: int) -> None:
        ahead_s = ts_ms / 1000 - time()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        else:
            self.behind_ms = max(self.behind_ms, -1000 * ahead_s)


def _identity(value: bytes | None) -> tuple[str, int] | None:
    if value is None:
        return None
    found = _decode_glance(value)
    return found.workload, found.origin_ts_ms
