"""Requests are counted: at an expected share of misses a window with few requests misses more or less of it by chance.

Of N requests of which a share g is expected to miss, the count that does is taken to be Poisson in clumps of c: what
meets an engine at the same moment misses together. More than a share a of them miss with the probability that a Gamma
of shape a N / c + 1/2 lies below g N / c; the half stands for the next whole clump. So a future that is dealt the
level u of this Gamma is missed just where g exceeds c gamma(u) / N, its *tolerance*, and a rate that keeps the share
at the allowed one keeps it at the tolerance when it is multiplied by

    ((1 / tolerance - 1) / (1 / allowed - 1)) ^ (1 / p),

p being the steepness of `miss_curve`. With many requests that is 1 at every level.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.miss_curve import MOST_ALLOWED, odds_against

Float = NDArray[np.float64]

LEVELS: Final = 256  # evenly spread: a chance of one in a few hundred decides where little may be risked
CLUMP: Final = 2.0  # requests that miss together
_APART, _TURN = 101, 67  # levels by which neighbouring paths, and the draws of a path, differ
_LEAST: Final = 1e-9  # of a tolerance
_LEAST_LOG_SHAPE, _MOST_LOG_SHAPE, _SHAPES_PER_LOG = -1.0, 9.0, 8  # a shape is at least a half


def _log_quantiles() -> Float:
    """Logarithms of a Gamma's quantiles in parts of its mean, [shape, level], shapes spread evenly in their logarithm.

    The density of the logarithm is proportional to exp(shape t - exp(t)), smooth and without a pole.
    """
    levels = (np.arange(LEVELS) + 0.5) / LEVELS
    num_shapes = round((_MOST_LOG_SHAPE - _LEAST_LOG_SHAPE) * _SHAPES_PER_LOG) + 1
    rows = []
    for shape in np.exp(np.linspace(_LEAST_LOG_SHAPE, _MOST_LOG_SHAPE, num_shapes)):
        t = math.log(shape) + np.linspace(-30.0 / min(shape, 1.0), 6.0, 8192) / math.sqrt(max(shape, 1.0))
        log_density = shape * t - np.exp(t)
        density = np.exp(log_density - log_density.max())
        below = np.concatenate(([0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))))
        rows.append(np.interp(levels, below / below[-1], t) - math.log(shape))
    return np.array(rows)


_LOG_QUANTILES: Final = _log_quantiles()


@compiled
def lucks(requests: float, allowed: float, steepness: int) -> Float:
    """By what a load's need is multiplied at each level [LEVELS], most first.

    Args:
        requests: expected in the window.
        allowed: share of them that may miss.
    """
    found = np.ones(LEVELS)
    shape = allowed * requests / CLUMP + 0.5
    place = (math.log(shape) - _LEAST_LOG_SHAPE) * _SHAPES_PER_LOG
    if requests <= 0.0 or place > len(_LOG_QUANTILES) - 2:
        return found
    low = int(place)
    share = place - low
    mean, odds = shape * CLUMP / requests, odds_against(allowed)
    for k in range(LEVELS):
        log_part = _LOG_QUANTILES[low, k] * (1.0 - share) + _LOG_QUANTILES[low + 1, k] * share
        tolerance = min(max(mean * math.exp(log_part), _LEAST), MOST_ALLOWED)
        found[k] = ((1.0 / tolerance - 1.0) / odds) ** (1.0 / steepness)
    return found


@compiled
def level_of(future: int, repeat: int) -> int:
    """The level that a future, its path's draw of this number, is dealt: far from its neighbours', for paths may be in
    an order, and from those of its path's other draws."""
    return (future * _APART + repeat * _TURN) % LEVELS
