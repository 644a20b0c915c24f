"""Counterfactual policies beside a live run: each meets the same arrivals on its own copy of the engine.

The comparison uses common random numbers: arrivals and lead times are the same for all.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster

STATIC_PEAK = "static_peak"
HPA = "hpa"


class ShadowScore(NamedTuple):
    """`attainment` is None while nothing has been scored."""

    attainment: float | None
    gpu_hours: float


class ScalingRule(Protocol):
    """Looks at a cluster every `period_s` and says how many replicas it wants."""

    @property
    def period_s(self) -> float: ...

    def desired_replicas(self, cluster: Cluster) -> int: ...


@dataclass(frozen=True, slots=True)
class StaticRule:
    """Always the same count."""

    replicas: int
    period_s: float = math.inf

    def desired_replicas(self, cluster: Cluster) -> int:  # noqa: ARG002
        return self.replicas


@dataclass(frozen=True, slots=True)
class HpaSettings:
    """The horizontal pod autoscaler on a per-replica metric, with its shipped defaults.

    Attributes:
        target: running + waiting requests per replica.
        up_replicas, up_ratio, policy_period_s: at most the larger of the two is added per period.
    """

    target: float
    min_replicas: int
    max_replicas: int
    period_s: float = 15.0
    tolerance_ratio: float = 0.1
    down_window_s: float = 300.0
    up_replicas: int = 4
    up_ratio: float = 1.0
    policy_period_s: float = 15.0

    def __post_init__(self) -> None:
        if not self.target > 0:
            raise ValueError(f"the target must be positive, got {self.target}")
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"bounds must satisfy 0 <= min <= max, got {self.min_replicas} and {self.max_replicas}")


class HpaRule:
    """desired = ceil(total / target) outside the tolerance; replicas that are not ready count as idle when going up."""

    def __init__(self, settings: HpaSettings) -> None:
        self.settings = settings
        self._recommended: deque[tuple[float, int]] = deque()
        self._added: deque[tuple[float, int]] = deque()

    @property
    def period_s(self) -> float:
        return self.settings.period_s

    def desired_replicas(self, cluster: Cluster) -> int:
        s, now_s, current = self.settings, cluster.now_s, cluster.num_current
        recommended = self._recommend(cluster, current)
        self._recommended.append((now_s, recommended))
        while self._recommended[0][0] <= now_s - s.down_window_s:
            self._recommended.popleft()
        stabilized = max(recommended, min(current, max(n for _, n in self._recommended)))
        desired = min(max(stabilized, s.min_replicas), s.max_replicas)
        if desired > current:
            desired = min(desired, self._most(current, now_s))
            self._added.append((now_s, desired - current))
        return desired

    def _recommend(self, cluster: Cluster, current: int) -> int:
        s, ready = self.settings, cluster.num_ready
        if ready == 0:
            # No metric from any replica: hold.
            return current
        total = cluster.outstanding
        ratio = total / (ready * s.target)
        if abs(ratio - 1) <= s.tolerance_ratio:
            return current
        if ratio < 1 or current == ready:
            desired = math.ceil(ratio * ready)
            return desired if ratio > 1 else min(current, desired)
        damped = total / (current * s.target)
        if damped < 1 or abs(damped - 1) <= s.tolerance_ratio:
            return current
        return max(current, math.ceil(damped * current))

    def _most(self, current: int, now_s: float) -> int:
        s = self.settings
        while self._added and self._added[0][0] <= now_s - s.policy_period_s:
            self._added.popleft()
        before = current - sum(n for _, n in self._added)
        return max(current, before + s.up_replicas, math.ceil(before * (1 + s.up_ratio)))


class Shadow:
    """One policy's copy of a workload; it acts at its ticks from `act_from_s` on, as everyone it is compared with."""

    def __init__(self, policy: str, cluster: Cluster, rule: ScalingRule, act_from_s: float = 0.0) -> None:
        self.policy = policy
        self.cluster = cluster
        self._rule = rule
        self._tick_s = max(cluster.now_s + rule.period_s, act_from_s)

    def feed(self, arrivals: Arrivals) -> None:
        """The same arrivals as everyone's."""
        self.cluster.feed(arrivals)

    def advance(self, until_s: float) -> None:
        """Live through everything up to `until_s`, the policy's own ticks included."""
        while self._tick_s <= until_s:
            self.cluster.advance(self._tick_s)
            self.cluster.set_replicas(self._rule.desired_replicas(self.cluster), self._tick_s)
            self._tick_s += self._rule.period_s
        self.cluster.advance(until_s)

    def settle(self, until_s: float) -> None:
        """Serve what is left without scaling any more."""
        self._tick_s = math.inf
        self.cluster.advance(until_s)

    def score(self, end_s: float, *, final: bool) -> ShadowScore:
        """Attainment and cost from the scored start to `end_s`; before the end only decided requests count."""
        return score_of(self.cluster, end_s, final=final)


def score_of(cluster: Cluster, end_s: float, *, final: bool) -> ShadowScore:
    """Attainment and cost of a cluster from the scored start to `end_s`; unless final only decided requests count."""
    scores = cluster.scores
    attained = scores.attainment if final else scores.so_far
    return ShadowScore(attained, cluster.gpu_seconds(scores.from_s, end_s) / 3600)
