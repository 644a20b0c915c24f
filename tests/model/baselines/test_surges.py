"""Surges: where one begins and lasts, and which paths go on with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.baselines.pool import MAX_SURGE_STEPS, PoolForecaster, SurgeForecaster, surge_steps
from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster, SmoothingForecaster
from model.contract import ContextBatch
from tests.model.batches import context_batch, random_batch

Float = NDArray[np.float64]
HORIZON, PATHS = 6, 300


def found(x: Float) -> tuple[int, Float]:
    """Steps and rises of one series; NaN = missing."""
    steps, rises = np.zeros((1, 1), np.int64), np.zeros((1, 1, MAX_SURGE_STEPS))
    known = np.isfinite(x)
    surge_steps(np.nan_to_num(x).astype(np.float32)[None, :, None], known[None, :, None], steps, rises)
    return int(steps[0, 0]), rises[0, 0]


def expected(x: Float) -> tuple[int, Float]:
    """The same as the definition says it, the slow way."""
    known = x[np.isfinite(x)].astype(np.float32).astype(np.float64)
    rises = np.zeros(MAX_SURGE_STEPS)
    levels = {k: known[k - 8 : k].mean() for k in range(8, len(known))}
    old = [abs(known[k] - level) for k, level in levels.items() if k < len(known) - 8]
    if len(old) < 32:
        return 0, rises
    far = [k for k in range(len(known) - 8, len(known)) if abs(known[k] - levels[k]) > 1.5 * max(old)]
    if not far:
        return 0, rises
    level, now = levels[far[0]], known[-1]
    if (now - level) * (known[far[0]] - level) <= 0 or abs(now - level) <= 1.5 * max(old):
        return 0, rises
    steps = len(known) - far[0]
    before = [*known[::-1][1:steps], level]
    for j, value in enumerate(before):
        rises[j] = now - value if (now - value) * (now - level) > 0 else 0.0
    return steps, rises


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(20, 128),
    st.integers(0, 10),
    st.floats(-12, 12),
    st.sampled_from([0.0, 0.1]),
)
def test_a_surge_is_what_the_definition_says(
    seed: int, length: int, newest: int, height: float, missing: float
) -> None:
    rng = np.random.default_rng(seed)
    x = np.round(5 + rng.normal(size=length), 3)
    x[length - newest :] += np.round(height * np.sort(rng.uniform(size=newest)), 3)
    x[rng.uniform(size=length) < missing] = np.nan
    steps, rises = found(x)
    want_steps, want_rises = expected(x)
    assert steps == want_steps
    np.testing.assert_allclose(rises, want_rises, atol=1e-5)


def test_noise_and_known_jumps_are_no_surge() -> None:
    rng = np.random.default_rng(1)
    assert sum(found(rng.normal(size=128))[0] > 0 for _ in range(200)) <= 8
    sawtooth = np.tile(np.concatenate([np.zeros(12), np.full(4, 9.0)]), 8) + 0.1 * rng.normal(size=128)
    assert found(sawtooth[:-3])[0] == 0  # its first high step has been seen seven times


def surging(height: float = 5.0, steps: int = 2) -> ContextBatch:
    """Row 1 surges in its first column, the others and the second column do not."""
    values = 5 + 0.3 * torch.randn(3, 128, 2, generator=torch.Generator().manual_seed(3))
    values[1, -steps:, 0] += height * torch.arange(1, steps + 1)
    return context_batch(values, lower=0.0)


def forecasters() -> tuple[SurgeForecaster, PoolForecaster]:
    pool = PoolForecaster([(RidgeForecaster(), 2), (SmoothingForecaster(), 1)])
    return SurgeForecaster(pool, SeasonalNaiveForecaster(1)), pool


def test_only_a_third_of_the_paths_of_surging_rows_change() -> None:
    forecaster, pool = forecasters()
    for batch, changed in ((surging(), [1]), (random_batch(4, seed=1), [])):
        paths, plain = (f.forecast(batch, HORIZON, PATHS).paths for f in (forecaster, pool))
        kept = [k for k in range(PATHS) if k % 3 != 2]
        assert torch.equal(paths[:, kept], plain[:, kept])
        rest = [row for row in range(len(batch)) if row not in changed]
        assert torch.equal(paths[rest], plain[rest])
        assert all(not torch.equal(paths[row], plain[row]) for row in changed)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_they_leave_from_the_newest_value_and_go_on_no_further_than_they_came(sign: float) -> None:
    forecaster, _ = forecasters()
    batch = surging(sign * 50.0)
    batch = context_batch(batch.values + 500.0)
    newest, level = float(batch.values[1, -1, 0]), 505.0
    going_on = forecaster.forecast(batch, HORIZON, PATHS).paths[1, 2::3, :, 0]
    way = sign * (going_on - newest)
    # A few of the level's own windows hold the surge itself and add it once more: six of 122.
    assert (way > sign * (newest - level) + 5).float().mean() < 0.06
    assert way.sort(dim=0).values[3].min() > -5
    # One or two steps back, evenly, and an even share of it: half of the paths rise by less than a third.
    assert float(way[:, -1].median()) == pytest.approx(sign * (newest - level) / 3, rel=0.2)


def test_bounds_hold_for_what_goes_on() -> None:
    forecaster, _ = forecasters()
    batch = surging(40.0)
    batch = context_batch(batch.values.clamp(max=85.0), lower=0.0, upper=85.0)
    assert forecaster.forecast(batch, HORIZON, PATHS).paths.max() <= 85.0
