"""Every policy by name: what of it is tuned, over which values, and how it is made.

Every policy has the same number of candidates, `TRIALS` (the static peak as many as there are counts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from agents.policy import Policy
from infra.lab.replay.policies.dynamo import DynamoClassic, DynamoDualLoop, ProfileBook
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS, REPLAY_POLICY, harmony_controller
from infra.lab.replay.policies.predictive import OptScalerLike, Scheduled, SeasonalNaive, StaticPeak
from infra.lab.replay.policies.reactive import Behaviour, Hpa, KedaQueue, Kpa, LlmdSlo
from infra.lab.replay.setting import Setting
from infra.lab.replay.simulation import Controller, NewController, RuleController, ScalingPolicy
from infra.simulator.cluster import Cluster

TRIALS = 12
STATIC_PEAK = "static-peak"
# Of HARMONY: epsilon and bearable ratio. The dearest last: tuning looks for the first that keeps the objective. None
# expects more than the misses allowed: where the training part is calm that only seems cheap.
RISKS = (
    (0.4, 1.0),
    (0.35, 0.85),
    (0.3, 0.7),
    (0.25, 0.65),
    (0.2, 0.6),
    (0.15, 0.5),
    (0.1, 0.5),
    (0.07, 0.4),
    (0.05, 0.35),
    (0.03, 0.25),
    (0.015, 0.2),
    (0.008, 0.15),
)
Params = Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class OperatorKnowledge:
    """What the operator of a cell knows beforehand, the same for every policy.

    Attributes:
        benchmark_rps: of a load test with the training part's request lengths.
        concurrency: requests in the system per replica at that rate.
        history: requests/s per 30 s before second 0, as far back as the load's file goes.
        day_offset_s: time of day of second 0.
        policy: of HARMONY, but for its workload and what is tuned.
        declared_times, declared_off_by: how many times the load test's figure HARMONY is told, and how far that may be
            off.
    """

    benchmark_rps: float
    concurrency: float
    history: NDArray[np.float64]
    day_offset_s: float = 0.0
    policy: Policy = REPLAY_POLICY
    declared_times: float = 1.0
    declared_off_by: float | None = None


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """One policy with its tuned values."""

    policy: str
    params: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return " ".join(f"{name}={value:g}" for name, value in self.params)


@dataclass(frozen=True, slots=True)
class _Kind:
    grid: Callable[[Setting, OperatorKnowledge], list[dict[str, float]]]
    make: Callable[[Setting, OperatorKnowledge, Params], ScalingPolicy]


def _grid(**values: tuple[float, ...]) -> list[dict[str, float]]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


_SHARES = (1.0, 0.8, 0.65, 0.5, 0.38, 0.28)
_FINE_SHARES = (1.3, 1.15, 1.0, 0.9, 0.8, 0.7, 0.62, 0.54, 0.46, 0.38, 0.3, 0.22)


def _behaviour(params: Params) -> Behaviour:
    return Behaviour(down_window_s=params.get("down_window_s", 300.0))


_KINDS: dict[str, _Kind] = {
    STATIC_PEAK: _Kind(
        lambda s, _: [{"replicas": float(n)} for n in range(s.min_replicas, s.max_replicas + 1)],
        lambda _s, _k, p: StaticPeak(int(p["replicas"])),
    ),
    "hpa": _Kind(
        lambda _s, k: [
            {"target": share * k.concurrency, "down_window_s": w} for share in _SHARES for w in (120.0, 300.0)
        ],
        lambda _s, _k, p: Hpa(p["target"], None, _behaviour(p)),
    ),
    "keda-queue": _Kind(
        lambda _s, _k: _grid(kv_target=(0.8, 0.6, 0.4, 0.25, 0.15, 0.08), queue_target=(30.0, 5.0)),
        lambda _s, _k, p: KedaQueue(p["kv_target"], p["queue_target"]),
    ),
    "kpa": _Kind(
        lambda _s, k: [
            {"target": 0.7 * share * k.concurrency, "down_delay_s": d} for share in _SHARES for d in (0.0, 300.0)
        ],
        lambda _s, _k, p: Kpa(p["target"], p["down_delay_s"]),
    ),
    "llmd-slo": _Kind(
        lambda _s, _k: [
            {"up": up, "down": down * up} for up in (0.9, 0.75, 0.65, 0.55, 0.45, 0.35) for down in (0.73, 0.5)
        ],
        lambda s, _k, p: LlmdSlo(s.objective, p["up"], p["down"]),
    ),
    "dynamo": _Kind(
        lambda _s, _k: _grid(margin=(0.8, 0.9, 1.0, 1.15, 1.35, 1.6), interval_s=(60.0, 180.0)),
        lambda s, _k, p: DynamoClassic(ProfileBook(s.profile, s.objective), p["interval_s"], p["margin"]),
    ),
    "dynamo-dual": _Kind(
        lambda _s, _k: _grid(margin=(0.8, 0.9, 1.0, 1.15, 1.35, 1.6), sensitivity=(0.8, 0.6)),
        lambda s, _k, p: DynamoDualLoop(
            ProfileBook(s.profile, s.objective), margin=p["margin"], sensitivity=p["sensitivity"]
        ),
    ),
    "seasonal-naive": _Kind(
        lambda _s, k: [{"safe_rps": share * k.benchmark_rps} for share in _FINE_SHARES],
        lambda s, k, p: SeasonalNaive(p["safe_rps"], k.history, s.lead_s),
    ),
    "scheduled": _Kind(
        lambda _s, k: [{"target_rps": share * k.benchmark_rps} for share in _FINE_SHARES],
        lambda _s, k, p: Scheduled(p["target_rps"], k.history, k.day_offset_s),
    ),
    "optscaler": _Kind(
        lambda _s, k: [
            {"safe_rps": share * k.benchmark_rps, "epsilon": e}
            for share in (1.1, 1.0, 0.9, 0.8)
            for e in (0.2, 0.05, 0.01)
        ],
        lambda s, _k, p: OptScalerLike(p["safe_rps"], p["epsilon"], s.lead_s),
    ),
}

POLICY_NAMES = ("harmony", *(v for v in HARMONY_VARIANTS if v != "harmony"), *_KINDS)
DEFAULT_POLICIES = ("harmony", *_KINDS)


def candidates(policy: str, setting: Setting, knowledge: OperatorKnowledge) -> list[PolicyChoice]:
    """What tuning may try."""
    if policy in HARMONY_VARIANTS:
        return [PolicyChoice(policy, (("bearable_ratio", ratio), ("epsilon", epsilon))) for epsilon, ratio in RISKS]
    return [PolicyChoice(policy, tuple(sorted(p.items()))) for p in _KINDS[policy].grid(setting, knowledge)]


def default_of(policy: str, offered: list[PolicyChoice], knowledge: OperatorKnowledge) -> PolicyChoice:
    """What is taken untuned: of HARMONY the risk that was asked for, of a public policy the middle candidate."""
    if policy in HARMONY_VARIANTS:
        return PolicyChoice(
            policy, (("bearable_ratio", knowledge.policy.bearable_ratio), ("epsilon", knowledge.policy.epsilon))
        )
    return offered[len(offered) // 2]


def controller_of(choice: PolicyChoice, knowledge: OperatorKnowledge) -> NewController:
    """How to bind the policy to a cluster."""
    if choice.policy in HARMONY_VARIANTS:
        variant = HARMONY_VARIANTS[choice.policy]
        declared_rps = knowledge.declared_times * knowledge.benchmark_rps
        return harmony_controller(
            variant, declared_rps, dict(choice.params), knowledge.policy, knowledge.declared_off_by
        )
    kind, params = _KINDS[choice.policy], dict(choice.params)

    def new(setting: Setting, cluster: Cluster, seed: int) -> Controller:
        return RuleController(setting, cluster, kind.make(setting, knowledge, params), seed)

    return new
