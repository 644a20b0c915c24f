"""The learned state of one workload: posteriors, budget, trust, surges and the last proposal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np

from agents.policy import INDICATOR_OF, UNIT_OF, Policy, Schedule, Unit, WorkloadSpec
from agents.records import InputFacts, Limit, WorkloadPlan
from agents.workload.signals import SilentSources, finished_requests, idle_since, residence_s
from agents.workload.slo_classes import NO_CLASSES, Classes, strain_of
from agents.workload.units import (
    declared_capacity,
    demand_column,
    demand_columns,
    load_factor,
    reports_uncached,
    role_miss_ratio,
    uncached_share,
    unit_evidence,
)
from model.bursts.jumps import Jumps
from model.bursts.recurring import RecurringSurges
from model.calibration.budget import ErrorBudget
from model.calibration.risk import RiskCalibration
from model.calibration.trust import ForecastTrust
from model.capacity.grid import LOAD_TEST_OFF_BY
from model.capacity.law import EngineLaw, EngineSlot
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from model.capacity.replica_starts import ReplicaStarts
from model.capacity.roofline import SCALED_OFF_BY, cost_ratios
from streams.catalogue import UNCACHED_PROMPT_RATE
from streams.records.facts import FleetFacts, OutcomeFact
from streams.windows.table import Window

# The load just before declared events, which the factor of an event multiplies.


# Time before an event from which on its load is measured; longer than any lead time.
_EVENT_LOOKAHEAD_MS: Final = 7_200_000
# Slots whose mean is the load before an event.
_EVENT_LOAD_SLOTS: Final = 40


def loads_before_events(
    loads: Mapping[str, float], schedule: Schedule, window: Window, end_ts_ms: int, unit: Unit = "requests"
) -> dict[str, float]:
    """Mean load by event, renewed with each slot until the event begins, kept until it is over.

    Args:
        loads: as of the slot before.
        window: whose newest slot ends at `end_ts_ms`.
        unit: of the loads.
    """
    renewed = {}
    for event in schedule.events:
        if event.load_factor is None or not event.start_ts_ms - _EVENT_LOOKAHEAD_MS <= end_ts_ms < event.end_ts_ms:
            continue
        rate = _mean_load(window, unit) if end_ts_ms <= event.start_ts_ms else None
        rate = loads.get(event.name) if rate is None else rate
        if rate is not None:
            renewed[event.name] = rate
    return renewed


def _mean_load(window: Window, unit: Unit) -> float | None:
    column = demand_column(unit, window)
    loads = window.values[-_EVENT_LOAD_SLOTS:, column][window.observed[-_EVENT_LOAD_SLOTS:, column]]
    return float(loads.astype(np.float64).mean()) * load_factor(unit, window) if len(loads) else None


# Numbers of a replica on other GPU types, stored until these are declared again.
#
# Only the operator knows the GPU type of the replicas. The first declared type names the present one. Another type
# stores the present numbers and restores its own, if there are any.


# GPU types that are stored beside the present one.
_MAX_GPU_TYPES: Final = 4


class GpuTypeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of a replica on one GPU type, in a commit record.

    Attributes:
        capacity, lead, law: snapshots.
        classes: snapshots of the capacity of each SLO class.
        scaled_rps: as of the learned state.
    """

    gpu_type: str
    capacity: dict[str, Any]
    lead: dict[str, Any]
    unit: Unit = "requests"
    power_w: float | None = None
    law: list[float] = []
    classes: dict[str, dict[str, Any]] = {}
    uncached_share: float | None = None
    scaled_rps: float | None = None


def store_gpu_type(others: Sequence[GpuTypeState], left: GpuTypeState) -> tuple[GpuTypeState, ...]:
    """The stored GPU types with `left` added; the oldest one is dropped beyond `_MAX_GPU_TYPES`."""
    return (*others, left)[-_MAX_GPU_TYPES:]


# Power draw of a replica: the highest measured value, with slow decay.


