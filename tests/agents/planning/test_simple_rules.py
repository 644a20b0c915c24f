"""Simpler rules beside the cheapest count: what each would have, of yesterday above all, and that it is told."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from agents.planning.planner import simple_proposals
from agents.policy import GuardLimits
from agents.records import Decision, LevelRisk
from infra.explain.views import explanation
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from streams.config import StreamConfig
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample
from streams.windows.coarse import COARSE_STEP_MS, DAY_ROWS
from tests.agents.decide.decide_runs import run
from tests.agents.planning.plan_samples import log, plan, policy, record, spec
from tests.agents.planning.test_planner import level, request, single
from tests.infra.shown import text_of

TEN_MINUTES_S = COARSE_STEP_MS / 1000


@given(
    means=st.lists(st.none() | st.floats(0.0, 500.0), max_size=8),
    into_ms=st.integers(0, COARSE_STEP_MS - 1),
    start_s=st.floats(0.0, 4_000.0),
    length_s=st.floats(0.0, 4_000.0),
    capacity=st.floats(0.1, 50.0),
)
def test_yesterday_proposes_what_its_busiest_ten_minutes_of_the_window_took(
    means: list[float | None], into_ms: int, start_s: float, length_s: float, capacity: float
) -> None:
    known = request(origin_ts_ms=DAY_ROWS * COARSE_STEP_MS + into_ms, day_ago=tuple(means))
    told = simple_proposals(known, capacity, None, 0.0, (start_s, start_s + length_s))
    begin_s, end_s = into_ms / 1000 + start_s, into_ms / 1000 + start_s + length_s
    seen = [
        mean
        for k, mean in enumerate(means)
        if mean is not None and k * TEN_MINUTES_S <= end_s and begin_s < (k + 1) * TEN_MINUTES_S
    ]
    if not seen:
        assert "yesterday" not in told
    else:
        low, high = known.bounds
        assert told["yesterday"] == min(max(math.ceil(max(seen) / capacity - 1e-9), low), high)


def test_every_rule_that_knows_enough_has_its_count_and_the_plan_its_risk() -> None:
    bare = single(request(last_replicas=None), level(10.0))
    assert set(bare.proposals) == {"cheapest", "quantile", "reactive"}
    told = single(request(day_ago=(30.0, None, 5.0)), level(10.0))
    assert set(told.proposals) == {"cheapest", "quantile", "reactive", "last_plan", "yesterday"}
    assert told.proposals["yesterday"] in (12, 13)  # 30 requests/s at some 2.5 each
    assert told.proposals["yesterday"] in {r.replicas for r in told.risks}
    assert (told.proposed, told.proposer) == (bare.proposed, bare.proposer)


def decided(**changes: object) -> Decision:
    (decision,), _ = run(log(record(0, plan("a", 5, 6, **changes))), policy(spec("a")))
    return decision


def test_a_decision_holds_what_the_others_would_have_and_explain_their_risk() -> None:
    proposals = {"cheapest": 6, "quantile": 7, "yesterday": 12, "last_plan": 5, "reactive": 4}
    risks = (LevelRisk(5, 0.3, 0.01, 5.0), LevelRisk(6, 0.1, 0.01, 6.0), LevelRisk(7, 0.02, 0.001, 7.0))
    decision = decided(proposer="cheapest", proposals=proposals, reactive=4, risks=risks)
    assert decision.shadow == {"quantile": 7, "yesterday": 12, "last_plan": 5, "reactive": 4}
    told = text_of(explanation(decision), width=240)
    assert "others would say last plan: 5 (risk 30 %), quantile: 7 (risk 2 %), reactive: 4, yesterday: 12" in told


def test_the_reactive_rule_is_told_where_it_proposed_itself_and_of_plans_before_proposals_were_kept() -> None:
    assert decided(proposer="reactive", proposals={"reactive": 6}, reactive=6).shadow == {"reactive": 6}
    assert decided(reactive=3).shadow == {"reactive": 3}
    assert decided(reactive=None).shadow == {}


def test_a_loop_of_more_than_a_day_says_what_yesterday_would_have() -> None:
    """Slots of five minutes, of 2 requests/s but for 20 at the ninth hour; one replica carries some 2."""
    declared = policy(
        spec("w", capacity_rps=2.0, lead_time_s=100.0), guards=GuardLimits(warm_up_steps=16), paths_screen=32
    )
    step_ms = COARSE_STEP_MS // 2
    stream = StreamConfig(step_ms=step_ms, grace_ms=0, skew_ms=0, context_steps=40)
    loop = MemoryLoop(declared, stream, SeasonalNaiveForecaster())
    start, started, per_day = 20_000 * DAY_ROWS * COARSE_STEP_MS, 0.0, 2 * DAY_ROWS
    busy = range(9 * 12, 10 * 12)
    for k in range(per_day + 11 * 12):
        end = start + (k + 1) * step_ms
        started += step_ms / 1000 * (20.0 if k in busy else 2.0)
        loop.close_slot("w", [
            encode_sample("requests", "w", "engine", end - 100, {"requests_started_total": started}),
            encode_fleet("w", "k8s", FleetFacts(end - 100, 12, 0, 0)),
        ], end)  # fmt: skip
    loop.close()
    told = [decision.shadow.get("yesterday") for decision in loop.decisions]
    assert set(told[: per_day - 2]) == {None}
    last_day = told[-11 * 12 :]
    high = [k for k, count in enumerate(last_day) if count is not None and count >= 8]
    assert set(high) >= set(busy[:-2])
    assert set(high) <= set(range(busy[0] - 4, busy[-1] + 2))
    assert all(count is not None for count in last_day)
