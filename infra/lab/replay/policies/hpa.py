"""Horizontal pod autoscaler v2 on requests in the system per replica, KV use, or both (the larger wins).

Source: Kubernetes documentation of the algorithm; KEP-853 for the behaviour. Replicas that are not ready count as idle
on the way up; a metric that is missing holds.
"""

from __future__ import annotations

import math

from infra.lab.replay.view import View
from infra.replay.policies.behaviour import Behaviour, Stabilizer

TOLERANCE = 0.1


class Hpa:
    """Args: `target` of running + waiting per replica; `kv_target` of the mean KV use, None = not looked at."""

    period_s = 15.0
    looks_back_s = 0.0

    def __init__(self, target: float, kv_target: float | None = None, behaviour: Behaviour | None = None) -> None:
        self._target, self._kv_target = target, kv_target
        self._stabilizer = Stabilizer(behaviour or Behaviour())

    def wanted(self, view: View) -> int:
        reading = view.newest
        if reading is None or view.ready == 0 or not reading.running:
            return view.current
        wanted = ratio_rule(view.ready, view.current, (reading.num_running + reading.num_waiting) / self._target)
        if self._kv_target is not None:
            wanted = max(wanted, ratio_rule(view.ready, view.current, sum(reading.kv_ratio) / self._kv_target))
        return self._stabilizer.apply(view.now_s, view.current, wanted)


def ratio_rule(ready: int, current: int, needed: float) -> int:
    """desired = ceil(total / target) outside the tolerance; `needed` is total / target."""
    ratio = needed / ready
    if abs(ratio - 1) <= TOLERANCE:
        return current
    if ratio < 1:
        return min(current, math.ceil(needed - 1e-9))
    if current == ready:
        return math.ceil(needed - 1e-9)
    damped = needed / current
    return current if damped <= 1 + TOLERANCE else math.ceil(needed - 1e-9)
