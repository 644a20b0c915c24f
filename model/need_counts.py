"""What the needs of futures say of replica counts: how many need more, and the fewest that suffice."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Counts = NDArray[np.int32]


@compiled
def over(needs: Counts, count: int) -> int:
    """How many futures need more than `count` replicas."""
    enough, total = np.int32(count), np.int32(0)
    for need in needs:
        total = np.int32(total + (need > enough))
    return int(total)


@compiled
def fewest(needs: Counts, low: int, high: int, epsilon: float) -> int:
    """The fewest of low..high + 1 replicas that at most a share epsilon of the futures needs more than."""
    while low <= high:
        middle = (low + high) // 2
        if over(needs, middle) / len(needs) > epsilon:
            low = middle + 1
        else:
            high = middle - 1
    return low


@compiled
def risk_of(needs: Counts, paths: int, count: int) -> tuple[float, float, float]:
    """P(need > count), its standard error over paths, and the part of that which more draws per path would remove.

    Futures on one demand path are not independent. Where no spread is seen the error is that of a single miss.
    """
    draws = len(needs)
    repeats = draws // paths
    hits = np.zeros(paths, np.int32)
    enough = np.int32(count)
    for first in range(0, draws, paths):
        these = needs[first : first + paths]
        for s in range(paths):
            hits[s] += these[s] > enough
    total, squares = 0, 0
    for hit in hits:
        total += int(hit)
        squares += int(hit) * int(hit)
    single = (1.0 - 1.0 / draws) / draws**2
    spread = (squares / paths - (total / paths) ** 2) / repeats**2
    stderr = math.sqrt(max(spread / paths, single))
    drawn = math.sqrt((total * repeats - squares) / (draws * draws * max(repeats - 1, 1)))
    return total / draws, stderr, drawn if repeats > 1 else stderr
