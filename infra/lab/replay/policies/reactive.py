"""Public reactive autoscalers: Kubernetes HPA v2, KEDA, Knative KPA and llm-d's SLO-aware rule.

Each follows its own documentation; every class names its source. Their grids of parameters are in `catalogue`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from infra.lab.replay.simulation import View
from infra.simulator.ledger import Objective

# Kubernetes horizontal pod autoscaler: `spec.behavior` and the ratio rule.


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The field `spec.behavior` of an HPA with the defaults of Kubernetes.

    Source: KEP-853, "Configurable scale up/down velocity for HPA".

    Attributes:
        up_window_s, down_window_s: stabilization windows. Up takes the smallest recommendation of its window, down the
            largest.
        up_ratio, up_replicas: the larger of the two may be added per `up_period_s`.
        down_ratio, down_replicas: the larger of the two may be removed per `down_period_s`.
    """

    up_window_s: float = 0.0
    down_window_s: float = 300.0
    up_ratio: float = 1.0
    up_replicas: int = 4
    up_period_s: float = 15.0
    down_ratio: float = 1.0
    down_replicas: int = 0
    down_period_s: float = 15.0


class Stabilizer:
    """Applies stabilization windows and rate limits to a sequence of recommendations."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._b = behaviour
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def apply(self, now_s: float, current: int, recommended: int) -> int:
        """Return the replica count to set now."""
        b = self._b
        if not self._recommended:
            # As Kubernetes starts: the count that is there was the recommendation so far.
            self._recommended.append((now_s - 1e-3, current))
        self._recommended.append((now_s, recommended))
        keep_s = max(b.up_window_s, b.down_window_s)
        while self._recommended[0][0] < now_s - keep_s:
            self._recommended.popleft()
        lowest_up = min(n for t, n in self._recommended if t >= now_s - b.up_window_s)
        highest_down = max(n for t, n in self._recommended if t > now_s - b.down_window_s or t == now_s)
        desired = current
        if lowest_up > current:
            desired = lowest_up
        elif highest_down < current:
            desired = highest_down
        limited = self._limited(now_s, current, desired)
        if limited != current:
            self._changes.append((now_s, limited - current))
        return limited

    def _limited(self, now_s: float, current: int, desired: int) -> int:
        b = self._b
        longest_s = max(b.up_period_s, b.down_period_s)
        while self._changes and self._changes[0][0] <= now_s - longest_s:
            self._changes.popleft()
        if desired > current:
            added = sum(n for t, n in self._changes if n > 0 and t > now_s - b.up_period_s)
            start = current - added
            return min(desired, max(current, start + b.up_replicas, math.ceil(start * (1 + b.up_ratio))))
        if desired < current:
            removed = -sum(n for t, n in self._changes if n < 0 and t > now_s - b.down_period_s)
            start = current + removed
            return max(desired, min(current, start - max(b.down_replicas, math.floor(start * b.down_ratio))))
        return current


HPA_TOLERANCE_RATIO = 0.1


class Hpa:
    """Kubernetes HPA v2 on requests in the system per replica, on KV-cache use, or on both; the larger count wins.

    Replicas that are not ready count as idle on the way up. A missing metric keeps the count.

    Source: Kubernetes documentation, "Horizontal Pod Autoscaling", section "Algorithm details".

    Args:
        target: running and waiting requests per replica.
        kv_target: mean KV-cache use per replica, between 0 and 1; None = not used.
    """

    period_s = 15.0
    looks_back_s = 0.0

    def __init__(self, target: float, kv_target: float | None = None, behaviour: Behaviour | None = None) -> None:
        self._target, self._kv_target = target, kv_target
        self._stabilizer = Stabilizer(behaviour or Behaviour())

    def desired_replicas(self, view: View) -> int:
        reading = view.newest
        if reading is None or view.ready == 0 or not reading.running:
            return view.current
        desired = ratio_rule(view.ready, view.current, (reading.num_running + reading.num_waiting) / self._target)
        if self._kv_target is not None:
            desired = max(desired, ratio_rule(view.ready, view.current, sum(reading.kv_ratio) / self._kv_target))
        return self._stabilizer.apply(view.now_s, view.current, desired)


def ratio_rule(ready: int, current: int, needed: float) -> int:
    """Return ceil(needed), or the current count within the tolerance of 10 %.

    Args:
        needed: the metric's sum over replicas divided by its target; a count of replicas.

    >>> ratio_rule(ready=4, current=4, needed=4.3)
    4
    >>> ratio_rule(ready=4, current=4, needed=5.2)
    6
    """
    ratio = needed / ready
    if abs(ratio - 1) <= HPA_TOLERANCE_RATIO:
        return current
    if ratio < 1:
        return min(current, math.ceil(needed - 1e-9))
    if current == ready:
        return math.ceil(needed - 1e-9)
    damped = needed / current
    return current if damped <= 1 + HPA_TOLERANCE_RATIO else math.ceil(needed - 1e-9)


# KEDA.


class KedaQueue:
    """KEDA with two triggers, KV-cache use and queue length, as the llm-d guide combines them; the larger count wins.

    KEDA feeds the HPA: it offers `ceil(value / threshold)` per trigger (metric type AverageValue), polled every 15 s.

    Source: KEDA documentation, "Scaling Deployments"; llm-d workload-autoscaling guide.

    Args:
        kv_target: summed KV-cache use per replica, between 0 and 1.
        queue_target: waiting requests per replica.
    """

    period_s = 15.0
    looks_back_s = 0.0

    def __init__(self, kv_target: float, queue_target: float, behaviour: Behaviour | None = None) -> None:
        self._kv_target, self._queue_target = kv_target, queue_target
        self._stabilizer = Stabilizer(behaviour or Behaviour())

    def desired_replicas(self, view: View) -> int:
        reading = view.newest
        if reading is None:
            return view.current
        values = (sum(reading.kv_ratio) / self._kv_target, reading.num_waiting / self._queue_target)
        counts = [self._average_value(v, view.current) for v in values]
        return self._stabilizer.apply(view.now_s, view.current, max(1, *counts))

    @staticmethod
    def _average_value(needed: float, current: int) -> int:
        if current > 0 and abs(needed / current - 1) <= HPA_TOLERANCE_RATIO:
            return current
        return math.ceil(needed - 1e-9)


# Knative.


STABLE_S, PANIC_S, PANIC_THRESHOLD = 60.0, 6.0, 2.0
UP_RATE, DOWN_RATE = 1000.0, 2.0


class Kpa:
    """Knative pod autoscaler: concurrency averaged over a stable and a panic window; in panic it never scales down.

    Defaults: stable window 60 s, panic window 10 % of it, panic at 200 %, tick 2 s, up rate 1000, down rate 2.

    Source: knative/serving, `pkg/autoscaler/scaling/autoscaler.go`.

    Args:
        target: requests in the system per replica, already multiplied by the target utilization of 0.7.
        down_delay_s: `scale-down-delay`; the largest count within it holds.
    """

    period_s = 2.0
    looks_back_s = STABLE_S

    def __init__(self, target: float, down_delay_s: float = 0.0) -> None:
        self._target = target
        self._down_delay_s = down_delay_s
        self._panic_since_s: float | None = None
        self._panic_most = 0
        self._recent: list[tuple[float, int]] = []

    def desired_replicas(self, view: View) -> int:
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
        desired = stable
        if self._panic_since_s is not None:
            self._panic_most = max(self._panic_most, stable, panic_bounded)
            desired = self._panic_most
        return self._delayed(view.now_s, desired)

    def _count(self, concurrency: list[int]) -> int:
        return math.ceil(sum(concurrency) / len(concurrency) / self._target - 1e-9)

    def _delayed(self, now_s: float, desired: int) -> int:
        if self._down_delay_s <= 0:
            return desired
        self._recent = [(t, n) for t, n in self._recent if t > now_s - self._down_delay_s] + [(now_s, desired)]
        return max(n for _, n in self._recent)


# llm-d.


LLMD_BEHAVIOUR = Behaviour(30.0, 180.0, 1.0, 4, 60.0, 0.0, 1, 120.0)


class LlmdSlo:
    """llm-d's SLO-aware rule: tail latency over its objective, smoothed, with credit for replicas that are starting.

    The signal s is the mean over 45 s of min(2, max(P90 TTFT / objective, P90 TPOT / objective)). Of n replicas k n are
    ready. Above `up` the count becomes n + ceil(n (s k / up - 1)). Below `down` it becomes n - floor(n (1 - s / down)).
    The guide takes its latencies from a predictor; here they are measured.

    Source: llm-d workload-autoscaling guide, SLO-aware KEDA.

    Args:
        up, down: thresholds of the signal.
    """

    period_s = 15.0
    looks_back_s = 60.0

    def __init__(self, objective: Objective, up: float = 0.55, down: float = 0.40) -> None:
        self._objective, self._up, self._down = objective, up, down
        self._recent: deque[float] = deque(maxlen=3)
        self._stabilizer = Stabilizer(LLMD_BEHAVIOUR)

    def desired_replicas(self, view: View) -> int:
        readings = view.within(60.0)
        ttfts = [x for r in readings for x in r.ttfts_s]
        tpots = [x for r in readings for x in r.tpots_s]
        if not ttfts and not tpots:
            idle = bool(readings) and readings[-1].concurrency == 0
            self._recent.append(0.0 if idle else 2.0 if readings and readings[-1].num_waiting else 0.0)
        else:
            shares = [float(np.quantile(v, 0.9)) / s for v, s in
                      ((ttfts, self._objective.ttft_s), (tpots, self._objective.tpot_s)) if v]  # fmt: skip
            self._recent.append(min(2.0, max(shares)))
        s, n = sum(self._recent) / len(self._recent), view.current
        if n == 0:
            return 1
        desired = n
        if s > self._up:
            k = view.ready / n if 0 < view.ready < n else 1.0
            desired = n + max(0, math.ceil(n * (s * k / self._up - 1) - 1e-9))
        elif s < self._down:
            desired = max(1, n - math.floor(n * (1 - s / self._down)))
        return self._stabilizer.apply(view.now_s, n, desired)
