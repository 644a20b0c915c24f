"""Compiled loops of surges and outliers: usual levels, periods of recurring surges, and the outlier filter."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Values = NDArray[np.float32]
Seen = NDArray[np.bool_]
Whole = NDArray[np.int64]

# Fewest observed steps of a window that has a usual level.
_MIN_STEPS: Final = 32
# Smallest excess of a surge over the median, relative to the median.
_MIN_EXCESS_RATIO: Final = 0.6
# Smallest excess, in distances of the median from the sixth part below.
_MIN_EXCESS_SPREADS: Final = 5.0
# Smallest excess, in standard deviations of a Poisson count.
_MIN_EXCESS_SIGMAS: Final = 4.0
# Smallest excess of a step, in requests.
_MIN_EXCESS_REQUESTS: Final = 10.0
# Factor on these thresholds once a surge has begun.
_CONTINUATION_RATIO: Final = 0.5


@compiled
def usual_level(values: Values, observed: Seen, column: int, step_s: float, going_on: bool) -> float:
    """The median of a window whose newest step stands out above it; NaN where it does not.

    Args:
        values, observed: [L, N], oldest first; the newest is observed.
        column: of requests per second.
        going_on: whether the step before stood out.
    """
    newest, part = np.float64(values[-1, column]), _CONTINUATION_RATIO if going_on else 1.0
    count, below = 0, 0
    for t in range(len(values)):
        if observed[t, column]:
            count += 1
            if (1.0 + part * _MIN_EXCESS_RATIO) * np.float64(values[t, column]) < newest:
                below += 1
    if count < _MIN_STEPS or 2 * below <= count:  # the least that is asked, without putting anything in order
        return math.nan
    levels = np.empty(count)
    count = 0
    for t in range(len(values)):
        if observed[t, column]:
            levels[count] = values[t, column]
            count += 1
    levels.sort()
    level = levels[count // 2]
    beyond = max(_MIN_EXCESS_RATIO * level, _MIN_EXCESS_SPREADS * (level - levels[count // 6]))
    beyond = max(beyond, _MIN_EXCESS_SIGMAS * math.sqrt(level / step_s), _MIN_EXCESS_REQUESTS / step_s)
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


# Single steps that tell of a load which no engine felt; compiled.
#
# What arrives is in service or waits until it is finished, so that many times the load is many times the requests in
# the system (J. Little, "A proof for the queuing formula L = lambda W", Operations Research 9, 1961). A counter that
# jumps once, by mistake, moves nothing of that. Neither do requests that came and went between two looks, and were
# served.


# Smallest load of an outlier, relative to the steps around it.
_MIN_OUTLIER_RATIO: Final = 8.0
# Fewest requests of an outlier.
_MIN_OUTLIER_REQUESTS: Final = 50.0
# Steps on either side that an outlier is compared with.
_NEIGHBOUR_STEPS: Final = 2
# Largest factor on the requests in the system of the steps around an outlier, which may hold as many more.
_MAX_QUEUE_FACTOR: Final = 2.0


@compiled
def outlier_steps(values: Values, observed: Seen, columns: NDArray[np.int64], step_s: float, outliers: Seen) -> int:
    """Find outliers: single steps with many times the load of their neighbours and no effect on the engines.

    Returns their number.

    Args:
        values, observed: [L, N], oldest first.
        columns: [4] of arrivals per second, requests in service, requests waiting, and the share that missed; -1 where
            there is none. Without the first two there are no outliers.
        outliers: [L], filled.
    """
    outliers[:] = False
    arrivals, running, waiting, missed = columns
    if arrivals < 0 or running < 0:
        return 0
    length, number = len(values), 0
    for t in range(length):
        rate = np.float64(values[t, arrivals])
        if not observed[t, arrivals] or rate * step_s < _MIN_OUTLIER_REQUESTS or not observed[t, running]:
            continue
        count, load, system = 0, 0.0, 0.0
        for u in range(max(t - _NEIGHBOUR_STEPS, 0), min(t + _NEIGHBOUR_STEPS + 1, length)):
            if u != t and observed[u, arrivals] and observed[u, running]:
                count += 1
                load = max(load, np.float64(values[u, arrivals]))
                system = max(system, _in_system(values, observed, u, running, waiting))
        if count < _NEIGHBOUR_STEPS or rate <= _MIN_OUTLIER_RATIO * load:
            continue
        if _in_system(values, observed, t, running, waiting) > _MAX_QUEUE_FACTOR * system + _MAX_QUEUE_FACTOR:
            continue
        if missed >= 0 and observed[t, missed] and values[t, missed] > 0.0:
            continue
        outliers[t] = True
        number += 1
    return number


@compiled
def _in_system(values: Values, observed: Seen, t: int, running: int, waiting: int) -> float:
    queued = np.float64(values[t, waiting]) if waiting >= 0 and observed[t, waiting] else 0.0
    return np.float64(values[t, running]) + queued


def warm_up_outliers() -> None:
    """Compile or load `outlier_steps`."""
    outlier_steps(np.ones((3, 4), np.float32), np.ones((3, 4), np.bool_), np.arange(4), 1.0, np.empty(3, np.bool_))
