"""Decisions of three workloads over a long history against a second telling of the guards."""

from __future__ import annotations

import random

import msgspec
import pytest

from agents.decide.kernel import DecideKernel
from agents.policy import GuardLimits
from agents.records import Decision
from streams.log import LogRecord
from tests.agents.planning.plan_samples import STEP_MS, STREAM, TOPICS, log, plan, policy, record, spec
from tests.oracles.guard_oracle import Rules, Walk

LIMITS = GuardLimits(warm_up_steps=0, stabilization_down_s=60.0)


def rules_of(low: int, high: int) -> Rules:
    g = LIMITS
    return Rules(
        low, high, g.up_ratio, g.up_replicas, int(g.up_period_s * 1000), g.down_ratio, g.down_replicas,
        int(g.down_period_s * 1000), int(g.stabilization_down_s * 1000),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_what_the_guards_say_when_told_again(seed: int) -> None:
    rng = random.Random(seed)
    bounds = {"a": (1, 12), "b": (3, 60), "c": (0, 400)}
    walks = {w: Walk(rules_of(*b), rng.randint(max(1, b[0]), 12)) for w, b in bounds.items()}
    specs = [spec(w, min_replicas=low, max_replicas=high) for w, (low, high) in bounds.items()]
    kernel = DecideKernel(policy(*specs, guards=LIMITS), STREAM, TOPICS)
    level = dict.fromkeys(bounds, 6.0)
    moved = 0
    for slot in range(300):
        wishes = {}
        for w in bounds:
            level[w] = min(300.0, max(1.0, level[w] * rng.choice([0.3, 0.8, 0.97, 1.0, 1.03, 1.3, 3.0])))
            wishes[w] = (round(level[w]), round(level[w] * rng.choice([0.5, 0.9, 1.2])))
        plans = [plan(w, walks[w].replicas, proposed, reactive=now) for w, (proposed, now) in wishes.items()]
        (told,) = log(record(slot, *plans))
        emission = kernel.fold(LogRecord(slot, told.stamp_ms, told.key, told.value))
        made = [msgspec.json.decode(r.value or b"", type=Decision) for r in emission.outputs[0]]
        for decision in made:
            walk = walks[decision.workload]
            before = walk.replicas
            assert walk.decide((slot + 1) * STEP_MS, *wishes[decision.workload]) == decision.replicas.final, (
                slot,
                decision,
            )
            moved += walk.replicas != before
        assert {d.workload for d in made} == set(bounds)
    assert moved > 30
