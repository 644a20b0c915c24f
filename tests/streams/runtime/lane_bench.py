"""A kernel and a broker of a few lines, between which a stage's lane is tried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from streams.log import Emission, LogRecord, OutRecord
from streams.meter import NullMeter
from streams.runtime.lane import Kernel, Lane


def records(first: int, count: int) -> list[LogRecord]:
    return [LogRecord(first + i, 1_000 + i, b"w", b"v%d" % (first + i)) for i in range(count)]


@dataclass
class Echo:
    """Answers each record with two groups of outputs and a commit record."""

    resume_offset: int | None = None
    folded: list[int] = field(default_factory=list)
    fails_at: int | None = None

    async def fold(self, batch: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        for record in batch:
            if record.offset == self.fails_at:
                raise ZeroDivisionError("fold")
            self.folded.append(record.offset)
            out = b"%d" % record.offset
            yield Emission(
                outputs=((OutRecord("first", None, out),), (OutRecord("second", None, out),)),
                commits=(OutRecord("commits", None, out),),
                resume_offset=record.offset + 1,
            )


@dataclass
class Holding(Echo):
    """Holds something for as long as it answers a batch, one generator within another."""

    held: int = 0

    async def fold(self, batch: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        async with aclosing(self._held(batch)) as emissions:
            async for emission in emissions:
                yield emission

    async def _held(self, batch: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        self.held += 1
        try:
            async for emission in super().fold(batch):
                yield emission
        finally:
            self.held -= 1


@dataclass
class Broker:
    """Remembers what was acknowledged in which order; may refuse a topic or wait for a permit."""

    log: list[tuple[str, int]] = field(default_factory=list)
    safe: list[int] = field(default_factory=list)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    refuses: str | None = None
    permit: asyncio.Event | None = None

    async def send(self, group: Sequence[OutRecord]) -> None:
        if self.permit is not None:
            await self.permit.wait()
        await asyncio.sleep(0)
        if any(r.topic == self.refuses for r in group):
            raise ConnectionError("refused")
        self.log += [(r.topic, int(r.value or b"")) for r in group]

    def lane(self, kernel: Kernel) -> Lane:
        return Lane(
            "decide", kernel, self.send, self.safe.append, NullMeter(),
            lambda stage, error: self.failures.append((stage, error)), self.points.append,
        )  # fmt: skip


async def until(condition: Any) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it did not come to that")
