"""Laws of the curve of misses over load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.capacity import grid as miss_curve
from model.capacity.grid import headroom, odds_against
from model.numerics import power, raise_all, roots_of
from model.planning.queue_kernel import load_rates, loads_of

allowed_shares = st.sampled_from([1e-4, 0.001, 0.01, 0.1, 0.5])
steepnesses = st.integers(1, 60)
rates = st.floats(0.01, 1e4)


def share_missed(needed: float, served: float, allowed: float, steepness: int) -> float:
    unit = max(needed, served, 1e-300)
    powers = power(needed / unit, steepness), power(served / unit, steepness)
    return miss_curve.share_missed(*powers, odds_against(allowed))


def rate_for(steps: list[float], allowed: float, steepness: int) -> float:
    loads = loads_of(np.array(steps)[:, None], len(steps), allowed, steepness)
    return float(load_rates(loads, len(steps), np.ones(1, np.bool_), since_now=False)[0][0, 0])


def missed_at(rate: float, steps: list[float], allowed: float, steepness: int) -> float:
    return sum(d * share_missed(d, rate, allowed, steepness) for d in steps) / sum(steps)


def rate_by_bisection(steps: list[float], allowed: float, steepness: int) -> float:
    low, high = 0.0, max(steps)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if missed_at(middle, steps, allowed, steepness) > allowed else (low, middle)
    return high


@given(st.floats(0.01, 3.0), st.integers(0, 80))
def test_powers_are_powers(base: float, exponent: int) -> None:
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(0, 64))
def test_many_powers_are_the_single_ones_bit_for_bit(bases: list[float], exponent: int) -> None:
    result = np.empty(len(bases))
    raise_all(np.array(bases), exponent, result)
    assert result.tolist() == [power(base, exponent) for base in bases]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.integers(1, 64))
def test_roots_are_roots(numbers: list[float], degree: int) -> None:
    found = np.empty(len(numbers))
    roots_of(np.array(numbers), degree, found)
    assert found == pytest.approx(np.array(numbers) ** (1 / degree), rel=1e-9)


@given(rates, allowed_shares, steepnesses)
def test_at_capacity_the_allowed_share_misses_and_with_the_headroom_filled_half(
    rate: float, allowed: float, steepness: int
) -> None:
    assert share_missed(rate, rate, allowed, steepness) == pytest.approx(allowed)
    assert headroom(allowed, steepness) >= 1.0
    assert share_missed(rate * headroom(allowed, steepness), rate, allowed, steepness) == pytest.approx(0.5, rel=1e-6)


@given(st.lists(rates, min_size=2, max_size=20).map(sorted), rates, allowed_shares, steepnesses)
def test_more_replicas_never_miss_more(served: list[float], needed: float, allowed: float, steepness: int) -> None:
    shares = [share_missed(needed, rate, allowed, steepness) for rate in served]
    assert shares == sorted(shares, reverse=True)
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_nothing_offered_misses_nothing_and_nothing_served_all() -> None:
    assert share_missed(0.0, 0.0, 0.01, 10) == 0.0
    assert share_missed(1.0, 0.0, 0.01, 10) == 1.0
    assert rate_for([0.0] * 4, 0.01, 10) == 0.0
    assert headroom(1.0, 10) == headroom(0.5, 10) == 1.0  # an objective of nothing is read as one of half
    assert np.isfinite(headroom(0.0, 10))


@settings(max_examples=200)
@given(st.lists(st.one_of(st.just(0.0), rates), min_size=1, max_size=12), allowed_shares, st.integers(1, 40))
def test_the_rate_found_misses_just_what_is_allowed(steps: list[float], allowed: float, steepness: int) -> None:
    rate = rate_for(steps, allowed, steepness)
    if not any(steps):
        assert rate == 0.0
        return
    assert missed_at(rate, steps, allowed, steepness) == pytest.approx(allowed, rel=1e-3)
    assert rate <= max(steps) * (1 + 1e-6)


@settings(max_examples=200)
@given(
    st.lists(st.one_of(st.just(0.0), rates), min_size=1, max_size=30).filter(any),
    st.sampled_from([1e-4, 0.001, 0.01, 0.02]),
    st.integers(5, 40),
)
def test_the_rate_is_that_of_a_search_and_where_few_may_miss_never_above_it(
    steps: list[float], allowed: float, steepness: int
) -> None:
    searched = rate_by_bisection(steps, allowed, steepness)
    assert searched * (1 - 1.1e-5) <= rate_for(steps, allowed, steepness) <= searched * (1 + 1e-9)


@given(st.lists(rates, min_size=1, max_size=8), st.floats(0.1, 10.0), allowed_shares, st.integers(1, 40))
def test_the_rate_grows_in_proportion_to_the_demand(
    steps: list[float], factor: float, allowed: float, steepness: int
) -> None:
    more = rate_for([step * factor for step in steps], allowed, steepness)
    assert more == pytest.approx(rate_for(steps, allowed, steepness) * factor, rel=1e-6)


@given(
    st.lists(st.lists(rates, min_size=9, max_size=9), min_size=1, max_size=6),
    allowed_shares,
    st.integers(5, 40),
    st.integers(1, 9),
)
def test_each_path_has_its_own_rates_of_its_own_steps_by_lead_time(
    paths: list[list[float]], allowed: float, steepness: int, window: int
) -> None:
    loads = loads_of(np.array(paths).T, 9, allowed, steepness)
    inside, since_now = load_rates(loads, window, np.ones(9 - window + 1, np.bool_), since_now=True)
    for lead in range(9 - window + 1):
        end = lead + window
        alone = [rate_by_bisection(path[lead:end], allowed, steepness) for path in paths]
        all_of_it = [rate_by_bisection(path[:end], allowed, steepness) for path in paths]
        little = 2e-5 * loads.largest  # powers of what is small beside a path's largest lose their digits
        assert np.all(np.abs(inside[lead] - alone) <= little)
        assert np.all(np.abs(since_now[lead] - np.maximum(alone, all_of_it)) <= little)
