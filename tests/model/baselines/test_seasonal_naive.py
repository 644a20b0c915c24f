"""Seasonal naive: exact on a periodic day, last value without one, windows drawn jointly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.baselines.smoothing import SeasonalNaiveForecaster, SmoothingForecaster
from model.contract import COARSE_ROWS, COARSE_STEP_MS, ContextBatch
from tests.model.batches import ORIGIN_MS, autoregressive, context_batch

DAY_MS = 86_400_000


def _periodic(horizon: int, step_ms: int, origin_ms: int, length: int = 40) -> tuple[ContextBatch, np.ndarray]:
    """Two columns; the first repeats every day, level-shifted by 7 today. Also its true future [H]."""
    rng = np.random.default_rng(origin_ms % 1000)
    day = rng.random(144).cumsum()
    end = origin_ms // COARSE_STEP_MS * COARSE_STEP_MS
    centres = end - COARSE_STEP_MS * (np.arange(COARSE_ROWS)[::-1] + 0.5)
    ring = day[(centres // COARSE_STEP_MS).astype(int) % 144]
    steps = origin_ms + (np.arange(-length, horizon) + 0.5) * step_ms
    course = np.interp(steps - DAY_MS, centres, ring) + 7.0
    values = torch.from_numpy(np.stack((course[:length], rng.normal(size=length)), axis=1))[None]
    coarse = torch.from_numpy(ring)[None, :, None]
    batch = context_batch(values, coarse=coarse, step_ms=step_ms, origin_ms=origin_ms)
    return batch, course[length:]


@pytest.mark.parametrize("step_ms", [5_000, 15_000, 60_000])
@pytest.mark.parametrize("offset_ms", [0, 15_000, 300_000, 585_000])
@pytest.mark.parametrize("horizon", [1, 12, 64])
def test_exact_on_a_periodic_day(step_ms: int, offset_ms: int, horizon: int) -> None:
    batch, future = _periodic(horizon, step_ms, ORIGIN_MS // COARSE_STEP_MS * COARSE_STEP_MS + offset_ms)
    for forecaster in (SeasonalNaiveForecaster(), SmoothingForecaster()):
        paths = forecaster.forecast(batch, horizon, 8).paths[0]
        np.testing.assert_allclose(paths[:, :, 0].numpy(), np.tile(future, (8, 1)), rtol=1e-5)
        assert paths[:, :, 1].std() > 0.1


def test_less_than_half_a_day_is_no_season() -> None:
    batch, future = _periodic(12, 60_000, ORIGIN_MS)
    seen = batch.coarse_observed.clone()
    seen[:, -80:] = False
    paths = SeasonalNaiveForecaster().forecast(replace(batch, coarse_observed=seen), 12, 400).paths
    assert not np.allclose(paths[0, :, :, 0].numpy(), future, rtol=1e-3)
    fine = replace(batch, coarse_observed=torch.zeros_like(seen))
    assert torch.equal(SeasonalNaiveForecaster().forecast(fine, 12, 400).paths, paths)


def test_without_a_season_a_path_is_the_last_value_plus_one_window_of_differences() -> None:
    values = autoregressive(1, 64, 0.8, seed=1, num_indicators=3).float()
    paths = SeasonalNaiveForecaster().forecast(context_batch(values), 10, 108).paths[0]
    x = values[0]
    windows = torch.stack([x[-1] + x[s + 1 : s + 11] - x[s] for s in range(54)])  # [W, H, N]
    distance = (paths[:, None] - windows[None]).abs().amax((2, 3))  # [S, W]
    nearest = distance.min(1)
    assert nearest.values.max() < 1e-5
    assert torch.equal(nearest.indices.bincount(minlength=54), torch.full((54,), 2))


def test_a_short_context_reaches_far_by_several_windows() -> None:
    values = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(2)).cumsum(1)
    paths = SeasonalNaiveForecaster().forecast(context_batch(values), 64, 200).paths
    assert paths.isfinite().all()
    assert paths[:, :, -1].std(1).min() > paths[:, :, 2].std(1).min()
    one = SeasonalNaiveForecaster().forecast(context_batch(values[:, -1:]), 64, 5).paths
    assert torch.equal(one, values[:, None, -1:].expand(2, 5, 64, 2))
