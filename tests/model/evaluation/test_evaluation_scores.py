"""Scores against slow sums in numpy."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.evaluation.scores import COVERAGES, central_intervals, crps_of_paths, pinball


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(0, 2**31))
def test_crps_is_the_double_sum(num_paths: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(3, 2, num_paths)), rng.normal(size=(3, 2))
    slow = np.abs(x - y[..., None]).mean(-1) - 0.5 * np.abs(x[..., :, None] - x[..., None, :]).mean((-1, -2))
    np.testing.assert_allclose(crps_of_paths(torch.from_numpy(x), torch.from_numpy(y)), slow, atol=1e-12)


def test_crps_of_a_normal_law() -> None:
    levels = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    sample = 2**0.5 * torch.erfinv(2 * levels - 1)
    crps = crps_of_paths(sample, torch.tensor(0.0))
    np.testing.assert_allclose(crps, 2**0.5 / np.pi**0.5 - 1 / np.pi**0.5, atol=1e-3)


def test_central_intervals_hold_their_ends() -> None:
    paths = torch.arange(1.0, 100.0).expand(4, 99)
    inside, width = central_intervals(paths, torch.tensor([5.0, 4.9, 95.0, 1e9]))
    ninety = COVERAGES.index(0.9)
    assert inside[:, ninety].tolist() == [True, False, True, False]
    assert width[:, ninety].tolist() == [90.0] * 4
    assert (width.diff(dim=-1) > 0).all()


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0.01, 0.99))
def test_pinball_weighs_both_sides(y: float, f: float, q: float) -> None:
    loss = pinball(torch.tensor([f], dtype=torch.float64), torch.tensor([q]), torch.tensor(y, dtype=torch.float64))
    np.testing.assert_allclose(loss.item(), q * (y - f) if y >= f else (1 - q) * (f - y), atol=1e-6)
