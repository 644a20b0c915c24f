"""Laws of the error budget and of the price of a missed request that follows from it."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.calibration.budget import ErrorBudget

HOUR_MS = 3_600_000
STEP_MS = 15_000
GOAL = 0.6
OBJECTIVE = 0.99
slots = st.lists(st.tuples(st.floats(0, 1e4, width=32), st.floats(0, 1)), min_size=1, max_size=30)
objectives = st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0])
FIRST_PRICE = ErrorBudget().miss_price(OBJECTIVE)


def seen(
    budget: ErrorBudget, *told: tuple[float | None, float | None], first: int = 1, objective: float = OBJECTIVE
) -> ErrorBudget:
    """With slots of 15 s: requests, and the share of them that missed."""
    for k, (requests, miss_ratio) in enumerate(told, first):
        budget.observe(STEP_MS * k, requests, miss_ratio, objective, GOAL)
    return budget


def steady(miss_ratio: float, minutes: float, *, step_s: float = 15.0, rate: float = 20.0) -> ErrorBudget:
    """A constant share of misses at a constant rate of requests."""
    budget = ErrorBudget()
    for k in range(round(minutes * 60 / step_s) + 1):
        budget.observe(round((k + 1) * step_s * 1000), rate * step_s, miss_ratio, OBJECTIVE, GOAL)
    return budget


def price(budget: ErrorBudget) -> float:
    return budget.miss_price(OBJECTIVE)


# What is left.


def test_before_any_evidence_half_is_left() -> None:
    assert ErrorBudget().left_ratio(OBJECTIVE) == pytest.approx(0.5)


def test_what_is_left_falls_with_the_misses() -> None:
    left = [steady(miss, 24 * 60).left_ratio(OBJECTIVE) for miss in (0.0, 0.002, 0.01, 0.1)]
    assert left == pytest.approx([1.0, 0.8, 0.0, -9.0], abs=0.02)


def test_old_misses_fade() -> None:
    budget = steady(0.02, 24 * 60)
    before = budget.left_ratio(OBJECTIVE)
    for minute in range(1, 48 * 60):
        budget.observe((24 * 60 + 1 + minute) * 60_000, 1_200.0, 0.0, OBJECTIVE, GOAL)
    assert before < 0 < budget.left_ratio(OBJECTIVE)


# The price of a missed request.


def test_the_first_price_is_higher_for_a_stricter_objective() -> None:
    prices = [ErrorBudget().miss_price(objective) for objective in (0.0, 0.9, 0.99, 0.999)]
    assert prices == pytest.approx([1.2, 12.0, 120.0, 1200.0])
    assert math.isfinite(ErrorBudget().miss_price(1.0))


def test_the_price_rises_with_misses_above_the_goal_and_falls_below_it() -> None:
    goal = GOAL * (1.0 - OBJECTIVE)
    assert price(steady(goal, 30.0)) == pytest.approx(FIRST_PRICE, rel=1e-9)
    prices = [price(steady(factor * goal, 20.0)) for factor in (0.0, 0.5, 1.0, 1.5, 2.0)]
    assert all(a < b for a, b in pairwise(prices))
    # After twenty minutes with all of the misses allowed the logarithm has risen by what they are above the goal.
    assert math.log(price(steady(1.0 - OBJECTIVE, 20.0)) / FIRST_PRICE) == pytest.approx(1.0 - GOAL, rel=1e-6)
    assert math.log(price(steady(0.0, 20.0)) / FIRST_PRICE) == pytest.approx(-GOAL, rel=1e-6)


def test_what_a_surge_missed_is_paid_back_and_the_price_comes_down_again() -> None:
    budget, prices = ErrorBudget(), []
    for k in range(400):
        miss_ratio = 0.05 if 40 <= k < 50 else 0.0 if k >= 50 else GOAL * (1.0 - OBJECTIVE)
        seen(budget, (300.0, miss_ratio), first=k + 1)
        prices.append(price(budget))
    assert prices[49] > 1.5 * prices[39] == pytest.approx(1.5 * FIRST_PRICE)
    assert all(a >= b for a, b in pairwise(prices[50:]))
    assert prices[-1] < FIRST_PRICE


@settings(max_examples=60, deadline=None)
@given(slots, objectives, st.floats(0.01, 1.0))
def test_the_price_is_bounded_whatever_is_seen(told: list[tuple[float, float]], objective: float, goal: float) -> None:
    budget, before = ErrorBudget(), ErrorBudget().miss_price(objective)
    first = before
    for k, (requests, miss_ratio) in enumerate(told, 1):
        budget.observe(STEP_MS * k, requests, miss_ratio, objective, goal)
        now = budget.miss_price(objective)
        assert first / 2.0 * (1 - 1e-9) <= now <= first * 4.0 * 16.0 * (1 + 1e-9)
        assert now <= before * math.exp(0.35) * 16.0 * (1 + 1e-9), "one slot raises it by a limited part"
        before = now


def test_one_bad_minute_is_not_a_bad_day() -> None:
    """Beside the rise of tens of minutes, the day adds nothing yet."""
    budget = steady(0.0, 10.0)
    seen(budget, *[(300.0, 1.0)] * 4, first=42)
    assert FIRST_PRICE < price(budget) <= 4.0 * FIRST_PRICE * (1 + 1e-9)


@pytest.mark.parametrize(("missed_s", "spent"), [(150.0, 150 / 108), (300.0, 300 / 108), (60.0, 60 / 108)])
def test_rare_surprises_raise_the_price_by_what_they_spent_of_the_day(missed_s: float, spent: float) -> None:
    """Surprises every three hours for two days; the price of tens of minutes is down at its least again after each."""
    budget = ErrorBudget()
    for k in range(2 * 5760):
        missed = k * 15.0 % 10_800.0 < missed_s
        budget.observe((k + 1) * STEP_MS, 300.0, float(missed), OBJECTIVE, GOAL)
    factor = min(max(spent / 0.6, 1.0) ** 4.0, 16.0)
    assert price(budget) == pytest.approx(FIRST_PRICE / 2.0 * factor, rel=0.35)


def test_a_snapshot_from_before_the_day_was_observed_starts_with_half_of_it() -> None:
    old = steady(1.0, 30.0).snapshot()
    del old["observed_s"]
    assert ErrorBudget.restore(old).miss_price(OBJECTIVE) == pytest.approx(4.0 * FIRST_PRICE)


def test_the_bounds_are_reached_and_left_again() -> None:
    dear = steady(1.0, 30.0)
    assert price(dear) == pytest.approx(4.0 * 16.0 * FIRST_PRICE)
    cheap = steady(0.0, 600.0)
    assert price(cheap) == pytest.approx(FIRST_PRICE / 2.0)
    cheap.observe(10 * HOUR_MS + 2 * STEP_MS, 300.0, 1.0, OBJECTIVE, GOAL)
    assert price(cheap) > FIRST_PRICE / 2.0


@settings(max_examples=40, deadline=None)
@given(slots, st.floats(0.9, 0.9999))
def test_more_misses_never_lower_the_price(told: list[tuple[float, float]], objective: float) -> None:
    worse = [(requests, min(1.0, miss + 0.1)) for requests, miss in told]
    prices = [seen(ErrorBudget(), *each, objective=objective).miss_price(objective) for each in (told, worse)]
    assert prices[0] <= prices[1] * (1 + 1e-12)


@pytest.mark.parametrize("miss_ratio", [0.0, 0.003, 0.012])
@pytest.mark.parametrize("minutes", [2.0, 10.0, 60.0])
def test_the_price_does_not_depend_on_the_length_of_slots(miss_ratio: float, minutes: float) -> None:
    short, long = (price(steady(miss_ratio, minutes, step_s=step_s)) for step_s in (5.0, 15.0))
    assert short == pytest.approx(long, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_slots_of_five_seconds_move_the_price_as_those_of_fifteen_under_a_varying_load(seed: int) -> None:
    """A wave of an hour, with a share of misses that follows it."""
    prices = []
    for step_s in (5.0, 15.0):
        budget = ErrorBudget()
        for k in range(round(7_200 / step_s) + 1):
            wave = math.sin(2.0 * math.pi * (k + 0.5) * step_s / 3_600.0 + seed)
            requests, missed = step_s * (20.0 + 10.0 * wave), 0.006 + 0.005 * wave
            budget.observe(round((k + 1) * step_s * 1000), requests, missed, OBJECTIVE, GOAL)
        prices.append(price(budget))
    assert prices[0] == pytest.approx(prices[1], rel=0.04)


# What is not observed, and restarts.


@pytest.mark.parametrize("bad", [(None, 0.1), (5.0, None), (float("nan"), 0.1), (5.0, float("inf")), (-1.0, 0.5)])
def test_what_was_not_observed_changes_nothing(bad: tuple[float | None, float | None]) -> None:
    budget = seen(ErrorBudget(), (300.0, 0.02), bad)
    known = seen(ErrorBudget(), (300.0, 0.02))
    assert price(budget) == price(known)
    assert budget.left_ratio(OBJECTIVE) == pytest.approx(known.left_ratio(OBJECTIVE), rel=1e-3)


def test_a_slot_that_is_not_newer_than_the_last_changes_nothing() -> None:
    budget = seen(ErrorBudget(), (300.0, 0.02), (300.0, 0.02))
    before = budget.snapshot()
    for end_ts_ms in (STEP_MS, 2 * STEP_MS):
        budget.observe(end_ts_ms, 1e6, 0.5, OBJECTIVE, GOAL)
    assert budget.snapshot() == before


@settings(max_examples=30, deadline=None)
@given(slots, slots, objectives)
def test_a_restored_budget_goes_on_with_the_same_bits(
    first: list[tuple[float, float]], then: list[tuple[float, float]], objective: float
) -> None:
    straight = seen(ErrorBudget(), *first, *then, objective=objective)
    half = seen(ErrorBudget(), *first, objective=objective)
    resumed = ErrorBudget.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(half.snapshot())))
    assert resumed.miss_price(objective) == half.miss_price(objective)
    seen(resumed, *then, first=len(first) + 1, objective=objective)
    assert resumed.snapshot() == straight.snapshot()


@pytest.mark.parametrize(
    "stored",
    [
        {"v": 1, "requests": 1e6, "misses": 5e3, "last_ts_ms": STEP_MS},
        # Version 2 counted over a day and over ten minutes.
        {"v": 2, "requests": [1e6, 1e4], "misses": [5e3, 100.0], "last_ts_ms": STEP_MS},
    ],
    ids=["version 1", "version 2"],
)
def test_counts_of_earlier_releases_are_read_and_their_price_is_the_first(stored: dict[str, object]) -> None:
    budget = ErrorBudget.restore(stored)
    assert budget.left_ratio(OBJECTIVE) == 0.5, "for how long they were observed, was not kept"
    assert price(budget) == FIRST_PRICE
    seen(budget, (300.0, 0.05), first=2)
    assert price(budget) > FIRST_PRICE


def test_other_versions_are_refused_and_none_starts_anew() -> None:
    with pytest.raises(ValueError, match="version 4"):
        ErrorBudget.restore({"v": 4})
    assert ErrorBudget.restore({}).snapshot() == ErrorBudget().snapshot()
