"""The share of requests that is expected to miss, count by count, over the futures of one workload.

Loads are raised to the power of the curve of misses once, so that a count costs one division per future.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.miss_curve import odds_against, share_missed
from model.numerics import power, raise_all
from model.planning.queue_kernel import Needs
from model.queue_paths import larger

Float = NDArray[np.float64]

_BEHIND: Final = 0.5  # share of requests that is counted at least where replicas fall behind


class ExpectedMisses(NamedTuple):
    """What V futures need.

    Attributes:
        load, load_now: [V], what the load needs, in parts of the largest of these, to the power of the steepness.
        queue: int32 [V], replicas with which the queue alone keeps the future.
        largest: in replicas.
        odds: `odds_against` of the share of misses allowed.
        steepness: power of the curve of misses.
    """

    load: Float
    load_now: Float
    queue: NDArray[np.int32]
    largest: float
    odds: float
    steepness: int


@compiled
def expected_misses(needs: Needs, first: int, end: int, allowed: float, steepness: int) -> ExpectedMisses:
    """Of the needs of futures first..end - 1."""
    draws = end - first
    alone, now = needs.load[first:end], needs.load_now[first:end]
    load, load_now = np.empty(draws), np.empty(draws)
    largest = 0.0
    for v in range(draws):
        largest = larger(now[v], largest)
    scale = 1.0 / largest if largest > 0.0 else 0.0
    part, differ = np.empty(draws), False
    for v in range(draws):
        part[v] = alone[v] * scale
        differ = differ or now[v] > alone[v]
    raise_all(part, steepness, load)
    if differ:
        for v in range(draws):
            part[v] = larger(now[v], alone[v]) * scale
        raise_all(part, steepness, load_now)
    else:
        load_now[:] = load
    return ExpectedMisses(load, load_now, needs.queue[first:end], largest, odds_against(allowed), steepness)


@compiled
def expected_share(expected: ExpectedMisses, count: int, commanded: int) -> float:
    """Share of the requests that is expected to miss with `count`, where `commanded` are there or on their way.

    Of a future whose queue is too long at least half is counted: what the curve says where replicas begin to fall
    behind.
    """
    served = power(count / expected.largest, expected.steepness) if expected.largest > 0.0 else 1.0
    loads = expected.load_now if count < commanded else expected.load
    enough, shares = np.int32(count), np.empty(len(loads))
    for v in range(len(loads)):
        least = _BEHIND if expected.queue[v] > enough else 0.0
        shares[v] = larger(share_missed(loads[v], served, expected.odds), least)
    return float(_sum(shares) / len(loads))


@compiled
def _sum(numbers: Float) -> float:
    """By halves, for one after the other each addition waits for the one before. `numbers` is spent."""
    left = len(numbers)
    while left > 1:
        half = left // 2
        beside = numbers[left - half : left]
        for v in range(half):
            numbers[v] += beside[v]
        left -= half
    return float(numbers[0])
