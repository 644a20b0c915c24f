"""The forecaster that serves: the network where it may be used, the baselines behind it, and why in words."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from model.baselines.pool import FallbackForecaster, Where
from model.baselines.ridge import RidgeForecaster, RidgeOptions
from model.baselines.smoothing import SmoothingForecaster
from model.contract import COARSE_ROWS, ContextBatch, Forecaster
from model.network.checkpoint import CheckpointError, load
from model.network.forecaster import NetworkForecaster
from model.network.packaged import NO_NETWORK, REACH_S, SHIPPED_NAME, weights_folder
from model.pool import PoolForecaster
from model.records import RecordForecaster
from model.seasonal_naive import SeasonalNaiveForecaster
from model.surges import SurgeForecaster

COMBINED = "combined"
_SHARES = (3, 1)  # of the paths: network, ridge
_KNOWN_ROWS = 36  # six hours
# Where plans by the shipped network cost as much and move less: measured by replays, see docs/lab/replay.md.
_KNOWN_LOADS = Where(ring_rows=_KNOWN_ROWS, reach_s=REACH_S)
_OLD_ENOUGH = Where(ring_rows=_KNOWN_ROWS, reach_s=math.inf)


def baselines() -> Forecaster:
    """Two thirds ridge and one third smoothing, and the seasonal naive alone where the context is short.

    Where less than six hours are known the seasonal naive has smoothing's third: it is wider than need be, and what is
    known of capacity and risk by then is narrower (docs/adr/0019). Where demand surges beyond its context, half of the
    ridge's share goes on instead.
    """
    naive = SeasonalNaiveForecaster()
    young = FallbackForecaster(_pool_with(naive), naive)
    return FallbackForecaster(_pool_with(SmoothingForecaster()), young, where=_OLD_ENOUGH)


def _pool_with(third: Forecaster) -> Forecaster:
    ridge = RidgeForecaster(options=RidgeOptions(most_repeated=0.0))
    return SurgeForecaster(PoolForecaster([(ridge, 2), (third, 1)]), SeasonalNaiveForecaster(1))


def warm_up(*forecasters: Forecaster) -> None:
    """Compile or load what the baselines, and others that are named, run on a CPU, so that no slot waits for it."""
    seen = torch.ones(1, 128, 1, dtype=torch.bool)
    batch = ContextBatch(
        item_ids=("warm-up",),
        origin_ts_ms=torch.zeros(1, dtype=torch.int64),
        step_ms=1000,
        values=seen.float(),
        observed=seen,
        coarse=torch.ones(1, COARSE_ROWS, 1),
        coarse_observed=torch.ones(1, COARSE_ROWS, 1, dtype=torch.bool),  # a week, for whoever needs one
        levels=torch.ones(1, dtype=torch.int64),
        indicators=("demand",),
        lower=torch.zeros(1),
        upper=torch.full((1,), torch.inf),
    )
    for forecaster in (baselines(), *forecasters):
        forecaster.forecast(batch, 1, 4)


def combined(network: Forecaster) -> Forecaster:
    """Three quarters of the paths from the network, one from the ridge, held against the record of the context.

    Each path stays one member's joint future. Shares and shortening were chosen on the validation rows of the rolling
    tasks: the ridge's residual windows know the tails of a series that the network has seen for the first time.
    """
    ridge = RidgeForecaster(options=RidgeOptions(most_repeated=0.0))
    return RecordForecaster(PoolForecaster([(network, _SHARES[0]), (ridge, _SHARES[1])], COMBINED))


def network_forecaster(
    weights: str = SHIPPED_NAME, on_refusal: Callable[[str], None] | None = None, device: torch.device | None = None
) -> Forecaster:
    """The network alone.

    Args:
        weights: "shipped", or the folder of a checkpoint.
        on_refusal: told about rows without a finite forecast.
        device: where it computes; None = on the CPU.

    Raises:
        CheckpointError: weights that must not be used.
    """
    checkpoint = load(weights_folder(weights))
    return NetworkForecaster(checkpoint.network, checkpoint.digest, on_refusal=on_refusal, device=device)


def worker_forecaster(
    weights: str = SHIPPED_NAME, on_refusal: Callable[[str], None] | None = None, device: torch.device | None = None
) -> Forecaster:
    """What a worker plans by: `serving_forecaster`, the shipped network where its plans cost no more and move less.

    The baselines forecast workloads of which less than six hours are known, and more than 240 s ahead. Weights of
    somebody's own forecast wherever they can.
    """
    return serving_forecaster(weights, on_refusal, _KNOWN_LOADS if weights == SHIPPED_NAME else None, device)


def serving_forecaster(
    weights: str = SHIPPED_NAME,
    on_refusal: Callable[[str], None] | None = None,
    where: Where | None = None,
    device: torch.device | None = None,
) -> Forecaster:
    """The network with the ridge, the network alone behind it, then the baselines; those alone without weights.

    A worker must forecast whatever became of a file: a checkpoint that is refused is reported, not fatal.

    Args:
        weights: "shipped", "none" (baselines only), or the folder of a checkpoint.
        on_refusal: told, in sentences, why the network does not answer: at once about its weights, later about rows.
        where: the network is asked for no other rows; None: wherever it can answer.
        device: where the network computes, and it alone; None = on the CPU.
    """
    if weights == NO_NETWORK:
        return baselines()

    def tell(what: str) -> None:
        if on_refusal is not None:
            on_refusal(what)

    try:
        network = network_forecaster(weights, on_refusal, device)
    except CheckpointError as error:
        tell(f"{error}; the baselines forecast in its place")
        return baselines()

    def failed(error: Exception) -> None:
        tell(f"the network could not forecast a batch: {error}")

    behind = FallbackForecaster(network, baselines(), on_error=failed, where=where)
    return FallbackForecaster(combined(network), behind, on_error=failed, where=where)
