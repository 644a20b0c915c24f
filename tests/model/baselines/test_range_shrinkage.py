"""Futures held against the record of their context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model.baselines.pool import RangeShrinkage
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, ForecastBatch
from tests.model.batches import context_batch, random_batch
from tests.model.forecaster_contract import LAWS


class _Given:
    """Answers with the paths it was given."""

    fingerprint, max_horizon, min_context = "given", 64, 1

    def __init__(self, paths: Tensor) -> None:
        self._paths = paths

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        return ForecastBatch(self._paths.clone(), ("given",) * len(batch), self.fingerprint)


def _held(batch: ContextBatch, paths: Tensor) -> Tensor:
    return RangeShrinkage(_Given(paths)).forecast(batch, paths.shape[2], paths.shape[1]).paths


def _context(length: int = 512, **changes: Any) -> ContextBatch:
    """One column that moves between 0 and 10."""
    values = 5 + 5 * torch.sin(torch.arange(float(length)) * torch.pi / 6)[None, :, None]
    return replace(context_batch(values), **changes)


def test_keeps_the_contract() -> None:
    for law in LAWS:
        law(RangeShrinkage(SeasonalNaiveForecaster()))


def test_what_lies_within_the_record_is_left_alone() -> None:
    paths = torch.linspace(0.1, 9.9, 40).view(1, 40, 1, 1)
    assert torch.equal(_held(_context(), paths), paths)


def test_the_more_rows_the_less_of_what_lies_beyond_is_kept() -> None:
    paths = torch.cat((torch.full((38,), 5.0), torch.tensor([14.0, -4.0]))).view(1, 40, 1, 1)
    held = _held(_context(), paths)
    assert torch.allclose(held[0, -2:, 0, 0], torch.tensor([10 + 4 * 341 / 853, -4 * 341 / 853]), atol=1e-3)
    short = _held(_context(128), paths)
    assert torch.allclose(short[0, -2, 0, 0], torch.tensor(10 + 4 * 341 / 469), atol=1e-3)


def test_a_forecast_that_rises_beyond_the_record_keeps_its_central_half() -> None:
    paths = torch.linspace(20, 40, 41).view(1, 41, 1, 1)
    held = _held(_context(), paths)
    assert torch.equal(held[0, 10:31], paths[0, 10:31])
    assert held[0, -1, 0, 0] < paths[0, -1, 0, 0]


def test_order_of_the_paths_is_kept() -> None:
    batch = random_batch(3, seed=2)
    given = 100 * torch.randn(3, 50, 6, 4, generator=torch.Generator().manual_seed(3))
    held = _held(batch, given)
    assert torch.equal(held.sort(dim=1).values, held.gather(1, given.argsort(dim=1)))


def test_the_ring_counts_as_seen_and_the_unseen_is_free() -> None:
    ring = torch.full((1, 1008, 1), 5.0)
    ring[0, 100] = 14.0
    paths = torch.cat((torch.full((39,), 5.0), torch.tensor([14.0]))).view(1, 40, 1, 1)
    seen = _context(coarse=ring, coarse_observed=torch.ones(1, 1008, 1, dtype=torch.bool))
    assert torch.equal(_held(seen, paths), paths)
    nothing = _context(observed=torch.zeros(1, 512, 1, dtype=torch.bool))
    assert torch.equal(_held(nothing, paths), paths)
