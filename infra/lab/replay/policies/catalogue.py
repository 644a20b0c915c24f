"""Every policy by name: what of it is tuned, over which values, and how it is made.

Every policy has the same number of candidates, `TRIALS` (the static peak as many as there are counts). The values of
a rival lie on axes that reach beyond them. Where the best candidate lies at the end of what was tried, tuning goes on
along its axis, so that no rival is limited by the range of its values. Every rival also has the fewest replicas that
its operator may set, an option of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.lab.replay.policies.dynamo import DynamoClassic, DynamoDualLoop, ProfileBook
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS, REPLAY_POLICY, harmony_controller
from infra.lab.replay.policies.predictive import OptScalerLike, Scheduled, SeasonalNaive, StaticPeak
from infra.lab.replay.policies.reactive import Behaviour, Hpa, KedaQueue, Kpa, LlmdSlo
from infra.lab.replay.policies.work import WorkLaw, WorkQuantile
from infra.lab.replay.setting import Setting
from infra.lab.replay.simulation import Controller, NewController, RuleController, ScalingPolicy, View
from infra.simulator.cluster import Cluster

TRIALS = 12
STATIC_PEAK = "static-peak"
Params = Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class OperatorKnowledge:
    """What the operator of a cell knows beforehand, the same for every policy.

    Attributes:
        benchmark_rps: of a load test with the training part's request lengths.
        concurrency: requests in the system per replica at that rate.
        history: requests/s per 30 s before second 0, as far back as the load's file goes.
        day_offset_s: time of day of second 0.
        training_history, training_day_offset_s: the same, of second 0 of the training part.
        policy: of HARMONY, but for its workload.
        declared_times, declared_off_by: how many times the load test's figure HARMONY is told, and how far that may be
            off.
        given: settings of rivals that run with these, and are not tuned.
    """

    benchmark_rps: float
    concurrency: float
    history: NDArray[np.float64]
    day_offset_s: float = 0.0
    training_history: NDArray[np.float64] | None = None
    training_day_offset_s: float = 0.0
    policy: Policy = REPLAY_POLICY
    declared_times: float = 1.0
    declared_off_by: float | None = None
    given: Mapping[str, Params] = field(default_factory=dict)

    def for_training(self) -> OperatorKnowledge:
        """Return what is known at second 0 of the training part, which lies before the scored one."""
        if self.training_history is None:
            return self
        return replace(self, history=self.training_history, day_offset_s=self.training_day_offset_s)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """One policy with its tuned values."""

    policy: str
    params: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return " ".join(f"{name}={value:g}" for name, value in self.params)


@dataclass(frozen=True, slots=True)
class Axis:
    """Values of one parameter in order; `core` is always tried, the others where the best lies at the end of it."""

    core: tuple[float, ...]
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        return (*self.before, *self.core, *self.after)

    def times(self, factor: float) -> Axis:
        """Return the axis with all values multiplied."""
        parts = (tuple(factor * value for value in part) for part in (self.core, self.before, self.after))
        return Axis(*parts)


@dataclass(frozen=True, slots=True)
class _Kind:
    axes: Callable[[Setting, OperatorKnowledge], dict[str, Axis]]
    make: Callable[[Setting, OperatorKnowledge, Params], ScalingPolicy]


# Shares of a load test's figure, from cheap to dear.
_SHARES = Axis((1.0, 0.8, 0.65, 0.5, 0.38, 0.28), (2.5, 2.0, 1.6, 1.25), (0.2, 0.14, 0.1, 0.07, 0.05))
_FINE_SHARES = Axis(
    (1.3, 1.15, 1.0, 0.9, 0.8, 0.7, 0.62, 0.54, 0.46, 0.38, 0.3, 0.22), (2.0, 1.7, 1.5), (0.17, 0.13, 0.1, 0.07, 0.05)
)
_MARGINS = Axis((0.8, 0.9, 1.0, 1.15, 1.35, 1.6), (0.5, 0.6, 0.7), (1.9, 2.3, 2.8, 3.4, 4.2, 5.0, 6.0))


MIN_REPLICAS = "min_replicas"


class AtLeast:
    """A rival whose operator set the fewest replicas: minReplicas, min-scale or min_endpoint."""

    def __init__(self, inner: ScalingPolicy, replicas: int) -> None:
        self._inner, self._replicas = inner, replicas
        self.period_s, self.looks_back_s = inner.period_s, inner.looks_back_s

    def desired_replicas(self, view: View) -> int:
        return max(self._inner.desired_replicas(view), self._replicas)


def _axes(policy: str, setting: Setting, knowledge: OperatorKnowledge) -> dict[str, Axis]:
    """The axes of a rival, the fewest replicas included."""
    axes = _KINDS[policy].axes(setting, knowledge)
    if policy == STATIC_PEAK:
        return axes
    more = sorted({math.ceil(setting.min_replicas + 1.35**k) for k in range(24)})
    beyond = tuple(float(n) for n in more if setting.min_replicas < n <= setting.max_replicas)
    return axes | {MIN_REPLICAS: Axis((float(setting.min_replicas),), after=beyond)}


def _behaviour(params: Params) -> Behaviour:
    return Behaviour(down_window_s=params.get("down_window_s", 300.0))


_KINDS: dict[str, _Kind] = {
    STATIC_PEAK: _Kind(
        lambda s, _: {"replicas": Axis(tuple(float(n) for n in range(s.min_replicas, s.max_replicas + 1)))},
        lambda _s, _k, p: StaticPeak(int(p["replicas"])),
    ),
    "hpa": _Kind(
        lambda _s, k: {
            "target": _SHARES.times(k.concurrency),
            "down_window_s": Axis((120.0, 300.0), (15.0, 60.0), (600.0, 1_200.0, 2_400.0)),
        },
        lambda _s, _k, p: Hpa(p["target"], None, _behaviour(p)),
    ),
    "keda-queue": _Kind(
        lambda _s, _k: {
            "kv_target": Axis((0.8, 0.6, 0.4, 0.25, 0.15, 0.08), (0.95,), (0.05, 0.03, 0.02, 0.01)),
            "queue_target": Axis((30.0, 5.0), (100.0,), (2.0, 1.0)),
        },
        lambda _s, _k, p: KedaQueue(p["kv_target"], p["queue_target"]),
    ),
    "kpa": _Kind(
        lambda _s, k: {
            "target": _SHARES.times(0.7 * k.concurrency),
            "down_delay_s": Axis((0.0, 300.0), (), (600.0, 1_200.0, 2_400.0)),
        },
        lambda _s, _k, p: Kpa(p["target"], p["down_delay_s"]),
    ),
    "llmd-slo": _Kind(
        lambda _s, _k: {
            "up": Axis((0.9, 0.75, 0.65, 0.55, 0.45, 0.35), (1.0,), (0.27, 0.2, 0.15, 0.1)),
            "down": Axis((0.73, 0.5), (0.9,), (0.35, 0.25)),
        },
        lambda s, _k, p: LlmdSlo(s.objective, p["up"], p["up"] * p["down"]),
    ),
    "dynamo": _Kind(
        lambda _s, _k: {"margin": _MARGINS, "interval_s": Axis((60.0, 180.0), (30.0,))},
        lambda s, _k, p: DynamoClassic(ProfileBook(s.profile, s.objective), p["interval_s"], p["margin"]),
    ),
    "dynamo-dual": _Kind(
        lambda _s, _k: {"margin": _MARGINS, "target": Axis((1.0, 0.6), (1.4,), (0.4, 0.25, 0.15))},
        lambda s, _k, p: DynamoDualLoop(ProfileBook(s.profile, s.objective), margin=p["margin"], target=p["target"]),
    ),
    "work-quantile": _Kind(
        lambda _s, _k: {
            "utilization": Axis((1.1, 1.0, 0.9, 0.75), (1.8, 1.5, 1.3), (0.6, 0.5, 0.4, 0.3, 0.2)),
            "quantile": Axis((0.5, 0.8, 0.95), (0.3,), (0.98, 0.99, 0.995, 1.0)),
        },
        lambda s, k, p: WorkQuantile(
            WorkLaw(s.profile, s.objective), p["quantile"], p["utilization"], s.lead_s, k.history
        ),
    ),
    "seasonal-naive": _Kind(
        lambda _s, k: {"safe_rps": _FINE_SHARES.times(k.benchmark_rps)},
        lambda s, k, p: SeasonalNaive(p["safe_rps"], k.history, s.lead_s),
    ),
    "scheduled": _Kind(
        lambda _s, k: {"target_rps": _FINE_SHARES.times(k.benchmark_rps)},
        lambda _s, k, p: Scheduled(p["target_rps"], k.history, k.day_offset_s),
    ),
    "optscaler": _Kind(
        lambda _s, k: {
            "safe_rps": Axis((1.1, 1.0, 0.9, 0.8), (1.6, 1.4, 1.25), (0.7, 0.6, 0.5, 0.4, 0.3)).times(k.benchmark_rps),
            "epsilon": Axis((0.2, 0.05, 0.01), (0.4,), (0.003, 0.001)),
        },
        lambda s, _k, p: OptScalerLike(p["safe_rps"], p["epsilon"], s.lead_s),
    ),
}

POLICY_NAMES = ("harmony", *(v for v in HARMONY_VARIANTS if v != "harmony"), *_KINDS)
DEFAULT_POLICIES = ("harmony", *_KINDS)


def candidates(policy: str, setting: Setting, knowledge: OperatorKnowledge) -> list[PolicyChoice]:
    """What tuning may try. Of HARMONY nothing: one setting serves every load, so it runs as it is shipped."""
    if policy in HARMONY_VARIANTS:
        return [PolicyChoice(policy, ())]
    axes = _axes(policy, setting, knowledge)
    return [_choice(policy, zip(axes, values, strict=True)) for values in product(*(a.core for a in axes.values()))]


def given_choice(policy: str, setting: Setting, knowledge: OperatorKnowledge) -> PolicyChoice | None:
    """The rival with the settings that it was given; None where it is to be tuned.

    Raises:
        HarmonyError: a setting that the policy does not have, or one that is missing; one sentence, exit code 2.
    """
    if policy not in knowledge.given:
        return None
    params, axes = knowledge.given[policy], _axes(policy, setting, knowledge)
    wrong = [name for name in params if name not in axes]
    missing = [name for name in axes if name not in params and name != MIN_REPLICAS]
    if wrong or missing:
        said = f"has no setting {wrong[0]!r}" if wrong else f"needs {policy}.{missing[0]} too"
        raise HarmonyError(f"--set: {policy} {said}: its settings are {', '.join(axes)}.", 2)
    return _choice(policy, params.items())


def _choice(policy: str, params: Iterable[tuple[str, float]]) -> PolicyChoice:
    return PolicyChoice(policy, tuple(sorted(params)))


def neighbours(
    best: PolicyChoice, tried: Sequence[PolicyChoice], setting: Setting, knowledge: OperatorKnowledge
) -> list[PolicyChoice]:
    """Return untried candidates one value beyond the best, on each axis where it lies at the end of what was tried.

    Empty where the best lies inside of what was tried on every axis, or at the end of the axis itself.
    """
    params, found = dict(best.params), []
    for name, axis in _axes(best.policy, setting, knowledge).items():
        place = axis.values.index(params[name])
        known = [axis.values.index(dict(choice.params)[name]) for choice in tried]
        steps = [place - 1] * (place == min(known)) + [place + 1] * (place == max(known))
        beside = [axis.values[step] for step in steps if 0 <= step < len(axis.values)]
        found += [_choice(best.policy, (params | {name: value}).items()) for value in beside]
    return [choice for choice in found if choice not in tried]


def towards_cheaper(choice: PolicyChoice, setting: Setting, knowledge: OperatorKnowledge) -> tuple[PolicyChoice, ...]:
    """Candidates a quarter, half and three quarters towards the cheaper value of the first axis; empty at its end.

    The first axis runs from cheap to dear; the way is measured in logarithms.
    """
    name, axis = next(iter(_axes(choice.policy, setting, knowledge).items()))
    params = dict(choice.params)
    place = axis.values.index(params[name])
    if place == 0:
        return ()
    dear, cheap = params[name], axis.values[place - 1]
    return tuple(
        _choice(choice.policy, (params | {name: dear * (cheap / dear) ** way}).items()) for way in (0.25, 0.5, 0.75)
    )


def with_floors(choice: PolicyChoice, setting: Setting, knowledge: OperatorKnowledge) -> list[PolicyChoice]:
    """The candidate with more and more replicas as the fewest."""
    floors = _axes(choice.policy, setting, knowledge)[MIN_REPLICAS].after
    return [_choice(choice.policy, (dict(choice.params) | {MIN_REPLICAS: floor}).items()) for floor in floors]


def controller_of(choice: PolicyChoice, knowledge: OperatorKnowledge) -> NewController:
    """How to bind the policy to a cluster."""
    if choice.policy in HARMONY_VARIANTS:
        variant = HARMONY_VARIANTS[choice.policy]
        declared_rps = knowledge.declared_times * knowledge.benchmark_rps
        return harmony_controller(variant, declared_rps, knowledge.policy, knowledge.declared_off_by)
    kind, params = _KINDS[choice.policy], dict(choice.params)

    def new(setting: Setting, cluster: Cluster, seed: int) -> Controller:
        policy = kind.make(setting, knowledge, params)
        fewest = int(params.get(MIN_REPLICAS, 0))
        return RuleController(setting, cluster, AtLeast(policy, fewest) if fewest else policy, seed)

    return new
