"""What a forecast is held to, and how it is widened."""

from __future__ import annotations

from dataclasses import replace

import torch

from agents.hindsight import widened_futures
from tests.model.batches import random_batch


def _forecast(rows: int = 3) -> torch.Tensor:
    return 10 + torch.randn(rows, 101, 6, 4, generator=torch.Generator().manual_seed(1))


def test_only_rows_that_have_missed_are_widened() -> None:
    batch = replace(random_batch(3, seed=1), lower=torch.full((4,), -torch.inf))
    before = _forecast()
    futures = widened_futures(before, [1.0, 2.0, 1.0], batch.lower, batch.upper)
    after = futures.paths
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    middle = before[1].median(dim=0).values
    assert torch.allclose(after[1] - middle, 2 * (before[1] - middle), atol=1e-5)
    assert torch.equal(after[1].median(dim=0).values, middle)
    assert torch.equal(futures.ordered, after.movedim(1, -1).sort(dim=-1)[0])


def test_bounds_are_kept_and_a_trusted_batch_is_untouched() -> None:
    batch, before = random_batch(3, seed=1), _forecast()
    assert widened_futures(before, [20.0] * 3, batch.lower, batch.upper).paths.min() == 0.0
    assert torch.equal(widened_futures(before, [1.0] * 3, batch.lower, batch.upper).paths, before)
    assert torch.equal(before, _forecast())  # what the forecaster made is not touched
