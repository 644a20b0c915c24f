"""A cluster in memory and workers that are coroutines: real lanes, kernels and restores, hundreds of deaths a minute.

What a real broker and real processes cannot do at will happens here: death between two records of one publication, and
paused workers that wake up at any time and go on publishing for as long as the seed says.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from aiokafka.partitioner import murmur2

from streams.log import LogRecord, OutRecord
from streams.meter import NullMeter
from streams.runtime.app import Stage
from streams.runtime.lane import DeferringKernel, Lane
from streams.runtime.restore import LogReader
from tests.faults.hostile import HostilePipeline
from tests.faults.logs import Entry
from tests.integration.pipeline import PARTITIONS, STREAM

_FIRST_STAMP_MS = 1_800_000_000_000
_STAMP_STEP_MS = 7


class Cluster:
    """Topics as lists. Stamps grow with every record, whatever its topic, as a broker's clock does."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[LogRecord]] = defaultdict(list)
        self.headers: dict[tuple[str, int], list[tuple[tuple[str, bytes], ...]]] = defaultdict(list)
        self._stamp_ms = _FIRST_STAMP_MS

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        if partition is None:
            partition = (cast("int", murmur2(key or b"")) & 0x7FFFFFFF) % PARTITIONS
        self.headers[topic, partition].append(headers)
        log = self.logs[topic, partition]
        self._stamp_ms += _STAMP_STEP_MS
        log.append(LogRecord(len(log), self._stamp_ms, key, value))


class MemoryReader:
    """`LogReader` over a cluster in memory."""

    def __init__(self, cluster: Cluster) -> None:
        self._logs = cluster.logs

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, len(self._logs[topic, partition])

    async def offset_at(self, topic: str, partition: int, stamp_ms: int) -> int:
        log = self._logs[topic, partition]
        return next((r.offset for r in log if r.stamp_ms >= stamp_ms), len(log))

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncIterator[LogRecord]:
        for record in self._logs[topic, partition][start:end]:
            yield record


class MemoryProducer:
    """The part of a producer that publishes telemetry."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def send(self, topic: str, *, key: bytes | None = None, value: bytes | None, partition: int | None = None) -> None:
        self._cluster.append(topic, key, value, partition)

    def flush(self, timeout: float | None = None) -> None: ...

    def close(self, timeout: float | None = None) -> None: ...


class MemoryPipeline(HostilePipeline):
    """Hostile telemetry into a cluster in memory."""

    def __init__(self, home: Path, seed: int, stream: Any = STREAM) -> None:
        self.cluster = Cluster()
        super().__init__("", "memory.", home, seed, stream)

    def connect(self) -> MemoryProducer:
        return MemoryProducer(self.cluster)

    def entries(self, topic: str) -> list[Entry]:
        logs = [(p, log) for (t, p), log in sorted(self.cluster.logs.items()) if t == topic]
        told = self.cluster.headers
        return [
            Entry(p, r.offset, r.stamp_ms, r.key, r.value, told[topic, p][r.offset]) for p, log in logs for r in log
        ]


class Killed(Exception):
    """The end of a life."""


class Life:
    """One worker: a lane for every partition of its stages, from restore to death or rest.

    Args:
        wait: called before every record is published, with the stage; raises Killed, or sleeps while it is paused.
    """

    def __init__(
        self, cluster: Cluster, stages: Sequence[Stage], partitions: Callable[[str], int], rng: random.Random, wait: Any
    ) -> None:
        self._cluster, self._stages, self._partitions, self._rng = cluster, stages, partitions, rng
        self._wait = wait
        self._lanes: dict[tuple[str, int], Lane] = {}
        self.failures: list[BaseException] = []

    async def restore(self) -> None:
        reader = cast("LogReader", MemoryReader(self._cluster))
        for stage in self._stages:
            for topic in stage.input_topics:
                for partition in range(self._partitions(topic)):
                    kernel = await stage.restore(topic, partition, reader)
                    self._lanes[topic, partition] = self._new_lane(stage.name, kernel)

    def _new_lane(self, stage: str, kernel: Any) -> Lane:
        async def send(records: Sequence[OutRecord]) -> None:
            for r in records:
                await self._wait(stage)
                self._cluster.append(r.topic, r.key, r.value, r.partition, r.headers)
            await self._wait(stage)

        def fail(_stage: str, error: BaseException) -> None:
            self.failures.append(error)

        return Lane(stage, kernel, send, lambda _offset: None, NullMeter(), fail, lambda _name: None)

    async def work(self) -> None:
        """Read and answer until there is nothing left to read, or until a lane has failed."""
        while not self.failures:
            fed = False
            for (topic, partition), lane in self._lanes.items():
                start = lane.next_offset or 0
                records = self._cluster.logs[topic, partition][start : start + self._rng.randint(1, 40)]
                if records and not lane._queue.full():
                    await lane.put(records)
                    fed = True
            await asyncio.sleep(0)
            if not fed and all(_at_rest(lane) for lane in self._lanes.values()):
                return
            if not fed:
                await asyncio.sleep(0.001)

    async def end(self) -> None:
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))


def _at_rest(lane: Lane) -> bool:
    """Whether a lane has nothing left to do; one with deferred work has."""
    deferred = lane.kernel.num_deferred if isinstance(lane.kernel, DeferringKernel) else 0
    return lane._queue.empty() and not lane._rest and lane.waits_for == "" and not deferred
