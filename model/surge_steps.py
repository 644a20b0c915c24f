"""Where the newest steps of a context lie beyond everything before them, compiled."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

MOST_STEPS: Final = 8  # older than that, a surge is a level that the context knows
_LEVEL_STEPS: Final = 8  # whose mean is the level that a step is held against
_MIN_STEPS: Final = 32  # fewest deviations that say what is usual
_BEYOND: Final = 1.5  # of the largest deviation before


@compiled
def surge_steps(values: Single, observed: Mask, steps: Whole, rises: Float) -> None:
    """Find the surges of rows and columns.

    A surge begins with the first of the newest steps that deviates from the mean of the eight known steps before it by
    more than 1.5 times the largest such deviation in the older context, and lasts while the newest value does.

    Args:
        values, observed: [B, L, N].
        steps: [B, N], gets how many known steps the surge has lasted, 0 = none.
        rises: [B, N, 8], gets in place j - 1 what the last j steps rose by, signed; 0 where they went back.
    """
    rows, length, columns = values.shape
    x, deviation = np.empty(length), np.empty(length)
    for b in range(rows):
        for n in range(columns):
            count = 0
            for t in range(length):
                if observed[b, t, n] and np.isfinite(values[b, t, n]):
                    x[count] = values[b, t, n]
                    count += 1
            lasted = _lasted(x[:count], deviation)
            steps[b, n] = lasted
            if lasted == 0:
                continue
            now, first = x[count - 1], count - lasted
            level = x[first] - deviation[first]
            for j in range(lasted):
                rise = now - (x[count - 2 - j] if j + 1 < lasted else level)
                rises[b, n, j] = rise if rise * (now - level) > 0 else 0.0


@compiled
def _lasted(x: Float, deviation: Float) -> int:
    """Steps since the surge began; `deviation` is filled from the ninth on."""
    count = len(x)
    old = count - MOST_STEPS
    if old - _LEVEL_STEPS < _MIN_STEPS:
        return 0
    usual = 0.0
    for k in range(_LEVEL_STEPS, count):
        total = 0.0
        for before in range(k - _LEVEL_STEPS, k):
            total += x[before]
        deviation[k] = x[k] - total / _LEVEL_STEPS
        if k < old:
            usual = max(usual, abs(deviation[k]))
    for k in range(old, count):
        if abs(deviation[k]) > _BEYOND * usual:
            now = x[count - 1] - (x[k] - deviation[k])
            if now * deviation[k] > 0 and abs(now) > _BEYOND * usual:
                return count - k
            return 0
    return 0
