"""The context of one row as the compiled baselines read it: gaps filled, columns measured, windows valid and weighed.

The same as `model.baselines.context` says for batches of tensors.
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

CONSTANT_RATIO: Final = 1e-6  # spread below this share of the level is rounding, not movement
MIN_OBSERVED_RATIO: Final = 0.8  # of a window's cells; below, it says more about the filling than about the series
MIN_WINDOWS: Final = 16  # fewest windows, valid in every moving column, that are drawn from alone


class RowContext(NamedTuple):
    """Columns first.

    Attributes:
        filled: [N, L], gaps filled with the last observed value, leading gaps with the first.
        known: [N, L], finite and observed.
        seen: [N, L + 1], known cells before each step.
        spread: [N], standard deviation of the known cells, 0 for a constant column.
    """

    filled: Float
    known: Mask
    seen: Whole
    spread: Float


def row_context(length: int, num_indicators: int) -> RowContext:
    """Room for one row."""
    return RowContext(
        np.zeros((num_indicators, length)),
        np.zeros((num_indicators, length), np.bool_),
        np.zeros((num_indicators, length + 1), np.int64),
        np.zeros(num_indicators),
    )


@compiled
def load(values: Single, observed: Mask, context: RowContext) -> None:
    """Take in one row [L, N]; what stands in a masked cell has no influence."""
    for n in range(values.shape[1]):
        filled, known = context.filled[n], context.known[n]
        for t in range(values.shape[0]):
            known[t] = observed[t, n] and np.isfinite(values[t, n])
            filled[t] = values[t, n] if known[t] else 0.0


@compiled
def fill(context: RowContext) -> None:
    """Measure the columns and fill their gaps."""
    length = context.filled.shape[1]
    for n in range(len(context.spread)):
        x, known, seen = context.filled[n], context.known[n], context.seen[n]
        total, count = 0.0, 0
        for t in range(length):
            total += x[t] if known[t] else 0.0
            count += known[t]
            seen[t + 1] = count
        mean = total / max(count, 1)
        squares, current, started = 0.0, 0.0, False
        for t in range(length):
            if known[t]:
                squares += (x[t] - mean) * (x[t] - mean)
                for before in range(0 if started else t):
                    x[before] = x[t]
                current, started = x[t], True
            else:
                x[t] = current
        spread = math.sqrt(squares / max(count, 1))
        context.spread[n] = spread if spread > CONSTANT_RATIO * abs(mean) else 0.0


@compiled
def valid_windows(context: RowContext, order: int, horizon: int, valid: Mask) -> None:
    """Which windows [N, W] of `order` lags and `horizon` targets are observed well enough to learn from.

    Window w has its origin at step w + order - 1.
    """
    lags, targets = MIN_OBSERVED_RATIO * order, MIN_OBSERVED_RATIO * horizon
    for n in range(valid.shape[0]):
        known, seen = context.known[n], context.seen[n]
        for w in range(valid.shape[1]):
            origin = w + order
            valid[n, w] = (
                known[origin - 1]
                and seen[origin] - seen[w] >= lags
                and seen[origin + horizon] - seen[origin] >= targets
            )


@compiled
def weigh_windows(valid: Mask, spread: Float, weights: Whole) -> None:
    """Weight of each window in the joint draw.

    Windows in which every moving column is valid weigh the same; where those are too few, a window weighs as many
    columns as are valid in it; where none is valid anywhere, all weigh the same.
    """
    num = len(weights)
    moving, full, total = 0, 0, 0
    for w in range(num):
        weights[w] = 0
    for n in range(len(spread)):
        if spread[n] > 0:
            moving += 1
            for w in range(num):
                weights[w] += valid[n, w]
    for w in range(num):
        full += weights[w] == moving
    if full >= min(MIN_WINDOWS, num):
        for w in range(num):
            weights[w] = weights[w] == moving
    for w in range(num):
        total += weights[w]
    if total == 0:
        for w in range(num):
            weights[w] = 1
