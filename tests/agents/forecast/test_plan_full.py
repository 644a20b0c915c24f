"""A plan record that would grow beyond what brokers take holds the last workloads without content, and says so."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from agents.decide.records import decode_decision
from agents.forecast import kernel as forecast_kernel
from agents.planning import codec
from agents.planning.codec import PlanWriter, decode_plan
from tests.infra.observability.memory_loop import MemoryLoop


@pytest.mark.parametrize("bound", [0, codec.FULL_BYTES])
def test_workloads_beyond_the_bound_of_a_plan_hold_with_that_reason(bound: int) -> None:
    async def scene() -> MemoryLoop:
        loop = MemoryLoop(("a", "b"))
        with patch.object(codec, "FULL_BYTES", bound):
            for _ in range(4):
                await loop.publish_slot()
        return loop

    loop = asyncio.run(scene())
    newest = decode_decision(loop.logs[loop.topics.decisions][-1].value or b"")
    assert (newest.reason == "plan_full") == (bound == 0)
    assert newest.action == "hold"
    assert newest.replicas.final == 5  # as many as the fleet shows


def test_declared_workloads_are_planned_while_there_is_room() -> None:
    """Full from the second batch on: the undeclared one comes in it."""

    async def scene() -> MemoryLoop:
        loop = MemoryLoop(("b",))
        loop.workloads = ("a", "b")
        for _ in range(4):
            await loop.publish_slot()
        return loop

    with (
        patch.object(forecast_kernel, "_WORKLOADS_PER_BATCH", 1),
        patch.object(PlanWriter, "is_full", property(lambda self: self._left == 1)),
    ):
        loop = asyncio.run(scene())
    plan = decode_plan(loop.logs[loop.topics.plans][-1].value)
    assert [(w.workload, w.refused == "plan_full") for w in plan.workloads] == [("b", False), ("a", True)]
