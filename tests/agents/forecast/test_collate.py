"""Rings to tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agents.forecast.engine import WindowRow, collate, indicator_bounds
from model.contract import COARSE_ROWS
from streams.catalogue import DEFAULT_CATALOGUE, Indicator

N = len(DEFAULT_CATALOGUE)
LEVEL_1 = 3


def row(name: str, seed: int, length: int = 12) -> WindowRow:
    rng = np.random.default_rng(seed)
    return WindowRow(
        workload=name,
        origin_ts_ms=1_700_000_000_000 + seed,
        values=rng.random((length, N), dtype=np.float32),
        observed=rng.random((length, N)) > 0.3,
        coarse=rng.random((COARSE_ROWS, LEVEL_1), dtype=np.float32),
        coarse_observed=rng.random((COARSE_ROWS, LEVEL_1)) > 0.3,
    )


def test_rows_keep_their_order_and_values() -> None:
    given = [row("ns/b", 2), row("ns/a", 1)]
    batch = collate(given, DEFAULT_CATALOGUE, 15_000)
    assert batch.item_ids == ("ns/b", "ns/a")
    assert batch.origin_ts_ms.tolist() == [1_700_000_000_002, 1_700_000_000_001]
    assert batch.origin_ts_ms.dtype == torch.int64
    assert batch.step_ms == 15_000
    for k, window in enumerate(given):
        for name in ("values", "observed", "coarse", "coarse_observed"):
            np.testing.assert_array_equal(getattr(batch, name)[k].numpy(), getattr(window, name))
    assert batch.values.dtype == torch.float32
    assert batch.observed.dtype == torch.bool
    assert batch.indicators == tuple(i.name for i in DEFAULT_CATALOGUE)
    assert batch.levels.tolist() == [i.level for i in DEFAULT_CATALOGUE]


def test_the_rings_may_move_on_afterwards() -> None:
    window = row("ns/a", 1)
    batch = collate([window], DEFAULT_CATALOGUE, 15_000)
    before = batch.values.clone()
    window.values[:] = -1
    window.coarse[:] = -1
    assert torch.equal(batch.values, before)
    assert (batch.coarse >= 0).all()


def test_bounds_follow_from_how_an_indicator_is_made() -> None:
    batch = collate([row("ns/a", 1)], DEFAULT_CATALOGUE, 15_000)
    bounds = dict(zip(batch.indicators, zip(batch.lower.tolist(), batch.upper.tolist(), strict=True), strict=True))
    for name, (low, high) in bounds.items():
        if name.endswith("_ratio"):
            assert (low, high) == (0.0, 1.0), name
        elif name != "gpu.temperature_c":
            assert (low, high) == (0.0, torch.inf), name
    assert bounds["gpu.temperature_c"] == (-50.0, 150.0)
    summed = Indicator("x.sum", "1", 2, "gpu", "mean", ("x",), "sum", lower=-1.0, upper=1.0)
    assert indicator_bounds(summed) == (-np.inf, np.inf)
    assert indicator_bounds(replace(summed, over_sources="max")) == (-1.0, 1.0)
    assert indicator_bounds(replace(summed, lower=None, upper=None)) == (-np.inf, np.inf)


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="no rows"):
        collate([], DEFAULT_CATALOGUE, 15_000)
    with pytest.raises(ValueError, match="'ns/long'"):
        collate([row("ns/a", 1), row("ns/long", 2, length=13)], DEFAULT_CATALOGUE, 15_000)
    with pytest.raises(ValueError, match="level-1 indicators first"):
        collate([row("ns/a", 1)], DEFAULT_CATALOGUE[::-1], 15_000)
