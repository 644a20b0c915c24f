"""What serves without a network: who has a third of the paths depends on how much of a row is known."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from model.baselines.pool import PoolForecaster, SurgeForecaster
from model.baselines.ridge import RidgeForecaster, RidgeOptions
from model.baselines.smoothing import SeasonalNaiveForecaster, SmoothingForecaster
from model.contract import COARSE_ROWS, ContextBatch, Forecaster
from model.network.forecaster import baselines
from tests.model.batches import context_batch

_HORIZON, _PATHS = 12, 60


def _counts(steps: int = 128) -> Tensor:
    return torch.poisson(torch.full((3, steps, 1), 20.0), generator=torch.Generator().manual_seed(3))


def _batch(ring_rows: int) -> ContextBatch:
    ring = torch.full((3, COARSE_ROWS, 1), torch.nan)
    ring[:, COARSE_ROWS - ring_rows :] = 20.0
    return context_batch(_counts(), coarse=ring)


def _paths(forecaster: Forecaster, batch: ContextBatch) -> Tensor:
    return forecaster.forecast(batch, _HORIZON, _PATHS).paths


def _pool_with(third: Forecaster) -> Forecaster:
    ridge = RidgeForecaster(options=RidgeOptions(most_repeated=0.0))
    return SurgeForecaster(PoolForecaster([(ridge, 2), (third, 1)]), SeasonalNaiveForecaster(1))


def test_the_level_is_smoothed_once_six_hours_are_known() -> None:
    young, known = _batch(35), _batch(36)
    assert torch.equal(_paths(baselines(), known), _paths(_pool_with(SmoothingForecaster()), known))
    assert torch.equal(_paths(baselines(), young), _paths(_pool_with(SeasonalNaiveForecaster()), young))
    assert not torch.equal(_paths(baselines(), known), _paths(baselines(), young))


def test_a_row_is_forecast_alike_beside_older_ones() -> None:
    young, known = _batch(35), _batch(36)
    mixed = replace(
        young,
        coarse=torch.cat((known.coarse[:1], young.coarse[1:])),
        coarse_observed=torch.cat((known.coarse_observed[:1], young.coarse_observed[1:])),
    )
    forecast = baselines().forecast(mixed, _HORIZON, _PATHS)
    assert forecast.sources == ("pool",) * 3
    assert torch.equal(forecast.paths[0], _paths(baselines(), known)[0])
    assert torch.equal(forecast.paths[1:], _paths(baselines(), young)[1:])


def test_a_short_context_is_the_seasonal_naives_alone() -> None:
    short = context_batch(_counts(20))
    forecast = baselines().forecast(short, _HORIZON, _PATHS)
    assert forecast.sources == ("seasonal_naive",) * 3
    assert torch.equal(forecast.paths, _paths(SeasonalNaiveForecaster(), short))
