"""Rows of a batch taken apart and put together; a row means the same wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from model.contract import ContextBatch, ForecastBatch


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


def pad_rows(batch: ContextBatch, size: int) -> ContextBatch:
    """The batch with its last row repeated until there are `size`."""
    have = len(batch)
    return batch if have >= size else take_rows(batch, [min(r, have - 1) for r in range(size)])


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
