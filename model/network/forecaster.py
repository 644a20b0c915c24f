"""Forecasters made of the trained network: alone, combined with the baselines, and as workers use it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.baselines.context import check_request, empty_paths, row_seed
from model.baselines.pool import FallbackForecaster, PoolForecaster, RangeShrinkage, RowFilter, SurgeForecaster
from model.baselines.ridge import RidgeForecaster, RidgeOptions
from model.baselines.smoothing import SeasonalNaiveForecaster, SmoothingForecaster
from model.contract import COARSE_ROWS, ContextBatch, ForecastBatch, Forecaster, take_rows
from model.network.checkpoint import CheckpointError, load
from model.network.cuda import DeviceEngine
from model.network.features import extract_features
from model.network.network import Network
from model.network.spec import MAX_HORIZON, MAX_INDICATORS, NO_NETWORK, REACH_S, SHIPPED_NAME, weights_folder

CHUNK_ROWS = 64  # at once, at most: what they need stays within a few ten MiB
MIN_CONTEXT = 32
# Vector instructions leave the last elements of a tensor to scalar ones, which round differently: rows behind the last
# that nobody reads keep those elements out of what is read.
_PADDING_ROWS = 5
_MAX_ROWS = 6144  # of the context that are read; seven days of ten-minute rows are 1,008


class NetworkForecaster:
    """Joint sample paths from a network. Item id, origin and seed fix the draws of a row.

    Rows whose forecast is not finite come back as NaN and are reported. `model.baselines.pool` replaces them.

    Args:
        network: trained network, which is only read.
        digest: of its weights, for the fingerprint.
        seed: of the draws.
        on_refusal: receives a sentence about rows without a finite forecast, and about a device that fails.
        device: of the computation for batches on the host; None computes where the batch is.
    """

    def __init__(
        self,
        network: Network,
        digest: str,
        seed: int = 0,
        on_refusal: Callable[[str], None] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._network = network.eval().requires_grad_(requires_grad=False)
        self._device = device
        self._engine: DeviceEngine | None = (
            None  # made when it is first asked: a device that fails must not end a worker
        )
        self._seed = seed
        self._on_refusal = on_refusal
        self._fingerprint = f"harmony-{network.spec.version}-{digest[:12]}-{seed}"

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return MAX_HORIZON

    @property
    def min_context(self) -> int:
        return MIN_CONTEXT

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: horizon above 64, more than 32 indicators, levels below 1, or inconsistent shapes.
        """
        check_request(batch, horizon, num_paths, MAX_HORIZON)
        b, _, n = batch.values.shape
        if n > MAX_INDICATORS:
            raise ValueError(f"the network reads up to {MAX_INDICATORS} indicators, this batch has {n}")
        if n and int(batch.levels.min()) < 1:
            raise ValueError("levels of indicators start at 1 (demand)")
        if n == 0:
            out = empty_paths(b, num_paths, horizon, n, batch.values.device)
            return ForecastBatch(out, ("harmony",) * b, self._fingerprint)
        ordered, back = in_canonical_order(batch)
        paths = self._paths_by_engine(ordered, back, horizon, num_paths)
        out = self._paths_in_chunks(ordered, back, horizon, num_paths) if paths is None else paths
        self._report(batch, out)
        return ForecastBatch(out, ("harmony",) * b, self._fingerprint)

    def _paths_by_engine(self, ordered: ContextBatch, back: list[int], horizon: int, num_paths: int) -> Tensor | None:
        """Paths [B, S, H, N] by the engine; None without a working device, or for a batch that is not on the host."""
        if self._device is None or ordered.values.device.type != "cpu":
            return None
        try:
            if self._engine is None:
                self._engine = DeviceEngine(self._network, self._device, self._report_refusal)
            return self._engine.paths(ordered, back, horizon, num_paths, partial(self._draw, ordered))
        except RuntimeError as error:  # of memory that is gone, or a device that is lost: the host answers from now on
            self._device = self._engine = None
            self._report_refusal(f"the network runs on the CPU from now on, its device failed: {error}")
            return None

    def _report_refusal(self, message: str) -> None:
        if self._on_refusal is not None:
            self._on_refusal(message)

    def _paths_in_chunks(self, ordered: ContextBatch, back: list[int], horizon: int, num_paths: int) -> Tensor:
        """Paths [B, S, H, N] in chunks of rows, on the batch's own device."""
        b, device = len(ordered), ordered.values.device
        self._network.to(device)
        out = empty_paths(b, num_paths, horizon, len(back), device)
        with torch.no_grad():
            for start in range(0, b, CHUNK_ROWS):
                stop = min(start + CHUNK_ROWS, b)
                rows = take_rows(ordered, [min(r, stop - 1) for r in range(start, stop + _PADDING_ROWS)])
                paths = self._chunk(rows, stop - start, horizon, num_paths)
                out[start:stop] = paths.clamp(ordered.lower, ordered.upper)[..., back]
        return out

    def _chunk(self, rows: ContextBatch, count: int, horizon: int, num_paths: int) -> Tensor:
        """Paths of the first `count` rows [R, S, H, N]."""
        features = extract_features(rows, self._network.spec)
        laws = self._network(features, horizon).rows(0, count)
        context, n = laws.context, rows.values.shape[2]
        noise = torch.empty(count, n, horizon, num_paths)
        for r in range(count):
            self._draw(rows, r, noise[r])
        values = laws.sample(noise.to(rows.values.device))  # [R, N, H, S]
        paths = torch.where(context.moving[..., None, None], values, context.newest[..., None, None])
        return paths.permute(0, 3, 2, 1)

    def _draw(self, rows: ContextBatch, r: int, noise: Tensor) -> None:
        """Write the standard normals [N, H, S] of a row; on the host, the same for every device."""
        seed = row_seed(rows.item_ids[r], int(rows.origin_ts_ms[r]), self._seed)
        torch.randn(noise.shape, generator=torch.Generator().manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF), out=noise)

    def _report(self, batch: ContextBatch, paths: Tensor) -> None:
        if self._on_refusal is None or bool(paths.sum().isfinite()):
            return
        bad = [i for i, row in zip(batch.item_ids, paths, strict=True) if not bool(row.isfinite().all())]
        if bad:
            names = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
            self._on_refusal(f"the network gave numbers that are not finite for {names}; they get another forecaster")


