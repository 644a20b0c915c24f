"""What a forecast is held to, and how it is widened."""

from __future__ import annotations

from dataclasses import replace

import torch

from agents.hindsight import Futures
from tests.model.batches import random_batch


def _forecast(rows: int = 3) -> torch.Tensor:
    return 10 + torch.randn(rows, 101, 6, 4, generator=torch.Generator().manual_seed(1))


def _paths(futures: Futures) -> torch.Tensor:
    """[B, S, H, N]."""
    return torch.stack([futures.values(n).transpose(1, 2) for n in range(4)], dim=-1)


def test_only_rows_that_have_missed_are_widened() -> None:
    batch = replace(random_batch(3, seed=1), lower=torch.full((4,), -torch.inf))
    before = _forecast()
    futures = Futures(before, [1.0, 2.0, 1.0], batch.lower, batch.upper)
    after = _paths(futures)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    middle = before[1].median(dim=0).values
    assert torch.allclose(after[1] - middle, 2 * (before[1] - middle), atol=1e-5)
    assert torch.equal(after[1].median(dim=0).values, middle)
    for n in range(4):
        assert torch.equal(futures.ordered(n), futures.values(n).sort(dim=-1)[0])


def test_each_indicator_keeps_its_own_bounds() -> None:
    batch, before = random_batch(3, seed=1), _forecast()
    lower, upper = torch.tensor([0.0, 9.0, -torch.inf, 5.0]), torch.tensor([11.0, torch.inf, torch.inf, 20.0])
    after = _paths(Futures(before, [20.0] * 3, lower, upper))
    assert after.amin((0, 1, 2))[[0, 1, 3]].tolist() == [0.0, 9.0, 5.0]
    assert after[..., 2].min() < 0.0
    assert after.amax((0, 1, 2))[[0, 3]].tolist() == [11.0, 20.0]
    assert torch.equal(_paths(Futures(before, [1.0] * 3, batch.lower, batch.upper)), before)
    assert torch.equal(before, _forecast())  # what the forecaster made is not touched
