"""Forecasts of demand alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from model.contract import ContextBatch, ForecastBatch, Forecaster
from model.demand import DemandForecaster
from model.seasonal_naive import SeasonalNaiveForecaster
from tests.model.batches import context_batch
from tests.model.forecaster_contract import LAWS


class _Watched:
    """Notes which columns it was asked about."""

    def __init__(self) -> None:
        self._naive = SeasonalNaiveForecaster()
        self.asked: list[tuple[str, ...]] = []
        self.fingerprint, self.max_horizon, self.min_context = "watched", 64, 1

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        self.asked.append(batch.indicators)
        return self._naive.forecast(batch, horizon, num_paths)


def _batch(rows: int = 3) -> ContextBatch:
    values = torch.randn(rows, 64, 4, generator=torch.Generator().manual_seed(1)).cumsum(1) + 50
    return context_batch(values, num_demand=2, coarse=torch.full((rows, 1008, 2), 50.0))


def test_demand_is_forecast_from_demand_and_the_rest_holds() -> None:
    batch, watched = _batch(), _Watched()
    paths = DemandForecaster(watched).forecast(batch, 6, 20).paths
    assert watched.asked == [("i0", "i1")]
    assert (paths[..., 2:] == batch.values[:, None, -1:, 2:]).all()
    narrow = replace(
        batch,
        values=batch.values[..., :2],
        observed=batch.observed[..., :2],
        levels=batch.levels[:2],
        indicators=("i0", "i1"),
        lower=batch.lower[:2],
        upper=batch.upper[:2],
    )
    assert torch.equal(paths[..., :2], SeasonalNaiveForecaster().forecast(narrow, 6, 20).paths)


def test_a_row_without_demand_is_forecast_in_full() -> None:
    batch, watched = _batch(), _Watched()
    observed = batch.observed.clone()
    observed[1, :, :2] = False
    batch = replace(batch, observed=observed)
    paths = DemandForecaster(watched).forecast(batch, 6, 20).paths
    assert watched.asked == [("i0", "i1"), ("i0", "i1", "i2", "i3")]
    assert torch.equal(paths[1], SeasonalNaiveForecaster().forecast(batch, 6, 20).paths[1])
    assert (paths[0, :, :, 2] == batch.values[0, -1, 2]).all()


def test_columns_in_any_order() -> None:
    batch = _batch()
    swapped = replace(
        batch,
        levels=torch.tensor([2, 1, 1, 2]),
        coarse=batch.coarse[..., :0],
        coarse_observed=batch.coarse_observed[..., :0],
    )
    paths = DemandForecaster(SeasonalNaiveForecaster()).forecast(swapped, 6, 20).paths
    assert paths.isfinite().all()
    assert (paths[..., [0, 3]] == batch.values[:, None, -1:, [0, 3]]).all()
    assert not (paths[..., 1:3] == batch.values[:, None, -1:, 1:3]).all()


@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_contract(law: Callable[[Forecaster], None]) -> None:
    law(DemandForecaster(SeasonalNaiveForecaster()))
