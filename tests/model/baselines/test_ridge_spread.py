"""Widening of residual windows: Student's law, the count of independent windows, and peaks that are rarely exceeded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.baselines.ridge import RidgeForecaster
from model.contract import quantiles_of_paths
from tests.model.batches import context_batch
from tests.oracles.baselines_oracle import independent_windows, widening


@pytest.mark.parametrize(("freedom", "expected"), [(4.0, 2.132), (10.0, 1.812), (30.0, 1.697), (1e6, 1.645)])
def test_a_widened_normal_sample_is_students_law(freedom: float, expected: float) -> None:
    factors = widening(torch.tensor([freedom], dtype=torch.float64), 4001)[0].double()
    levels = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    normal = 2**0.5 * torch.erfinv(2 * levels - 1)
    sample = (factors[:, None] * normal).flatten()
    # Upper 5 % points of Student's law, from any table.
    np.testing.assert_allclose(torch.quantile(sample[::4], 0.95).item(), expected, rtol=0.015)


def test_fewer_windows_are_widened_more() -> None:
    few, many = widening(torch.tensor([2.0, 50.0], dtype=torch.float64), 100).square().mean(1).tolist()
    assert few > many > 1.0


def test_windows_that_move_together_count_as_few() -> None:
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(50, 400, generator=g)
    known = torch.ones(50, 400, dtype=torch.bool)
    alone = independent_windows(noise, known, 20)
    walk = noise.cumsum(1)
    together = independent_windows(walk[:, 20:] - walk[:, :-20], known[:, 20:], 20)
    assert alone.median() > 300
    assert 15 < together.median() < 45
    assert independent_windows(torch.zeros(1, 40), known[:1, :40], 5).isfinite().all()


def test_the_peak_of_a_walk_is_seldom_above_its_95th_percentile() -> None:
    g = torch.Generator().manual_seed(2)
    series = torch.randn(400, 128 + 30, 1, generator=g, dtype=torch.float64).cumsum(1)
    paths = RidgeForecaster().forecast(context_batch(series[:, :128]), 30, 256).paths[..., 0]
    quantile = quantiles_of_paths(paths.amax(2), torch.tensor([0.95]))[:, 0]
    exceeded = (series[:, 128:, 0].amax(1) > quantile).double().mean().item()
    print(f"exceeded {exceeded:.3f}")
    assert exceeded < 0.1
