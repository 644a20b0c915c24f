"""What a forecast is held to, and how it is widened."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.forecast.bursts import WidenedPaths
from model.contract import ContextBatch
from tests.model.batches import random_batch


def _batch(seen: float, **bounds: torch.Tensor) -> ContextBatch:
    """Three rows of four columns, each of which has been as low as -1 and as high as `seen` - 1."""
    batch = random_batch(3, seed=1)
    values, observed = torch.full_like(batch.values, -1.0), torch.zeros_like(batch.observed)
    values[:, 1], observed[:, :2] = seen - 1.0, True
    values[:, 2] = 1e9  # never observed
    return replace(batch, values=values, observed=observed, **bounds)


def _forecast(rows: int = 3) -> torch.Tensor:
    return 10 + torch.randn(rows, 101, 6, 4, generator=torch.Generator().manual_seed(1))


def _paths(futures: WidenedPaths) -> torch.Tensor:
    """[B, S, H, N]."""
    return torch.stack([futures.values(n).transpose(1, 2) for n in range(4)], dim=-1)


def test_only_rows_that_have_missed_are_widened() -> None:
    before = _forecast()
    futures = WidenedPaths(before, [1.0, 2.0, 1.0], _batch(100.0, lower=torch.full((4,), -torch.inf)))
    after = _paths(futures)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    middle = before[1].median(dim=0).values
    assert torch.allclose(after[1] - middle, 2 * (before[1] - middle), atol=1e-5)
    assert torch.equal(after[1].median(dim=0).values, middle)
    for n in range(4):
        assert torch.equal(futures.ordered(n), futures.values(n).sort(dim=-1)[0])


def test_each_indicator_keeps_its_own_bounds() -> None:
    before = _forecast()
    lower, upper = torch.tensor([0.0, 9.0, -torch.inf, 5.0]), torch.tensor([11.0, torch.inf, torch.inf, 20.0])
    after = _paths(WidenedPaths(before, [20.0] * 3, _batch(100.0, lower=lower, upper=upper)))
    assert after.amin((0, 1, 2))[[0, 1, 3]].tolist() == [0.0, 9.0, 5.0]
    assert after[..., 2].min() < 0.0
    assert after.amax((0, 1, 2))[[0, 3]].tolist() == [11.0, 20.0]
    assert torch.equal(_paths(WidenedPaths(before, [1.0] * 3, random_batch(3, seed=1))), before)
    assert torch.equal(before, _forecast())  # what the forecaster made is not touched


@given(st.floats(0.0, 5.0), st.floats(1.0, 4.0))
def test_widening_reaches_no_further_from_the_median_than_the_context_did_from_end_to_end(
    seen: float, factor: float
) -> None:
    before = _forecast()
    futures = WidenedPaths(before, [factor] * 3, _batch(seen, lower=torch.full((4,), -torch.inf)))
    after, middle = _paths(futures), before.median(dim=1, keepdim=True).values
    apart, wider = before - middle, after - middle
    expected = torch.maximum((factor * apart.abs()).clamp(max=seen), apart.abs())
    assert torch.allclose(wider, apart.sign() * expected, atol=1e-4)
    for n in range(4):
        assert torch.equal(futures.ordered(n), futures.values(n).sort(dim=-1)[0])