# Indicator of the measured power.
_POWER: Final = "gpu.power_w"
# Half-life of the highest power: a week, so that a quiet weekend does not lower it much.
_POWER_HALF_LIFE_S: Final = 7 * 86_400.0


def measured_draw_w(before: float | None, window: Window, fleet: FleetFacts | None, step_s: float) -> float | None:
    """Watts of one replica after the newest slot; None before the first measurement.

    A slot counts where all known devices reported and no replica starts or drains: those draw power without being
    ready.

    Args:
        before: the watts before it.
        step_s: length of the slot.
    """
    power, facts = window.newest(_POWER), window.facts.newest.get("gpu")
    if power is None or facts is None or facts.sources_seen < facts.sources_known:
        return before
    if fleet is None or fleet.ready < 1 or fleet.pending or fleet.draining:
        return before
    draw_w = power / fleet.ready
    return draw_w if before is None else max(draw_w, before * math.exp2(-step_s / _POWER_HALF_LIFE_S))


# Time constant by which evidence of a capacity fades while counters contradict each other.
_FADE_S: Final = 1_800.0
# Shared by all workloads, because nearly none declares events.
_NO_LOADS: Final[Mapping[str, float]] = {}


@dataclass(slots=True)
class LearnedState:
    """The learned numbers of one workload.

    Attributes:
        since_slot: in which it was first seen (again).
        event_loads: of `unit`/s just before known events, by their names.
        unit: what loads and capacity are counted in.
        uncached_share: of prompt tokens, as last told, where loads and capacity are of those that prefills compute;
            None = they are of all prompt tokens.
        power_w: measured draw of one replica; None = not yet.
        last_ready: replicas that were ready in the newest slot; 0 = not known.
        gpu_type: on which capacity, lead time and draw were learned; empty = never declared.
        scaled_rps: requests/s of a replica on it, by the former GPU type and data sheets; None = not known.
        elsewhere: numbers on other GPU types, the last one used at the end.
    """

    spec: WorkloadSpec
    declared: bool
    since_slot: int
    capacity: CapacityPosterior
    lead: LeadTimePosterior
    law: EngineLaw
    starts: ReplicaStarts = field(default_factory=ReplicaStarts)
    last_proposed: int | None = None
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    trust: ForecastTrust = field(default_factory=ForecastTrust)
    calibration: RiskCalibration = field(default_factory=RiskCalibration)
    event_loads: Mapping[str, float] = field(default_factory=lambda: _NO_LOADS)
    idle_since_ms: int | None = None
    classes: Classes = field(default_factory=lambda: NO_CLASSES)
    unit: Unit = "requests"
    uncached_share: float | None = None
    power_w: float | None = None
    last_ready: int = 0
    surges: RecurringSurges = field(default_factory=RecurringSurges)
    jumps: Jumps = field(default_factory=Jumps)
    silent: SilentSources = field(default_factory=SilentSources)
    gpu_type: str = ""
    scaled_rps: float | None = None
    elsewhere: tuple[GpuTypeState, ...] = ()

    @property
    def indicator(self) -> str:
        """What loads and capacity are of."""
        return INDICATOR_OF[self.unit] if self.uncached_share is None else UNCACHED_PROMPT_RATE

    def learn(
        self,
        window: Window,
        fleet: FleetFacts | None,
        outcomes: Sequence[OutcomeFact],
        end_ts_ms: int,
        step_ms: int,
        plan_every: int = 1,
        goal_ratio: float = 0.5,
    ) -> None:
        """Update posteriors, error budget and calibration with the newest slot, which ends at `end_ts_ms`.

        Args:
            plan_every: slots between plans.
            goal_ratio: share of the allowed misses that is aimed at.
        """
        for outcome in outcomes:
            if outcome.status == "ready" and outcome.lead_time_s is not None:
                self.lead.update(outcome.lead_time_s)
                self.starts.report(outcome.ts_ms)
        if fleet is not None:
            for lead_time_s in self.starts.observe(fleet.ts_ms, fleet.ready, fleet.wanted):
                self.lead.update(lead_time_s)
        rate, miss_ratio = window.newest("request.arrival_rate"), role_miss_ratio(self.spec, window)
        requests = None if rate is None else rate * step_ms / 1000
        self.budget.observe(end_ts_ms, requests, miss_ratio, self.spec.slo.objective, goal_ratio)
        if self.spec.role == "both":
            self._learn_law(window, fleet, step_ms)
        elif self.unit == "prompt_tokens":
            self._count_uncached(window)
        if self.spec.schedule.events:
            self.event_loads = loads_before_events(self.event_loads, self.spec.schedule, window, end_ts_ms, self.unit)
        columns = demand_columns(window.columns)
        self.surges.observe(window.values, window.observed, columns, end_ts_ms, step_ms)
        present = None if self.silent.missing else fleet
        self.idle_since_ms = idle_since(self.idle_since_ms, window, present, end_ts_ms, step_ms)
        self.power_w = measured_draw_w(self.power_w, window, fleet, step_ms / 1000)
        residence, replicas = residence_s(window), None
        if fleet is not None:
            replicas = fleet.wanted
            finished = finished_requests(window, end_ts_ms, step_ms, residence or 0.0)
            if self.classes.states:
                # Each class has a calibration of its own; all requests together are held to nothing that is stated.
                finished = replace(finished, columns=None)
            objective = self.spec.slo.objective
            self.calibration.settle(replicas, end_ts_ms, finished, objective, step_ms / 1000, plan_every)
        evidence = SlotEvidence(
            end_ts_ms=end_ts_ms,
            step_s=step_ms / 1000,
            arrival_rate=rate,
            miss_ratio=miss_ratio,
            waiting=window.newest("engine.waiting"),
            # The load of silent sources is estimated, so such a slot is no evidence of a replica's capacity.
            ready=present.ready if present is not None else None,
            pending=fleet.pending if fleet is not None else 0,
            draining=fleet.draining if fleet is not None else 0,
            ttft_s=self.spec.slo.ttft_s,
            objective=self.spec.slo.objective,
            residence_s=residence,
            strain=strain_of(self.spec, window),
        )
        self.capacity.observe(unit_evidence(self.spec, self.unit, window, evidence))
        told = window.facts.newest.get("requests")
        counts = () if told is None else told.slo
        self.classes.learn(self.spec, counts, evidence, replicas, plan_every, goal_ratio)

    def _learn_law(self, window: Window, fleet: FleetFacts | None, step_ms: int) -> None:
        """Follow the costs of the engine and the mix of requests with the newest slot."""
        read = window.newest

        def number(name: str) -> float:
            value = read(name)
            return math.nan if value is None else value

        uncached = read(UNCACHED_PROMPT_RATE)
        ready = 0 if fleet is None or self.silent.missing or fleet.ready != self.last_ready else fleet.ready
        self.last_ready = 0 if fleet is None else fleet.ready
        slot = EngineSlot(
            step_ms / 1000,
            ready,
            number("request.arrival_rate"),
            number("request.prompt_token_rate") if uncached is None else uncached,
            number("request.output_token_rate"),
            number("engine.running"),
            number("engine.waiting"),
            number("engine.kv_cache_usage_ratio"),
            number("engine.inter_token_s"),
        )
        before = self.law.costs
        changed = self.law.observe(slot)
        if self.law.contradiction is not None:
            self.capacity.fade(math.exp(-slot.step_s / _FADE_S))
        limit = self.law.limit()
        if limit is not None:
            # What was carried of an engine that changed stays a share of what it carries, as with another mix.
            old = self.law.limit(costs=before) if changed and not self.law.drifted else limit
            self.capacity.revalue(
                limit.rate, math.log(limit.rate / old.rate) if old is not None else 0.0, self.law.tested_ratio
            )

    def _count_uncached(self, window: Window) -> None:
        """Convert the learned numbers to computed prompt tokens once engines report them, and back when none does."""
        share = uncached_share(window)
        if share is not None and self.uncached_share is None:
            self._convert(share)
        elif self.uncached_share is not None and not reports_uncached(window):
            self._convert(1.0 / self.uncached_share)
            self.uncached_share = None
        self.uncached_share = share or self.uncached_share

    def _convert(self, factor: float) -> None:
        self.capacity = self.capacity.converted(factor, declared_capacity(self.spec))
        self.event_loads = {name: load * factor for name, load in self.event_loads.items()}

    def expect(self, plan: WorkloadPlan, origin_ts_ms: int, commit_s: float) -> None:
        """Store the stated risks of a plan until the outcome of its window is observed."""
        if plan.lead_time_s is None or not plan.risks:
            return
        lead_s = plan.lead_time_s.values[plan.lead_time_s.levels.index(0.5)]
        begin_ms = origin_ts_ms + round(lead_s * 1000)
        end_ms = begin_ms + round(commit_s * 1000)
        self.classes.expect(plan, begin_ms, end_ms)
        self.calibration.offer(begin_ms, end_ms, [(risk.replicas, risk.p_miss) for risk in plan.risks])


