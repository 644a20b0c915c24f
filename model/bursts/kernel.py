"""Loops of surges that come again, compiled: what stands out of a window, and what keeps a period."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Values = NDArray[np.float32]
Seen = NDArray[np.bool_]
Whole = NDArray[np.int64]

_MIN_STEPS: Final = 32  # fewest steps of a window that say what is usual
_SHARE: Final = 0.6  # of the median above which a step stands out, at least,
_SPREADS: Final = 5.0  # by so many times what lies between the median and the sixth part below,
_SIGMAS: Final = 4.0  # of requests that come by chance,
_REQUESTS: Final = 10.0  # and fewer are nothing to speak of
_GOES_ON: Final = 0.5  # of that, once it has begun


@compiled
def usual_level(values: Values, observed: Seen, column: int, step_s: float, going_on: bool) -> float:
    """The median of a window whose newest step stands out above it; NaN where it does not.

    Args:
        values, observed: [L, N], oldest first; the newest is observed.
        column: of requests per second.
        going_on: whether the step before stood out.
    """
    newest, part = np.float64(values[-1, column]), _GOES_ON if going_on else 1.0
    known, below = 0, 0
    for t in range(len(values)):
        if observed[t, column]:
            known += 1
            if (1.0 + part * _SHARE) * np.float64(values[t, column]) < newest:
                below += 1
    if known < _MIN_STEPS or 2 * below <= known:  # the least that is asked, without putting anything in order
        return math.nan
    kept = np.empty(known)
    known = 0
    for t in range(len(values)):
        if observed[t, column]:
            kept[known] = values[t, column]
            known += 1
    kept.sort()
    level = kept[known // 2]
    beyond = max(_SHARE * level, _SPREADS * (level - kept[known // 6]))
    beyond = max(beyond, _SIGMAS * math.sqrt(level / step_s), _REQUESTS / step_s)
    return level if newest - level > part * beyond else math.nan


@compiled
def period_chains(
    starts: Whole,
    periods: Whole,
    tolerances: Whole,
    patience: Whole,
    hits: Whole,
    due: Whole,
    phases: Whole,
    linked: Whole,
) -> None:
    """From every surge back through time, period by period: how often one was due, and how often it came.

    Each is expected where the last that came says.

    Args:
        starts: [E], ascending.
        periods: [P].
        tolerances: [P], how far from where it is expected a surge still counts as that one.
        patience: [P], a chain ends where so many in a row did not come.
        hits, due: [E, P], filled for the chain that ends with each surge; the last one itself is not counted.
        phases: [E, P, E], filled for the surges of a chain: by how much each was later than the last one's period says.
        linked: [E, P, E], 1 where a surge is of the chain.
    """
    for last in range(len(starts)):
        for p in range(len(periods)):
            tolerance = tolerances[p]
            linked[last, p] = 0
            linked[last, p, last], phases[last, p, last] = 1, 0
            expected, missed, place, away = starts[last] - periods[p], 0, last - 1, 1
            hits[last, p], due[last, p] = 0, 0
            while missed < patience[p] and expected >= starts[0] - tolerance:
                while place >= 0 and starts[place] > expected + tolerance:
                    place -= 1
                if place >= 0 and starts[place] >= expected - tolerance:
                    hits[last, p] += 1
                    due[last, p] += 1 + missed
                    missed = 0
                    linked[last, p, place] = 1
                    phases[last, p, place] = starts[place] - (starts[last] - away * periods[p])
                    expected = starts[place] - periods[p]
                else:
                    missed += 1
                    expected -= periods[p]
                away += 1


def warm_up() -> None:
    """Compile or load them."""
    usual_level(np.ones((3, 1), np.float32), np.ones((3, 1), np.bool_), 0, 1.0, going_on=False)
    counts = np.zeros((1, 1), np.int64)
    chains = np.zeros((1, 1, 1), np.int64)
    once = np.ones(1, np.int64)
    period_chains(np.zeros(1, np.int64), once, once, once, counts, counts.copy(), chains, chains.copy())
