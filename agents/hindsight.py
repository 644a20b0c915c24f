"""What a forecast is held to afterwards, and how it is widened by what was learned from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from agents.records import ForecastRecord
from model.contract import ordered_paths, quantiles_of_ordered
from model.forecast_trust import Outlook
from model.widening import widen
from streams.window_table import Window

DEMAND: Final = "request.arrival_rate"
STEPS_AHEAD: Final = 4
_LOW, _MID, _HIGH = 0.05, 0.5, 0.95


def outlook_of(forecast: ForecastRecord, window: Window) -> Outlook | None:
    """What the forecast says of demand four steps ahead (fewer where it ends before); None without demand."""
    steps, last = forecast.targets.get(DEMAND), window.newest(DEMAND)
    if not steps or last is None:
        return None
    ahead = min(STEPS_AHEAD, len(steps))
    low, mid, high = (steps[ahead - 1][forecast.quantile_levels.index(q)] for q in (_LOW, _MID, _HIGH))
    due = forecast.origin_ts_ms // forecast.step_ms - 1 + ahead
    return Outlook(due, low, mid, high, float(last), forecast.source)


@dataclass(frozen=True, slots=True)
class Futures:
    """A forecast by step and indicator, its paths as they are, and in order.

    Attributes:
        values: float32 [B, H, C, S]; path s is one joint future over steps and indicators.
        ordered: [B, H, C, S], ascending along the last axis.
    """

    values: Tensor
    ordered: Tensor

    @property
    def paths(self) -> Tensor:
        """The values as [B, S, H, C], a view."""
        return self.values.movedim(-1, 1)


def widened_futures(paths: Tensor, factors: Sequence[float], lower: Tensor, upper: Tensor) -> Futures:
    """Every path moved away from the median of its step by the row's factor, within the indicators' bounds.

    Rows with factor 1 keep their bits.

    Args:
        paths: [B, S, H, C]; not changed.
        factors: B of them.
        lower, upper: [C].
    """
    values = paths.detach().to("cpu", torch.float32).movedim(1, -1).clone(memory_format=torch.contiguous_format)
    ordered = ordered_paths(values)
    if any(factor != 1.0 for factor in factors):
        middle = quantiles_of_ordered(ordered, torch.tensor([_MID]))[..., 0].numpy()
        how = np.array(factors, np.float32), lower.cpu().numpy(), upper.cpu().numpy()
        for numbers in (values, ordered):
            widen(numbers.numpy(), middle, *how)
    return Futures(values, ordered)
