"""Paths moved away from the median of their step, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Single = NDArray[np.float32]


@compiled
def widen(values: Single, middle: Single, factors: Single, lower: np.float32, upper: np.float32) -> None:
    """Multiply distances from the middle by each row's factor, in place and within the bounds.

    Rows with factor 1 keep their bits.

    Args:
        values: [B, H, S].
        middle: [B, H].
        factors: [B].
    """
    for b in range(values.shape[0]):
        factor = factors[b]
        if factor == np.float32(1.0):
            continue
        for h in range(values.shape[1]):
            line, at = values[b, h], middle[b, h]
            for s in range(len(line)):
                value = (line[s] - at) * factor + at
                value = lower if value < lower else value  # noqa: FURB136
                line[s] = upper if value > upper else value  # noqa: FURB136
