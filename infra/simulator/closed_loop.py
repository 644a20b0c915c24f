"""One simulated workload in closed loop: it serves arrivals, publishes telemetry and applies commands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.actuation.guard import ApplyGuard, Verdict
from agents.policy import WorkloadSpec
from agents.records import Command
from infra.simulator.arrivals import ArrivalSource
from infra.simulator.cluster import Cluster, ConstantLeadTime, LeadTime, LognormalLeadTime
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile
from infra.simulator.shadows import HPA, STATIC_PEAK, HpaRule, HpaSettings, Shadow, ShadowScore, StaticRule, score_of
from infra.simulator.sizing import SETTLE_S, fixed_need, peak_need, tuned_hpa_target
from infra.simulator.telemetry import DeviceModel, SlotTelemetry, TelemetrySampler


@dataclass(frozen=True, slots=True)
class Failure:
    """A node fails: a share of the ready replicas takes no request from then on, and as many start anew elsewhere.

    What runs on them is finished, as after a drain.
    """

    at_s: float
    share: float


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """One workload of the simulated fleet.

    Attributes:
        spec: as the policy declares it: bounds, objective, mean lead time.
        lead_sigma_log: of the lognormal lead time; 0 = every launch takes the mean.
        initial_replicas: None = what the first minutes need, as an operator would have provisioned.
        failures: seconds from the start; they meet every copy of the workload.
    """

    spec: WorkloadSpec
    profile: EngineProfile
    source: ArrivalSource
    device: DeviceModel = field(default_factory=DeviceModel)
    lead_sigma_log: float = 0.0
    initial_replicas: int | None = None
    failures: tuple[Failure, ...] = ()


class Load(NamedTuple):
    """A workload as its engines show it at one instant; `arrival_rps` is of the slot that ends there."""

    arrival_rps: float
    running: int
    waiting: int
    ready: int
    pending: int
    draining: int


class ClosedLoop:
    """The live copy of a workload and its shadows.

    Args:
        start_ts_ms: event time of second 0, a multiple of the step.
        step_s: slot length.
        score_from_s: requests arriving from here on count.
        foresight_s: how much of the future the static shadow may know.
    """

    def __init__(
        self,
        workload: SimulatedWorkload,
        seed: int,
        start_ts_ms: int,
        step_s: float,
        score_from_s: float,
        foresight_s: float,
    ) -> None:
        spec, source = workload.spec, workload.source
        self.spec = spec
        self.workload = workload
        self._guard = ApplyGuard(spec.max_replicas)
        self._seed = seed
        objective = Objective(spec.slo.ttft_s, spec.slo.tpot_s)
        preview = source.between(0.0, min(foresight_s, source.end_s) if math.isfinite(source.end_s) else foresight_s)
        peak = peak_need(workload.profile, preview, objective, spec.slo.objective, spec.max_replicas)
        self.peak_replicas = min(max(peak, spec.min_replicas), spec.max_replicas)
        initial = workload.initial_replicas
        if initial is None:
            initial = fixed_need(
                workload.profile, preview, objective, spec.slo.objective, 0.0, max(score_from_s, 1.0), spec.max_replicas
            )
        self.initial_replicas = min(max(initial, spec.min_replicas), spec.max_replicas)
        self.cluster = self._copy(objective, self.initial_replicas, score_from_s)
        self.sampler = TelemetrySampler(
            spec.id, self.cluster, workload.device, seed, start_ts_ms, step_s, with_gateway=spec.min_replicas == 0
        )
        bounds = (spec.min_replicas, spec.max_replicas)
        target = tuned_hpa_target(
            workload.profile, preview, objective, spec.slo.objective, bounds, self.initial_replicas, spec.lead_time_s
        )
        self.shadows = (
            Shadow(
                STATIC_PEAK, self._copy(objective, self.peak_replicas, score_from_s), StaticRule(self.peak_replicas)
            ),
            Shadow(
                HPA,
                self._copy(objective, self.initial_replicas, score_from_s),
                HpaRule(HpaSettings(target, *bounds)),
                act_from_s=score_from_s,
            ),
        )
        self._slot_rps = 0.0

    def live_slot(self, start_s: float, end_s: float) -> SlotTelemetry:
        """Live through `[start_s, end_s)`, sampling in its middle and at its last millisecond."""
        arrivals = self.workload.source.between(start_s, end_s)
        self._slot_rps = len(arrivals) / (end_s - start_s)
        self.cluster.feed(arrivals)
        for at_s in ((start_s + end_s) / 2, end_s - 0.001):
            self.cluster.advance(at_s)
            self.sampler.sample()
        telemetry = self.sampler.take(self.cluster.num_current)
        self.cluster.advance(end_s)
        for shadow in self.shadows:
            shadow.feed(arrivals)
            shadow.advance(end_s)
        for failure in self.workload.failures:
            if start_s < failure.at_s <= end_s:
                for cluster in (self.cluster, *(shadow.cluster for shadow in self.shadows)):
                    cluster.replace_failed(math.ceil(failure.share * cluster.num_ready))
        return telemetry

    def obey(self, command: Command, now_ms: int) -> Verdict:
        """Judge a command at the cluster's present instant and carry it out if it may be."""
        now_s = self.cluster.now_s
        verdict = self._guard.check(command, now_ms, self.cluster.num_current)
        if verdict.apply:
            change = self.cluster.set_replicas(command.replicas, now_s)
            self.sampler.outcome(command.command_id, "applied", now_s)
            self.sampler.launched(command.command_id, change.launched)
        elif not verdict.accepted:
            self.sampler.outcome(command.command_id, "expired" if verdict.reason == "expired" else "refused", now_s)
        return verdict

    def load(self) -> Load:
        """What the live view shows."""
        states = [self.cluster.state_of(r) for r in self.cluster.serving()]
        waiting = sum(s.waiting for s in states) + len(self.cluster.gateway)
        c = self.cluster
        return Load(self._slot_rps, sum(s.running for s in states), waiting, c.num_ready, c.num_pending, c.num_draining)

    def settle(self, end_s: float) -> None:
        """After the last arrival: give every open request its time to finish, in every copy."""
        self.cluster.advance(end_s + SETTLE_S)
        for shadow in self.shadows:
            shadow.settle(end_s + SETTLE_S)

    def score(self, end_s: float, *, final: bool) -> ShadowScore:
        """This run's own attainment and GPU-hours over the scored interval."""
        return score_of(self.cluster, end_s, final=final)

    def _copy(self, objective: Objective, replicas: int, score_from_s: float) -> Cluster:
        # Every copy draws the same lead times launch by launch.
        return Cluster(
            self.workload.profile,
            replicas,
            self._lead_time(),
            objective,
            score_from_s=score_from_s,
            keep_requests=False,
        )

    def _lead_time(self) -> LeadTime:
        mean_s, sigma = self.spec.lead_time_s, self.workload.lead_sigma_log
        return LognormalLeadTime(mean_s, sigma, self._seed) if sigma > 0 else ConstantLeadTime(mean_s)
