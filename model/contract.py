"""What every forecaster takes and returns; baselines and networks satisfy it alike.

Tensor letters: B batch, L context, H horizon, N indicators, S paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

COARSE_ROWS = 1008  # a week of 10-minute means
COARSE_STEP_MS = 600_000


@dataclass(frozen=True, slots=True)
class ContextBatch:
    """What is known at the origin of each row. All tensors on one device.

    Attributes:
        item_ids: B workload ids; with the origin and the seed they fix a row's random draws.
        origin_ts_ms: int64 [B], end of each row's last closed slot.
        step_ms: slot length.
        values: float32 [B, L, N], oldest first, 0 where not observed.
        observed: bool [B, L, N].
        coarse: float32 [B, 1008, C], 10-minute means of the level-1 indicators (C of them, the first C columns of N),
            oldest first; the last row is the newest complete ten minutes before the origin.
        coarse_observed: bool [B, 1008, C].
        levels: int64 [N], level of each indicator (1 demand, 2 engine, 3 device).
        indicators: N names.
        lower: float32 [N], physical lower bounds (-inf = none).
        upper: float32 [N], physical upper bounds (+inf = none).
    """

    item_ids: tuple[str, ...]
    origin_ts_ms: Tensor
    step_ms: int
    values: Tensor
    observed: Tensor
    coarse: Tensor
    coarse_observed: Tensor
    levels: Tensor
    indicators: tuple[str, ...]
    lower: Tensor
    upper: Tensor

    def __len__(self) -> int:
        return len(self.item_ids)

    @property
    def columns(self) -> dict[str, int]:
        """Where each indicator stands among the N."""
        return {name: n for n, name in enumerate(self.indicators)}


@dataclass(frozen=True, slots=True)
class ForecastBatch:
    """Joint sample paths.

    Attributes:
        paths: float32 [B, S, H, N]; path s is one joint future over steps and indicators.
        sources: B names of the forecaster that made each row (ridge, seasonal_naive, ...).
        fingerprint: identifies model, parameters and code version.
    """

    paths: Tensor
    sources: tuple[str, ...]
    fingerprint: str


class Forecaster(Protocol):
    """A forecaster. The same row gives the same bits whatever batch it stands in (CPU baselines)."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def max_horizon(self) -> int: ...

    @property
    def min_context(self) -> int:
        """Fewest observed steps of a level-1 indicator with which a forecast is offered."""
        ...

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast `horizon` steps after each origin.

        Raises:
            ValueError: horizon above `max_horizon`, or tensors of inconsistent shape.
        """
        ...


def quantiles_of_paths(paths: Tensor, levels: Tensor) -> Tensor:
    """Quantiles over the path axis, R type 6 (position q(S+1), clamped at the ends).

    Args:
        paths: [..., S].
        levels: [Q] in (0, 1).

    Returns:
        [..., Q].
    """
    return quantiles_of_ordered(ordered_paths(paths), levels)


def quantiles_of_ordered(ordered: Tensor, levels: Tensor) -> Tensor:
    """`quantiles_of_paths` of paths [..., S] that ascend already."""
    s = ordered.shape[-1]
    position = (levels.to(ordered.device, torch.float64) * (s + 1) - 1).clamp(0, s - 1)
    low = position.floor().long()
    high = position.ceil().long()
    weight = (position - low).to(ordered.dtype)
    # lerp of equal ends is exact, so quantiles of an atom do not cross by a rounding error.
    return torch.lerp(ordered[..., low], ordered[..., high], weight)


def ordered_paths(paths: Tensor) -> Tensor:
    """Ascending along the last axis. On the CPU numpy sorts with vector instructions, tens of times faster."""
    if paths.device.type != "cpu" or paths.dtype not in (torch.float32, torch.float64):
        return paths.sort(dim=-1)[0]
    return torch.from_numpy(np.sort(paths.detach().contiguous().numpy(), axis=-1))


# Rows of a batch taken apart and put together; a row means the same wherever it stands.


def take_rows(batch: ContextBatch, rows: Sequence[int]) -> ContextBatch:
    """The given rows, in the given order; a row may be taken more than once."""
    index = torch.as_tensor(list(rows), dtype=torch.int64, device=batch.values.device)
    return replace(
        batch,
        item_ids=tuple(batch.item_ids[r] for r in rows),
        origin_ts_ms=batch.origin_ts_ms[index],
        values=batch.values[index],
        observed=batch.observed[index],
        coarse=batch.coarse[index],
        coarse_observed=batch.coarse_observed[index],
    )


def join_rows(batches: Sequence[ContextBatch]) -> ContextBatch:
    """All rows of batches that share step, indicators, levels and bounds.

    Raises:
        ValueError: no batch, or batches that differ in step or indicators.
    """
    if not batches:
        raise ValueError("there is no batch to join")
    first = batches[0]
    if len(batches) == 1:
        return first
    if any((b.step_ms, b.indicators) != (first.step_ms, first.indicators) for b in batches):
        raise ValueError("batches of different step or indicators cannot be joined")
    return replace(
        first,
        item_ids=tuple(i for b in batches for i in b.item_ids),
        origin_ts_ms=torch.cat([b.origin_ts_ms for b in batches]),
        values=torch.cat([b.values for b in batches]),
        observed=torch.cat([b.observed for b in batches]),
        coarse=torch.cat([b.coarse for b in batches]),
        coarse_observed=torch.cat([b.coarse_observed for b in batches]),
    )


def slice_forecast(forecast: ForecastBatch, start: int, stop: int) -> ForecastBatch:
    """Rows start..stop-1 (a view)."""
    if start == 0 and stop == len(forecast.sources):
        return forecast
    return replace(forecast, paths=forecast.paths[start:stop], sources=forecast.sources[start:stop])


PER_ROW: Final = ("origin_ts_ms", "values", "observed", "coarse", "coarse_observed")
PER_COLUMN: Final = ("levels", "lower", "upper")


def each_tensor(batch: ContextBatch, change: Callable[[Tensor], Tensor]) -> ContextBatch:
    """The batch with the same change of every tensor."""
    changed: dict[str, Any] = {name: change(getattr(batch, name)) for name in (*PER_ROW, *PER_COLUMN)}
    return replace(batch, **changed)


def join_forecasts(forecasts: Sequence[ForecastBatch]) -> ForecastBatch:
    """All rows of forecasts of the same horizon, paths and indicators; the fingerprint of the first."""
    first = forecasts[0]
    if len(forecasts) == 1:
        return first
    sources = tuple(source for forecast in forecasts for source in forecast.sources)
    return ForecastBatch(torch.cat([forecast.paths for forecast in forecasts]), sources, first.fingerprint)


# A forecaster that asks another: its limits are the other's, its fingerprint covers the other's.


class WrappedForecaster:
    """What those that change the batches or the paths of one other forecaster share.

    Args:
        inner: makes the paths.
        name: begins the fingerprint.
        version: of what is done to them; another one gives another fingerprint.
    """

    def __init__(self, inner: Forecaster, name: str, version: str = "") -> None:
        self._inner = inner
        body = f"{version}{inner.fingerprint}"
        self._fingerprint = f"{name}-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return self._inner.max_horizon

    @property
    def min_context(self) -> int:
        return self._inner.min_context
