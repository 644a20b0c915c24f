"""A backlog of slots: planned one by one, sealed together, to the same state."""

from __future__ import annotations

import asyncio

import pytest

from agents.plan_codec import decode_plan, slot_of_plan
from streams.commit_codec import Commit, CommitAssembler
from streams.log import ContractBroken, LogRecord
from tests.monitoring.memory_loop import MemoryLoop

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


def commits_of(loop: MemoryLoop, stage: str) -> list[LogRecord]:
    return [r for r in loop.logs[loop.topics.commits] if r.key == f"{stage}/0".encode()]


def newest(loop: MemoryLoop, stage: str) -> Commit:
    assembler = CommitAssembler(stage, 0)
    for record in commits_of(loop, stage):
        assembler.feed(record)
    assert assembler.newest is not None
    return assembler.newest


def test_slots_of_a_backlog_share_commit_records_and_leave_the_same_state_and_answers() -> None:
    async def scene() -> tuple[MemoryLoop, MemoryLoop]:
        punctual, late = await lived(MemoryLoop(("a", "b"))), Late(("a", "b"))
        await lived(late)
        late.reads = True
        await late.follow()
        return punctual, late

    punctual, late = asyncio.run(scene())
    assert len(commits_of(punctual, "forecast")) == SLOTS
    assert len(commits_of(late, "forecast")) == 2  # of four slots, and of the rest
    for topic in (late.topics.plans, late.topics.forecasts, late.topics.decisions):
        assert [r.value for r in late.logs[topic]] == [r.value for r in punctual.logs[topic]]
    for stage in ("forecast", "decide"):
        assert newest(late, stage).body == newest(punctual, stage).body
    plans = late.logs[late.topics.plans]
    assert [slot_of_plan(r.value) for r in plans] == [decode_plan(r.value).slot for r in plans]
    with pytest.raises(ContractBroken, match="plans/0: offset 7 is not a plan"):
        slot_of_plan(b"HPL1", 7)
