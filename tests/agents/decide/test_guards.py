"""Every guard on its own, as a table an operator could read, and the laws of the whole chain."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decide.guards import gates as safety
from agents.decide.guards import limits
from agents.decide.guards import limits as declared
from agents.decide.guards.chain import GATES, GUARDS, Guard, run_guards
from agents.decide.situation import Situation
from agents.policy import GuardLimits
from agents.records import GuardStep, Limit, Pin
from tests.agents.planning.plan_samples import FREE, inputs, situation, spec

HPA = GuardLimits(warm_up_steps=0)
UP = replace(FREE, up_ratio=1.0, up_replicas=4)
DOWN = replace(FREE, down_ratio=0.1, down_replicas=1)


def doubtful(**changes: Any) -> dict[str, Any]:
    return {"inputs": inputs(**changes)}


# guard, value before, what is not as in the healthy situation (5 replicas in force), value after
TABLE: list[tuple[Guard, int, dict[str, Any], int]] = [
    (safety.pin, 9, {"pin": Pin(2)}, 2),
    (safety.pin, 9, {}, 9),
    (safety.kill_switch, 9, {"paused": "fleet"}, 5),
    (safety.kill_switch, 2, {"paused": "workload"}, 5),
    (safety.mode, 9, {"mode": "observe"}, 9),
    (safety.expired, 9, {"overdue_ms": 1}, 5),
    (safety.refused, 9, {"refused": "silent"}, 5),
    (safety.warm_up, 9, {"limits": replace(FREE, warm_up_steps=128), "seen_steps": 127}, 5),
    (safety.warm_up, 9, {"limits": replace(FREE, warm_up_steps=128), "seen_steps": 128}, 9),
    (safety.fence, 9, {"newest_ts_ms": 5_000, "origin_ts_ms": 5_000}, 5),
    (safety.fence, 9, {"newest_ts_ms": 5_000, "origin_ts_ms": 5_001}, 9),
    (safety.freshness, 2, doubtful(oldest_age_ms=60_000), 2),
    (safety.freshness, 2, doubtful(oldest_age_ms=60_001), 5),
    (safety.freshness, 2, doubtful(oldest_age_ms=None), 5),
    (safety.freshness, 9, doubtful(oldest_age_ms=60_001), 9),
    (safety.freshness, 2, {"facts_age_ms": 60_001}, 5),
    (safety.coverage, 2, doubtful(coverage_ratio=0.59), 5),
    (safety.coverage, 2, doubtful(coverage_ratio=0.6), 2),
    (safety.coverage, 2, doubtful(coverage_ratio=float("nan")), 5),
    (safety.coverage, 2, doubtful(observed_ratio=0.59), 5),
    (safety.coverage, 9, doubtful(coverage_ratio=0.0), 9),
    (safety.sanity, 2, doubtful(zero_after_nonzero=True), 5),
    (safety.sanity, 2, doubtful(cliff=True), 5),
    (safety.sanity, 2, doubtful(flat=True), 5),
    (safety.sanity, 2, doubtful(censored=True), 5),
    (safety.sanity, 9, doubtful(cliff=True, flat=True, censored=True, zero_after_nonzero=True), 9),
    (safety.missing_metric, 2, doubtful(arrival_rate=None), 5),
    (safety.missing_metric, 2, {**doubtful(coverage_ratio=0.8), "proposed": 2}, 3),
    (safety.missing_metric, 2, {**doubtful(coverage_ratio=0.3), "proposed": 2}, 5),
    (safety.missing_metric, 2, {**doubtful(coverage_ratio=0.0), "proposed": 2}, 5),
    (safety.missing_metric, 9, {**doubtful(coverage_ratio=0.5, arrival_rate=None), "proposed": 9}, 9),
    (safety.horizon, 2, {"standing": (Limit("horizon", 5, None, "starts are slow"),)}, 5),
    (safety.horizon, 2, {"standing": (Limit("horizon", None, None, "one may be slow"),)}, 2),
    (safety.horizon, 9, {"standing": (Limit("horizon", 5, None, "starts are slow"),)}, 9),
    (limits.bounds, 0, {}, 1),
    (limits.bounds, 101, {}, 100),
    (limits.bounds, -3, {"spec": None}, 0),
    (limits.bounds, 3_000, {"spec": None}, 3_000),
    (limits.fleet_budget, 9, {"gpus_left": 15, "spec": spec(gpus_per_replica=2)}, 7),
    (limits.fleet_budget, 9, {"gpus_left": 4}, 5),
    (limits.fleet_budget, 9, {"gpus_left": -4}, 5),
    (limits.fleet_budget, 2, {"gpus_left": 0}, 2),
    (limits.fleet_power, 9, {"power_left_w": 2_999.0, "power_w_per_replica": 500.0}, 5),
    (limits.fleet_power, 9, {"power_left_w": 3_000.0, "power_w_per_replica": 500.0}, 6),
    (limits.fleet_power, 9, {"power_left_w": 0.0}, 9),
    (limits.fleet_floor, 1, {"fleet_need": 3}, 3),
    (limits.fleet_floor, 1, {"fleet_need": 30}, 5),
    (limits.fleet_floor, 9, {"fleet_need": 30}, 9),
    (limits.step_limit, 50, {"limits": UP}, 10),
    (limits.step_limit, 50, {"limits": UP, "added": 3}, 6),
    (limits.step_limit, 50, {"limits": UP, "added": 4}, 5),
    (limits.step_limit, 50, {"limits": UP, "added": 9}, 5),
    (limits.step_limit, 50, {"limits": UP, "current": 0}, 4),
    (limits.step_limit, 1, {"limits": DOWN}, 4),
    (limits.step_limit, 1, {"limits": DOWN, "removed": 1}, 5),
    (limits.step_limit, 1, {"limits": DOWN, "current": 40}, 36),
    (limits.step_limit, 1, {"limits": DOWN, "current": 38, "removed": 2}, 36),
    (limits.removal_limit, 1, {"removals_left": 2}, 3),
    (limits.removal_limit, 1, {"removals_left": -2}, 5),
    (limits.removal_limit, 9, {"removals_left": 0}, 9),
    (limits.stabilization, 2, {"window_max": 4}, 4),
    (limits.stabilization, 2, {"window_max": 8}, 5),
    (limits.stabilization, 9, {"window_min": 7}, 7),
    (limits.stabilization, 9, {"window_min": 3}, 5),
    (limits.tolerance, 6, {"limits": replace(FREE, tolerance_ratio=0.2)}, 5),
    (limits.tolerance, 7, {"limits": replace(FREE, tolerance_ratio=0.2)}, 7),
    (limits.tolerance, 6, {}, 6),
    (limits.model_guard, 2, {"reactive": 4}, 4),
    (limits.model_guard, 2, {"reactive": None}, 2),
    (limits.model_guard, 2, {"reactive": 500}, 100),
    (limits.model_guard, 2, {"reactive": 50, "limits": UP}, 10),
    (limits.model_guard, 2, {"reactive": 50, "gpus_left": 7}, 7),
    (limits.reclaim, 5, {"reclaim_gpus": 2, "reclaim_for": "vip"}, 3),
    (limits.reclaim, 5, {"reclaim_gpus": 3, "spec": spec(gpus_per_replica=2)}, 3),
    (limits.reclaim, 5, {"reclaim_gpus": 9, "spec": spec(min_replicas=2)}, 2),
    (limits.reclaim, 2, {"reclaim_gpus": 2}, 2),
    (limits.reclaim, 5, {"reclaim_gpus": 2, **doubtful(cliff=True)}, 5),
    (limits.reclaim, 5, {"reclaim_gpus": 2, "removals_left": 1}, 4),
    (limits.reclaim, 5, {"reclaim_gpus": 2, "fleet_need": 4}, 4),
    (limits.reclaim, 5, {"reclaim_gpus": 2, "spec": None}, 5),
    (declared.first_request, 0, {"current": 0, "standing": (Limit("first_request", 1, None, "1 waits"),)}, 1),
    (declared.first_request, 3, {"current": 0, "standing": (Limit("first_request", 1, None, "1 waits"),)}, 3),
    (declared.first_request, 0, {"current": 2, "standing": (Limit("first_request", 1, None, "1 waits"),)}, 0),
    (
        declared.first_request,
        0,
        {"current": 0, "refused": "horizon", "standing": (Limit("first_request", 1, None, "1 waits"),)},
        1,
    ),
    (safety.missing_metric, 0, {**doubtful(coverage_ratio=0.8), "proposed": 0}, 1),
    (safety.sanity, 0, {**doubtful(zero_after_nonzero=True), "proposer": "idle"}, 0),
    (declared.batch, 2, {"standing": (Limit("batch", 8, None, "work"),)}, 8),
    (declared.batch, 9, {"standing": (Limit("batch", 8, None, "work"),)}, 9),
    (declared.schedule, 2, {"standing": (Limit("schedule", 8, None, "office"),)}, 8),
    (declared.schedule, 9, {"standing": (Limit("schedule", 8, None, "office"),)}, 9),
    (declared.schedule, 9, {"standing": (Limit("schedule", None, 3, "night"),)}, 3),
    (declared.schedule, 9, {"standing": (Limit("schedule", 4, 3, "both"),)}, 4),
    (declared.schedule, 2, {"standing": (Limit("other", 8, None, "another guard's"),)}, 2),
]


def build(changes: dict[str, Any]) -> Situation:
    return situation(**changes)


@pytest.mark.parametrize(
    ("guard", "before", "changes", "after"), TABLE, ids=[f"{i}-{row[0].__name__}" for i, row in enumerate(TABLE)]
)
def test_each_guard(guard: Guard, before: int, changes: dict[str, Any], after: int) -> None:
    step = guard(build(changes), before)
    if step is None:
        assert after == before
    else:
        assert (step.before, step.after) == (before, after)
        assert step.reason


def test_every_guard_of_the_chain_has_rows_that_move_a_value() -> None:
    moving = {row[0] for row in TABLE if row[1] != row[3]} | {safety.mode}
    assert moving == {*GATES, *GUARDS}


def test_a_cliff_is_named_as_such() -> None:
    guarded = run_guards(situation(proposed=2, **doubtful(cliff=True)))
    assert (guarded.final, guarded.reason, guarded.at_gate) == (5, "cliff", False)
    assert "50%" in guarded.steps[0].reason


def test_without_a_proposal_the_reactive_need_stands_in_but_never_below_what_is_in_force() -> None:
    assert run_guards(situation(proposed=None, reactive=8)).final == 8
    low = run_guards(situation(proposed=None, reactive=2))
    assert (low.final, low.reason) == (5, "fallback")


@pytest.mark.parametrize("at", range(len(GUARDS)))
def test_a_guard_that_raises_means_hold(at: int) -> None:
    def broken(_s: Situation, _value: int) -> GuardStep | None:
        raise ZeroDivisionError("somewhere")

    guarded = run_guards(situation(proposed=9), guard_order=(*GUARDS[:at], broken, *GUARDS[at + 1 :]))
    assert (guarded.final, guarded.reason, guarded.at_gate) == (5, "broken", False)
    assert guarded.steps[-1].reason == "guard failed: ZeroDivisionError"


@pytest.mark.parametrize("at", range(len(GATES)))
def test_a_gate_that_raises_means_hold_without_a_command(at: int) -> None:
    def mode(_s: Situation, _value: int) -> GuardStep | None:
        raise KeyError("w")

    guarded = run_guards(situation(proposed=9), gate_order=(*GATES[:at], mode, *GATES[at + 1 :]))
    assert (guarded.final, guarded.at_gate) == (5, True)


def test_observe_works_out_what_would_be_done() -> None:
    guarded = run_guards(situation(proposed=9, mode="observe", mode_reason="observe: as configured"))
    assert (guarded.final, guarded.reason) == (9, "chance")
    assert [s.guard for s in guarded.steps] == ["mode"]


counts = st.integers(0, 60)
situations = st.builds(
    lambda current, limits_, facts_, **rest: situation(current=current, limits=limits_, inputs=facts_, **rest),
    current=counts,
    proposed=st.none() | st.integers(-5, 200),
    reactive=st.none() | counts,
    limits_=st.builds(
        GuardLimits,
        warm_up_steps=st.sampled_from([0, 128]),
        up_ratio=st.sampled_from([0.0, 0.5, 1.0]),
        up_replicas=st.integers(0, 5),
        down_ratio=st.sampled_from([0.0, 0.1, 1.0]),
        down_replicas=st.integers(0, 5),
        tolerance_ratio=st.sampled_from([0.0, 0.1]),
    ),
    facts_=st.builds(
        inputs,
        arrival_rate=st.sampled_from([None, 0.0, 10.0]),
        coverage_ratio=st.sampled_from([0.0, 0.5, 0.7, 1.0, 1.0]),
        observed_ratio=st.sampled_from([0.5, 1.0, 1.0]),
        oldest_age_ms=st.sampled_from([None, 1, 1, 10**6]),
        **{name: st.sampled_from([False, False, True]) for name in ("censored", "flat", "cliff", "zero_after_nonzero")},
    ),
    refused=st.sampled_from([None, None, None, "silent"]),
    paused=st.sampled_from([None, None, None, "fleet"]),
    pin=st.sampled_from([None, None, None, Pin(7)]),
    spec=st.none() | st.builds(lambda low, more: spec(min_replicas=low, max_replicas=low + more), counts, counts),
    mode=st.sampled_from(["act", "observe"]),
    gpus_left=st.none() | st.integers(-5, 80),
    removals_left=st.none() | st.integers(-2, 9),
    added=st.integers(0, 9),
    removed=st.integers(0, 9),
    window_max=st.none() | counts,
    window_min=st.none() | counts,
    fleet_need=st.integers(0, 9),
)


def allowed(s: Situation, value: int) -> int:
    return value if s.spec is None else min(max(value, s.spec.min_replicas), s.spec.max_replicas)


@given(situations)
def test_the_final_count_is_within_bounds_unless_an_operator_or_a_gate_says_otherwise(s: Situation) -> None:
    guarded = run_guards(s)
    if s.pin is not None:
        assert guarded.final == s.pin.replicas
    elif guarded.at_gate:
        assert guarded.final == s.current
    else:
        assert guarded.final == allowed(s, guarded.final) >= 0


def in_doubt(s: Situation) -> bool:
    """Whether the telemetry forbids to go down."""
    facts = s.plan.inputs
    return (
        facts.arrival_rate is None
        or facts.oldest_age_ms is None
        or facts.oldest_age_ms > 60_000
        or min(facts.coverage_ratio, facts.observed_ratio) < 0.6
        or facts.censored
        or facts.flat
        or facts.cliff
        or facts.zero_after_nonzero
    )


@given(situations)
def test_never_down_in_doubt(s: Situation) -> None:
    if (in_doubt(s) or s.plan.proposed is None) and s.pin is None:
        assert run_guards(s).final >= min(s.current, allowed(s, s.current))


@given(situations)
def test_paused_never_changes_anything(s: Situation) -> None:
    guarded = run_guards(replace(s, pin=None, paused="fleet"))
    assert (guarded.final, guarded.at_gate) == (s.current, True)


@given(situations)
def test_growth_respects_budget_and_step_limit_and_loss_the_removals(s: Situation) -> None:
    guarded = run_guards(s)
    if guarded.at_gate or s.pin is not None or allowed(s, s.current) != s.current:
        return
    if guarded.final > s.current:
        if s.gpus_left is not None:
            assert guarded.final <= s.gpus_left
        start = max(0, s.current - s.added)
        assert guarded.final <= start + max(s.limits.up_replicas, int(start * s.limits.up_ratio))
    if guarded.final < s.current and s.removals_left is not None:
        assert s.current - guarded.final <= s.removals_left


@given(situations, st.integers(-5, 200))
def test_each_guard_is_idempotent_and_steps_chain(s: Situation, value: int) -> None:
    for guard in (*GATES, *GUARDS):
        step = guard(s, value)
        if step is not None:
            again = guard(s, step.after)
            assert again is None or again.after == step.after
    steps = run_guards(s).steps
    assert all(a.after == b.before for a, b in pairwise(steps))


@given(situations)
def test_never_below_the_reactive_need_as_far_as_it_may_grow(s: Situation) -> None:
    guarded, need = run_guards(s), s.plan.reactive_replicas
    if guarded.at_gate or s.pin is not None or need is None:
        return
    assert guarded.final >= min(allowed(s, need), allowed(s, s.current))
