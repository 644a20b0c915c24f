"""Starts slower than forecasts reach: plans see as far as they can, say so, and come back into their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.decide.guards.chain import run_guards
from agents.planning.limits import sight_limit
from agents.planning.request import PlanResult
from agents.policy import GuardLimits
from agents.records import Limit, Quantiles
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from streams.config import StreamConfig
from streams.records.facts import FleetFacts, OutcomeFact
from streams.records.schema import encode_fleet, encode_outcome, encode_sample
from tests.agents.planning.plan_samples import policy, situation, spec
from tests.agents.planning.test_planner import HORIZON, POLICY, level, punctual, request, single

STEP_MS = 15_000
SIGHT_S = HORIZON * STEP_MS / 1000
FLEET = FleetFacts(0, ready=4, pending=1, draining=0)


@pytest.mark.parametrize("lead_s", [SIGHT_S, 2_000.0, 30_000.0])
def test_a_lead_time_beyond_the_forecast_is_planned_as_far_as_it_reaches(lead_s: float) -> None:
    rising = level([10.0] * (HORIZON - 2) + [20.0] * 2)
    far = single(request(ready=5, lead=punctual(lead_s)), rising)
    near = single(request(ready=5, lead=punctual(SIGHT_S - 60.0)), rising)
    assert (far.refused, far.sight_s) == (None, SIGHT_S)
    assert far.reactive_replicas is not None
    assert (far.proposed, far.risks) == (near.proposed, near.risks)
    assert (far.proposed or 0) > 5
    assert far.window_s == pytest.approx(60.0)


def test_a_lead_time_within_reach_is_seen_whole() -> None:
    known = single(request(), level(10.0))
    assert known.sight_s is None
    assert sight_limit(known, FLEET) == ()


def test_a_commit_time_beyond_the_forecast_is_planned_too() -> None:
    short = replace(POLICY, max_horizon=2)
    assert single(request(ready=5, rate=20.0), level(20.0), short).proposed is not None


def result(median_s: float, most_s: float, sight_s: float | None = SIGHT_S) -> PlanResult:
    lead = Quantiles((0.5, 0.95), (median_s, most_s))
    return PlanResult("w", None, 0.1, 5, "cheapest", lead_time_s=lead, sight_s=sight_s)


def test_a_plan_says_how_far_it_sees_and_gives_nothing_up_where_most_starts_are_slower() -> None:
    (rare,) = sight_limit(result(300.0, 1_330.0), FLEET)
    assert rare == Limit("horizon", None, None, "a start may take 1330 s, forecasts reach 360 s")
    (usual,) = sight_limit(result(1_200.0, 1_330.0), FLEET)
    assert usual == Limit("horizon", 5, None, "a start takes 1200 s as a rule, forecasts reach 360 s")
    for limit, final in ((rare, 3), (usual, 5)):
        guarded = run_guards(situation(proposed=3, standing=(limit,)))
        assert guarded.final == final
        assert guarded.steps[0].guard == "horizon"
        assert guarded.steps[0].reason == limit.reason
        assert run_guards(situation(proposed=8, standing=(limit,))).reason == "chance"


def test_after_one_slow_start_a_rise_is_served_and_plans_see_far_again() -> None:
    """Forecasts reach 320 s; of the starts that the fleet reports one took 400 s, the others 100 s as declared."""
    declared = policy(spec(capacity_rps=2.0, lead_time_s=100.0), guards=GuardLimits(warm_up_steps=16), paths_screen=32)
    stream = StreamConfig(step_ms=5_000, grace_ms=0, skew_ms=0, context_steps=32)
    loop = MemoryLoop(declared, stream, SeasonalNaiveForecaster())
    start, started, replicas = 1_763_636_400_000, 0.0, 4
    took_s: list[float] = []
    for k in range(120):
        end = start + (k + 1) * 5_000
        started += 5.0 * (4.0 + 0.2 * max(k - 40, 0))
        counters = dict.fromkeys(("requests_started_total", "generation_tokens_total"), started)
        values = [encode_sample("requests", "w", "engine", end - 100, counters)]
        values.append(encode_fleet("w", "k8s", FleetFacts(end - 100, replicas, 0, 0)))
        for lead_s in took_s:
            told = OutcomeFact(end - 100, "c", "ready", replicas, lead_time_s=lead_s)
            values.append(encode_outcome("w", "k8s", told))
        commands = loop.close_slot("w", values, end)
        took_s = [100.0] * any(command.replicas > replicas for command in commands)
        replicas = commands[-1].replicas if commands else replicas
        took_s += [400.0] * (k == 36)
    loop.close()
    told_of = [any(step.guard == "horizon" for step in decision.guards) for decision in loop.decisions]
    assert told_of[38]
    assert not told_of[-1]
    assert replicas >= 8
    assert loop.decisions[-1].shadow["reactive"] <= replicas
