"""Which window each path of one row takes, compiled: the draws of `model.draws`, bit for bit."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Whole = NDArray[np.int64]
Float = NDArray[np.float64]

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
def ascending(values: Float, order: Whole) -> None:
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
def window_draws(key: np.uint64, first: int, weights: Whole, draws: Whole) -> None:
    """A systematic sample of windows in random order.

    Args:
        key: of the row.
        first: number of the first of the S + 1 uniforms that it takes.
        weights: [W], at least one positive.
        draws: [S], gets the windows.
    """
    num_paths = len(draws)
    drawn, order = np.empty(num_paths + 1), np.empty(num_paths, np.int64)
    uniforms(key, first, drawn)
    ascending(drawn[1:], order)
    total, last = 0, 0
    for w in range(len(weights)):
        total += weights[w]
        last = w if weights[w] > 0 else last
    chosen = np.empty(num_paths, np.int64)
    window, mass = 0, weights[0]
    for s in range(num_paths):
        rung = (s + drawn[0]) / num_paths
        while window < last and mass / total <= rung:
            window += 1
            mass += weights[window]
        chosen[s] = window
    for s in range(num_paths):
        draws[s] = chosen[order[s]]
