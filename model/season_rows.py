"""The season of one row, compiled: what the coarse ring held one day before each step.

The same as `model.seasons` says for batches of tensors.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

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


def season_room(steps: int, num_indicators: int) -> Season:
    """Room for one row."""
    shape = (num_indicators, steps)
    return Season(
        np.zeros(steps, np.int64), np.zeros(steps), np.zeros(shape), np.zeros(shape, np.bool_), np.ones(shape, np.bool_)
    )


@compiled
def find_season(observed: Mask, ring: Ring, b: int, length: int, season: Season) -> None:
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
