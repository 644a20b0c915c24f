"""The ridge: its algebra against an independent fit, joint paths, calibration, and what it must beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.baselines.ridge import RidgeForecaster, RidgeOptions, lag_order
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import Forecaster
from model.evaluation.scores import COVERAGES, central_intervals, crps_of_paths
from tests.model.batches import autoregressive, context_batch
from tests.oracles.baselines_oracle import fit_ridge, shrink_drift

HORIZON = 12


def test_fit_is_the_leave_one_out_ridge_of_numpy() -> None:
    rng = np.random.default_rng(5)
    changes, ahead = rng.normal(size=(3, 40, 5)), rng.normal(size=(3, 40, 9))
    known = rng.random((3, 40)) > 0.2
    options = RidgeOptions(penalties=(0.07, 2.0))
    query = rng.normal(size=(3, 5))
    point, residuals, free = fit_ridge(
        *(torch.from_numpy(a) for a in (changes, query)),
        torch.from_numpy(ahead).float(),
        torch.from_numpy(known),
        options,
    )
    for m in range(3):
        rows = np.flatnonzero(known[m])
        best: tuple[float, float, np.ndarray, np.ndarray] | None = None
        for share in options.penalties:
            penalty = share * len(rows)
            left_out = np.empty((len(rows), 9))
            for k, row in enumerate(rows):
                rest = rows[rows != row]
                gram = changes[m, rest].T @ changes[m, rest] + penalty * np.eye(5)
                weights = np.linalg.solve(gram, changes[m, rest].T @ ahead[m, rest])
                left_out[k] = ahead[m, row] - changes[m, row] @ weights
            loss = float((left_out[:, [0, 2, 4, 8]] ** 2).sum())
            if best is None or loss < best[0]:
                gram = changes[m, rows].T @ changes[m, rows] + penalty * np.eye(5)
                best = (loss, penalty, left_out, np.linalg.solve(gram, changes[m, rows].T @ ahead[m, rows]))
        assert best is not None
        np.testing.assert_allclose(point[m].numpy(), query[m] @ best[3], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose((residuals[m] / free[m, :, None])[rows].numpy(), best[2], rtol=1e-4, atol=1e-5)


def test_order_shrinks_with_the_context_and_refuses_a_short_one() -> None:
    options = RidgeOptions()
    assert lag_order(128, 30, options) == 8
    assert lag_order(128, 64, options) == 8
    assert lag_order(61, 30, options) == 7
    assert lag_order(58, 30, RidgeOptions(min_windows=21)) == 7
    with pytest.raises(ValueError, match="needs a context of 58 steps, this one has 57"):
        lag_order(57, 30, options)


def test_paths_are_joint_over_indicators_and_steps() -> None:
    walk = torch.randn(2, 128, 1, generator=torch.Generator().manual_seed(3)).cumsum(1)
    values = torch.cat((walk, 3 * walk + 5, -walk), dim=2)
    paths = RidgeForecaster().forecast(context_batch(values), HORIZON, 200).paths
    np.testing.assert_allclose(paths[..., 1], 3 * paths[..., 0] + 5, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(paths[..., 2], -paths[..., 0], rtol=1e-3, atol=1e-2)


def test_every_window_is_drawn_about_equally_often() -> None:
    values = autoregressive(1, 128, 0.8, seed=4)
    paths = RidgeForecaster().forecast(context_batch(values), HORIZON, 300).paths[0, :, :, 0]
    distinct, counts = paths.unique(dim=0, return_counts=True)
    assert len(distinct) == 128 - HORIZON - 8
    assert counts.min() >= 2
    assert counts.max() <= 3


def test_units_do_not_matter() -> None:
    values = autoregressive(3, 128, 0.8, seed=6, num_indicators=2).float()
    paths = RidgeForecaster().forecast(context_batch(values), HORIZON, 64).paths
    scaled = RidgeForecaster().forecast(context_batch(values * 1024), HORIZON, 64).paths
    np.testing.assert_allclose(scaled, paths * 1024, rtol=1e-4, atol=0.05)


def _scores(forecaster: Forecaster, series: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """CRPS per step and indicator [H, N], and the paths' coverage at 90 %."""
    batch = context_batch(series[:, :length])
    paths = forecaster.forecast(batch, HORIZON, 256).paths.permute(0, 2, 3, 1)  # [B, H, N, S]
    target = series[:, length : length + HORIZON]
    inside, _ = central_intervals(paths, target)
    return crps_of_paths(paths, target).mean(0), inside[..., COVERAGES.index(0.9)].double().mean()


@pytest.mark.parametrize("phi", [0.3, 0.5, 0.7])
def test_calibrated_and_better_than_last_value_on_autoregressions(phi: float) -> None:
    series = autoregressive(300, 128 + HORIZON, phi, seed=round(100 * phi))
    crps, inside = _scores(RidgeForecaster(), series, 128)
    naive, _ = _scores(SeasonalNaiveForecaster(), series, 128)
    assert (crps < naive).all()
    # The spread allows for what a context of recorded telemetry does not show; these series have nothing to hide.
    assert 0.88 < inside < 0.95
    # The law of an AR(1) forecast is known: normal around phi^h x, whose CRPS is spread / sqrt(pi).
    steps = torch.arange(1, HORIZON + 1, dtype=torch.float64)
    spread = ((1 - phi ** (2 * steps)) / (1 - phi**2)).sqrt()
    assert (crps[:, 0] / (spread / torch.pi**0.5)).mean() < 1.25


def test_a_walk_costs_little_against_last_value() -> None:
    noise = torch.randn(300, 128 + HORIZON, 1, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    series = noise.cumsum(1)
    crps, inside = _scores(RidgeForecaster(), series, 128)
    naive, _ = _scores(SeasonalNaiveForecaster(), series, 128)
    assert crps.mean() < 1.05 * naive.mean()
    assert inside > 0.82


def test_a_gap_in_one_indicator_keeps_its_windows_out_of_the_draw() -> None:
    values = autoregressive(1, 128, 0.5, seed=9, num_indicators=2)
    values[:, 60:80, 0] += 1000.0
    batch = context_batch(values)
    hidden = batch.observed.clone()
    hidden[:, 60:80] = False
    paths = RidgeForecaster().forecast(replace(batch, observed=hidden), HORIZON, 256).paths
    assert paths.abs().max() < 20


def test_a_drift_of_the_context_is_doubted() -> None:
    """Windows that went the drift's way are taken back, some not at all and some to where they began; others stay."""
    drift = torch.tensor([0.5, 1.0, -2.0])
    known = torch.ones(2, 60, dtype=torch.bool)
    known[1, :20] = False  # windows that were not observed have no say in what the drift is
    residuals = drift.expand(2, 60, 3).clone()
    residuals[1, :20] = 99.0
    left = (shrink_drift(residuals, known) / drift)[0, :, 0]
    assert left.min() == 0.0
    assert 0.9 < left.max() <= 1.0
    for some in (left, left[:12], left[20:32]):
        assert some.mean() == pytest.approx(0.25, abs=0.06)
    assert torch.allclose(shrink_drift(residuals, known)[1, 20:], shrink_drift(residuals, known)[0, 20:])
    mixed = torch.randn(1, 60, 1, generator=torch.Generator().manual_seed(1)) + 0.5
    doubted = shrink_drift(mixed, known[:1])
    assert doubted.mean() < 0.6 * mixed.mean()
    assert torch.equal(doubted[mixed <= 0], mixed[mixed <= 0])
    assert (doubted[mixed > 0] >= 0).all()
    assert torch.equal(shrink_drift(-mixed, known[:1]), -doubted)
