"""From subjects to plans: the planner's request for each workload, and the plan record of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.planning.classes import ClassRow, bound_by, class_rows
from agents.planning.limits import chance_needed, counts_of, reach_s, sight_limit, with_last_replica
from agents.planning.planner import plan, reactive_replicas
from agents.planning.request import PlanInput, PlanResult, unit_demand, unit_input
from agents.policy import Policy, Unit, WorkloadSpec
from agents.records import JumpsAhead, Limit, SurgeAhead, WorkloadPlan, WorkView
from agents.workload.signals import residence_s
from agents.workload.slo_classes import promise_capacities
from agents.workload.state import LearnedState, Subject
from agents.workload.units import demand_column, demand_columns, load_factor
from model.bursts.mixes import ROWS as MIX_ROWS
from model.bursts.mixes import work_paths
from model.calibration.trust import PendingForecast
from model.capacity.law import EngineLaw
from model.numerics import decayed_mean, exponential_averages
from streams.windows.coarse import COARSE_STEP_MS
from streams.windows.table import Window

# Arrivals as the engine feels them: averaged over the time that requests stay.
#
# A request that stays a minute loads its replica for that minute, so a burst of seconds is shared by everything in
# service and hardly felt, while a change of level is felt little by little. A replica that serves all its requests at
# once relaxes with R / (1 - utilization), R being the time requests stay, hence more slowly than R.


_RELAXATION: Final = 2.0  # of residence times; utilization is about a half where fleets are run


def served_load(demand: Tensor, windows: Sequence[Window], step_ms: int, units: Sequence[Unit] | None = None) -> Tensor:
    """Exponential averages of demand paths, begun with the past.

    Args:
        demand: float32 [B, S, H], load of the steps after each window, 1/s in its unit.
        windows: B of them.
        units: B; None = all in requests.

    Returns:
        float32 [B, S, H], on the CPU, the paths of a step side by side in memory; rows whose requests do not stay, or
        of whom it is not known how long, are as they were.
    """
    step_s = step_ms / 1000
    keeps, starts = zip(
        *(_past(window, step_s, unit) for window, unit in zip(windows, units or _all_requests(windows), strict=True)),
        strict=True,
    )
    paths = demand.detach().to("cpu", torch.float32).transpose(1, 2).contiguous().numpy()  # [B, H, S]
    load = np.empty_like(paths)
    exponential_averages(paths, np.array(keeps, np.float32), np.array(starts, np.float32), load)
    return torch.from_numpy(load).transpose(1, 2)


def _all_requests(windows: Sequence[Window]) -> list[Unit]:
    return ["requests"] * len(windows)


def _past(window: Window, step_s: float, unit: Unit) -> tuple[float, float]:
    """The share of the average that a step to come leaves in place, and the load at the origin.

    What is in service now arrived within the time that requests stay.
    """
    stay_s = residence_s(window)
    if stay_s is None or stay_s <= 0:
        return 0.0, 0.0
    has_load, load = decayed_mean(window.values, window.observed, demand_column(unit, window), step_s / stay_s)
    return (math.exp(-step_s / (_RELAXATION * stay_s)), load * load_factor(unit, window)) if has_load else (0.0, 0.0)


# Level at which a plan says how much heavier requests may become.
_HEAVIER_LEVEL: Final = 0.95


class RowPlanner:
    """Plans the workloads of one worker, row by row of a batch."""

    def __init__(self, policy: Policy, step_ms: int) -> None:
        self._policy = policy
        self._step_ms = step_ms
        # Of the day before: those that what forecasts reach lies in, and that of the origin.
        self._day_rows = 1 + math.ceil(policy.max_horizon * step_ms / COARSE_STEP_MS)

    def results(
        self,
        subjects: Sequence[Subject],
        arrivals: Tensor,
        others: Callable[[int], Tensor | None],
        origin_ts_ms: int,
    ) -> list[PlanResult]:
        """The planner's answers.

        Args:
            arrivals: float32 [B, S, H], paths of the arrival rate.
            others: likewise of a column of the catalogue; None where it is not forecast.
        """
        if not subjects:
            return []
        inputs = [self._input(subject, origin_ts_ms) for subject in subjects]
        windows, units = [subject.window for subject in subjects], [subject.state.unit for subject in subjects]
        demand = unit_demand(units, windows, arrivals, others)
        load = served_load(demand, windows, self._step_ms, units)
        rows = [self._classes(request, subject.state) for request, subject in zip(inputs, subjects, strict=True)]
        groups = [[row.request for row in classes] or [request] for classes, request in zip(rows, inputs, strict=True)]
        at = [b for b, requests in enumerate(groups) for _ in requests]
        flat = [request for requests in groups for request in requests]
        work = self._work_paths(subjects, load.shape[2], load.shape[1], origin_ts_ms)
        answers = iter(
            plan(
                flat,
                load[at][..., None] if len(at) > len(load) else load[..., None],
                self._policy,
                work={row: work[b] for row, b in enumerate(at) if b in work},
            )
        )
        results = []
        told = zip(subjects, inputs, rows, arrivals, strict=True)
        for place, (subject, request, classes, arriving) in enumerate(told):
            row_results = [next(answers) for _ in classes or (request,)]
            result = bound_by(classes, row_results) if classes else row_results[0]
            if place in work:
                result = replace(result, heavier_ratio=float(np.quantile(work[place][-1], _HEAVIER_LEVEL)))
            results.append(self._with_last_replica(result, request, subject, arriving, origin_ts_ms))
        return results

    def _work_paths(
        self, subjects: Sequence[Subject], horizon: int, num_paths: int, origin_ts_ms: int
    ) -> dict[int, NDArray[np.float32]]:
        """By place among the subjects: how the work of a request may change, [H, S]."""
        paths = {}
        for b, subject in enumerate(subjects):
            columns = demand_columns(subject.window.columns)
            if subject.state.law.mix is None or min(columns) < 0:
                continue
            means, observed = subject.window.read_coarse(MIX_ROWS)
            work = work_paths(
                subject.state.law,
                means[:, columns],
                observed[:, columns],
                subject.window.workload,
                origin_ts_ms,
                self._step_ms / 1000,
                (horizon, num_paths),
            )
            if work is not None:
                paths[b] = work
        return paths

    def between(self, subject: Subject, origin_ts_ms: int) -> WorkloadPlan:
        """The last plan stands, unless the present load needs more."""
        base = bare_plan(subject, subject.refused)
        if subject.refused is not None:
            return base
        request, state = self._input(subject, origin_ts_ms), subject.state
        class_requests = [row.request for row in self._classes(request, state)] or [request]
        needs = [reactive_replicas(one, self._policy.commit_s) for one in class_requests]
        needed = max((n for n in needs if n is not None), default=None)
        last = state.last_proposed
        if last == 0 and _may_be_none(state) and state.idle_since_ms is None and request.ready + request.pending > 0:
            last = 1  # the plan to go to zero was made before there was something to do
        first = max((limit.low or 0 for limit in subject.standing if limit.guard == "first_request"), default=None)
        counts = [n for n in (last, needed, first) if n is not None]
        if not counts:
            return base
        proposed = max(counts)
        proposer = "first_request" if first else "last_plan" if proposed == last else "reactive"
        return msgspec.structs.replace(base, reactive_replicas=needed, proposed=proposed, proposer=proposer)

    def workload_plan(
        self,
        subject: Subject,
        result: PlanResult,
        source: str,
        outlook: PendingForecast | None = None,
        surge: SurgeAhead | None = None,
        jumps: JumpsAhead | None = None,
    ) -> WorkloadPlan:
        """What an answer says."""
        state = subject.state
        bound = next((c for c in result.classes if c.name == result.slo_class), None)
        return bare_plan(
            subject,
            result.refused,
            sight_limit(result, subject.fleet),
            reactive_replicas=result.reactive_replicas,
            proposed=result.proposed,
            proposer=result.proposer,
            epsilon=bound.epsilon if bound is not None else self._policy.epsilon_of(state.spec.slo),
            miss_price=result.miss_price,
            proposals=result.proposals,
            risks=result.risks,
            forecast_source=source,
            peak=result.peak,
            window_s=result.window_s,
            capacity=result.capacity,
            promises=promise_capacities(state.spec, state.capacity, result.proposed, result.peak),
            work=_work_view(state.law, result.heavier_ratio),
            lead_time_s=result.lead_time_s,
            lead_time_starts=state.lead.num_starts,
            p_needed=result.p_needed,
            slo_class=result.slo_class,
            classes=result.classes,
            class_risks=result.class_risks,
            outlook=outlook,
            surge=surge,
            jumps=jumps,
        )

    def _input(self, subject: Subject, origin_ts_ms: int) -> PlanInput:
        state, fleet = subject.state, subject.fleet
        if fleet is None:
            raise ValueError(f"{subject.window.workload}: a workload without fleet facts is refused, not planned")
        remaining: tuple[float, ...] = ()
        if fleet.pending > 0 and subject.pending_since_ms is not None:
            elapsed_s = (origin_ts_ms - subject.pending_since_ms) / 1000
            remaining_s = state.lead.quantile(0.5) - elapsed_s
            # An overdue replica may be stuck: it gets a fresh lead time instead of counting as almost there.
            remaining = (remaining_s,) * fleet.pending if remaining_s > 0 else ()
        objective = state.spec.slo.objective
        request = PlanInput(
            workload=subject.window.workload,
            origin_ts_ms=origin_ts_ms,
            step_ms=self._step_ms,
            spec=state.spec if state.declared else None,
            ready=fleet.ready,
            pending=fleet.pending,
            draining=fleet.draining,
            arrival_rate_now=subject.inputs.arrival_rate,
            waiting_now=subject.window.newest("engine.waiting"),
            capacity=state.capacity,
            lead=state.lead,
            last_replicas=state.last_proposed,
            pending_remaining_s=remaining,
            epsilon=self._policy.epsilon_of(state.spec.slo),
            day_ago=_day_ago(state.unit, subject.window, self._day_rows),
            beside=counts_of(subject.standing, state.spec),
            keeps_one=_may_be_none(state),
            shift=state.calibration.shift,
            price=state.budget.miss_price(objective),
            busy_replicas=state.law.busy_replicas,
        )
        return unit_input(request, state.spec, state.unit, subject.window)

    def _with_last_replica(
        self, result: PlanResult, request: PlanInput, subject: Subject, arrivals: Tensor, origin_ts_ms: int
    ) -> PlanResult:
        state = subject.state
        if not _may_be_none(state):
            return result
        p_needed = chance_needed(arrivals.numpy(), self._step_ms / 1000, reach_s(state, self._step_ms))
        idle_ms = None if state.idle_since_ms is None else origin_ts_ms - state.idle_since_ms
        idle_s = None if idle_ms is None else idle_ms / 1000
        return with_last_replica(result, request, state.spec.zero, idle_s, p_needed)

    def _classes(self, request: PlanInput, state: LearnedState) -> list[ClassRow]:
        return class_rows(request, state.classes, state.budget, self._policy, state.calibration)


def _work_view(law: EngineLaw, heavier_ratio: float | None) -> WorkView | None:
    limit, mix = law.limit(), law.mix
    if limit is None or mix is None:
        return None
    return WorkView(
        _four_digits(mix.prompt_tokens),
        _four_digits(mix.output_tokens),
        _four_digits(limit.work_s),
        limit.binding,
        _four_digits(limit.utilization),
        None if heavier_ratio is None else _four_digits(heavier_ratio),
        law.contradiction,
    )


def _four_digits(number: float) -> float:
    return float(f"{number:.4g}")


def _day_ago(unit: Unit, window: Window, rows: int) -> tuple[float | None, ...]:
    """Means of the load a day ago; of prompt tokens as much is taken to have been cached as is now."""
    means, factor = window.read_day_ago(demand_column(unit, window), rows), load_factor(unit, window)
    return means if factor == 1.0 else tuple([None if mean is None else mean * factor for mean in means])


def bare_plan(subject: Subject, refused: str | None, limits: tuple[Limit, ...] = (), **more: Any) -> WorkloadPlan:
    """A plan without a proposal, but for what is given of it; `limits` beside those that stand."""
    return WorkloadPlan(
        workload=subject.window.workload,
        refused=refused,
        inputs=subject.inputs,
        fleet=subject.fleet,
        facts_age_ms=subject.facts_age_ms,
        slo_miss_ratio=subject.window.newest("slo.miss_ratio"),
        budget_left_ratio=subject.state.budget.left_ratio(subject.state.spec.slo.objective),
        standing=(*subject.standing, *limits),
        indicator=subject.state.indicator,
        power_w=subject.state.power_w,
        **more,
    )


def _may_be_none(state: LearnedState) -> bool:
    return state.declared and state.spec.min_replicas == 0


# Plug-in policies, which may propose another count than the planner; the guards still apply.
#
# They are asked where plans are made, so that their answers are in the `plans` log and decisions stay a function of it.


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """What a policy is asked about one workload.

    Attributes:
        spec: the declaration, with bounds and SLO; defaults where the workload is not declared.
        plan: the built-in plan: proposed count, risks of counts, capacity, lead time, replicas, inputs.
        demand_paths: float32 [S, H], arrivals in requests/s per sample path and step from the origin on; read-only.
            The plan's peak and capacity may be of tokens: `plan.indicator` says.
        last_proposed: count of the previous plan.
    """

    workload: str
    origin_ts_ms: int
    step_ms: int
    spec: WorkloadSpec
    plan: WorkloadPlan
    demand_paths: NDArray[np.float32]
    last_proposed: int | None


class Proposer(Protocol):
    """Answers for many workloads at once; the answer for one must not depend on the others."""

    @property
    def name(self) -> str:
        """Stands in decisions as the proposer."""
        ...

    def propose(self, questions: Sequence[PolicyQuestion]) -> Sequence[int | None]:
        """A count per question, in their order; None leaves the built-in plan as it is. Never raises."""
        ...


def with_proposals(
    proposer: Proposer,
    planned: Sequence[WorkloadPlan],
    subjects: Sequence[Subject],
    arrivals: Tensor,
    origin_ts_ms: int,
    step_ms: int,
) -> list[WorkloadPlan]:
    """The plans, with the counts of the policy where it has one.

    Args:
        planned: only those with a count of their own are asked about.
        arrivals: float32 [B, S, H], requests/s.
    """
    eligible = [b for b, plan in enumerate(planned) if plan.refused is None and plan.risks]
    if not eligible:
        return list(planned)
    paths = np.array(arrivals.numpy())  # ours stay untouched
    paths.flags.writeable = False
    questions = [
        PolicyQuestion(
            workload=planned[b].workload,
            origin_ts_ms=origin_ts_ms,
            step_ms=step_ms,
            spec=subjects[b].state.spec,
            plan=planned[b],
            demand_paths=paths[b],
            last_proposed=subjects[b].state.last_proposed,
        )
        for b in eligible
    ]
    changed = list(planned)
    for b, count in zip(eligible, proposer.propose(questions), strict=True):
        if count is not None:
            changed[b] = msgspec.structs.replace(planned[b], proposed=count, proposer=proposer.name)
    return changed
