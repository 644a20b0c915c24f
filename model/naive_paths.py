"""Paths of the seasonal naive, compiled: row after row from the context into the caller's tensor.

The same as `model.seasonal_naive` says for batches of tensors.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.row_context import RowContext, fill, load, row_context, valid_windows, weigh_windows
from model.row_draws import window_draws
from model.row_paths import Rows

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

DAY_ROWS: Final = 144
MIN_DAY_OBSERVED: Final = DAY_ROWS // 2


class Ring(NamedTuple):
    """The coarse rows of a batch.

    Attributes:
        values, observed: [B, R, C].
        into_row: [B], share of a coarse row that has passed at the origin.
        step_rows: length of a step in coarse rows.
    """

    values: Single
    observed: Mask
    into_row: Float
    step_rows: float


class Season(NamedTuple):
    """Room for the season of one row, L steps of context and H ahead.

    Attributes:
        below: [L + H], ring row at or before each step one day earlier; -1 before the ring.
        share: [L + H], how far the step lies towards the next ring row.
        shape: [N, L + H], the season, 0 where there is none.
        reached: [N, L + H], where the ring says something of it.
        known: [N, L + H], where the column may be read.
    """

    below: Whole
    share: Float
    shape: Float
    reached: Mask
    known: Mask


class _Room(NamedTuple):
    """Room for one row.

    Attributes:
        context, season: for its parts.
        valid, weights: [N, W] and [W], of the windows.
        draws: [blocks, S].
        ahead: [H], what a column is where no window adds to it.
    """

    context: RowContext
    season: Season
    valid: Mask
    weights: Whole
    draws: Whole
    ahead: Single


def naive_paths(rows: Rows, ring: Ring, horizon: int, block: int, places: Whole, out: Single) -> None:
    """Write paths.

    Args:
        block: steps of one window; horizons beyond it are reached by several in a row.
        places: where among the paths of `out` each of them goes.
        out: [B, S, H * N].
    """
    length, n = rows.values.shape[1:]
    num, blocks = max(length - block, 1), -(-horizon // block)
    work = _Room(
        row_context(length, n),
        _season(length + horizon, n),
        np.ones((n, num), np.bool_),
        np.empty(num, np.int64),
        np.empty((blocks, len(places)), np.int64),
        np.empty(horizon, np.float32),
    )
    _write_rows(rows, ring, block, places, out, work)


@compiled
def _write_rows(rows: Rows, ring: Ring, block: int, places: Whole, out: Single, work: _Room) -> None:
    length, n = rows.values.shape[1:]
    context, season = work.context, work.season
    for b in range(rows.values.shape[0]):
        load(rows.values[b], rows.observed[b], context)
        _find_season(rows.observed[b], ring, b, length, season)
        for k in range(n):
            x, known = context.filled[k], context.known[k]
            for t in range(length):
                known[t] = known[t] and season.known[k, t]
                x[t] = x[t] - season.shape[k, t] if known[t] else 0.0
        fill(context)
        if length > 1:
            valid_windows(context, 1, block, work.valid)
        weigh_windows(work.valid, context.spread, work.weights)
        for k in range(work.draws.shape[0]):
            window_draws(rows.keys[b], k * (len(places) + 1), work.weights, work.draws[k])
        for k in range(n):
            _write_column(work, k, block, places, rows.lower[k], rows.upper[k], out[b])


def _season(steps: int, num_indicators: int) -> Season:
    shape = (num_indicators, steps)
    return Season(
        np.zeros(steps, np.int64), np.zeros(steps), np.zeros(shape), np.zeros(shape, np.bool_), np.ones(shape, np.bool_)
    )


@compiled
def _find_season(observed: Mask, ring: Ring, b: int, length: int, season: Season) -> None:
    """The coarse ring one day before every step, where it holds half of a day and reaches the whole horizon."""
    num, columns = ring.values.shape[1:]
    if num < DAY_ROWS + 2 or columns == 0:
        return
    steps = len(season.below)
    for t in range(steps):
        # Centre of the step in coarse rows, from the centre of the newest row; the ring ends at the last full row.
        ahead = ring.into_row[b] + (t - length + 0.5) * ring.step_rows + 0.5
        position = ahead - max(math.ceil(ahead / DAY_ROWS), 1) * DAY_ROWS + (num - 1)
        low = math.floor(position)
        season.below[t] = int(low) if low >= 0 else -1
        season.share[t] = position - low
    values, seen = ring.values[b], ring.observed[b]
    for k in range(columns):
        shape, reached, known = season.shape[k], season.reached[k], season.known[k]
        compared = _interpolate(values[:, k], seen[:, k], season, k)
        usable = False
        for t in range(length):
            usable |= compared and reached[t] and observed[t, k]
        for t in range(length, steps):
            usable &= reached[t]
        for t in range(steps):
            shape[t] = shape[t] if usable and reached[t] else 0.0
            known[t] = reached[t] or not usable


@compiled
def _interpolate(values: Single, seen: Mask, season: Season, k: int) -> bool:
    """Shape of one column and where it is reached; whether half of the newest day is observed."""
    newest = len(values) - 1
    for t in range(len(season.below)):
        low = season.below[t]
        above = min(low + 1, newest)
        has_below = low >= 0 and seen[low] and np.isfinite(values[low])
        has_above = low >= 0 and seen[above] and np.isfinite(values[above])
        share = season.share[t] if has_below and has_above else (1.0 if has_above else 0.0)
        before = np.float64(values[low]) if has_below else 0.0
        after = np.float64(values[above]) if has_above else 0.0
        season.shape[k, t] = before * (1.0 - share) + after * share
        season.reached[k, t] = has_below or has_above
    count = 0
    for row in range(newest + 1 - DAY_ROWS, newest + 1):
        count += seen[row] and np.isfinite(values[row])
    return count >= MIN_DAY_OBSERVED


@compiled
def _write_column(
    work: _Room, k: int, block: int, places: Whole, lower: np.float32, upper: np.float32, out: Single
) -> None:
    """Paths of one column: the season at the present level, and windows of differences one after the other."""
    n, length = work.context.filled.shape
    x, ahead, horizon = work.context.filled[k], work.ahead, len(work.ahead)
    for h in range(horizon):
        ahead[h] = work.season.shape[k, length + h] + x[-1]
    for s in range(len(places)):
        path = out[places[s], k:]
        level = np.float32(0.0)
        for part in range(work.draws.shape[0]):
            first = part * block
            window = x[work.draws[part, s] :]
            before = level
            for j in range(min(block, horizon - first)):
                level = before + (np.float32(window[j + 1] - window[0]) if length > 1 else np.float32(0.0))
                value = level + ahead[first + j]
                value = lower if value < lower else value  # noqa: FURB136
                path[(first + j) * n] = upper if value > upper else value  # noqa: FURB136