def in_canonical_order(batch: ContextBatch) -> tuple[ContextBatch, list[int]]:
    """The batch with its columns sorted by level and name, and the permutation back."""
    levels = batch.levels.tolist()
    order = sorted(range(len(levels)), key=lambda k: (levels[k], batch.indicators[k]))
    back = sorted(range(len(order)), key=order.__getitem__)
    length = batch.values.shape[1]
    first = max(0, length - _MAX_ROWS)
    c = batch.coarse.shape[2]
    coarse, observed = batch.coarse, batch.coarse_observed
    if sorted(order[:c]) != list(range(c)):  # the ring's columns do not stay in front: give every column one
        coarse, observed = pad(coarse, (0, len(order) - c)), pad(observed, (0, len(order) - c))
        c = len(order)
    return (
        replace(
            batch,
            values=batch.values[:, first:, order],
            observed=batch.observed[:, first:, order],
            coarse=coarse[..., order[:c]],
            coarse_observed=observed[..., order[:c]],
            levels=batch.levels[order],
            indicators=tuple(batch.indicators[k] for k in order),
            lower=batch.lower[order],
            upper=batch.upper[order],
        ),
        back,
    )


# The forecaster that serves: the network where it may be used, and the baselines behind it.


COMBINED = "combined"
_MEMBER_SHARES = (3, 1)  # parts of the paths: network, ridge
_MIN_RING_ROWS = 36  # six hours
# In this domain plans by the shipped network cost no more and move less (docs/adr/0047).
_NETWORK_DOMAIN = RowFilter(ring_rows=0, reach_s=REACH_S)
_POOL_DOMAIN = RowFilter(ring_rows=_MIN_RING_ROWS, reach_s=math.inf)


def baselines() -> Forecaster:
    """The pool of baselines: two thirds ridge and one third smoothing; the seasonal naive alone on a short context.

    With less than six hours of history the seasonal naive replaces smoothing. Its wide law makes up for a capacity that
    is not yet well estimated (docs/adr/0019). Where demand surges beyond its context, half of the ridge's share
    extrapolates the surge.
    """
    naive = SeasonalNaiveForecaster()
    young = FallbackForecaster(_pool_with(naive), naive)
    return FallbackForecaster(_pool_with(SmoothingForecaster()), young, where=_POOL_DOMAIN)


