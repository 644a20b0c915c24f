"""Filling, window validity and draws, against slow oracles."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.baselines.context import fill, row_uniforms
from tests.oracles.baselines_oracle import valid_windows, window_draws, window_weights

masks = st.lists(st.booleans(), min_size=1, max_size=20)


@given(masks, st.integers(0, 2**31))
def test_fill_is_the_last_observed_value(mask: list[bool], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=len(mask)).astype(np.float32)
    context = fill(torch.from_numpy(values)[None, :, None], torch.tensor(mask)[None, :, None])
    seen = values[np.array(mask)].astype(np.float64)
    current = float(seen[0]) if len(seen) else 0.0
    for step, (value, there) in enumerate(zip(values, mask, strict=True)):
        current = float(value) if there else current
        assert context.filled[0, 0, step] == current
    assert context.count[0, 0] == len(seen)
    np.testing.assert_allclose(context.mean[0, 0], seen.mean() if len(seen) else 0.0, atol=1e-12)
    np.testing.assert_allclose(context.spread[0, 0], seen.std() if len(seen) else 0.0, atol=1e-6)


@given(st.lists(st.booleans(), min_size=8, max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_valid_windows_count_cells(mask: list[bool], order: int, horizon: int) -> None:
    valid = valid_windows(torch.tensor(mask), order, horizon)
    assert len(valid) == len(mask) - order - horizon + 1
    for w, good in enumerate(valid.tolist()):
        lags, targets = mask[w : w + order], mask[w + order : w + order + horizon]
        assert good == (lags[-1] and sum(lags) >= 0.8 * order and sum(targets) >= 0.8 * horizon)


def test_window_weights_prefer_windows_valid_in_every_moving_column() -> None:
    valid = torch.ones(1, 3, 40, dtype=torch.bool)
    valid[0, 0, :10] = False
    valid[0, 2] = False
    moving = torch.tensor([[True, True, False]])
    assert window_weights(valid, moving)[0].tolist() == [0.0] * 10 + [1.0] * 30
    valid[0, 1, 20:] = False
    assert window_weights(valid, moving)[0].tolist() == [1.0] * 10 + [2.0] * 10 + [1.0] * 20
    assert window_weights(torch.zeros(1, 3, 5, dtype=torch.bool), moving)[0].tolist() == [1.0] * 5


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12).filter(any), st.integers(1, 200), st.integers(0, 2**31))
def test_draws_are_a_systematic_sample(weights: list[int], num_paths: int, seed: int) -> None:
    uniforms = np.random.default_rng(seed).random((1, num_paths + 1))
    draws = window_draws(uniforms, torch.tensor([weights], dtype=torch.float64), num_paths)[0]
    counts = np.bincount(draws.numpy(), minlength=len(weights))
    expected = np.array(weights) / sum(weights) * num_paths
    assert counts.sum() == num_paths
    assert (np.abs(counts - expected) < 1 + 1e-6).all()
    assert (counts[np.array(weights) == 0] == 0).all()


def test_uniforms_are_uniform_and_belong_to_the_row() -> None:
    origins = torch.tensor([10, 10, 20])
    u = row_uniforms(("a", "b", "a"), origins, 0, 20_000)
    assert ((u >= 0) & (u < 1)).all()
    np.testing.assert_allclose(u.mean(1), 0.5, atol=0.01)
    np.testing.assert_allclose(u.std(1), 12**-0.5, atol=0.01)
    assert np.abs(np.corrcoef(np.vstack((u, u[:, ::-1])))[np.triu_indices(6, 1)]).max() < 0.04
    np.testing.assert_array_equal(row_uniforms(("a",), torch.tensor([20]), 0, 50)[0], u[2, :50])
    assert not np.array_equal(row_uniforms(("a",), torch.tensor([20]), 1, 50)[0], u[2, :50])
