"""Who answers which row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from model.baselines.pool import FallbackForecaster, RowFilter
from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, ForecastBatch
from tests.model.batches import random_batch


class Fixed:
    """Answers every row with one number; NaN for the workloads in `broken`; raises for those in `fatal`."""

    max_horizon = 8

    def __init__(self, name: str, value: float, min_context: int = 1, broken: str = "", fatal: str = "") -> None:
        self.fingerprint, self.value, self.min_context = name, value, min_context
        self.broken, self.fatal = broken, fatal
        self.asked: list[tuple[str, ...]] = []

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        self.asked.append(batch.item_ids)
        if self.fatal in batch.item_ids:
            raise RuntimeError("device lost")
        paths = torch.full((len(batch), num_paths, horizon, batch.values.shape[2]), self.value)
        for row, item in enumerate(batch.item_ids):
            if item == self.broken:
                paths[row, 0, 0, 0] = torch.nan
        return ForecastBatch(paths, (self.fingerprint,) * len(batch), self.fingerprint)


def test_short_and_broken_rows_go_to_the_secondary() -> None:
    batch = random_batch(5, seed=1)
    batch.observed[3, :100] = False
    first, second = Fixed("first", 1.0, min_context=64, broken="ns/w1"), Fixed("second", 2.0)
    result = FallbackForecaster(first, second).forecast(batch, 4, 3)
    assert first.asked == [("ns/w0", "ns/w1", "ns/w2", "ns/w4")]
    assert second.asked == [("ns/w1", "ns/w3")]
    assert result.sources == ("first", "second", "first", "second", "first")
    assert result.paths[:, 0, 0, 0].tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]


def test_a_primary_that_raises_is_answered_by_the_next_one_and_told() -> None:
    told: list[Exception] = []
    rest = FallbackForecaster(Fixed("second", 2.0, broken="ns/w0"), Fixed("third", 3.0))
    chain = FallbackForecaster(Fixed("first", 1.0, fatal="ns/w2"), rest, on_error=told.append)
    result = chain.forecast(random_batch(3, seed=2), 4, 3)
    assert result.sources == ("third", "second", "second")
    assert [str(error) for error in told] == ["device lost"]


def test_what_the_last_one_raises_reaches_the_caller() -> None:
    chain = FallbackForecaster(Fixed("first", 1.0, fatal="ns/w0"), Fixed("second", 2.0, fatal="ns/w0"))
    with pytest.raises(RuntimeError, match="device lost"):
        chain.forecast(random_batch(1, seed=3), 4, 3)


def test_a_horizon_beyond_the_primary_is_the_secondarys() -> None:
    result = FallbackForecaster(Fixed("first", 1.0), SeasonalNaiveForecaster()).forecast(random_batch(2, seed=4), 9, 3)
    assert result.sources == ("seasonal_naive", "seasonal_naive")


def test_young_rows_and_far_horizons_are_the_secondarys_where_so_declared() -> None:
    batch = random_batch(4, seed=7)
    batch.coarse_observed[:] = False
    for row, hours in enumerate((0, 5, 6, 7)):
        batch.coarse_observed[row, batch.coarse.shape[1] - 6 * hours :, 0] = True
    asked = RowFilter(ring_rows=36, reach_s=6 * batch.step_ms / 1000)
    chain = FallbackForecaster(Fixed("first", 1.0), Fixed("second", 2.0), where=asked)
    assert chain.forecast(batch, 6, 3).sources == ("second", "second", "first", "first")
    assert chain.forecast(batch, 7, 3).sources == ("second",) * 4
    assert not asked.rows(replace(batch, coarse_observed=batch.coarse_observed[:, :, :0]), 4).any()
    anywhere = FallbackForecaster(Fixed("first", 1.0), Fixed("second", 2.0))
    assert anywhere.forecast(batch, 7, 3).sources == ("first",) * 4
    assert anywhere.fingerprint != chain.fingerprint


def test_each_row_is_exactly_its_forecasters_row() -> None:
    batch = random_batch(6, seed=5)
    batch.observed[2, :90] = False
    ridge, naive = RidgeForecaster(), SeasonalNaiveForecaster()
    result = FallbackForecaster(ridge, naive).forecast(batch, 6, 20)
    assert result.sources == ("ridge", "ridge", "seasonal_naive", "ridge", "ridge", "ridge")
    assert torch.equal(result.paths[2], naive.forecast(batch, 6, 20).paths[2])
    assert torch.equal(result.paths[[0, 1, 3, 4, 5]], ridge.forecast(batch, 6, 20).paths[[0, 1, 3, 4, 5]])


def test_a_context_too_short_for_the_ridge_is_answered() -> None:
    chain = FallbackForecaster(RidgeForecaster(), SeasonalNaiveForecaster())
    result = chain.forecast(random_batch(2, seed=6, length=80), 64, 10)
    assert result.sources == ("seasonal_naive", "seasonal_naive")
    assert chain.min_context == 1
