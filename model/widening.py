"""Paths moved away from the median of their step, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Single = NDArray[np.float32]


@compiled
def widen(values: Single, middle: Single, factors: Single, reach: Single, lower: np.float32, upper: np.float32) -> None:
    """Multiply distances from the middle by each row's factor, in place, within the bounds and no further than `reach`.

    Rows with factor 1 keep their bits, and so does a value that lies beyond the reach as it is.

    Args:
        values: [B, H, S].
        middle: [B, H].
        factors: [B].
        reach: [B], the largest distance from the middle that widening may bring about.
    """
    for b in range(values.shape[0]):
        factor = factors[b]
        if factor == np.float32(1.0):
            continue
        for h in range(values.shape[1]):
            line, at = values[b, h], middle[b, h]
            for s in range(len(line)):
                apart = line[s] - at
                most = max(abs(apart), reach[b])
                value = min(max(apart * factor, -most), most) + at
                value = lower if value < lower else value  # noqa: FURB136
                line[s] = upper if value > upper else value  # noqa: FURB136


def warm_up() -> None:
    """Compile or load it."""
    values, row = np.ones((1, 2, 3), np.float32), np.ones(1, np.float32)
    widen(values, np.ones((1, 2), np.float32), row, row, np.float32(0.0), np.float32(1.0))