def spec_of(workload: str, policy: Policy) -> tuple[WorkloadSpec, bool]:
    declared = policy.spec(workload)
    return (declared, True) if declared is not None else (WorkloadSpec(id=workload), False)


def prior_capacity(spec: WorkloadSpec, scaled_rps: float | None = None) -> tuple[float | None, float | None]:
    """Requests/s or tokens/s of one replica before anything is learned, and the factor that this may be off by.

    A figure that is declared holds; without one, that of the former GPU type scaled by data sheets.
    """
    declared = declared_capacity(spec)
    if declared is None and scaled_rps is not None:
        return scaled_rps, SCALED_OFF_BY
    return declared, spec.capacity_off_by


def new_capacity(spec: WorkloadSpec) -> CapacityPosterior:
    """The prior of the capacity of one replica."""
    declared, off_by = prior_capacity(spec)
    return CapacityPosterior(declared, off_by=off_by, objective=spec.slo.objective)


def new_law(spec: WorkloadSpec, stored: Sequence[float] = (), scaled_rps: float | None = None) -> EngineLaw:
    """The costs of an iteration: the prior, or what a snapshot was taken of."""
    declared, off_by = prior_capacity(spec, scaled_rps) if spec.role == "both" else (spec.capacity_rps, None)
    return EngineLaw.restore(stored, spec.slo.tpot_s, declared, math.log(off_by or LOAD_TEST_OFF_BY))


