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
    """Load: one future of every demand path; those taken differ in their capacities and lead times as all of them do.

    Queue: every future, for one that falls behind is rare and would weigh as much as its whole path.

    Attributes:
        load, load_now: [S], what the load needs, in parts of the largest of these, to the power of the steepness.
        needs: of all V futures.
        largest: in replicas.
        odds: `odds_against` of the share of misses allowed.
        steepness: power of the curve of misses.
    """

    load: Float
    load_now: Float
    needs: Needs
    largest: float
    odds: float
    steepness: int


@compiled
def expected_misses(needs: Needs, draws: int, paths: int, allowed: float, steepness: int) -> ExpectedMisses:
    """Of the first `draws` needs; future v follows path v % `paths`."""
    load, load_now = np.empty(paths), np.empty(paths)
    repeats, largest = draws // paths, 0.0
    for s in range(paths):
        v = s + paths * (s * repeats // paths)
        load[s], load_now[s] = needs.load[v], needs.load_now[v]
        largest = larger(load_now[s], largest)
    for s in range(paths):
        load[s] = power(load[s] / largest, steepness) if largest > 0.0 else 0.0
        load_now[s] = power(load_now[s] / largest, steepness) if largest > 0.0 else 0.0
    drawn = Needs(
        needs.kept[:draws], needs.missed[:draws], needs.queue[:draws], needs.load[:draws], needs.load_now[:draws]
    )
    return ExpectedMisses(load, load_now, drawn, largest, odds_against(allowed), steepness)


@compiled
def expected_share(expected: ExpectedMisses, count: int, commanded: int) -> float:
    """Share of the requests that is expected to miss with `count`, where `commanded` are there or on their way.

    Of a future whose queue is too long at least half is counted: what the curve says where replicas begin to fall
    behind.
    """
    served = power(count / expected.largest, expected.steepness) if expected.largest > 0.0 else 1.0
    gives_up = count < commanded
    total = 0.0
    for load in expected.load_now if gives_up else expected.load:
        total += share_missed(load, served, expected.odds)
    enough, behind = np.int32(count), 0.0
    loads = expected.needs.load_now if gives_up else expected.needs.load
    for v in range(len(loads)):
        if expected.needs.queue[v] > enough:
            behind += max(_BEHIND - _share_of(expected, loads[v], served), 0.0)
    return total / len(expected.load) + behind / len(loads)


@compiled
def _share_of(expected: ExpectedMisses, load: float, served: float) -> float:
    """Share that one future misses for a load that needs so many replicas."""
    raised = power(load / expected.largest, expected.steepness) if expected.largest > 0.0 else 0.0
    return share_missed(raised, served, expected.odds)
