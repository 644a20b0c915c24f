"""HARMONY in a replay: the worker's policy with shipped settings, and its ablations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from agents.policy import GuardLimits, Policy, Slo, TargetRef, WorkloadSpec
from infra.lab.replay.loop import StateOverride, constant_price, declared_capacity, declared_lead_time
from infra.lab.replay.setting import Setting
from infra.lab.replay.simulation import WORKLOAD, Controller, HarmonyController, NewController
from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, ForecastBatch, Forecaster, WrappedForecaster
from model.network.forecaster import serving_forecaster, worker_forecaster
from model.network.spec import NO_NETWORK

# Forecasters of ablations: independent marginals, and perfect knowledge of the arrivals.


_LEVEL_SIGMA, _STEP_SIGMA = 0.05, 0.1  # of the log: of whole paths, and of single steps beside


class Marginal(WrappedForecaster):
    """Ablation of the joint law: the same quantiles at every step, with every step drawn independently."""

    def __init__(self, inner: Forecaster) -> None:
        super().__init__(inner, "marginal")

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """As the contract says."""
        answer = self._inner.forecast(batch, horizon, num_paths)
        generator = torch.Generator().manual_seed(int(batch.origin_ts_ms[0]) % (1 << 31))
        paths = answer.paths.clone()
        for step in range(horizon):
            paths[:, :, step] = paths[:, torch.randperm(num_paths, generator=generator), step]
        return ForecastBatch(paths, answer.sources, self.fingerprint)


class Perfect:
    """Forecasts the future arrivals within a few percent; of other indicators it repeats the last value.

    The spread stays above zero: a certain forecaster that is wrong by one request would be demoted by calibration.
    """

    def __init__(self, arrivals: Arrivals, start_ts_ms: int) -> None:
        self._arrival_s = arrivals.arrival_s
        self._start_ts_ms = start_ts_ms
        self.fingerprint = "perfect"
        self.max_horizon = 64
        self.min_context = 64

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """As the contract says."""
        step_s = batch.step_ms / 1000
        newest = batch.values[:, -1]  # [B, N]
        paths = newest[:, None, None].expand(len(batch), num_paths, horizon, newest.shape[-1]).clone()
        for row, origin_ts_ms in enumerate(batch.origin_ts_ms.tolist()):
            edges = (origin_ts_ms - self._start_ts_ms) / 1000 + step_s * np.arange(horizon + 1)
            counts = np.diff(np.searchsorted(self._arrival_s, edges, side="left"))
            generator = torch.Generator().manual_seed(origin_ts_ms % (1 << 31))
            levels = _LEVEL_SIGMA * torch.randn(num_paths, 1, generator=generator)
            steps = _STEP_SIGMA * torch.randn(num_paths, horizon, generator=generator)
            paths[row, :, :, 0] = torch.from_numpy(counts / step_s).to(paths.dtype) * torch.exp(levels + steps)
        return ForecastBatch(paths, ("perfect",) * len(batch), self.fingerprint)


def _shipped(_: Setting) -> Forecaster:
    """What `harmony worker` runs."""
    return worker_forecaster()


@dataclass(frozen=True, slots=True)
class Variant:
    """An ablation of HARMONY: one part removed or replaced.

    Attributes:
        policy: fields of `Policy` that differ.
        forecaster: in place of the shipped one.
        state_override: replaces what was learned before the planner sees it; None = as learned.
    """

    policy: dict[str, Any] = field(default_factory=dict)
    forecaster: Callable[[Setting], Forecaster] = _shipped
    state_override: StateOverride | None = None


EARLY_STEPS: Final = 32
_EARLY_COVERAGE_RATIO: Final = 0.25


def acting_early(guards: GuardLimits) -> GuardLimits:
    """The same guards, but for a load of hours: they let HARMONY act on the first steps of a context."""
    return replace(
        guards,
        warm_up_steps=min(guards.warm_up_steps, EARLY_STEPS),
        min_coverage_ratio=min(guards.min_coverage_ratio, _EARLY_COVERAGE_RATIO),
    )


REPLAY_POLICY: Final = Policy(guards=acting_early(GuardLimits()))

HARMONY_VARIANTS: dict[str, Variant] = {
    "harmony": Variant(),
    "harmony-network": Variant(forecaster=lambda _: serving_forecaster()),
    "harmony-baselines": Variant(forecaster=lambda _: serving_forecaster(NO_NETWORK)),
    "harmony-marginal": Variant(forecaster=lambda s: Marginal(_shipped(s))),
    "harmony-seasonal-naive": Variant(forecaster=lambda _: SeasonalNaiveForecaster()),
    "harmony-perfect": Variant(forecaster=lambda s: Perfect(s.load.arrivals, s.start_ts_ms)),
    "harmony-fixed-capacity": Variant(state_override=declared_capacity),
    "harmony-fixed-lead": Variant(state_override=declared_lead_time),
    "harmony-constant-price": Variant(state_override=constant_price),
    "harmony-no-recurrence": Variant(policy={"recurring_surges": False}),
    "harmony-no-jumps": Variant(policy={"jumps": False}),
}


def policy_of(
    setting: Setting, capacity_rps: float, base: Policy = REPLAY_POLICY, off_by: float | None = None, **changes: Any
) -> Policy:
    """The policy of one cell: `base` with declared bounds, objective, lead time, and capacity that may be `off_by`."""
    spec = WorkloadSpec(
        id=WORKLOAD,
        target=TargetRef(name="load"),
        min_replicas=setting.min_replicas,
        max_replicas=setting.max_replicas,
        gpus_per_replica=setting.profile.gpus_per_replica,
        slo=Slo(setting.objective.ttft_s, setting.objective.tpot_s, setting.share),
        mode="act",
        capacity_rps=capacity_rps,
        capacity_off_by=off_by,
        lead_time_s=setting.lead_s,
    )
    return replace(base, fleet="replay", workloads=(spec,), **changes)


def harmony_controller(
    variant: Variant, capacity_rps: float, base: Policy = REPLAY_POLICY, off_by: float | None = None
) -> NewController:
    """How to bind a variant to a cluster.

    A run's seed is that of the planner's draws, too: on a trace nothing else would differ between runs.
    """

    def new(setting: Setting, cluster: Cluster, seed: int) -> Controller:
        policy = policy_of(setting, capacity_rps, base, off_by, **({"seed": seed} | variant.policy))
        return HarmonyController(setting, cluster, policy, variant.forecaster(setting), seed, variant.state_override)

    return new
