"""Paths of simple exponential smoothing, compiled: row after row from the context into the caller's tensor.

The same as `model.baselines.smoothing` says for batches of tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.baselines.context_kernel import RowContext, fill, load, row_context, valid_windows, weigh_windows
from model.compiled import compiled
from model.levels import choose_levels
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
        levels, ahead: [L] and [H], of one column: what it is taken to be about beside its season, and ahead where no
            window adds to it.
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
        np.empty(length),
        np.empty(horizon, np.float32),
    )
    _write_rows(rows, ring, rates, places, out, work)


@compiled
def _write_rows(rows: Rows, ring: Ring, rates: Float, places: Whole, out: Single, work: _Room) -> None:
    length, n = rows.values.shape[1:]
    context, season, horizon = work.context, work.season, len(work.ahead)
    for b in range(rows.values.shape[0]):
        load(rows.values[b], rows.observed[b], context)
        block = min(horizon, _span(context.known) // 2)
        find_season(rows.observed[b], ring, b, length, season)
        for k in range(n):
            x, known = context.filled[k], context.known[k]
            for t in range(length):
                known[t] = known[t] and season.known[k, t]
                x[t] = x[t] - season.shape[k, t] if known[t] else 0.0
        fill(context)
        if block == 0:  # at most one step is known, and nothing moves
            for k in range(n):
                _go_on(work, k, context.filled[k, -1])
                _hold_column(work, k, places, rows.lower[k], rows.upper[k], out[b])
            continue
        valid = np.ones((n, length - block), np.bool_)
        valid_windows(context, 1, block, valid)
        weights = np.empty(length - block, np.int64)
        weigh_windows(valid, context.spread, weights)
        draws = np.empty(((horizon + block - 1) // block, len(places)), np.int64)
        for part in range(len(draws)):
            window_draws(rows.keys[b], part * (len(places) + 1), weights, draws[part])
        for k in range(n):
            choose_levels(context.filled[k], context.known[k], valid[k], block, rates, work.levels)
            _go_on(work, k, work.levels[-1])
            _write_column(work, k, block, draws, places, rows.lower[k], rows.upper[k], out[b])


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
def _go_on(work: _Room, k: int, level: float) -> None:
    """What a column is ahead where no window adds to it: the season at its level."""
    length = work.context.filled.shape[1]
    for h in range(len(work.ahead)):
        work.ahead[h] = work.season.shape[k, length + h] + level


@compiled
def _hold_column(work: _Room, k: int, places: Whole, lower: np.float32, upper: np.float32, out: Single) -> None:
    """Paths of one column to which nothing adds."""
    n = len(work.context.filled)
    for s in range(len(places)):
        for h in range(len(work.ahead)):
            out[places[s], k + h * n] = _within(work.ahead[h], lower, upper)


@compiled
def _write_column(
    work: _Room, k: int, block: int, draws: Whole, places: Whole, lower: np.float32, upper: np.float32, out: Single
) -> None:
    """Paths of one column: windows beside their levels one after the other, on what it is where none adds."""
    n = len(work.context.filled)
    x, levels, ahead = work.context.filled[k], work.levels, work.ahead
    for s in range(len(places)):
        path = out[places[s], k:]
        level = np.float32(0.0)
        for part in range(len(draws)):
            first, window = part * block, draws[part, s]
            for j in range(first, min(first + block, len(ahead))):
                beside = np.float32(x[window + 1 + j - first] - levels[window])
                path[j * n] = _within((level + beside) + ahead[j], lower, upper)
            level += np.float32(levels[window + block] - levels[window])


@compiled
def _within(value: np.float32, lower: np.float32, upper: np.float32) -> np.float32:
    value = lower if value < lower else value  # noqa: FURB136
    return upper if value > upper else value  # noqa: FURB136
