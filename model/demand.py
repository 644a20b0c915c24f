"""Forecasts of demand alone, for whoever plans by demand alone: a quarter of the work of forecasting every column."""

from __future__ import annotations

from dataclasses import replace

import torch

from model.contract import ContextBatch, ForecastBatch, Forecaster
from model.paths import empty_paths
from model.rows import take_rows
from model.windows import check_request, fill
from model.wrapped import WrappedForecaster


class DemandForecaster(WrappedForecaster):
    """Demand (level 1) is forecast from demand; the other columns of its paths keep their newest value.

    A row of which no demand was ever observed is forecast in full: then the other columns are what is looked at.

    Args:
        inner: makes the paths.
    """

    def __init__(self, inner: Forecaster) -> None:
        super().__init__(inner, "demand")

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: what the inner forecaster refuses.
        """
        check_request(batch, horizon, num_paths, self.max_horizon)
        demand = (batch.levels == 1).nonzero()[:, 0].tolist()
        seen = (batch.observed & batch.values.isfinite())[:, :, demand].any(-1).any(-1)
        with_demand = seen.nonzero()[:, 0].tolist()
        if not with_demand or len(demand) == len(batch.indicators):
            answer = self._inner.forecast(batch, horizon, num_paths)
            return ForecastBatch(answer.paths, answer.sources, self._fingerprint)
        b, _, n = batch.values.shape
        out = empty_paths(b, num_paths, horizon, n, batch.values.device)
        sources = [""] * b
        parts = [(with_demand, demand), ((~seen).nonzero()[:, 0].tolist(), list(range(n)))]
        for rows, columns in parts:
            if not rows:
                continue
            chosen = take_rows(batch, rows)
            answer = self._inner.forecast(_take_columns(chosen, columns), horizon, num_paths)
            if len(columns) < n:
                newest = fill(chosen.values, chosen.observed).filled[..., -1].to(out.dtype)  # [R, N]
                out[rows] = newest[:, None, None].expand(-1, num_paths, horizon, -1)
            where = torch.tensor(rows, device=out.device)[:, None]
            out.permute(0, 3, 1, 2)[where, torch.tensor(columns, device=out.device)] = answer.paths.permute(0, 3, 1, 2)
            for row, source in zip(rows, answer.sources, strict=True):
                sources[row] = source
        return ForecastBatch(out, tuple(sources), self._fingerprint)


def _take_columns(batch: ContextBatch, columns: list[int]) -> ContextBatch:
    """Some columns, in their order; the ring keeps those that it holds."""
    if len(columns) == len(batch.indicators):
        return batch
    in_ring = [k for k in columns if k < batch.coarse.shape[2]]
    if in_ring != columns[: len(in_ring)]:
        in_ring = []
    return replace(
        batch,
        values=batch.values[:, :, columns],
        observed=batch.observed[:, :, columns],
        coarse=batch.coarse[..., in_ring],
        coarse_observed=batch.coarse_observed[..., in_ring],
        levels=batch.levels[columns],
        indicators=tuple(batch.indicators[k] for k in columns),
        lower=batch.lower[columns],
        upper=batch.upper[columns],
    )
