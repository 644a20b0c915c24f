"""Smoothing: the rate is the one that the context speaks for, levels are weighted means, short contexts have width."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.baselines.smoothing import (
    RATE_TOLERANCE,
    RATES,
    SeasonalNaiveForecaster,
    SmoothingForecaster,
    choose_levels,
    levels_at,
)
from tests.model.batches import autoregressive, context_batch


def _steps_alone(mean: float, length: int = 128) -> Tensor:
    """Counts that know nothing of each other [8, L, 1]."""
    g = torch.Generator().manual_seed(3)
    return torch.poisson(torch.full((8, length, 1), mean), generator=g)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=40),
    st.sampled_from(RATES),
)
def test_a_level_is_the_mean_of_what_is_known_each_step_weighing_less_than_the_next(
    steps: list[tuple[float, bool]], rate: float
) -> None:
    x, known = np.array([value for value, _ in steps]), np.array([seen for _, seen in steps])
    levels = np.empty(len(x))
    levels_at(x, known, rate, levels)
    for t in range(len(x)):
        seen = x[: t + 1][known[: t + 1]]
        weights = (1 - rate) ** np.arange(len(seen))[::-1]
        expected = float(seen @ weights / weights.sum()) if len(seen) else x[t]
        assert levels[t] == pytest.approx(expected, abs=1e-9)


def test_the_fastest_rate_that_misses_the_windows_about_as_little_as_the_best_is_chosen() -> None:
    rng = np.random.default_rng(5)
    rates, trial, chosen = np.array(RATES), np.empty(128), np.empty(128)
    picked = []
    known, valid = np.ones(128, np.bool_), np.ones(118, np.bool_)
    for x in (rng.poisson(4.0, 128).astype(float), rng.normal(size=128).cumsum()):
        choose_levels(x, known, valid, 10, rates, chosen)
        missed = {}
        for rate in RATES:
            levels_at(x, known, rate, trial)
            missed[rate] = sum((x[w + 1 + j] - trial[w]) ** 2 for w in range(118) for j in (0, 2, 5, 9))
        near = max(rate for rate in RATES if missed[rate] <= RATE_TOLERANCE * min(missed.values()))
        levels_at(x, known, near, trial)
        assert np.array_equal(chosen, trial)
        picked.append(near)
    assert picked[0] < 0.5 < picked[1]


def test_counts_around_a_level_are_forecast_at_the_level_and_not_at_the_newest_count() -> None:
    batch = context_batch(_steps_alone(20.0))
    smooth = SmoothingForecaster().forecast(batch, 20, 200).paths.mean((1, 2, 3))
    naive = SeasonalNaiveForecaster().forecast(batch, 20, 200).paths.mean((1, 2, 3))
    # Half of the newest step and half of what was before has a third of one step's variance, .58 of its distance.
    assert (smooth - 20).abs().mean() < 0.65 * (naive - 20).abs().mean()


def test_where_only_the_newest_value_counts_it_is_the_naive_bit_for_bit() -> None:
    trending = autoregressive(4, 128, 0.95, seed=2).cumsum(1).float()
    smooth = SmoothingForecaster(seed=7).forecast(context_batch(trending), 12, 60).paths
    assert torch.equal(smooth, SeasonalNaiveForecaster(seed=7).forecast(context_batch(trending), 12, 60).paths)


@pytest.mark.parametrize("forecaster", [SmoothingForecaster(), SeasonalNaiveForecaster()])
@pytest.mark.parametrize("known", [2, 5, 20, 40])
def test_a_context_of_which_little_is_known_yet_has_width_at_every_step(
    forecaster: SmoothingForecaster, known: int
) -> None:
    values = _steps_alone(20.0)
    batch = context_batch(values)
    seen = torch.zeros_like(batch.observed)
    seen[:, -known:] = True
    paths = forecaster.forecast(replace(batch, observed=seen), 32, 120).paths
    if known == 2:  # one difference: every window is it
        assert torch.equal(paths[:, :1].expand_as(paths), paths)
    else:
        assert (paths.std(1) > 0).float().mean() > 0.99
    alone = forecaster.forecast(context_batch(values[:, -known:]), 32, 120).paths
    assert torch.equal(paths, alone)  # what stands before the first known step is no part of the context


@pytest.mark.parametrize("rates", [(), (0.0,), (1.0, 1.5)])
def test_rates_that_are_none_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rates must be"):
        SmoothingForecaster(rates=rates)
