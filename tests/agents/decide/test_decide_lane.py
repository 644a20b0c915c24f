"""The decide lane: decisions of all plans at hand first; commit records and what is told of them when nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from agents.decide.agent import DecideLane
from agents.priority import PriorityGate
from streams.log import OutRecord
from streams.meter import NullMeter
from streams.runtime.lane import Lane
from tests.agents.decide.decide_runs import kernel
from tests.agents.planning.plan_samples import TOPICS, log, plan, policy, record, spec


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it did not come to that")


async def test_decisions_of_a_slot_leave_before_their_commit_records_and_before_they_are_counted() -> None:
    rows = log(record(0, plan("a"), partition=0), record(0, plan("b"), partition=1), record(1, plan("a"), partition=0))
    precedence, said, safe = PriorityGate(), [], list[int]()
    fleet = kernel(policy(spec("a"), spec("b")))
    decide = DecideLane(fleet, lambda emission: said.append(("told", emission.resume_offset)), precedence)

    async def send(group: Sequence[OutRecord]) -> None:
        await asyncio.sleep(0)
        said.extend((r.topic, 0) for r in group)

    lane = Lane("decide", decide, send, safe.append, NullMeter(), lambda *_: None, lambda _: None)
    with precedence.urgent():  # a partition is still being planned
        await lane.put(rows[:2])
        await lane.put(rows[2:])
        await until(lambda: decide.num_deferred == 3 and not lane.waits_for)
        assert {topic for topic, _ in said} == {TOPICS.decisions, TOPICS.commands}
        assert safe == []
    await until(lambda: safe and not lane.waits_for)
    assert safe == [3]
    assert said[-6:] == [*[(TOPICS.commits, 0)] * 3, ("told", 1), ("told", 2), ("told", 3)]
    assert decide.num_deferred == 0
    await lane.close()


async def test_a_plan_is_answered_when_its_decisions_are_out() -> None:
    precedence = PriorityGate(lambda: True)
    decide, rows = DecideLane(kernel(), lambda _: None, precedence), log(record(0, plan()))
    precedence.expect(rows[0].value or b"")
    folding = decide.fold(rows)
    assert (await anext(folding)).urgent
    waiting = asyncio.create_task(precedence.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert [e async for e in folding] == []
    await asyncio.wait_for(waiting, 0.1)


def test_plans_sealed_late_leave_the_commit_records_of_plans_sealed_one_by_one() -> None:
    rows = log(*(record(slot, plan(current=5 + slot)) for slot in range(3)))
    one_by_one, together = kernel(), kernel()
    each = [commit for r in rows for commit in one_by_one.fold(r).commits]
    for r in rows:
        list(together.decide(r))
    assert together.seal() == each
    assert len(each) == 3
    assert together.seal() == []
