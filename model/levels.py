"""The level of a column by simple exponential smoothing, compiled; how fast it forgets is chosen in the context.

A load that is counted jitters: one step says little of its level, and the shorter the steps the less. An average over
the last steps says more, as long as the level stays. Which of the two holds is seen in the context, by how far the
level at the beginning of each window missed the steps of the window.

Source: R. G. Brown, "Statistical forecasting for inventory control", 1959; bias correction as D. P. Kingma, J. Ba,
"Adam", ICLR 2015.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Mask = NDArray[np.bool_]

# The fastest rate that misses by no more than this of what the best one does: windows of one context are few where
# they are long, and a level that lags costs more than one that jitters a little (docs/adr/0019).
WITHIN: Final = 1.3


@compiled
def levels_at(x: Float, known: Mask, rate: float, levels: Float) -> None:
    """Level after each step: the average of what is known, each step weighing 1 - rate of the one after it.

    Args:
        x: [L], with gaps filled: the level before anything is known.
        levels: [L]; of rate 1 the filled values themselves.
    """
    total, weight = 0.0, 0.0
    for t in range(len(x)):
        if known[t]:
            total = (1.0 - rate) * total + rate * x[t]
            weight = (1.0 - rate) * weight + rate
        levels[t] = total / weight if weight > 0 else x[t]


@compiled
def choose_levels(x: Float, known: Mask, valid: Mask, block: int, rates: Float, levels: Float) -> None:
    """Levels of the fastest rate that missed the windows about as little as the best one.

    Args:
        x, known: [L].
        valid: [W], windows of `block` steps; window w begins after step w.
        rates: from the fastest to the slowest.
        levels: [L], gets the levels.
    """
    missed = np.zeros(len(rates))
    if len(rates) > 1:
        for k in range(len(rates)):
            levels_at(x, known, rates[k], levels)
            for w in range(len(valid)):
                if valid[w]:
                    missed[k] += _missed(x, levels[w], w + 1, block)
    least = missed.min()
    for k in range(len(rates)):
        if missed[k] <= WITHIN * least:
            levels_at(x, known, rates[k], levels)
            return


@compiled
def _missed(x: Float, level: float, first: int, block: int) -> float:
    """Squared distance of a level from the first, the last and two steps between them."""
    missed = 0.0
    for quarter in (0, block // 4, block // 2, block - 1):
        error = x[first + quarter] - level
        missed += error * error
    return missed
