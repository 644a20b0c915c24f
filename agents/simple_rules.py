"""What rules simpler than the chance constraint propose: the risk of their counts is stated beside the plan's.

A workload with a capacity of its own is all they need, at its median: the load of now, the forecast's peak, the same
time of yesterday, and the plan before.
"""

from __future__ import annotations

import math
from typing import Final

from agents.planning.request import PlanInput
from streams.windows.coarse import COARSE_STEP_MS

_SURE_SIGMAS: Final = 2.0  # of a Poisson count, below which a slot's arrivals are surely not chance


def simple_proposals(
    request: PlanInput, capacity: float, reactive: int | None, high_peak: float, window_s: tuple[float, float]
) -> dict[str, int]:
    """Replicas by rule, within bounds; a rule that lacks what it looks at proposes nothing.

    Args:
        capacity: median of one replica, 1/s.
        reactive: what the load of now needs.
        high_peak: of the demand forecast for the window, 1/s.
        window_s: that the plan answers for, after the origin.
    """
    yesterday = _highest_day_ago(request, window_s)
    offered = {
        "quantile": _replicas_for(high_peak, capacity),
        "reactive": reactive,
        "yesterday": None if yesterday is None else _replicas_for(yesterday, capacity),
        "last_plan": request.last_replicas,
    }
    return {rule: clip(count, request.bounds) for rule, count in offered.items() if count is not None}


def reactive_rule(request: PlanInput, commit_s: float, capacity: float) -> int | None:
    """Replicas for the present arrival rate, and to work the queue off within the commit time; None when unknown.

    One slot is a noisy witness: of its requests only as many count as are surely more than chance.
    """
    rate = request.arrival_rate_now
    if rate is None or not math.isfinite(rate):
        return None
    step_s = request.step_ms / 1000.0
    requests = max(rate, 0.0) * step_s
    surely = max(0.0, requests - _SURE_SIGMAS * math.sqrt(requests)) / step_s
    return clip(_replicas_for(surely + request.waiting / commit_s, capacity), request.bounds)


def clip(replicas: int, bounds: tuple[int, int]) -> int:
    """The count within bounds."""
    return min(max(replicas, bounds[0]), bounds[1])


def _highest_day_ago(request: PlanInput, window_s: tuple[float, float]) -> float | None:
    """Highest mean over ten minutes of the demand a day before the window; None where none was observed."""
    into_s = request.origin_ts_ms % COARSE_STEP_MS / 1000.0
    first, last = (int((into_s + at_s) * 1000.0 // COARSE_STEP_MS) for at_s in window_s)
    return max((mean for mean in request.day_ago[first : last + 1] if mean is not None), default=None)


def _replicas_for(rate: float, capacity: float) -> int:
    return math.ceil(min(rate / capacity, 1e9) - 1e-9)
