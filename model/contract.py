"""What every forecaster takes and returns; baselines and networks satisfy it alike.

Tensor letters: B batch, L context, H horizon, N indicators, S paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
