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

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.powers import raise_all, roots_of
from model.queue_paths import larger

Float = NDArray[np.float64]

LEAST_ALLOWED: Final = 1e-4  # an objective of all requests cannot be told from one of nearly all by what is seen
MOST_ALLOWED: Final = 0.5
_CLOSE: Final = 1e-3  # turns of Newton's method: what is left after one of these is about its square
_MOST_TURNS: Final = 24
_TINY: Final = 1e-300


@compiled
def odds_against(allowed: float) -> float:
    """1/a - 1, of a share of misses allowed."""
    return 1.0 / min(max(allowed, LEAST_ALLOWED), MOST_ALLOWED) - 1.0


@compiled
def headroom(allowed: float, steepness: int) -> float:
    """How many times its capacity a replica can be offered before it falls behind; at least 1."""
    return float(odds_against(allowed) ** (1.0 / steepness))


@compiled
def share_missed(needed: float, served: float, odds: float) -> float:
    """Share of requests that miss where `needed` would have to be served and `served` is; 0 without demand.

    Args:
        needed, served: requests/s, or replicas, to the power of the steepness.
        odds: `odds_against` of the share of misses allowed.
    """
    return needed / (needed + odds * served) if needed > 0.0 else 0.0


class Loads(NamedTuple):
    """The demand of one workload, prepared for `rates_for`.

    Attributes:
        demand: [T, S], requests/s of each step on each path.
        powered: [T, S], demand in parts of the path's largest, to the power of the steepness.
        largest: [S], requests/s.
        odds: `odds_against` of the share of misses allowed.
        steepness: power of the curve.
    """

    demand: Float
    powered: Float
    largest: Float
    odds: float
    steepness: int


@compiled
def loads_of(demand: Float, steps: int, allowed: float, steepness: int) -> Loads:
    """The first so many steps of a demand [H, S]."""
    paths = demand.shape[1]
    powered, largest = np.empty((steps, paths)), np.zeros(paths)
    for t in range(steps):
        for s in range(paths):
            largest[s] = larger(demand[t, s], largest[s])
    part = np.empty(paths)
    for t in range(steps):
        for s in range(paths):
            part[s] = demand[t, s] / largest[s] if largest[s] > 0.0 else 0.0
        raise_all(part, steepness, powered[t])
    return Loads(demand[:steps], powered, largest, odds_against(allowed), steepness)


@compiled
def rates_for(loads: Loads, first: int, end: int, least: Float) -> Float:
    """Rates [S] at which the share allowed of the requests of steps [first, end) misses, but no less than `least` [S].

    Newton's method on the reciprocal of the misses, which is concave in the p-th power of the rate, and from the
    left: every turn comes nearer and none goes too far. All paths turn together, which processors do several at a time.
    """
    odds, paths = loads.odds, len(least)
    most, load, total = np.zeros(paths), np.zeros(paths), np.zeros(paths)
    for t in range(first, end):
        for s in range(paths):
            here = loads.demand[t, s]
            load[s] = loads.powered[t, s] if here > most[s] else load[s]
            most[s] = larger(here, most[s])
            total[s] += here
    raised, aim, ratio = np.empty(paths), np.empty(paths), np.empty(paths)  # powers of the rate, as `powered` has them
    for s in range(paths):
        ratio[s] = least[s] / larger(loads.largest[s], _TINY)
    raise_all(ratio, loads.steepness, raised)
    for s in range(paths):
        aim[s] = total[s] / (odds + 1.0)
        alone = (most[s] / larger(aim[s], _TINY) - 1.0) / odds * load[s]  # what the largest step needs
        raised[s] = larger(larger(alone, raised[s]), _TINY)
    missed, slope = np.empty(paths), np.empty(paths)
    for _ in range(_MOST_TURNS):
        missed[:] = 0.0
        slope[:] = 0.0
        for t in range(first, end):
            for s in range(paths):
                inverse = 1.0 / (loads.powered[t, s] + odds * raised[s])
                part = loads.demand[t, s] * loads.powered[t, s] * inverse
                missed[s] += part
                slope[s] += part * inverse
        furthest = 0.0
        for s in range(paths):
            turn = missed[s] * (missed[s] / larger(aim[s], _TINY) - 1.0) / larger(odds * slope[s], _TINY)
            turn = larger(turn, 0.0)
            raised[s] += turn
            furthest = larger(turn / raised[s], furthest)
        if furthest < _CLOSE:
            break
    for s in range(paths):  # beside what the largest step would need alone: at most 1, and seldom far from it
        beside = raised[s] / larger(load[s], _TINY)
        ratio[s] = beside if beside < 1.0 else 1.0  # noqa: FURB136
    rates = np.empty(paths)
    roots_of(ratio, loads.steepness, rates)
    for s in range(paths):
        rates[s] = larger(most[s] * rates[s], least[s])
    return rates
