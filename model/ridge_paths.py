"""Paths of the ridge, compiled: row after row from the context into the caller's tensor, nothing kept in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.baselines.context_kernel import RowContext, fill, load, row_context, valid_windows, weigh_windows
from model.baselines.ridge_kernel import Column, fit, room
from model.compiled import compiled
from model.ridge_residuals import WindowTables, doubt_drift, independent_windows, leave_out_neighbours, widen
from model.row_draws import window_draws
from model.row_paths import Rows, write_paths

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Settings(NamedTuple):
    """Of the ridge.

    Attributes:
        order: changes to regress on.
        horizon: in steps.
        penalties: candidates, as shares of the number of windows fitted on.
        probe_steps: steps whose errors choose among them.
        min_windows: fewest valid windows for a fit.
        most_repeated: largest share of a window that is taken for repeated.
    """

    order: int
    horizon: int
    penalties: Float
    probe_steps: Whole
    min_windows: int
    most_repeated: float


class _Room(NamedTuple):
    """Room for one row.

    Attributes:
        context, column: for its parts.
        z: [L], a column less its newest value, in units of its spread.
        sums: [W + 1].
        valid, weights: [N, W] and [W], of the windows.
        futures: [W, H * N], one per window.
        draws: [S].
    """

    context: RowContext
    column: Column
    z: Float
    sums: Float
    valid: Mask
    weights: Whole
    futures: Single
    draws: Whole


def ridge_paths(rows: Rows, settings: Settings, tables: WindowTables, places: Whole, out: Single) -> None:
    """Write paths.

    Args:
        rows: at least order + horizon + 1 steps long.
        places: where among the paths of `out` each of them goes.
        out: [B, S, H * N].
    """
    length, n = rows.values.shape[1:]
    num = length - settings.horizon - settings.order
    work = _Room(
        row_context(length, n),
        room(settings.order, settings.horizon, num, len(settings.probe_steps)),
        np.empty(length),
        np.empty(num + 1),
        np.empty((n, num), np.bool_),
        np.empty(num, np.int64),
        np.empty((num, settings.horizon * n), np.float32),
        np.empty(len(places), np.int64),
    )
    _write_rows(rows, settings, tables, places, out, work)


@compiled
def _write_rows(rows: Rows, settings: Settings, tables: WindowTables, places: Whole, out: Single, work: _Room) -> None:
    context, column, n = work.context, work.column, rows.values.shape[2]
    for b in range(rows.values.shape[0]):
        load(rows.values[b], rows.observed[b], context)
        fill(context)
        valid_windows(context, settings.order + 1, settings.horizon, work.valid)
        weigh_windows(work.valid, context.spread, work.weights)
        for k in range(n):
            _fit_column(context, k, work.valid[k], settings, tables, work.z, work.sums, column)
            _write_futures(context, k, n, rows.lower[k], rows.upper[k], column, work.futures)
        window_draws(rows.keys[b], 0, work.weights, work.draws)
        write_paths(work.futures, work.draws, places, out[b])


@compiled
def _fit_column(
    context: RowContext,
    k: int,
    known: Mask,
    settings: Settings,
    tables: WindowTables,
    z: Float,
    sums: Float,
    column: Column,
) -> None:
    """Forecast, residuals and their factors (`column.line`) of one column, in units of its spread."""
    spread, x = context.spread[k], context.filled[k]
    if spread == 0:
        return
    for t in range(len(z)):
        z[t] = (x[t] - x[-1]) / spread
    fit(z, known, settings.penalties, settings.min_windows, settings.probe_steps, column)
    doubt_drift(column.residuals, column.drift, tables.back)
    freedom = independent_windows(column.residuals[settings.horizon - 1], column.seen, settings.horizon, sums)
    widen(freedom, tables.scores, column.line)
    if settings.most_repeated > 0:
        leave_out_neighbours(column.free, column.seen, freedom, settings.most_repeated, column.line)


@compiled
def _write_futures(
    context: RowContext, k: int, n: int, lower: np.float32, upper: np.float32, column: Column, futures: Single
) -> None:
    """One possible future per window within the bounds: forecast and that window's residuals."""
    spread, newest = context.spread[k], np.float32(context.filled[k, -1])
    within = max(newest, lower)
    within = min(within, upper)
    if spread == 0:
        for w in range(futures.shape[0]):
            for h in range(len(column.point)):
                futures[w, h * n + k] = within
        return
    factors, scale = column.line, np.float32(spread)
    for w in range(len(factors)):
        factors[w] *= scale
    for h in range(len(column.point)):
        start, line = np.float32(newest + column.point[h] * spread), column.residuals[h]
        for w in range(len(line)):
            value = start + line[w] * factors[w]
            value = lower if value < lower else value  # noqa: FURB136
            line[w] = upper if value > upper else value  # noqa: FURB136
        for w in range(len(line)):
            futures[w, h * n + k] = line[w]
