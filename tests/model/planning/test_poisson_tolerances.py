"""Laws of what a window misses by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.numerics import power
from model.planning.queue_kernel import CLUMP, TOLERANCE_LEVELS, level_of, poisson_tolerances

numbers = st.floats(1.0, 1e5)
allowed_shares = st.sampled_from([1e-4, 0.001, 0.01, 0.1])
steepnesses = st.integers(2, 40)


def share_at(luck: float, allowed: float, steepness: int) -> float:
    """Expected share of misses at the rate that is the need times so much: of the steady curve."""
    return 1.0 / (1.0 + (1.0 / allowed - 1.0) * luck**steepness)


@pytest.mark.parametrize(("requests", "allowed"), [(60, 0.05), (300, 0.01), (300, 0.05), (3_000, 0.01)])
@pytest.mark.parametrize("share_of_allowed", [0.25, 0.5, 1.0, 1.5])
def test_as_many_levels_are_missed_as_windows_of_clumped_requests(
    requests: int, allowed: float, share_of_allowed: float
) -> None:
    """An oracle that counts: clumps come by chance, and a window with more than the allowed number is missed.

    Averaged over some more and fewer requests, so that it does not matter where the allowed number becomes whole.
    """
    share, steepness = share_of_allowed * allowed, 10
    rng = np.random.default_rng(7)
    counted, dealt = [], []
    for number in range(round(0.8 * requests), round(1.2 * requests) + 1, max(1, requests // 100)):
        clumps = rng.poisson(share * number / CLUMP, 4_000)
        counted.append(np.mean(CLUMP * clumps > allowed * number))
        tolerances = [
            share_at(luck, allowed, steepness) for luck in poisson_tolerances(float(number), allowed, steepness)
        ]
        dealt.append(np.mean(np.array(tolerances) < share))
    assert np.mean(dealt) == pytest.approx(np.mean(counted), abs=0.035)


@settings(max_examples=60, deadline=None)
@given(numbers, allowed_shares, steepnesses)
def test_a_harder_chance_asks_for_more(requests: float, allowed: float, steepness: int) -> None:
    found = poisson_tolerances(requests, allowed, steepness)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (np.diff(found) <= 0).all()


@settings(max_examples=40, deadline=None)
@given(allowed_shares, steepnesses)
def test_where_requests_are_many_chance_asks_for_nothing(allowed: float, steepness: int) -> None:
    spreads = [float(np.ptp(poisson_tolerances(many, allowed, steepness))) for many in (1e3, 1e5, 1e7)]
    assert spreads == sorted(spreads, reverse=True)
    assert poisson_tolerances(1e9, allowed, steepness).tolist() == [1.0] * TOLERANCE_LEVELS
    assert poisson_tolerances(0.0, allowed, steepness).tolist() == [1.0] * TOLERANCE_LEVELS


@settings(max_examples=40, deadline=None)
@given(numbers, st.integers(2, 20))
def test_a_steep_curve_leaves_little_to_chance(requests: float, steepness: int) -> None:
    """What chance asks for is a share of misses, and the steeper the curve, the fewer replicas change it."""
    once, twice = poisson_tolerances(requests, 0.01, steepness), poisson_tolerances(requests, 0.01, 2 * steepness)
    assert twice**2 == pytest.approx(once, rel=1e-9)
    assert power(float(once[0]), steepness) == pytest.approx(math.exp(steepness * math.log(once[0])), rel=1e-6)


@pytest.mark.parametrize("paths", [64, 100, 256])
def test_levels_are_dealt_evenly_and_the_draws_of_a_path_differ(paths: int) -> None:
    dealt = np.array([level_of(future, future // paths) for future in range(16 * paths)])
    counts = np.bincount(dealt, minlength=TOLERANCE_LEVELS)
    assert counts.max() - counts.min() <= 16
    assert all(len(set(dealt[path::paths].tolist())) == 16 for path in range(paths))
