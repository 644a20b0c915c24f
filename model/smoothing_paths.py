"""Paths of simple exponential smoothing, compiled: row after row from the context into the caller's tensor.

The same as `model.smoothing` says for batches of tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.levels import choose_levels
from model.row_context import RowContext, fill, load, row_context, valid_windows, weigh_windows
from model.row_draws import window_draws
from model.row_paths import Rows
from model.season_rows import Ring, Season, find_season, season_room

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


class _Room(NamedTuple):
    """Room for one row.

    Attributes:
        context, season: for its parts.
        levels: [N, L], what each column is taken to be about, beside its season.
        ahead: [H], what a column is where no window adds to it.
    """

    context: RowContext
    season: Season
    levels: Float
    ahead: Single


def smoothing_paths(rows: Rows, ring: Ring, horizon: int, rates: Float, places: Whole, out: Single) -> None:
    """Write paths.

    Args:
        rates: of the levels that each column may have, from the fastest to the slowest.
        places: where among the paths of `out` each of them goes.
        out: [B, S, H * N].
    """
    length, n = rows.values.shape[1:]
    work = _Room(
        row_context(length, n),
        season_room(length + horizon, n),
        np.zeros((n, length)),
        np.empty(horizon, np.float32),
    )
    _write_rows(rows, ring, rates, places, out, work)


@compiled
def _write_rows(rows: Rows, ring: Ring, rates: Float, places: Whole, out: Single, work: _Room) -> None:
    length, n = rows.values.shape[1:]
    context, season, horizon = work.context, work.season, len(work.ahead)
    for b in range(rows.values.shape[0]):
        load(rows.values[b], rows.observed[b], context)
        span = _span(context.known)
        block = min(horizon, span // 2) if span > 1 else horizon
        find_season(rows.observed[b], ring, b, length, season)
        for k in range(n):
            x, known = context.filled[k], context.known[k]
            for t in range(length):
                known[t] = known[t] and season.known[k, t]
                x[t] = x[t] - season.shape[k, t] if known[t] else 0.0
        fill(context)
        valid = np.ones((n, length - block if span > 1 else 1), np.bool_)
        if span > 1:
            valid_windows(context, 1, block, valid)
        weights = np.empty(valid.shape[1], np.int64)
        weigh_windows(valid, context.spread, weights)
        draws = np.empty(((horizon + block - 1) // block, len(places)), np.int64)
        for part in range(len(draws)):
            window_draws(rows.keys[b], part * (len(places) + 1), weights, draws[part])
        for k in range(n):
            if span > 1:
                choose_levels(context.filled[k], context.known[k], valid[k], block, rates, work.levels[k])
            else:
                work.levels[k, :] = context.filled[k]
            _write_column(work, k, block if span > 1 else 0, draws, places, rows.lower[k], rows.upper[k], out[b])


@compiled
def _span(known: Mask) -> int:
    """Steps since the first at which any column is known."""
    n, length = known.shape
    for t in range(length):
        for k in range(n):
            if known[k, t]:
                return int(length - t)
    return 0


@compiled
def _write_column(
    work: _Room, k: int, block: int, draws: Whole, places: Whole, lower: np.float32, upper: np.float32, out: Single
) -> None:
    """Paths of one column: the season at the present level, and windows beside their levels one after the other."""
    n, length = work.context.filled.shape
    x, levels, ahead, horizon = work.context.filled[k], work.levels[k], work.ahead, len(work.ahead)
    for h in range(horizon):
        ahead[h] = work.season.shape[k, length + h] + levels[-1]
    for s in range(len(places)):
        path = out[places[s], k:]
        level = np.float32(0.0)
        for part in range(len(draws)):
            first, window = part * block, draws[part, s]
            for j in range(first, min(first + block, horizon) if block else horizon):
                beside = np.float32(x[window + 1 + j - first] - levels[window]) if block else np.float32(0.0)
                value = (level + beside) + ahead[j]
                value = lower if value < lower else value  # noqa: FURB136
                path[j * n] = upper if value > upper else value  # noqa: FURB136
            if block:
                level += np.float32(levels[window + block] - levels[window])
