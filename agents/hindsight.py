"""What a forecast is held to afterwards, and how it is widened by what was learned from that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from agents.records import ForecastRecord
from model.contract import ForecastBatch, quantiles_of_paths
from model.forecast_trust import Outlook
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
    return Outlook(due, low, mid, high, float(last))


def widened(forecast: ForecastBatch, factors: Sequence[float], lower: Tensor, upper: Tensor) -> ForecastBatch:
    """Every path moved away from the median of its step by the row's factor, within the indicators' bounds [N].

    Rows with factor 1 keep their bits.
    """
    rows = [b for b, factor in enumerate(factors) if factor != 1.0]
    if not rows:
        return forecast
    paths = forecast.paths.clone()
    chosen = paths[rows]  # [R, S, H, N]
    middle = quantiles_of_paths(chosen.movedim(1, -1), torch.tensor([_MID])).movedim(-1, 1)  # [R, 1, H, N]
    factor = torch.tensor([factors[b] for b in rows], dtype=chosen.dtype)[:, None, None, None]
    paths[rows] = chosen.sub_(middle).mul_(factor).add_(middle).clamp_(lower, upper)
    return ForecastBatch(paths, forecast.sources, forecast.fingerprint)
