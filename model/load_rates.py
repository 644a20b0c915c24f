"""The rates that loads need: at which just the share allowed of a stretch's requests misses (`miss_curve`).

With D the p-th powers of the demands d and y = (1/a - 1) r^p, a stretch misses the requests sum d D / (D + y), which
are to be a times sum d. The sum is that of 1 / (D + y) over masses d D, and two-point Gauss quadrature of those masses,
by their first moments, turns the equation into one of the second degree in y. Moments are sums over steps: the
stretches of all lead times share them, so that a lead time costs a square root per path and not a search.

Quadrature says too little, for all even derivatives of 1 / (D + y) are positive: its rate is never too high. How much
too low it is at most follows from the share allowed and the number of steps alone; where that is too much, Newton's
method goes on from there.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.miss_curve import odds_against
from model.numerics import raise_all, roots_of
from model.queue_paths import larger

Float = NDArray[np.float64]

_SUMS: Final = 5  # of d D^k, k from 0
_PRECISE: Final = 1e-5  # of a rate
_CLOSE: Final = 1e-4  # turns of Newton's method: what is left after one of these is about its square
_MOST_TURNS: Final = 24
_TINY: Final = 1e-300


class Loads(NamedTuple):
    """The demand of one workload, prepared for `load_rates`.

    Attributes:
        demand: [T, S], requests/s of each step on each path.
        powered: [T, S], demand in parts of the path's largest, to the power of the steepness.
        largest: [S], requests/s.
        allowed: share of misses.
        steepness: power of the curve.
    """

    demand: Float
    powered: Float
    largest: Float
    allowed: float
    steepness: int


@compiled
def loads_of(demand: Float, steps: int, allowed: float, steepness: int) -> Loads:
    """The first so many steps of a demand [H, S]."""
    paths = demand.shape[1]
    powered, largest = np.empty((steps, paths)), np.zeros(paths)
    for t in range(steps):
        for s in range(paths):
            largest[s] = larger(demand[t, s], largest[s])
    part, scale = np.empty(paths), np.empty(paths)
    for s in range(paths):
        scale[s] = 1.0 / largest[s] if largest[s] > 0.0 else 0.0
    for t in range(steps):
        for s in range(paths):
            part[s] = demand[t, s] * scale[s]
        raise_all(part, steepness, powered[t])
    return Loads(demand[:steps], powered, largest, 1.0 / (odds_against(allowed) + 1.0), steepness)


@compiled
def load_rates(loads: Loads, window: int, asked: NDArray[np.bool_], since_now: bool) -> tuple[Float, Float]:
    """Rates [leads, S] at which the share allowed misses, by lead time: of its window alone, and also from now on.

    Args:
        window: steps; the window of the last lead time ends with the loads.
        asked: [leads], the lead times that are asked for; nothing is said of the others.
        since_now: whether the second is asked for; else it is the first.
    """
    leads, paths = len(asked), loads.demand.shape[1]
    inside, until = _sums(loads, window)
    raised = np.empty(paths)
    rates, rates_now = np.empty((leads, paths)), np.empty((leads, paths))
    for lead in range(leads):
        if not asked[lead]:
            continue
        _solve(inside[lead], loads.allowed, raised)
        if _gap(loads, window) > _PRECISE:
            _turn(loads, lead, lead + window, raised)
        _rates_of(loads, raised, rates[lead])
        if since_now and lead > 0:
            _solve(until[lead], loads.allowed, raised)
            if _gap(loads, lead + window) > _PRECISE:
                _turn(loads, 0, lead + window, raised)
            _rates_of(loads, raised, rates_now[lead])
            for s in range(paths):
                rates_now[lead, s] = larger(rates_now[lead, s], rates[lead, s])
        else:
            rates_now[lead] = rates[lead]
    return rates, rates_now


@compiled
def _sums(loads: Loads, window: int) -> tuple[Float, Float]:
    """Sums of d D^k [leads, K, S] over the window of each lead time, and from now to its end.

    A window is the end of one block of as many steps and the beginning of the next: nothing is taken away again from a
    sum, so that small ones beside large ones keep their digits.
    """
    steps, paths = loads.demand.shape
    leads = steps - window + 1
    masses, total = np.empty((steps, paths)), np.empty(paths)
    inside, until = np.empty((leads, _SUMS, paths)), np.empty((leads, _SUMS, paths))
    for k in range(_SUMS):
        total[:] = 0.0
        for t in range(steps):
            for s in range(paths):
                masses[t, s] = masses[t, s] * loads.powered[t, s] if k > 0 else loads.demand[t, s]
            _add(masses[t], total)
            if t >= window - 1:
                _copy(total, until[t - window + 1, k])
        for block in range(0, leads, window):
            total[:] = 0.0
            for t in range(block + window - 1, block - 1, -1):
                _add(masses[t], total)
                if t < leads:
                    _copy(total, inside[t, k])
            total[:] = 0.0
            for t in range(block + window, min(block + 2 * window - 1, steps)):
                _add(masses[t], total)
                _add(total, inside[t - window + 1, k])
    return inside, until


@compiled
def _add(more: Float, total: Float) -> None:
    for s in range(len(total)):
        total[s] += more[s]


@compiled
def _copy(source: Float, target: Float) -> None:
    for s in range(len(target)):
        target[s] = source[s]


@compiled
def _solve(sums: Float, allowed: float, raised: Float) -> None:
    """Rates to the power of the steepness [S], in parts of the path's largest demand, by quadrature.

    The masses d D have a mean, a variance and, as if they were two, a second node `far`. From a single mass at the mean
    follows y = alone; the spread adds to it.
    """
    odds = 1.0 / allowed - 1.0
    for s in range(len(raised)):
        share = 1.0 / larger(sums[1, s], _TINY)
        mean, square, cube = sums[2, s] * share, sums[3, s] * share, sums[4, s] * share
        variance = larger(square - mean * mean, 0.0)
        skew = cube - mean * (3.0 * square - 2.0 * mean * mean)
        far = larger(mean + skew / larger(variance, _TINY), 0.0)
        alone = sums[1, s] / larger(allowed * sums[0, s], _TINY) - mean
        reach = alone + far
        root = math.sqrt(reach * reach + 4.0 * variance)
        more = 2.0 * variance / (root + reach) if reach > 0.0 else 0.5 * (root - reach)
        raised[s] = larger((alone + more) / odds, _TINY)


@compiled
def _gap(loads: Loads, steps: int) -> float:
    """By which part of itself a rate found by quadrature is too low at most.

    The largest demand is no less than the mean, so that of its step no more than `allowed * steps` misses: D / y is at
    most x. The polynomial of third degree next to 1 / (D + y) is then as near as Chebyshev says.
    """
    part = loads.allowed * steps
    if part >= 1.0:
        return 1.0
    x = part / (1.0 - part)
    root = math.sqrt(1.0 + x)
    return float(x * ((root - 1.0) / (root + 1.0)) ** 3 * (1.0 + x) / loads.steepness)


@compiled
def _turn(loads: Loads, first: int, end: int, raised: Float) -> None:
    """Bring rates, to the power of the steepness, to where the steps [first, end) miss what is allowed.

    Newton's method on the reciprocal of the misses, which is concave in that power: from below every turn comes nearer
    and none goes too far, and one from above, where rounding may have brought quadrature, ends below. All paths turn
    together, which processors do several at a time.
    """
    odds, paths = 1.0 / loads.allowed - 1.0, len(raised)
    most, load, total = np.zeros(paths), np.zeros(paths), np.zeros(paths)
    for t in range(first, end):
        for s in range(paths):
            here = loads.demand[t, s]
            load[s] = loads.powered[t, s] if here > most[s] else load[s]
            most[s] = larger(here, most[s])
            total[s] += here
    aim, alone, missed, slope = np.empty(paths), np.empty(paths), np.empty(paths), np.empty(paths)
    for s in range(paths):
        aim[s] = larger(total[s] * loads.allowed, _TINY)
        alone[s] = larger((most[s] / aim[s] - 1.0) / odds * load[s], _TINY)  # what the largest step needs
        raised[s] = larger(alone[s], raised[s])
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
            before = raised[s]
            turn = missed[s] * (missed[s] / aim[s] - 1.0) / larger(odds * slope[s], _TINY)
            raised[s] = larger(before + turn, alone[s])
            furthest = larger(abs(raised[s] - before) / raised[s], furthest)
        if furthest < _CLOSE:
            break


@compiled
def _rates_of(loads: Loads, raised: Float, rates: Float) -> None:
    """Requests/s."""
    for s in range(len(raised)):
        raised[s] = raised[s] if raised[s] < 1.0 else 1.0  # noqa: FURB136
    roots_of(raised, loads.steepness, rates)
    for s in range(len(raised)):
        rates[s] *= loads.largest[s]
