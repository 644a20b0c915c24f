"""Knative pod autoscaler: concurrency averaged over a stable and a panic window.

Source: knative/serving `pkg/autoscaler/scaling/autoscaler.go` and its default configuration: 60 s, panic window 10 %,
panic at 200 %, tick 2 s, up rate 1000, down rate 2. While panicking it never goes down.
"""

from __future__ import annotations

import math

from infra.lab.replay.view import View

STABLE_S, PANIC_S, PANIC_THRESHOLD = 60.0, 6.0, 2.0
UP_RATE, DOWN_RATE = 1000.0, 2.0


class Kpa:
    """Args: `target` of requests in the system per replica, already multiplied by the target utilization (0.7)."""

    period_s = 2.0
    looks_back_s = STABLE_S

    def __init__(self, target: float, down_delay_s: float = 0.0) -> None:
        self._target = target
        self._down_delay_s = down_delay_s
        self._panic_since_s: float | None = None
        self._panic_most = 0
        self._recent: list[tuple[float, int]] = []

    def wanted(self, view: View) -> int:
        readings = view.within(STABLE_S)
        if not readings:
            return view.current
        ready = max(1, view.ready)
        low, high = math.floor(ready / DOWN_RATE), math.ceil(UP_RATE * ready)
        stable = self._count([r.concurrency for r in readings])
        panic = self._count([r.concurrency for r in view.within(PANIC_S)])
        stable, panic_bounded = (min(max(n, low), high) for n in (stable, panic))
        if panic / ready >= PANIC_THRESHOLD:
            self._panic_most = self._panic_most if self._panic_since_s is not None else 0
            self._panic_since_s = view.now_s
        elif self._panic_since_s is not None and view.now_s > self._panic_since_s + STABLE_S:
            self._panic_since_s, self._panic_most = None, 0
        wanted = stable
        if self._panic_since_s is not None:
            self._panic_most = max(self._panic_most, stable, panic_bounded)
            wanted = self._panic_most
        return self._delayed(view.now_s, wanted)

    def _count(self, concurrency: list[int]) -> int:
        return math.ceil(sum(concurrency) / len(concurrency) / self._target - 1e-9)

    def _delayed(self, now_s: float, wanted: int) -> int:
        if self._down_delay_s <= 0:
            return wanted
        self._recent = [(t, n) for t, n in self._recent if t > now_s - self._down_delay_s] + [(now_s, wanted)]
        return max(n for _, n in self._recent)
