"""The trained network as a forecaster of the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.baselines.context import check_request
from model.contract import ContextBatch, ForecastBatch
from model.draws import row_seed
from model.network.cuda import DeviceEngine
from model.network.features import describe
from model.network.network import Network
from model.network.spec import MAX_HORIZON, MAX_INDICATORS
from model.paths import empty_paths
from model.rows import take_rows

CHUNK_ROWS = 64  # at once, at most: what they need stays within a few ten MiB
MIN_CONTEXT = 32
# Vector instructions leave the last elements of a tensor to scalar ones, which round differently: rows behind the last
# that nobody reads keep those elements out of what is read.
_IDLE_ROWS = 5
_MAX_ROWS = 6144  # of the context that are read; seven days of ten-minute rows are 1,008


class NetworkForecaster:
    """Joint sample paths from a network. A row's draws are fixed by (item id, origin, seed).

    Rows for which the network gives numbers that are not finite come back as NaN for whoever stands behind it
    (`model.baselines.pool`), and are reported.

    Args:
        network: trained; used for reading only.
        digest: of its weights, for the fingerprint.
        seed: of the draws.
        on_refusal: told, in a sentence, about rows without a finite forecast, and about a device that fails.
        device: on which batches of the host are forecast; None: on the host itself, or wherever a batch lies.
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
        self._fingerprint = f"harmony-{digest[:12]}-{seed}"

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
        paths = self._on_device(ordered, back, horizon, num_paths)
        out = self._where_it_lies(ordered, back, horizon, num_paths) if paths is None else paths
        self._report(batch, out)
        return ForecastBatch(out, ("harmony",) * b, self._fingerprint)

    def _on_device(self, ordered: ContextBatch, back: list[int], horizon: int, num_paths: int) -> Tensor | None:
        """Paths [B, S, H, N] by the engine; None without a device, a lost one too, or of a batch not on the host."""
        if self._device is None or ordered.values.device.type != "cpu":
            return None
        try:
            if self._engine is None:
                self._engine = DeviceEngine(self._network, self._device, self._tell)
            return self._engine.paths(ordered, back, horizon, num_paths, partial(self._draw, ordered))
        except RuntimeError as error:  # of memory that is gone, or a device that is lost: the host answers from now on
            self._device = self._engine = None
            self._tell(f"the network runs on the CPU from now on, its device failed: {error}")
            return None

    def _tell(self, what: str) -> None:
        if self._on_refusal is not None:
            self._on_refusal(what)

    def _where_it_lies(self, ordered: ContextBatch, back: list[int], horizon: int, num_paths: int) -> Tensor:
        """Paths [B, S, H, N] in chunks of rows, on the batch's own device."""
        b, device = len(ordered), ordered.values.device
        self._network.to(device)
        out = empty_paths(b, num_paths, horizon, len(back), device)
        with torch.no_grad():
            for start in range(0, b, CHUNK_ROWS):
                stop = min(start + CHUNK_ROWS, b)
                rows = take_rows(ordered, [min(r, stop - 1) for r in range(start, stop + _IDLE_ROWS)])
                paths = self._chunk(rows, stop - start, horizon, num_paths)
                out[start:stop] = paths.clamp(ordered.lower, ordered.upper)[..., back]
        return out

    def _chunk(self, rows: ContextBatch, count: int, horizon: int, num_paths: int) -> Tensor:
        """Paths of the first `count` rows [R, S, H, N]."""
        features = describe(rows, self._network.spec)
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
            shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
            self._on_refusal(f"the network gave numbers that are not finite for {shown}; they get another forecaster")


def in_canonical_order(batch: ContextBatch) -> tuple[ContextBatch, list[int]]:
    """Columns by level and name, so that their order in the batch means nothing, and the way back."""
    levels = batch.levels.tolist()
    order = sorted(range(len(levels)), key=lambda k: (levels[k], batch.indicators[k]))
    back = sorted(range(len(order)), key=order.__getitem__)
    length = batch.values.shape[1]
    first = max(0, length - _MAX_ROWS)
    c = batch.coarse.shape[2]
    coarse, seen = batch.coarse, batch.coarse_observed
    if sorted(order[:c]) != list(range(c)):  # the ring's columns do not stay in front: give every column one
        coarse, seen = pad(coarse, (0, len(order) - c)), pad(seen, (0, len(order) - c))
        c = len(order)
    return (
        replace(
            batch,
            values=batch.values[:, first:, order],
            observed=batch.observed[:, first:, order],
            coarse=coarse[..., order[:c]],
            coarse_observed=seen[..., order[:c]],
            levels=batch.levels[order],
            indicators=tuple(batch.indicators[k] for k in order),
            lower=batch.lower[order],
            upper=batch.upper[order],
        ),
        back,
    )
