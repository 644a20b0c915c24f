"""The last replica: since when there has been nothing to do, how likely it is needed soon, and whether it may go.

It goes when the workload has been idle for a declared time and a replica given up now would hardly be missed before one
ordered later could serve. It comes back when that chance is several times the one allowed, so that it is not given up
and fetched in turns; the first request brings it back at once (`agents.planning.limits`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.planning.request import PlanInput, PlanResult
from agents.policy import IdleRule

_BACK: Final = 4.0  # times the chance allowed for going, from which on a replica is ordered ahead of any request
_MOST: Final = 0.5


def chance_needed(rates: NDArray[np.float32], step_s: float, reach_s: float) -> float:
    """Probability that a request comes within the reach: arrivals are Poisson, given a path of their rate.

    Args:
        rates: [S, H], requests/s; steps beyond the paths count as their last one.
    """
    horizon = rates.shape[1]
    steps = max(math.ceil(reach_s / step_s - 1e-9), 1)
    none: list[float] = []
    for path in rates.astype(np.float64).tolist():
        expected = math.fsum(max(rate, 0.0) for rate in path[:steps]) + max(steps - horizon, 0) * max(path[-1], 0.0)
        none.append(math.exp(-expected * step_s))
    return min(max(1.0 - math.fsum(none) / len(none), 0.0), 1.0)


def with_last_replica(
    result: PlanResult, request: PlanInput, rule: IdleRule, idle_s: float | None, p_needed: float
) -> PlanResult:
    """The plan of a workload that may go to zero: none, where that is allowed, in place of the one or more planned.

    Args:
        idle_s: how long it has been idle; None = it is not.
        p_needed: that a request comes before a replica ordered later could serve.
    """
    result = replace(result, p_needed=p_needed)
    offered, here = (request.arrival_rate_now or 0.0) > 0 or request.waiting > 0, request.ready + request.pending > 0
    if result.refused is not None or offered:
        return result if here or not result.proposed else replace(result, proposer="first_request")
    if here:
        none = idle_s is not None and idle_s >= rule.idle_s and p_needed < rule.risk
    else:
        none = p_needed < min(_BACK * rule.risk, max(_MOST, rule.risk))
    return replace(result, proposed=0, proposer="idle") if none else result