def scaled_capacity(capacity: CapacityPosterior, law: EngineLaw, before: str, now: str) -> float | None:
    """What a replica would carry on another GPU type, requests/s, by data sheets; None where too little is known."""
    ratios, limit = cost_ratios(before, now), law.limit()
    if ratios is None or limit is None or not capacity.known:
        return None
    there = law.limit(costs=law.costs * ratios)
    return None if there is None else float(capacity.quantiles((0.5,))[0]) * there.rate / limit.rate


def new_state(workload: str, policy: Policy, slot: int) -> LearnedState:
    """State of a workload seen for the first time: priors from its declaration."""
    spec, declared = spec_of(workload, policy)
    return LearnedState(
        spec=spec,
        declared=declared,
        since_slot=slot,
        capacity=new_capacity(spec),
        lead=LeadTimePosterior(spec.lead_time_s),
        law=new_law(spec),
        unit=UNIT_OF[spec.role],
        classes=Classes() if spec.slo.classes else NO_CLASSES,
        gpu_type=spec.gpu_type,
    )


# The question to the forecast engine.


@dataclass(frozen=True, slots=True)
class Subject:
    """One workload at one origin: all that the engine needs to forecast and plan it.

    `refused` names why it must not be planned; it is forecast all the same where its context allows. `standing`
    limits hold beside the declared bounds.
    """

    window: Window
    state: LearnedState
    inputs: InputFacts
    fleet: FleetFacts | None
    facts_age_ms: int | None
    pending_since_ms: int | None
    refused: str | None
    standing: tuple[Limit, ...] = ()
