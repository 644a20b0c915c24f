"""The network as a forecaster: the laws of the contract, and its own, for any weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from model.baselines.pool import FallbackForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, Forecaster
from model.network.candidates import NAMES
from model.network.features import extract_features
from model.network.forecaster import NetworkForecaster
from tests.model.batches import context_batch, random_batch
from tests.model.forecaster_contract import LAWS
from tests.model.network.untrained import small_network


def _forecaster(seed: int = 0, **changes: object) -> NetworkForecaster:
    network = small_network(seed, **changes)
    with torch.no_grad():
        network.head[-1].weight.mul_(0.3)  # forecasts of ordinary size
    return NetworkForecaster(network, "0123456789abcdef")


@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_contract(law: Callable[[Forecaster], None]) -> None:
    law(_forecaster())


def _swapped(batch: ContextBatch, order: list[int]) -> ContextBatch:
    return replace(
        batch,
        values=batch.values[:, :, order],
        observed=batch.observed[:, :, order],
        levels=batch.levels[order],
        indicators=tuple(batch.indicators[k] for k in order),
        lower=batch.lower[order],
        upper=batch.upper[order],
        coarse=batch.coarse[..., :0],
        coarse_observed=batch.coarse_observed[..., :0],
    )


def test_order_of_the_columns_means_nothing() -> None:
    batch, forecaster = random_batch(3, seed=1), _forecaster()
    plain = _swapped(batch, [0, 1, 2, 3])
    order = [2, 0, 3, 1]
    swapped = forecaster.forecast(_swapped(batch, order), 7, 20).paths
    assert torch.equal(swapped, forecaster.forecast(plain, 7, 20).paths[..., order])


def test_units_change_with_the_series() -> None:
    batch, forecaster = random_batch(3, seed=2), _forecaster()
    free = replace(batch, lower=torch.full((4,), -torch.inf))
    large = replace(free, values=free.values * 1024)
    a, b = forecaster.forecast(free, 7, 20).paths * 1024, forecaster.forecast(large, 7, 20).paths
    assert torch.allclose(a, b, rtol=1e-3)


def test_demand_does_not_hear_of_later_levels() -> None:
    values = torch.randn(2, 128, 3, generator=torch.Generator().manual_seed(3)).cumsum(1)
    batch, forecaster = context_batch(values), _forecaster()
    other = replace(batch, values=batch.values.clone())
    other.values[:, :, 1:] = other.values[:, :, 1:].flip(1) * 3
    first, second = (forecaster.forecast(b, 7, 20).paths for b in (batch, other))
    assert torch.equal(first[..., 0], second[..., 0])
    assert not torch.equal(first[..., 1], second[..., 1])
    deaf = _forecaster(attention="flat")
    assert not torch.equal(deaf.forecast(batch, 7, 20).paths[..., 0], deaf.forecast(other, 7, 20).paths[..., 0])


def test_a_day_known_only_from_the_ring_is_seen() -> None:
    values = torch.randn(1, 128, 1, generator=torch.Generator().manual_seed(4))
    ring = torch.sin(torch.arange(1008.0) * 2 * torch.pi / 144)[None, :, None]
    with_ring, without = context_batch(values, coarse=ring), context_batch(values)
    spec = _forecaster()._network.spec
    seen, unseen = (extract_features(b, spec).candidates for b in (with_ring, without))
    day = [NAMES.index(name) for name in ("day", "day_last", "day_recent", "days_recent")]
    assert seen.offered[:, :, day].all()
    assert not unseen.offered[:, :, day].any()
    assert not torch.equal(_forecaster().forecast(with_ring, 7, 9).paths, _forecaster().forecast(without, 7, 9).paths)


@pytest.mark.parametrize("length", [144, 150, 288])
def test_the_ring_of_the_same_rows_says_what_the_rows_say(length: int) -> None:
    """Ten-minute steps: beside the fine rows the ring holds nothing new, not even where both begin."""
    values = torch.randn(2, length, 2, generator=torch.Generator().manual_seed(5)).cumsum(1)
    ring = torch.full((2, 1008, 2), torch.nan)
    ring[:, -length:] = values
    aligned = {"origin_ts_ms": torch.full((2,), 1_763_636_400_000)}
    both = replace(context_batch(values, coarse=ring, step_ms=600_000), **aligned)
    rows = replace(context_batch(values, step_ms=600_000), **aligned)
    spec = _forecaster()._network.spec
    with_ring, without = (extract_features(batch, spec) for batch in (both, rows))
    assert torch.equal(with_ring.candidates.offered, without.candidates.offered)
    assert torch.allclose(with_ring.tokens, without.tokens, atol=1e-5)


@pytest.mark.parametrize("step_ms", [15_000, 60_000, 300_000])
def test_the_ring_keeps_the_edges_of_a_job_and_the_slope_of_a_ramp(step_ms: int) -> None:
    """A job of two rows of the ring keeps its height from edge to edge; a straight line stays one."""
    per_row = 600_000 // step_ms
    step = torch.arange(64)
    day_row = torch.arange(1008.0) % 144
    in_job = (step // per_row >= 1) & (step // per_row < 3)
    noise = torch.randn(1, 128, 1, generator=torch.Generator().manual_seed(7))
    for course, truth, first in (
        (torch.where((day_row >= 1) & (day_row < 3), 40.0, 10.0), torch.where(in_job, 40.0, 10.0), 0),
        (10 + day_row, 10 + (step + 0.5) / per_row - 0.5, per_row),  # the day's first row has another before it
    ):
        midnight = 1008 * 600_000  # where the ring ends
        batch = context_batch(10 + noise, coarse=course[None, :, None], step_ms=step_ms, origin_ms=midnight)
        features = extract_features(batch, _forecaster()._network.spec)
        z = features.candidates.z[0, 0, NAMES.index("day"), first:]
        values = z * features.context.scale[0, 0] + features.context.center[0, 0]
        assert torch.allclose(values.float(), truth[first:].float(), atol=1e-3)


def test_more_indicators_than_it_reads_are_refused() -> None:
    batch = context_batch(torch.randn(1, 64, 33))
    with pytest.raises(ValueError, match="up to 32 indicators, this batch has 33"):
        _forecaster().forecast(batch, 3, 5)


def test_levels_below_one_are_refused() -> None:
    batch = replace(context_batch(torch.randn(1, 64, 2)), levels=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="levels of indicators start at 1"):
        _forecaster().forecast(batch, 3, 5)


def test_numbers_that_are_not_finite_are_reported_and_answered_by_another() -> None:
    network, said = small_network(), []
    with torch.no_grad():
        network.head[-1].bias[0] = torch.nan
    broken = NetworkForecaster(network, "0" * 12, on_refusal=said.append)
    served = FallbackForecaster(broken, SeasonalNaiveForecaster())
    result = served.forecast(random_batch(2, seed=5), 7, 20)
    assert result.paths.isfinite().all()
    assert result.sources == ("seasonal_naive", "seasonal_naive")
    assert said == ["the network gave numbers that are not finite for ns/w0, ns/w1; they get another forecaster"]
