"""Paths moved away from the median of their step, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Single = NDArray[np.float32]


@compiled
def widen(values: Single, middle: Single, factors: Single, lower: Single, upper: Single) -> None:
    """Multiply distances from the middle by each row's factor, in place and within the bounds.

    Rows with factor 1 keep their bits.

    Args:
        values: [B, H, C, S].
        middle: [B, H, C].
        factors: [B].
        lower, upper: [C].
    """
    for b in range(values.shape[0]):
        factor = factors[b]
        if factor == np.float32(1.0):
            continue
        for h in range(values.shape[1]):
            for c in range(values.shape[2]):
                line, at, low, high = values[b, h, c], middle[b, h, c], lower[c], upper[c]
                for s in range(len(line)):
                    value = (line[s] - at) * factor + at
                    value = low if value < low else value  # noqa: FURB136
                    line[s] = high if value > high else value  # noqa: FURB136
