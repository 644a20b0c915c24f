"""Forecasts of a day and more: seasons of weeks, errors of the past, and the seam behind a shorter forecaster."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.baselines.long_range import MAX_LONG_HORIZON, LongRangeForecaster, SplicedForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, quantiles_of_paths
from model.evaluation.rolling import Indicator
from model.evaluation.served import context_batch

STEP_MS = 300_000
DAY = 288


def batch_of(values: np.ndarray, item: str = "a", step_ms: int = STEP_MS, lower: float = 0.0) -> ContextBatch:
    columns = values[:, None] if values.ndim == 1 else values
    return context_batch(
        columns,
        [len(columns) - 1],
        item_id=item,
        start_ts_ms=0,
        step_ms=step_ms,
        indicators=[Indicator(f"v{n}", lower=lower) for n in range(columns.shape[1])],
        fine_rows=len(columns),
        context_rows=len(columns),
    )


def day_of_load(days: int, seed: int = 0, noise: float = 0.05) -> np.ndarray:
    rng = np.random.default_rng(seed)
    t = np.arange(days * DAY)
    level = (
        10 + 6 * np.sin(2 * np.pi * t / DAY) + 30 * ((t % DAY) // 6 == 30)
    )  # a job at half past two for half an hour
    return np.asarray(level * (1 + noise * rng.normal(size=len(t))))


def test_a_nightly_job_is_forecast_where_it_will_be_with_honest_bands() -> None:
    load = day_of_load(15)
    paths = LongRangeForecaster().forecast(batch_of(load[: 14 * DAY]), DAY, 1000).paths[0, :, :, 0]
    truth = load[14 * DAY :]
    low, median, high = quantiles_of_paths(paths.T, torch.tensor([0.05, 0.5, 0.95])).T.numpy()
    yesterday = load[13 * DAY : 14 * DAY]
    assert np.abs(median - truth).mean() < 0.85 * np.abs(yesterday - truth).mean()
    job = slice(180, 186)
    assert median[job].min() > 30
    assert 0.8 <= ((low <= truth) & (truth <= high)).mean() <= 0.98


def test_paths_are_within_bounds_the_same_in_any_batch_and_reach_a_thousand_steps() -> None:
    forecaster = LongRangeForecaster()
    a, b = batch_of(day_of_load(6)), batch_of(day_of_load(6, seed=1), "b")
    alone = forecaster.forecast(a, MAX_LONG_HORIZON, 64)
    assert alone.paths.shape == (1, 64, MAX_LONG_HORIZON, 1)
    assert bool(torch.isfinite(alone.paths).all())
    assert float(alone.paths.min()) >= 0
    from model.contract import join_rows

    both = forecaster.forecast(join_rows([b, a]), MAX_LONG_HORIZON, 64)
    assert torch.equal(both.paths[1], alone.paths[0])
    with pytest.raises(ValueError, match="horizon 1001"):
        forecaster.forecast(a, MAX_LONG_HORIZON + 1, 4)


def test_columns_of_a_path_are_joint() -> None:
    load = day_of_load(10, noise=0.3)
    paths = LongRangeForecaster().forecast(batch_of(np.stack([load, 2 * load], 1)), 96, 256).paths[0]
    torch.testing.assert_close(paths[:, :, 1], 2 * paths[:, :, 0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("num", [1, 8, 40, 300, 700])
def test_short_histories_with_holes_have_a_forecast(num: int) -> None:
    values = day_of_load(3)[:num].copy()
    values[1 : num // 3] = np.nan
    paths = LongRangeForecaster().forecast(batch_of(values), 500, 16).paths
    assert bool(torch.isfinite(paths).all())
    assert float(paths.max()) < 3 * np.nanmax(values) + 1


def test_what_is_nowhere_observed_is_zero() -> None:
    paths = LongRangeForecaster().forecast(batch_of(np.full(50, np.nan), lower=-np.inf), 10, 4).paths
    assert bool((paths == 0).all())


def test_a_day_that_is_no_whole_number_of_steps_keeps_its_phase() -> None:
    step_ms = 57_000
    t = np.arange(8 * 86_400_000 // step_ms)
    values = 10 + 5 * np.sin(2 * np.pi * t * step_ms / 86_400_000)
    paths = LongRangeForecaster().forecast(batch_of(values, step_ms=step_ms), 1000, 64).paths[0, :, :, 0]
    ahead = len(t) + np.arange(1000)
    truth = 10 + 5 * np.sin(2 * np.pi * ahead * step_ms / 86_400_000)
    assert np.abs(paths.median(0).values.numpy() - truth).max() < 0.2


def test_behind_the_seam_every_step_keeps_the_distribution_of_its_forecaster() -> None:
    near, far = SeasonalNaiveForecaster(), LongRangeForecaster()
    batch = batch_of(day_of_load(6))
    spliced = SplicedForecaster(near, far, 512).forecast(batch, 200, 128)
    cut = batch_of(day_of_load(6))
    assert spliced.sources == ("seasonal_naive+long_range",)
    first = SplicedForecaster(near, far, 512).forecast(cut, 64, 128).paths
    assert torch.equal(spliced.paths[:, :, :64], first)
    beyond = far.forecast(batch, 200, 128).paths[:, :, 64:]
    torch.testing.assert_close(spliced.paths[:, :, 64:].sort(1).values, beyond.sort(1).values)
    # The rank at the seam is kept.
    before = spliced.paths[0, :, 56:64, 0].mean(1)
    reference = far.forecast(batch, 200, 128).paths[0, :, 56:64, 0].mean(1).sort()
    at = far.forecast(batch, 200, 128).paths[0, :, 64:, 0]
    torch.testing.assert_close(spliced.paths[0, before.argsort(stable=True), 64:, 0], at[reference.indices])
