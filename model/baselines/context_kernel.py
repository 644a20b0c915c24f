"""The context of one row as the compiled baselines read it: gaps filled, windows checked, weighted and drawn.

Draws come from SplitMix64, written out here. It is a counter-based generator: element k of a row follows from the key
alone, in compiled code, without state and in any order. numpy's Philox would need a generator object for each row,
which compiled loops cannot create, and would change every recorded forecast.

Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Standard deviation, as a share of the level, below which a column counts as constant.
CONSTANT_RATIO: Final = 1e-6
# Smallest observed share of a window's cells; a window with less shows the filling rather than the series.
MIN_OBSERVED_RATIO: Final = 0.8
# Fewest windows, valid in every moving column, that are drawn from without the others.
MIN_WINDOWS: Final = 16


class RowContext(NamedTuple):
    """Columns first.

    Attributes:
        filled: [N, L], gaps filled with the last observed value, leading gaps with the first.
        present: [N, L], finite and observed.
        num_before: [N, L + 1], present cells before each step.
        spread: [N], standard deviation of the present cells, 0 for a constant column.
    """

    filled: Float
    present: Mask
    num_before: Ints
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
        filled, present = context.filled[n], context.present[n]
        for t in range(values.shape[0]):
            present[t] = observed[t, n] and np.isfinite(values[t, n])
            filled[t] = values[t, n] if present[t] else 0.0


@compiled
def fill(context: RowContext) -> None:
    """Measure the columns and fill their gaps."""
    length = context.filled.shape[1]
    for n in range(len(context.spread)):
        x, present, num_before = context.filled[n], context.present[n], context.num_before[n]
        total, count = 0.0, 0
        for t in range(length):
            total += x[t] if present[t] else 0.0
            count += present[t]
            num_before[t + 1] = count
        mean = total / max(count, 1)
        squares, current, started = 0.0, 0.0, False
        for t in range(length):
            if present[t]:
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
        present, num_before = context.present[n], context.num_before[n]
        for w in range(valid.shape[1]):
            origin = w + order
            valid[n, w] = (
                present[origin - 1]
                and num_before[origin] - num_before[w] >= lags
                and num_before[origin + horizon] - num_before[origin] >= targets
            )


@compiled
def weigh_windows(valid: Mask, spread: Float, weights: Ints) -> None:
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


# The windows that the paths of one row are drawn from.


GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
MIX_A: Final = np.uint64(0xBF58476D1CE4E5B9)
MIX_B: Final = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@compiled
def uniforms(key: np.uint64, first: int, out: Float) -> None:
    """Elements `first`, `first` + 1, ... of the row's SplitMix64 stream, in [0, 1)."""
    for k in range(len(out)):
        state = key + GOLDEN * np.uint64(first + k + 1)
        state = (state ^ (state >> _S30)) * MIX_A
        state = (state ^ (state >> _S27)) * MIX_B
        out[k] = np.float64((state ^ (state >> _S31)) >> _S11) * 2.0**-53


@compiled
def ascending(values: Float, order: Ints) -> None:
    """Order of values in [0, 1), equal ones as they stand: each into its part of the range, then sorted by insertion.

    Uniforms come one to a part, so that insertion moves hardly any.
    """
    num = len(values)
    ends = np.zeros(num + 1, np.int64)
    for k in range(num):
        ends[min(int(values[k] * num), num - 1) + 1] += 1
    for part in range(num):
        ends[part + 1] += ends[part]
    for k in range(num):
        part = min(int(values[k] * num), num - 1)
        order[ends[part]] = k
        ends[part] += 1
    for place in range(1, num):
        moved = order[place]
        before = place - 1
        while before >= 0 and values[order[before]] > values[moved]:
            order[before + 1] = order[before]
            before -= 1
        order[before + 1] = moved


@compiled
def window_draws(key: np.uint64, first: int, weights: Ints, draws: Ints) -> None:
    """A systematic sample of windows in random order.

    Args:
        key: of the row.
        first: number of the first of the S + 1 uniforms that it takes.
        weights: [W], at least one positive.
        draws: [S], gets the windows.
    """
    num_paths = len(draws)
    numbers, order = np.empty(num_paths + 1), np.empty(num_paths, np.int64)
    uniforms(key, first, numbers)
    ascending(numbers[1:], order)
    total, last = 0, 0
    for w in range(len(weights)):
        total += weights[w]
        last = w if weights[w] > 0 else last
    chosen = np.empty(num_paths, np.int64)
    window, mass = 0, weights[0]
    for s in range(num_paths):
        rung = (s + numbers[0]) / num_paths
        while window < last and mass / total <= rung:
            window += 1
            mass += weights[window]
        chosen[s] = window
    for s in range(num_paths):
        draws[s] = chosen[order[s]]


# Rows of a batch, and their paths written in place.


class BatchRows(NamedTuple):
    """Rows of a batch, contiguous.

    Attributes:
        keys: uint64 [B], fix the draws of each row.
        values: [B, L, N].
        observed: [B, L, N].
        lower, upper: [N], physical bounds.
    """

    keys: NDArray[np.uint64]
    values: Single
    observed: Mask
    lower: Single
    upper: Single


@compiled
def write_paths(windows: Single, draws: Ints, places: Ints, out: Single) -> None:
    """Path places[s] of one row = window draws[s].

    Args:
        windows: [W, H * N], possible futures.
        draws, places: [S].
        out: [paths, H * N].
    """
    for s in range(len(draws)):
        source, target = windows[draws[s]], out[places[s]]
        for k in range(len(target)):
            target[k] = source[k]
