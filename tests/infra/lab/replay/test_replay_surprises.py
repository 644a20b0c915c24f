"""What is possible to a scaler to which nothing announces what begins in a load."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.lab.replay.oracle import (
    SurpriseOptions,
    causal_bound,
    find_schedule,
    parse_surprises,
    rate_rises,
    surprise_times,
    without_surprises,
)
from infra.lab.replay.setting import ScoredLoad, Setting
from infra.lab.replay.simulation import RunResult
from infra.simulator.arrivals import Arrivals, RateProfile, Tokens
from tests.infra.lab.replay.replay_setting import poisson, setting

LEAD_S, BEGIN_S = 20.0, 300.0


def profile(rates_rps: list[float], step_s: float) -> RateProfile:
    tokens = (Tokens(20),) * len(rates_rps)
    return RateProfile(
        "made", np.arange(len(rates_rps) + 1, dtype=np.float64) * step_s, np.asarray(rates_rps), tokens, tokens
    )


def ready_at(lived: RunResult, at_s: float) -> int:
    return sum(r.ready_s <= at_s and not at_s >= min(r.drain_s, r.release_s) for r in lived.replicas)


def jumping(rate_rps: float, lead_s: float = LEAD_S) -> Setting:
    """Jumps for five minutes; otherwise 1 request/s."""
    parts = [poisson(1.0, 300.0, 1), poisson(rate_rps, 600.0, 2, 300.0), poisson(1.0, 900.0, 3, 600.0)]
    return setting(lead_s, max_replicas=12).with_load(ScoredLoad("jump", Arrivals.joined(parts), (60.0, 900.0)))


def test_within_a_lead_time_no_more_is_ready_than_there_was_before_the_surprise() -> None:
    s = jumping(5.0)
    told = find_schedule(s, 0, budget=60)
    found = causal_bound(s, 0, [BEGIN_S], 120)
    assert told is not None
    assert found is not None
    unready, before = found.unready.run, range(60, 300)
    held = max(ready_at(unready, at_s) for at_s in before)
    during = [ready_at(unready, BEGIN_S + k) for k in range(int(LEAD_S))]
    assert max(during) <= held
    assert ready_at(told.run, BEGIN_S + 5.0) > held, "who knows is ready"
    assert max(ready_at(unready, at_s) for at_s in range(321, 420)) > held, "then it has heard of it"


def test_who_keeps_the_objective_has_held_more_at_all_times_before() -> None:
    s = jumping(5.0, lead_s=60.0)
    found, told = causal_bound(s, 0, [BEGIN_S], 120), find_schedule(s, 0, budget=60)
    assert found is not None
    assert found.ready is not None
    assert told is not None
    ready, unready = found.ready, found.unready
    assert ready.run.attainment >= s.share > unready.run.attainment
    assert ready.reserve_ratio > 0.0 == unready.reserve_ratio
    assert ready.run.gpu_hours > told.run.gpu_hours
    least = min(ready_at(ready.run, at_s) for at_s in range(80, 300))
    assert least > min(ready_at(unready.run, at_s) for at_s in range(80, 300))


def test_a_surprise_that_is_none_costs_next_to_nothing() -> None:
    s = jumping(1.0)
    found, told = causal_bound(s, 0, [BEGIN_S], 120), find_schedule(s, 0, budget=60)
    assert found is not None
    assert told is not None
    assert found.ready is not None
    assert found.ready.run.attainment >= s.share
    assert found.ready.run.gpu_hours <= 1.1 * told.run.gpu_hours


def test_no_bound_where_even_the_most_replicas_do_not_suffice() -> None:
    overloaded = setting(LEAD_S, max_replicas=1).with_load(
        ScoredLoad("too much", poisson(5.0, 900.0, 1), (60.0, 900.0))
    )  # fmt: skip
    assert causal_bound(overloaded, 0, [BEGIN_S], 40) is None
    sudden = setting(LEAD_S, max_replicas=2).with_load(jumping(9.0).load)
    found = causal_bound(sudden, 0, [BEGIN_S], 40)
    assert found is None or found.ready is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(10, 80), max_size=4), st.integers(0, 100), st.integers(1, 9))
def test_before_a_surprise_a_load_goes_on_as_it_was(gaps: list[int], seed: int, lead_s: int) -> None:
    times = np.cumsum(gaps, dtype=float).tolist()
    load = ScoredLoad("any", poisson(3.0, 400.0, seed), (0.0, 400.0))
    calm = without_surprises(load, times, float(lead_s)).arrivals
    assert list(calm.arrival_s) == sorted(calm.arrival_s)
    assert len(calm.arrival_s) == len(calm.prompt_tokens) == len(calm.output_tokens)
    untold = [0.0, *(edge for at_s in times for edge in (at_s, at_s + lead_s)), math.inf]
    for (first, end), blind in zip(pairwise(untold), [k % 2 == 1 for k in range(len(untold))], strict=False):
        part = calm.between(first, end).arrival_s
        back = lead_s if blind else 0.0
        expected = load.arrivals.between(first - back, end - back).arrival_s + back
        assert part == pytest.approx(expected)


def test_a_rise_is_measured_from_the_half_hour_before() -> None:
    calm = [10.0] * 60
    assert rate_rises(profile([*calm, 14.0, 14.0, 9.0, 14.0], 60.0), 1.33, 100.0) == [3600.0]
    assert rate_rises(profile([*calm, 11.0, 12.0, 14.0], 60.0), 1.33, 300.0) == [3600.0], "from where it begins to rise"
    assert rate_rises(profile([*calm, 11.0, 12.0, 14.0], 60.0), 1.33, 100.0) == [], "not that much within a lead time"
    assert rate_rises(profile([10.0 * 1.01**k for k in range(200)], 60.0), 1.33, 100.0) == [], "slowly"
    assert rate_rises(profile([*calm, 14.0, 20.0, 30.0], 60.0), 1.33, 600.0) == [3600.0], "one of several steps"
    assert rate_rises(profile([10.0, 20.0], 60.0), 1.33, 100.0) == [], "nothing is known of before"
    assert rate_rises(profile([*calm, 14.0], 60.0), 1.33, 0.0) == [3600.0], "also where replicas start at once"
    assert rate_rises(profile([0.0] * 60 + [5.0], 60.0), 1.33, 100.0) == [], "from nothing there is no factor"


def test_built_in_loads_know_their_surprises() -> None:
    assert parse_surprises(None, "flash-crowd") == SurpriseOptions((1800.0,))
    assert parse_surprises(None, "regime-shift") == SurpriseOptions((2400.0,))
    assert parse_surprises(None, "longer-answers") == SurpriseOptions((7200.0,))
    assert parse_surprises(None, "ramp") == parse_surprises(None, None) == SurpriseOptions()
    assert parse_surprises("60,90", "flash-crowd") == SurpriseOptions((60.0, 90.0))
    assert parse_surprises("x1.5", None) == SurpriseOptions(factor=1.5)
    assert surprise_times(SurpriseOptions((60.0, 90.0)), None, 100.0, 30.0) == (60.0, 90.0)


@pytest.mark.parametrize("text", ["soon", "x", "x1", "xnan", "-5", "90,60", "60,60", "inf", "nan"])
def test_what_is_no_surprise_is_refused(text: str) -> None:
    with pytest.raises(HarmonyError, match="--surprise") as refused:
        parse_surprises(text, None)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("asked", "rates", "what"),
    [
        (SurpriseOptions((60.0, 100.0)), None, "ends after 100 s"),
        (SurpriseOptions((60.0, 80.0)), None, "within a lead time"),
        (SurpriseOptions(factor=1.33), None, "name seconds"),
        (SurpriseOptions(factor=1.001), profile([10.0 * 1.01**k for k in range(5000)], 60.0), "larger factor"),
    ],
)
def test_surprises_that_do_not_fit_the_load_are_refused(
    asked: SurpriseOptions, rates: RateProfile | None, what: str
) -> None:
    with pytest.raises(HarmonyError, match=what):
        surprise_times(asked, rates, 100.0, 30.0)
