"""Laws that every forecaster must keep, baseline or network; run by the tests of each (`LAWS`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from model.contract import Forecaster, join_rows, take_rows
from tests.model.batches import context_batch, random_batch

HORIZON, PATHS = 7, 40


def answers_in_the_contracts_shape(forecaster: Forecaster) -> None:
    batch = random_batch(5, seed=1)
    for horizon in (1, HORIZON, forecaster.max_horizon):
        result = forecaster.forecast(batch, horizon, PATHS)
        assert result.paths.shape == (5, PATHS, horizon, 4)
        assert result.paths.dtype == torch.float32
        assert result.paths.isfinite().all()
        assert len(result.sources) == 5
        assert all(result.sources)
        assert result.fingerprint == forecaster.fingerprint


def refuses_what_it_cannot_answer(forecaster: Forecaster) -> None:
    batch = random_batch(2, seed=2)
    for horizon in (0, forecaster.max_horizon + 1):
        with pytest.raises(ValueError, match="horizon"):
            forecaster.forecast(batch, horizon, PATHS)
    with pytest.raises(ValueError, match="observed"):
        forecaster.forecast(replace(batch, observed=batch.observed[:, 1:]), HORIZON, PATHS)
    with pytest.raises(ValueError, match="lower"):
        forecaster.forecast(replace(batch, lower=batch.lower[1:]), HORIZON, PATHS)


def gives_a_row_the_same_bits_in_any_batch(forecaster: Forecaster) -> None:
    batch = random_batch(21, seed=3)
    whole = forecaster.forecast(batch, HORIZON, PATHS).paths
    order = torch.randperm(21, generator=torch.Generator().manual_seed(4)).tolist()
    assert torch.equal(forecaster.forecast(take_rows(batch, order), HORIZON, PATHS).paths, whole[order])
    for size in (1, 2, 5, 16):
        parts = [take_rows(batch, range(k, min(k + size, 21))) for k in range(0, 21, size)]
        assert torch.equal(torch.cat([forecaster.forecast(p, HORIZON, PATHS).paths for p in parts]), whole), size
    crowd = join_rows([random_batch(13, seed=5), take_rows(batch, [6]), random_batch(3, seed=6)])
    assert torch.equal(forecaster.forecast(crowd, HORIZON, PATHS).paths[13], whole[6])


def draws_by_workload_and_origin(forecaster: Forecaster) -> None:
    one = random_batch(1, seed=7)
    paths = forecaster.forecast(one, HORIZON, PATHS).paths
    assert torch.equal(forecaster.forecast(one, HORIZON, PATHS).paths, paths)
    others = (replace(one, item_ids=("ns/other",)), replace(one, origin_ts_ms=one.origin_ts_ms + one.step_ms))
    for other in others:
        assert not torch.equal(forecaster.forecast(other, HORIZON, PATHS).paths, paths)


def reads_nothing_behind_the_mask(forecaster: Forecaster) -> None:
    batch = random_batch(6, seed=8)
    paths = forecaster.forecast(batch, HORIZON, PATHS).paths
    for rubbish in (1e30, -5.0, torch.nan, torch.inf):
        values = torch.where(batch.observed, batch.values, rubbish)
        coarse = torch.where(batch.coarse_observed, batch.coarse, rubbish)
        dirty = replace(batch, values=values, coarse=coarse)
        assert torch.equal(forecaster.forecast(dirty, HORIZON, PATHS).paths, paths), rubbish


def changes_no_input(forecaster: Forecaster) -> None:
    batch, same = random_batch(3, seed=9), random_batch(3, seed=9)
    forecaster.forecast(batch, HORIZON, PATHS)
    for name in ("values", "observed", "coarse", "coarse_observed", "lower", "upper"):
        assert torch.equal(getattr(batch, name), getattr(same, name)), name


def keeps_the_bounds(forecaster: Forecaster) -> None:
    values = torch.randn(4, 128, 3, generator=torch.Generator().manual_seed(10)).cumsum(1)
    batch = context_batch(values.clamp(-1, 1), lower=-1.0, upper=1.0)
    paths = forecaster.forecast(batch, HORIZON, PATHS).paths
    assert paths.min() >= -1
    assert paths.max() <= 1


def knows_the_unobserved_and_the_constant(forecaster: Forecaster) -> None:
    batch = random_batch(4, seed=11)
    paths = forecaster.forecast(batch, HORIZON, PATHS).paths
    assert (paths[..., 3] == 0).all()
    assert (paths[..., 2] == 7.25).all()
    empty = context_batch(torch.full((2, 128, 3), torch.nan))
    assert (forecaster.forecast(empty, HORIZON, PATHS).paths == 0).all()


def survives_long_gaps(forecaster: Forecaster) -> None:
    values = torch.randn(5, 128, 2, generator=torch.Generator().manual_seed(12)) + 10
    values[0, :100] = torch.nan
    values[1, 20:] = torch.nan
    values[2, ::2] = torch.nan
    values[3, 1:] = torch.nan
    values[4, :, 1] = torch.nan
    paths = forecaster.forecast(context_batch(values), HORIZON, PATHS).paths
    assert paths.isfinite().all()
    assert ((paths[:4, ..., 0] - 10).abs() < 12).all()


LAWS: tuple[Callable[[Forecaster], None], ...] = (
    answers_in_the_contracts_shape,
    refuses_what_it_cannot_answer,
    gives_a_row_the_same_bits_in_any_batch,
    draws_by_workload_and_origin,
    reads_nothing_behind_the_mask,
    changes_no_input,
    keeps_the_bounds,
    knows_the_unobserved_and_the_constant,
    survives_long_gaps,
)
