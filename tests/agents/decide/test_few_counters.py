"""Telemetry that tells of requests and of nothing else is enough to scale by, up and down."""

from __future__ import annotations

import asyncio

from agents.decide.records import decode_decision
from agents.planning.codec import decode_plan
from agents.policy import GuardLimits
from tests.infra.observability.memory_loop import STREAM, MemoryLoop

GUARDS = GuardLimits(warm_up_steps=8, stabilization_down_s=10.0, down_period_s=5.0)


def test_a_load_that_falls_gives_replicas_up_without_counters_of_tokens() -> None:
    async def scene() -> MemoryLoop:
        loop = MemoryLoop(("a",), GUARDS)
        for slot in range(STREAM.context_steps + 30):
            await loop.publish_slot(
                rate=9.0 + slot % 2 if slot < STREAM.context_steps else 2.0 + 0.5 * (slot % 2), ready=8
            )
        return loop

    loop = asyncio.run(scene())
    plan = decode_plan(loop.logs[loop.topics.plans][-1].value).workloads[0]
    assert plan.inputs.observed_ratio == 1.0
    decision = decode_decision(loop.logs[loop.topics.decisions][-1].value or b"")
    assert "coverage" not in [step.guard for step in decision.guards]
    assert (decision.replicas.final or 0) < 8
