"""The share of requests that is expected to miss, count by count, over the futures of one workload.

Loads are raised to the power of the curve of misses once, so that a count costs one division per future.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.backlog import Needs
from model.compiled import compiled
from model.miss_curve import odds_against, power, share_missed
from model.queue_paths import larger

Float = NDArray[np.float64]

_BEHIND: Final = 0.5  # share of requests that is counted at least where replicas fall behind


class ExpectedMisses(NamedTuple):
    """One future of every demand path; those taken differ in their capacities and lead times as all of them do.

    Attributes:
        load, load_now: [S], what the load needs, in parts of the largest of these, to the power of the steepness.
        queue: int32 [S], replicas with which the queue alone keeps the future.
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
def expected_misses(needs: Needs, draws: int, paths: int, allowed: float, steepness: int) -> ExpectedMisses:
    """Of the first `draws` needs; future v follows path v % `paths`."""
    load, load_now, queue = np.empty(paths), np.empty(paths), np.empty(paths, np.int32)
    repeats, largest = draws // paths, 0.0
    for s in range(paths):
        v = s + paths * (s * repeats // paths)
        load[s], load_now[s], queue[s] = needs.load[v], needs.load_now[v], needs.queue[v]
        largest = larger(load_now[s], largest)
    for s in range(paths):
        load[s] = power(load[s] / largest, steepness) if largest > 0.0 else 0.0
        load_now[s] = power(load_now[s] / largest, steepness) if largest > 0.0 else 0.0
    return ExpectedMisses(load, load_now, queue, largest, odds_against(allowed), steepness)


@compiled
def expected_share(expected: ExpectedMisses, count: int, commanded: int) -> float:
    """Share of the requests that is expected to miss with `count`, where `commanded` are there or on their way.

    Of a future whose queue is too long at least half is counted: what the curve says where replicas begin to fall
    behind.
    """
    served = power(count / expected.largest, expected.steepness) if expected.largest > 0.0 else 1.0
    loads = expected.load_now if count < commanded else expected.load
    total = 0.0
    for s in range(len(loads)):
        share = share_missed(loads[s], served, expected.odds)
        total += max(share, _BEHIND) if expected.queue[s] > count else share
    return total / len(loads)
