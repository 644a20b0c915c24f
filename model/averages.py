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
        paths: [B, S, H], in any layout.
        keep, start: [B].
        out: [B, S, H].
    """
    rows, paths_per_row, steps = paths.shape
    for b in range(rows):
        for s in range(paths_per_row):
            average = start[b]
            for h in range(steps):
                here = paths[b, s, h]
                average = here + (average - here) * keep[b]
                out[b, s, h] = average
