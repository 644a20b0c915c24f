"""A schedule's ceilings and floors under every guard beside them: what they may undo, and what not."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agents.decide.guards.chain import run_guards
from agents.decide.situation import Situation
from agents.records import Limit
from tests.agents.decide.test_guards import allowed, in_doubt, situations
from tests.agents.planning.plan_samples import FREE, inputs, situation

NIGHT = Limit("schedule", None, 3, "night asks for at most 3")
STALE = inputs(oldest_age_ms=600_000)
counts = st.integers(0, 40)
limits = st.lists(
    st.builds(lambda low: Limit("schedule", low, None, "day"), counts)
    | st.builds(lambda high: Limit("schedule", None, high, "night"), counts)
    | st.builds(lambda low: Limit("batch", low, None, "work"), counts),
    max_size=3,
).map(tuple)


declared = st.builds(
    lambda s, standing: replace(s, plan=msgspec.structs.replace(s.plan, standing=standing)), situations, limits
)


def rests_on_orders(s: Situation) -> bool:
    """An operator's word or the workload's own bounds move it, whatever is declared of the time."""
    return s.pin is not None or allowed(s, s.current) != s.current


@given(declared)
def test_nothing_declared_gives_up_replicas_in_doubt(s: Situation) -> None:
    if in_doubt(s) and not rests_on_orders(s):
        assert run_guards(s).final >= s.current


@given(declared)
def test_nothing_declared_gives_up_more_than_the_fleet_and_the_pace_allow(s: Situation) -> None:
    final = run_guards(s).final
    if final >= s.current or rests_on_orders(s):
        return
    assert s.removals_left is None or s.current - final <= s.removals_left
    assert final >= min(s.current, s.fleet_need)
    start, g = s.current + s.removed, s.limits
    assert final >= min(s.current, start - max(g.down_replicas, int(start * g.down_ratio)))


@given(declared)
def test_nothing_grows_above_a_ceiling_but_for_a_floor(s: Situation) -> None:
    standing = s.plan.standing
    ceilings = [x.high for x in standing if x.high is not None]
    if rests_on_orders(s) or any(x.guard == "schedule" and x.low is not None for x in standing) or not ceilings:
        return
    assert run_guards(s).final <= max(s.current, min(ceilings))


def test_a_ceiling_is_reached_at_the_permitted_pace_whatever_the_load_needs() -> None:
    """Twenty run, the load needs twelve, and every risk is too high to give one up."""
    pace = replace(FREE, down_ratio=0.1, down_replicas=1, down_period_s=120.0)
    current, seen = 20, [20]
    for _ in range(17):
        guarded = run_guards(
            situation(current, pace, proposed=12, reactive=12, epsilon=0.01, window_max=20, standing=(NIGHT,))
        )
        current = guarded.final
        seen.append(current)
        if current > 3:
            assert guarded.reason == "schedule"
            assert guarded.steps[-1].reason == f"{NIGHT.reason}; at most -10% or -1 per 120 s"
    assert seen[:4] == [20, 18, 17, 16]
    assert seen[-1] == 3


def test_a_ceiling_that_must_wait_says_for_what() -> None:
    told = {
        "telemetry is 600000 ms old, limit 60000 ms": situation(20, proposed=20, standing=(NIGHT,), inputs=STALE),
        "0 of 2 removals per minute are left to the fleet": situation(
            20, replace(FREE, fleet_removals_per_minute=2), removals_left=0, proposed=20, standing=(NIGHT,)
        ),
        "the fleet keeps at least 20 replicas": situation(
            20, replace(FREE, fleet_min_replicas=20), fleet_need=20, proposed=20, standing=(NIGHT,)
        ),
    }
    for why, s in told.items():
        guarded = run_guards(s)
        assert (guarded.final, guarded.reason, guarded.steps[-1].reason) == (20, "schedule", f"{NIGHT.reason}; {why}")
