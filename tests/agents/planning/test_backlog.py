"""A backlog of slots leaves what punctual reading leaves, byte by byte."""

from __future__ import annotations

import asyncio

import pytest

from agents.planning.codec import decode_plan, slot_of_plan
from streams.log import ContractBroken
from tests.infra.observability.memory_loop import MemoryLoop

SLOTS = 6


class Late(MemoryLoop):
    """Stages 2 and 3 read when they are told to."""

    reads = False

    async def follow(self) -> None:
        if self.reads:
            await super().follow()


async def lived(loop: MemoryLoop) -> MemoryLoop:
    for slot in range(SLOTS):
        await loop.publish_slot(rate=10.0 + slot)
    return loop


def commits_of(loop: MemoryLoop, stage: str) -> list[bytes | None]:
    return [r.value for r in loop.logs[loop.topics.commits] if r.key == f"{stage}/0".encode()]


def test_a_backlog_leaves_the_answers_and_commit_records_of_slots_read_one_by_one() -> None:
    async def scene() -> tuple[MemoryLoop, MemoryLoop]:
        punctual, late = await lived(MemoryLoop(("a", "b"))), Late(("a", "b"))
        await lived(late)
        late.reads = True
        await late.follow()
        return punctual, late

    punctual, late = asyncio.run(scene())
    for topic in (late.topics.plans, late.topics.forecasts, late.topics.decisions):
        assert [r.value for r in late.logs[topic]] == [r.value for r in punctual.logs[topic]]
    for stage in ("forecast", "decide"):
        assert commits_of(late, stage) == commits_of(punctual, stage)
        assert len(commits_of(late, stage)) >= SLOTS
    plans = late.logs[late.topics.plans]
    assert [slot_of_plan(r.value) for r in plans] == [decode_plan(r.value).slot for r in plans]
    with pytest.raises(ContractBroken, match="plans/0: offset 7 is not a plan"):
        slot_of_plan(b"HPL1", 7)