def _pool_with(third: Forecaster) -> Forecaster:
    ridge = RidgeForecaster(options=RidgeOptions(most_repeated=0.0))
    return SurgeForecaster(PoolForecaster([(ridge, 2), (third, 1)]), SeasonalNaiveForecaster(1))


def warm_up(*forecasters: Forecaster) -> None:
    """Compile or load the loops of the baselines and the given forecasters, so that no slot waits for them."""
    observed = torch.ones(1, 128, 1, dtype=torch.bool)
    batch = ContextBatch(
        item_ids=("warm-up",),
        origin_ts_ms=torch.zeros(1, dtype=torch.int64),
        step_ms=1000,
        values=observed.float(),
        observed=observed,
        coarse=torch.ones(1, COARSE_ROWS, 1),
        coarse_observed=torch.ones(1, COARSE_ROWS, 1, dtype=torch.bool),  # a week, for forecasters that need one
        levels=torch.ones(1, dtype=torch.int64),
        indicators=("demand",),
        lower=torch.zeros(1),
        upper=torch.full((1,), torch.inf),
    )
    for forecaster in (baselines(), *forecasters):
        forecaster.forecast(batch, 1, 4)


def combined(network: Forecaster) -> Forecaster:
    """Three quarters of the paths from the network and one from the ridge, shrunk to the range of the context.

    Each path is the joint future of one member. The shares were chosen on the validation rows of the rolling tasks. The
    ridge resamples residuals of the series itself, so it knows the tails of a series that is new to the network.
    """
    ridge = RidgeForecaster(options=RidgeOptions(most_repeated=0.0))
    return RangeShrinkage(PoolForecaster([(network, _MEMBER_SHARES[0]), (ridge, _MEMBER_SHARES[1])], COMBINED))


def network_forecaster(
    weights: str = SHIPPED_NAME, on_refusal: Callable[[str], None] | None = None, device: torch.device | None = None
) -> Forecaster:
    """The network alone.

    Args:
        weights: "shipped", or the folder of a checkpoint.
        on_refusal: receives a sentence about rows without a finite forecast.
        device: of the computation; None is the CPU.

    Raises:
        CheckpointError: the weights must not be used.
    """
    checkpoint = load(weights_folder(weights))
    return NetworkForecaster(checkpoint.network, checkpoint.digest, on_refusal=on_refusal, device=device)


def worker_forecaster(
    weights: str = SHIPPED_NAME, on_refusal: Callable[[str], None] | None = None, device: torch.device | None = None
) -> Forecaster:
    """The forecaster of a worker: `serving_forecaster` with the shipped network limited to its domain.

    The baselines forecast horizons beyond 240 s. Other weights than the shipped ones forecast wherever they can.
    """
    return serving_forecaster(weights, on_refusal, _NETWORK_DOMAIN if weights == SHIPPED_NAME else None, device)


def serving_forecaster(
    weights: str = SHIPPED_NAME,
    on_refusal: Callable[[str], None] | None = None,
    where: RowFilter | None = None,
    device: torch.device | None = None,
) -> Forecaster:
    """The network combined with the ridge, with the network alone and then the baselines as fallbacks.

    A worker must forecast even with a damaged file: a checkpoint that is refused is reported, and the baselines serve.

    Args:
        weights: "shipped", "none" (baselines only), or the folder of a checkpoint.
        on_refusal: receives sentences that say why the network does not forecast.
        where: domain of the network; None is wherever it can forecast.
        device: of the network's computation; None is the CPU.
    """
    if weights == NO_NETWORK:
        return baselines()

    def report_refusal(message: str) -> None:
        if on_refusal is not None:
            on_refusal(message)

    try:
        network = network_forecaster(weights, on_refusal, device)
    except CheckpointError as error:
        report_refusal(f"{error}; the baselines forecast in its place")
        return baselines()

    def failed(error: Exception) -> None:
        report_refusal(f"the network could not forecast a batch: {error}")

    behind = FallbackForecaster(network, baselines(), on_error=failed, where=where)
    return FallbackForecaster(combined(network), behind, on_error=failed, where=where)
