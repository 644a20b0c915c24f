"""A counter that jumps once, by mistake, moves a loop for no longer than its step; a burst that engines feel does."""

from __future__ import annotations

import random

import pytest

from agents.policy import GuardLimits, Slo
from tests.agents.closed_loop import ClosedLoop
from tests.agents.planning.plan_samples import policy, spec

AT, SLOTS = 140, 190


def counts(times: float, *, felt: bool, objective: float = 0.99) -> list[int]:
    """Replicas slot by slot: 4 requests/s, but in one slot so many times as many."""
    declared = policy(
        spec("w", capacity_rps=2.0, lead_time_s=100.0, max_replicas=64, slo=Slo(objective=objective)),
        guards=GuardLimits(warm_up_steps=16),
    )
    loop, rng, held = ClosedLoop(declared, 3), random.Random(1), []
    for k in range(SLOTS):
        much = times if k == AT else 1.0
        arrived = much * sum(rng.random() < 0.05 for _ in range(1_200))
        held.append(loop.slot(arrived, running=20.0 * (much if felt else 1.0)))
    loop.close()
    return held


@pytest.mark.parametrize("times", [20.0, 10_000.0])
def test_a_jump_that_no_engine_feels_is_over_within_minutes(times: float) -> None:
    held, usual = counts(times, felt=False), counts(1.0, felt=False)
    assert held[:AT] == usual[:AT]
    assert max(held) <= usual[AT] + 4  # what the load of one step may add within it
    assert max(held[AT + 16 :]) <= max(usual[AT + 16 :]) + 1


def test_a_burst_that_engines_feel_is_prepared_for() -> None:
    """At an objective of 0.999: at 0.99 one burst costs less than the replicas for another."""
    assert max(counts(20.0, felt=True, objective=0.999)[AT + 8 :]) > 12
