"""KEDA with two triggers, as the llm-d guide combines them: KV use and queue length, the larger wins.

KEDA only feeds the autoscaler: `ceil(value / threshold)` per trigger (AverageValue), polled by it every 15 s.
"""

from __future__ import annotations

import math

from infra.lab.replay.policies.hpa import TOLERANCE
from infra.lab.replay.view import View
from infra.replay.policies.behaviour import Behaviour, Stabilizer


class KedaQueue:
    """Args: `kv_target` of the summed KV use per replica; `queue_target` of waiting requests per replica."""

    period_s = 15.0
    looks_back_s = 0.0

    def __init__(self, kv_target: float, queue_target: float, behaviour: Behaviour | None = None) -> None:
        self._kv_target, self._queue_target = kv_target, queue_target
        self._stabilizer = Stabilizer(behaviour or Behaviour())

    def wanted(self, view: View) -> int:
        reading = view.newest
        if reading is None:
            return view.current
        values = (sum(reading.kv_ratio) / self._kv_target, reading.num_waiting / self._queue_target)
        counts = [self._average_value(v, view.current) for v in values]
        return self._stabilizer.apply(view.now_s, view.current, max(1, *counts))

    @staticmethod
    def _average_value(needed: float, current: int) -> int:
        if current > 0 and abs(needed / current - 1) <= TOLERANCE:
            return current
        return math.ceil(needed - 1e-9)
