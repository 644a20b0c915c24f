"""The linear pool: whose path is whose, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from model.baselines.pool import PoolForecaster
from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from tests.model.batches import random_batch


def test_every_path_is_a_members_own() -> None:
    batch, ridge, naive = random_batch(3, seed=1), RidgeForecaster(), SeasonalNaiveForecaster()
    pool = PoolForecaster([(ridge, 2), (naive, 1)]).forecast(batch, 5, 30).paths
    assert torch.equal(pool[:, 1::3], naive.forecast(batch, 5, 10).paths)
    others = [k for k in range(30) if k % 3 != 1]
    assert torch.equal(pool[:, others], ridge.forecast(batch, 5, 20).paths)


def test_any_prefix_holds_the_mixture() -> None:
    batch, ridge, naive = random_batch(1, seed=2), RidgeForecaster(), SeasonalNaiveForecaster()
    for num in (1, 2, 7):
        assert PoolForecaster([(ridge, 2), (naive, 1)]).forecast(batch, 5, num).paths.shape[1] == num


def test_it_promises_what_all_members_can() -> None:
    ridge, naive = RidgeForecaster(), SeasonalNaiveForecaster()
    pool = PoolForecaster([(ridge, 1), (naive, 1)])
    assert pool.min_context == max(ridge.min_context, naive.min_context)
    assert pool.max_horizon == min(ridge.max_horizon, naive.max_horizon)
    assert pool.fingerprint != PoolForecaster([(ridge, 2), (naive, 1)]).fingerprint


@pytest.mark.parametrize("members", [[], [(RidgeForecaster(), 0)]])
def test_it_refuses_nothing_to_pool(members: list[tuple[RidgeForecaster, int]]) -> None:
    with pytest.raises(ValueError, match="share"):
        PoolForecaster(members)
