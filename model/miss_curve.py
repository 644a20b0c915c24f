"""What share of requests misses at a load: little below capacity, more and more above, all in the end.

A replica that is offered x times its capacity misses the share g(x) = 1 / (1 + (1/a - 1) x^-p) of its requests. `a` is
the share that the objective allows, so that capacity is the load at which just that many miss, and `p`, the steepness,
says how fast misses grow: by a power p of the load at first. At x = (1/a - 1)^(1/p), the *headroom*, half of all miss;
what is offered beyond that is no longer served as fast as it comes, and queues.

On a stretch of steps with demands d the share that misses when rate r can be served within the SLO is the mean of
g(d / r) weighted by d. The rate at which it is just `a` is what the stretch needs; served by another rate its share is
taken to be g(needed / rate), which is exact for a steady demand.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]

LEAST_ALLOWED: Final = 1e-4  # an objective of all requests cannot be told from one of nearly all by what is seen
MOST_ALLOWED: Final = 0.5
_CLOSE: Final = 1e-5
_MOST_TURNS: Final = 24


@compiled
def power(base: float, exponent: int) -> float:
    """`base` to a whole power by squaring: a handful of multiplications."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@compiled
def odds_against(allowed: float) -> float:
    """1/a - 1, of a share of misses allowed."""
    return 1.0 / min(max(allowed, LEAST_ALLOWED), MOST_ALLOWED) - 1.0


@compiled
def headroom(allowed: float, steepness: int) -> float:
    """How many times its capacity a replica can be offered before it falls behind; at least 1."""
    return float(odds_against(allowed) ** (1.0 / steepness))


@compiled
def share_missed(needed: float, served: float, allowed: float, steepness: int) -> float:
    """Share of requests that miss where `needed` would have to be served and `served` is; 0 without demand."""
    if needed <= 0.0:
        return 0.0
    if served <= 0.0:
        return 1.0
    return 1.0 / (1.0 + odds_against(allowed) * power(served / needed, steepness))


@compiled
def rate_for(demand: Float, first: int, end: int, path: int, allowed: float, steepness: int) -> float:
    """The rate at which the share `allowed` of the requests of steps [first, end) of a path misses; 0 without demand.

    Newton's method on the reciprocal of the misses, which is concave in the p-th power of the rate, and from the
    left: every turn comes nearer and none goes too far.

    Args:
        demand: [H, S], requests/s.
    """
    most, total = 0.0, 0.0
    for t in range(first, end):
        here = demand[t, path]
        most = here if here > most else most  # noqa: FURB136
        total += here
    if most <= 0.0:
        return 0.0
    odds = odds_against(allowed)
    aim = total / (odds + 1.0)
    raised = max((most / aim - 1.0) / odds, 1e-300)  # the p-th power of rate / most: the largest step alone needs it
    for _ in range(_MOST_TURNS):
        missed, slope = 0.0, 0.0
        for t in range(first, end):
            here = demand[t, path]
            load = power(here / most, steepness)
            part = load / (load + odds * raised)
            missed += here * part
            slope += here * part / (load + odds * raised)
        turn = missed * (missed / aim - 1.0) / (odds * slope) if slope > 0.0 else 0.0
        raised += turn
        if not turn > _CLOSE * raised:
            break
    return float(most * raised ** (1.0 / steepness))
