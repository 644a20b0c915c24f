"""Futures held against the record of the context: what lies beyond everything seen is drawn nearer to it.

Tails are learned from few futures, and the peak of many steps reads them all the time. A record is broken now and then,
but rarely by much: the part of a path beyond the highest (lowest) value of the context is shortened, the more so the
more rows the context holds. Where the forecast itself goes beyond the record (a ramp), only what lies outside its
central half is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from model.baselines.context import seen_range
from model.contract import ContextBatch, ForecastBatch, Forecaster
from model.wrapped import WrappedForecaster

_HALVING_ROWS = 341  # rows of context after which half of what lies beyond the record is kept
_MOST_ROWS = 1024
_CENTRAL = 0.75
_CHUNK_ROWS = 8


class RecordForecaster(WrappedForecaster):
    """A forecaster whose paths are held against the record of their context.

    Args:
        inner: makes the paths; everything else is its own.
    """

    def __init__(self, inner: Forecaster) -> None:
        super().__init__(inner, "records", "records/1/")

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: what the inner forecaster refuses.
        """
        made = self._inner.forecast(batch, horizon, num_paths)
        for start in range(0, len(batch), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            paths = made.paths[rows]  # a view: the paths are ours, nobody else holds them
            low, high, kept = _record(batch, rows)
            lower, upper = _central(paths)
            high = torch.maximum(high[:, None], upper)[:, None]  # [R, 1, H, N]
            low = torch.minimum(low[:, None], lower)[:, None]
            inside = torch.minimum(torch.maximum(paths, low), high)
            paths.copy_(inside + kept[:, None, None] * (paths - inside))
        return ForecastBatch(made.paths, made.sources, self._fingerprint)


def _central(paths: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the central half of the paths [R, H, N]."""
    last = paths.shape[1] - 1
    low, high = round((1 - _CENTRAL) * last), round(_CENTRAL * last)
    if paths.device.type == "cpu":  # numpy selects with vector instructions
        parted = torch.from_numpy(np.partition(paths.numpy(), (low, high), axis=1))
    else:
        parted = paths.sort(dim=1).values
    return parted[:, low], parted[:, high]


def _record(batch: ContextBatch, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Lowest and highest observed value of each column, fine and coarse rows alike, and the share kept beyond, [R, N].

    A column that is nowhere observed keeps its paths as they are.
    """
    values, observed = batch.values[rows], batch.observed[rows]
    count = (observed & values.isfinite()).sum(1).clamp(max=_MOST_ROWS)
    kept = 1 / (1 + count.to(values.dtype) / _HALVING_ROWS)
    low, high = seen_range(values, observed)
    c = batch.coarse.shape[2]
    if c and batch.coarse.shape[1]:
        lowest, highest = seen_range(batch.coarse[rows], batch.coarse_observed[rows])
        low[:, :c] = torch.minimum(low[:, :c], lowest)
        high[:, :c] = torch.maximum(high[:, :c], highest)
    return low, high, kept
