"""A counter that jumps once, by mistake, moves a loop for no longer than its step; a burst that engines feel does."""

from __future__ import annotations

import random

import pytest

from agents.policy import GuardLimits
from infra.replay.loop import MemoryLoop
from model.ridge import RidgeForecaster
from streams.config import StreamConfig
from streams.pages import FleetFacts
from streams.records import encode_fleet, encode_sample
from tests.agents.plan_samples import policy, spec

STEP_MS, AT, SLOTS = 15_000, 140, 190


def counts(times: float, *, felt: bool) -> list[int]:
    """Replicas slot by slot: 4 requests/s, but in one slot so many times as many."""
    declared = policy(
        spec("w", capacity_rps=2.0, lead_time_s=100.0, max_replicas=64), guards=GuardLimits(warm_up_steps=16)
    )
    stream = StreamConfig(step_ms=STEP_MS, grace_ms=0, skew_ms=0, context_steps=128)
    loop = MemoryLoop(declared, stream, RidgeForecaster())
    rng, start, started, replicas, held = random.Random(1), 1_763_636_400_000, 0.0, 3, []
    for k in range(SLOTS):
        end, much = start + (k + 1) * STEP_MS, times if k == AT else 1.0
        started += much * sum(rng.random() < 0.05 for _ in range(1_200))
        told = {
            "requests_started_total": started, "generation_tokens_total": 200 * started, "slo_good_total": started,
            "slo_total": started, "num_requests_running": 20.0 * (much if felt else 1.0), "num_requests_waiting": 0.0,
        }  # fmt: skip
        values = [encode_sample("requests", "w", "engine", end - 100, told)]
        values.append(encode_fleet("w", "k8s", FleetFacts(end - 100, replicas, 0, 0)))
        commands = loop.close_slot("w", values, end)
        replicas = commands[-1].replicas if commands else replicas
        held.append(replicas)
    loop.close()
    return held


@pytest.mark.parametrize("times", [20.0, 10_000.0])
def test_a_jump_that_no_engine_feels_is_over_within_minutes(times: float) -> None:
    held, usual = counts(times, felt=False), counts(1.0, felt=False)
    assert held[:AT] == usual[:AT]
    assert max(held) <= usual[AT] + 4  # what the load of one step may add within it
    assert max(held[AT + 16 :]) <= max(usual[AT + 16 :]) + 1


def test_a_burst_that_engines_feel_is_prepared_for() -> None:
    assert max(counts(20.0, felt=True)[AT + 8 :]) > 12
