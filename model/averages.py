"""Exponential averages of paths, compiled."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Single = NDArray[np.float32]
Seen = NDArray[np.bool_]


@compiled
def exponential_averages(paths: Single, keep: Single, start: Single, out: Single) -> None:
    """Average every path from a row's start on: a step leaves the share `keep` of the distance to its value.

    Args:
        paths: [B, H, S]; all paths take a step together, which processors do several at a time.
        keep, start: [B].
        out: [B, H, S].
    """
    rows, steps, paths_per_row = paths.shape
    average = np.empty(paths_per_row, np.float32)
    for b in range(rows):
        average[:] = start[b]
        for h in range(steps):
            for s in range(paths_per_row):
                here = paths[b, h, s]
                average[s] = here + (average[s] - here) * keep[b]
            out[b, h] = average


@compiled
def average_of_known(values: Single, observed: Seen, column: int, rate: float) -> tuple[bool, float]:
    """The average of one column, whose rows weigh less the older they are.

    Args:
        values, observed: [L, N], oldest first.
        rate: of the weights' exponential decay, per row; from the newest row observed, so that not all of them vanish.

    Returns:
        Whether any row was observed, and the average of those.
    """
    newest, total, weights = -1, 0.0, 0.0
    for row in range(len(values) - 1, -1, -1):
        if observed[row, column]:
            newest = row if newest < 0 else newest
            weight = math.exp(-rate * (newest - row))
            total += weight * np.float64(values[row, column])
            weights += weight
    return newest >= 0, total / weights if newest >= 0 else 0.0
