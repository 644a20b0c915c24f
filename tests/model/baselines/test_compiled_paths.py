"""The compiled baselines against their oracles of tensors, and draws, places and cells that must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.baselines.context import row_keys, row_uniforms
from model.baselines.context_kernel import window_draws
from model.baselines.ridge import RidgeForecaster, RidgeOptions
from model.baselines.smoothing import NEWEST_VALUE, RATES, SeasonalNaiveForecaster, SmoothingForecaster
from model.contract import COARSE_ROWS, ContextBatch
from model.network.forecaster import warm_up
from tests.model.batches import ORIGIN_MS, context_batch, random_batch
from tests.oracles.baselines_oracle import ridge_paths, smoothing_paths
from tests.oracles.baselines_oracle import window_draws as draws_of_tensors

TOLERANCE = 1e-5  # of what the context and its paths span; single precision comes to a tenth of it


@pytest.fixture(autouse=True, scope="module")
def _compile() -> None:
    warm_up()


@st.composite
def batches(draw: st.DrawFn, shortest: int) -> ContextBatch:
    """Walks and noise with gaps, constant and unobserved columns, bounds, and a ring with holes."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, length, n = draw(st.integers(1, 4)), draw(st.integers(shortest, 160)), draw(st.integers(1, 8))
    values = torch.randn(rows, length, n, generator=g).cumsum(1) * draw(st.floats(0, 2)) + 20
    values += torch.randn(rows, length, n, generator=g)
    values[torch.rand(rows, length, n, generator=g) < draw(st.sampled_from([0.0, 0.03, 0.3]))] = torch.nan
    values[torch.rand(rows, 1, n, generator=g).expand_as(values) < 0.1] = torch.nan
    values = torch.where(torch.rand(rows, 1, n, generator=g) < 0.1, 7.3, values)
    c = draw(st.integers(0, n))
    ring = torch.rand(rows, COARSE_ROWS, c, generator=g).cumsum(1)
    ring[torch.rand(rows, COARSE_ROWS, c, generator=g) < draw(st.sampled_from([0.0, 0.02, 0.5]))] = torch.nan
    bounded = draw(st.booleans())
    batch = context_batch(
        values, coarse=ring, num_demand=c, lower=15.0 if bounded else -torch.inf, upper=22.0 if bounded else torch.inf,
        step_ms=draw(st.sampled_from([5_000, 15_000, 60_000])),
    )  # fmt: skip
    return replace(batch, origin_ts_ms=ORIGIN_MS + torch.randint(0, 10**7, (rows,), generator=g))


def _apart(paths: Tensor, reference: Tensor, batch: ContextBatch) -> Tensor:
    """Largest distance per row and column [B, N], as a share of what context and paths span."""
    low = torch.minimum(batch.values.masked_fill(~batch.observed, torch.inf).amin(1), reference.amin((1, 2)))
    high = torch.maximum(batch.values.masked_fill(~batch.observed, -torch.inf).amax(1), reference.amax((1, 2)))
    return (paths - reference).abs().amax((1, 2)) / (high - low).clamp(min=1e-3)


@settings(max_examples=40, deadline=None)
@given(batches(96), st.integers(1, 64), st.sampled_from([0.0, 0.2]))
def test_the_ridge_is_that_of_its_tensors(batch: ContextBatch, horizon: int, most_repeated: float) -> None:
    options = RidgeOptions(most_repeated=most_repeated)
    paths = RidgeForecaster(options=options).forecast(batch, horizon, 60).paths
    apart = _apart(paths, ridge_paths(batch, horizon, 60, options), batch)
    for penalty in RidgeOptions().penalties:  # two that forecast equally well may be told apart by a rounding error
        single = RidgeOptions(penalties=(penalty,), most_repeated=most_repeated)
        apart = apart.minimum(_apart(paths, ridge_paths(batch, horizon, 60, single), batch))
    assert apart.max() < TOLERANCE


def test_the_ridge_chooses_the_penalties_of_its_tensors() -> None:
    for horizon in (1, 12, 64):
        batch, ridge = random_batch(100, seed=horizon), RidgeForecaster()
        paths = ridge.forecast(batch, horizon, 60).paths
        apart = _apart(paths, ridge_paths(batch, horizon, 60), batch)
        assert (apart > TOLERANCE).sum() <= 1


@settings(max_examples=40, deadline=None)
@given(batches(1), st.integers(1, 64))
def test_naive_and_smoothing_are_those_of_their_tensors_bit_for_bit(batch: ContextBatch, horizon: int) -> None:
    for forecaster, rates in ((SeasonalNaiveForecaster(), (NEWEST_VALUE,)), (SmoothingForecaster(), RATES)):
        paths = forecaster.forecast(batch, horizon, 40).paths
        assert torch.equal(paths, smoothing_paths(batch, horizon, 40, rates=rates))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=130).filter(any), st.integers(1, 300), st.integers(0, 2**31))
def test_draws_are_those_of_tensors_bit_for_bit(weights: list[int], num_paths: int, origin: int) -> None:
    origins = torch.tensor([origin])
    draws = np.empty(num_paths, np.int64)
    window_draws(row_keys(("w",), origins, 3)[0], num_paths + 1, np.array(weights), draws)
    uniforms = row_uniforms(("w",), origins, 3, 2 * (num_paths + 1))[:, num_paths + 1 :]
    expected = draws_of_tensors(uniforms, torch.tensor([weights], dtype=torch.float64), num_paths)[0]
    assert draws.tolist() == expected.tolist()


@pytest.mark.parametrize("forecaster", [RidgeForecaster(), SeasonalNaiveForecaster()])
def test_paths_go_where_they_are_told_and_nowhere_else(forecaster: RidgeForecaster | SeasonalNaiveForecaster) -> None:
    batch, places = random_batch(3, seed=1), np.array([7, 2, 5])
    out = torch.full((3, 9, 6, 4), -99.0)
    forecaster.write_paths(batch, 6, places, out)
    assert torch.equal(out[:, places], forecaster.forecast(batch, 6, 3).paths)
    assert (out[:, [0, 1, 3, 4, 6, 8]] == -99).all()


@pytest.mark.parametrize("forecaster", [RidgeForecaster(), SeasonalNaiveForecaster()])
@pytest.mark.parametrize("rubbish", [torch.nan, torch.inf])
def test_a_cell_that_is_no_number_is_not_observed(
    forecaster: RidgeForecaster | SeasonalNaiveForecaster, rubbish: float
) -> None:
    batch = random_batch(4, seed=2)
    told = replace(batch, values=batch.values.masked_fill(~batch.observed, rubbish))
    told = replace(told, observed=torch.ones_like(batch.observed))
    assert torch.equal(forecaster.forecast(told, 9, 30).paths, forecaster.forecast(batch, 9, 30).paths)


def test_rows_may_lie_apart_in_memory() -> None:
    batch, ridge = random_batch(4, seed=3), RidgeForecaster()
    turned = replace(batch, values=batch.values.transpose(1, 2).contiguous().transpose(1, 2))
    assert torch.equal(ridge.forecast(turned, 9, 30).paths, ridge.forecast(batch, 9, 30).paths)


def test_a_ring_of_more_indicators_than_there_are_is_refused() -> None:
    batch = context_batch(torch.zeros(1, 128, 1), coarse=torch.zeros(1, COARSE_ROWS, 2), num_demand=1)
    with pytest.raises(ValueError, match="coarse holds 2 indicators"):
        SeasonalNaiveForecaster().forecast(batch, 3, 3)
