"""Exponential averages of paths, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Single = NDArray[np.float32]


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
