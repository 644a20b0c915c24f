"""llm-d's SLO-aware rule: tail latency over its objective, smoothed, with credit for replicas on their way.

Source: llm-d workload-autoscaling guide (SLO-aware KEDA). s = mean over 45 s of min(2, max(P90 TTFT / S1, P90 TPOT /
S2)); above `up` n + ceil(n (s k / up - 1)) with k = ready / n; below `down` n - floor(n (1 - s / down)). The guide's
latencies come from a predictor of the latency now; here they are those just measured.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from infra.lab.replay.policies.hpa import Behaviour, Stabilizer
from infra.lab.replay.view import View
from infra.simulator.ledger import Objective

BEHAVIOUR = Behaviour(30.0, 180.0, 1.0, 4, 60.0, 0.0, 1, 120.0)


class LlmdSlo:
    """Args: `up` and `down` thresholds of the smoothed ratio."""

    period_s = 15.0
    looks_back_s = 60.0

    def __init__(self, objective: Objective, up: float = 0.55, down: float = 0.40) -> None:
        self._objective, self._up, self._down = objective, up, down
        self._recent: deque[float] = deque(maxlen=3)
        self._stabilizer = Stabilizer(BEHAVIOUR)

    def wanted(self, view: View) -> int:
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
        wanted = n
        if s > self._up:
            k = view.ready / n if 0 < view.ready < n else 1.0
            wanted = n + max(0, math.ceil(n * (s * k / self._up - 1) - 1e-9))
        elif s < self._down:
            wanted = max(1, n - math.floor(n * (1 - s / self._down)))
        return self._stabilizer.apply(view.now_s, n, wanted)
