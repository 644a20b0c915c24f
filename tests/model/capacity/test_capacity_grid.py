"""The posterior of a capacity, held against the same written with whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.capacity.grid import GRID, SPACING, STEEPNESS, GridPosterior, Prior, curves_of, grid_posterior, missed_share

ALLOWED = 0.01
CURVES = curves_of(ALLOWED)

counted = st.floats(0.0, 200.0, width=32)
seen = st.lists(st.tuples(counted, counted), max_size=40)
priors = st.builds(Prior, st.floats(-9.0, 9.0), st.floats(0.1, 1.0), st.just(1.0), st.floats(0.001, 0.5))


def found(counts: np.ndarray, lowest: int, prior: Prior) -> GridPosterior:
    """Of counts [2, M] at neighbouring loads, the first of them `lowest` from a load of one."""
    rows = np.asarray(counts, np.float32).reshape(2, -1)
    cells = np.vstack((np.arange(rows.shape[1]), rows), dtype=np.float32)
    return grid_posterior(cells, lowest, CURVES.log_evidence, prior)


def of_whole_arrays(counts: np.ndarray, lowest: int, prior: Prior, first: int) -> np.ndarray:
    """Weights [W, G] on the grid from `first` on."""
    window = np.zeros((2, GRID))
    for k in range(counts.shape[1]):
        window[:, min(max(lowest + k - first, 0), GRID - 1)] += counts[:, k]
    said = (window.reshape(-1) @ CURVES.log_evidence).reshape(len(STEEPNESS), GRID)
    gap = (first + np.arange(GRID)) * SPACING - prior.centre
    wide = np.log(prior.wrong * prior.sigma / prior.wide_sigma) - 0.5 * np.square(gap / prior.wide_sigma)
    logs = said + np.log([0.2, 0.35, 0.3, 0.15])[:, None] + np.logaddexp(-0.5 * np.square(gap / prior.sigma), wide)
    weights: np.ndarray = np.exp(logs - logs.max())
    return weights / weights.sum()


@example([(96.0, 1.0)], 0, Prior(-4.0, 0.5, 1.0, 0.5))  # moves to and fro
@given(seen, st.integers(-300, 300), priors)
def test_it_is_bayes_rule_on_a_grid_around_the_median(
    rows: list[tuple[float, float]], lowest: int, prior: Prior
) -> None:
    counts = np.array(rows, np.float32).T.reshape(2, -1)
    posterior = found(counts, lowest, prior)
    expected = of_whole_arrays(counts.astype(np.float64), lowest, prior, posterior.first)
    assert posterior.weights == pytest.approx(expected, abs=1e-9)
    assert posterior.cumulative == pytest.approx(np.concatenate(([0.0], np.cumsum(expected.sum(0)))), abs=1e-9)
    assert (posterior.cumulative[0], posterior.cumulative[-1]) == (0.0, 1.0)
    assert posterior.steepness == pytest.approx(np.exp(expected.sum(1) @ np.log(STEEPNESS)))


@given(seen, st.integers(-300, 300), priors, st.integers(0, 50), st.integers(0, 50))
def test_it_has_the_same_bits_with_and_without_loads_that_hold_nothing(
    rows: list[tuple[float, float]], lowest: int, prior: Prior, before: int, after: int
) -> None:
    counts = np.array(rows, np.float32).T.reshape(2, -1)
    one, other = found(counts, lowest, prior), found(np.pad(counts, ((0, 0), (before, after))), lowest - before, prior)
    assert one.first == other.first
    assert one.weights.tobytes() == other.weights.tobytes()
    assert one.cumulative.tobytes() == other.cumulative.tobytes()


@pytest.mark.parametrize(
    ("load", "missed"), [(-250, True), (-90, True), (0, True), (0, False), (90, False), (250, False)]
)
def test_the_grid_moves_to_where_the_evidence_is(load: int, missed: bool) -> None:
    """Ten thousand requests at one load, far from where the prior is: the capacity is below it, or above."""
    counts = np.zeros((2, 1), np.float32)
    counts[int(missed), 0] = 10_000.0
    posterior = found(counts, load, Prior(0.0, 0.25, 1.0, 0.02))
    median = posterior.first + int(np.searchsorted(posterior.cumulative[1:], 0.5))
    assert median <= load if missed else median >= load
    assert 24 <= median - posterior.first < GRID - 24


@given(seen, st.integers(-300, 300), priors, st.floats(-400.0, 400.0))
def test_the_share_that_misses_is_the_mean_over_what_is_believed(
    rows: list[tuple[float, float]], lowest: int, prior: Prior, load: float
) -> None:
    """On the line between the loads of the lattice on either side, and at the grid's ends beyond it."""
    posterior = found(np.array(rows, np.float32).T.reshape(2, -1), lowest, prior)
    shares = CURVES.missed_at @ posterior.weights.reshape(-1)
    expected = np.interp(load - posterior.first, np.arange(GRID), shares)
    assert missed_share(posterior, CURVES.missed_at, load) == pytest.approx(float(expected), rel=1e-9)
