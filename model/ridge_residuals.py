"""What becomes of the residual windows of one column, compiled: their drift doubted, their spread widened.

The same as `model.baselines.ridge.drift_doubted` and `model.ridge_spread` say for batches of tensors. Comparisons are
written out in the loops: one machine instruction, where `max` asks for signs and numbers that are none.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Single = NDArray[np.float32]

FREEDOM: Final = 1.0  # degrees of freedom per independent window
LEAST_FREEDOM: Final = 2.0
WIDEST: Final = 4.0
NARROWEST: Final = 0.5
LEAST_CHI2: Final = 0.05
_TINY: Final = 2.2250738585072014e-308


class WindowTables(NamedTuple):
    """What windows share whatever stands in them.

    Attributes:
        back: [W], parts of the drift that a window is taken back by.
        scores: [W], normal quantiles, evenly spread, neighbours far apart.
    """

    back: Single
    scores: Float


@compiled
def doubt_drift(residuals: Single, drift: Float, back: Single) -> None:
    """Take the windows [H, W] that went the drift's way back by parts of it, no further than to where they began."""
    none = np.float32(0.0)
    for h in range(residuals.shape[0]):
        mean, line = np.float32(drift[h]), residuals[h]
        if mean > none:
            for w in range(len(line)):
                gone, part = line[w] if line[w] > none else none, mean * back[w]  # noqa: FURB136
                line[w] -= gone if gone < part else part  # noqa: FURB136
        else:
            for w in range(len(line)):
                gone, part = line[w] if line[w] < none else none, mean * back[w]  # noqa: FURB136
                line[w] -= gone if gone > part else part  # noqa: FURB136


@compiled
def independent_windows(last: Single, seen: Single, horizon: int, sums: Float) -> float:
    """How many independent values the residuals of overlapping windows are worth.

    Args:
        last: [W], residuals of the last step.
        seen: [W], 1 for the windows fitted on.
        sums: [W + 1], scratch.
    """
    num = len(last)
    span = min(horizon, num)
    sums[0], squares, count = 0.0, 0.0, 0.0
    for w in range(num):
        value = np.float64(last[w] * seen[w])
        sums[w + 1] = sums[w] + value
        squares += value * value
        count += seen[w]
    moving = 0.0
    for w in range(num - span + 1):
        mean = (sums[w + span] - sums[w]) / span
        moving += mean * mean
    share = moving / (num - span + 1) / max(squares / num, _TINY)
    return count / min(max(share * span, 1.0), float(span))


@compiled
def widen(freedom: float, scores: Float, factors: Single) -> None:
    """Factors sqrt(nu / chi^2_nu) at evenly spread probabilities."""
    tail = 2.0 / (9.0 * max(FREEDOM * freedom, LEAST_FREEDOM))
    spread = math.sqrt(tail)
    for w in range(len(factors)):
        root = 1.0 - tail + scores[w] * spread
        chi2 = root if root > LEAST_CHI2 else LEAST_CHI2  # noqa: FURB136
        factor = 1.0 / math.sqrt(chi2 * chi2 * chi2)
        factor = factor if factor > NARROWEST else NARROWEST  # noqa: FURB136
        factors[w] = factor if factor < WIDEST else WIDEST  # noqa: FURB136


@compiled
def leave_out_neighbours(free: Single, seen: Single, freedom: float, most_repeated: float, factors: Single) -> None:
    """Raise the factors: windows that overlap share their targets, so that one left out leaves them with the others."""
    count = 0.0
    for w in range(len(seen)):
        count += seen[w]
    repeats = count / max(freedom, 1.0)
    for w in range(len(factors)):
        repeated = (1.0 - free[w]) * repeats
        factors[w] /= 1.0 - (repeated if repeated < most_repeated else most_repeated)  # noqa: FURB136
