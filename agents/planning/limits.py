"""Limits beside the chance constraint: batch work with deadlines, declared bounds and events, and the last replica."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.planning.request import PlanInput, PlanResult
from agents.policy import (
    INDICATOR_OF,
    CalendarRule,
    IdleRule,
    InForce,
    Schedule,
    WorkloadSpec,
    ceiling_at,
    floor_within,
    local_text,
    windows,
)
from agents.records import Limit
from agents.workload.signals import mean_ratio, ratio_of_sums
from agents.workload.state import LearnedState
from agents.workload.units import demand_column
from model.planning.deadlines import Job, Means, min_replicas_for_deadlines
from streams.records.facts import FleetFacts
from streams.windows.coarse import COARSE_ROWS, COARSE_STEP_MS, DAY_ROWS
from streams.windows.table import Window

# Quantile of the capacity that work with a deadline is planned with.
_CAPACITY_LEVEL: Final = 0.1
# Quantile of the lead time that work with a deadline is planned with.
_LEAD_LEVEL: Final = 0.95
# Slots whose means are the present load and the present length of requests.
_SLOTS: Final = 40


@dataclass(frozen=True, slots=True)
class _Queued:
    """Tokens to be done between two instants."""

    release_ts_ms: int
    due_ts_ms: int
    tokens: float


def batch_limit(
    state: LearnedState, window: Window, fleet: FleetFacts | None, origin_ts_ms: int, reach_ms: int
) -> tuple[Limit, ...]:
    """The floor that deadlines set, if there is anything to do by one and it is known what a replica carries.

    Args:
        reach_ms: declared work that may begin within this time counts already.
    """
    spec = state.spec
    queued = _queued(spec, window, origin_ts_ms, reach_ms)
    if not queued or fleet is None or not state.capacity.known or spec.role == "prefill":
        return ()
    carried = float(state.capacity.quantiles((_CAPACITY_LEVEL,))[0])
    tokens_per_request = _tokens_per_request(state, window, carried)
    if tokens_per_request is None:
        return ()
    jobs = [
        Job((q.release_ts_ms - origin_ts_ms) / 1000, (q.due_ts_ms - origin_ts_ms) / 1000, q.tokens / tokens_per_request)
        for q in queued
    ]
    last_ms = max(q.due_ts_ms for q in queued)
    means = Means(
        online=_online(window, demand_column(state.unit, window), origin_ts_ms, last_ms),
        step_s=COARSE_STEP_MS / 1000,
        capacity=carried,
        ready=fleet.ready,
        lead_s=state.lead.quantile(_LEAD_LEVEL),
    )
    floor = min_replicas_for_deadlines(jobs, means, spec.min_replicas, spec.max_replicas)
    tokens, first = sum(q.tokens for q in queued), min(q.due_ts_ms for q in queued)
    late = "" if floor.in_time else "; it cannot all be done in time"
    reason = f"{tokens:.3g} tokens of batch work, the first due {local_text(first, spec.schedule.time_zone)}{late}"
    return (Limit("batch", floor.replicas, None, reason),)


def _queued(spec: WorkloadSpec, window: Window, origin_ts_ms: int, reach_ms: int) -> list[_Queued]:
    """What sources say is queued, and what is declared of those that say nothing.

    Of declared work nobody tells how much is done, so it is taken to be worked off evenly until it is due.
    """
    queued_sources = {queue.source for queue in window.facts.batch}
    queued = [
        _Queued(origin_ts_ms, job.due_ts_ms, job.tokens)
        for queue in window.facts.batch
        for job in queue.jobs
        if job.tokens > 0
    ]
    for batch in spec.batch.jobs:
        if batch.name in queued_sources:
            continue
        rule = CalendarRule(batch.name, batch.days, batch.start_minute, batch.end_minute)
        for start, end in windows(rule, spec.schedule.time_zone, origin_ts_ms, origin_ts_ms + reach_ms):
            left = min(1.0, (end - origin_ts_ms) / (end - start))
            queued.append(_Queued(max(start, origin_ts_ms), end, batch.tokens * left))
    return queued


def _tokens_per_request(state: LearnedState, window: Window, carried: float) -> float | None:
    """Generated tokens that weigh as much as a unit of load: by what a replica is said to do, else as they are.

    Where no online request came of late, as in the night that work is put off to: as they were within the week, else as
    requests usually have.
    """
    if state.spec.batch.tokens_per_s is not None:
        return state.spec.batch.tokens_per_s / carried
    if state.unit == "output_tokens":
        return 1.0
    generated, demand = window.columns[INDICATOR_OF["output_tokens"]], demand_column(state.unit, window)
    lately = mean_ratio(window, generated, demand, _SLOTS)
    mix = state.law.mix
    usual = None if mix is None else mix.output_tokens
    return lately or ratio_of_sums(*window.read_coarse(), generated, demand, COARSE_ROWS) or usual


def _online(window: Window, column: int, origin_ts_ms: int, last_ms: int) -> NDArray[np.float64]:
    """Load in steps of ten minutes: at first as now, then as a day before where that was seen."""
    is_observed = window.observed[-_SLOTS:, column]
    now = float(window.values[-_SLOTS:, column][is_observed].astype(np.float64).mean()) if is_observed.any() else 0.0
    steps = min(max(math.ceil((last_ms - origin_ts_ms) / COARSE_STEP_MS), 1), COARSE_ROWS)
    values, observed = window.read_coarse()
    online = np.full(steps, now)
    for k in range(steps):
        row = len(values) - DAY_ROWS + k % DAY_ROWS
        if k > 0 and row >= 0 and observed[row, column]:
            online[k] = float(values[row, column])
    return online


# Declared limits of a plan, each with its reason.


# Steps until the next plan and until its command is out.
_LOOKS: Final = 2


def limits_of(
    state: LearnedState, window: Window, fleet: FleetFacts | None, origin_ts_ms: int, step_ms: int
) -> tuple[Limit, ...]:
    """What holds for one workload at its origin."""
    if not state.declared:
        return ()
    timed = state.spec.schedule or state.spec.batch.jobs
    reach_ms = round(reach_s(state, step_ms) * 1000) if timed else 0
    return (
        *_first_request(state, window, fleet),
        *batch_limit(state, window, fleet, origin_ts_ms, reach_ms),
        *_scheduled(state, origin_ts_ms, reach_ms),
    )


def reach_s(state: LearnedState, step_ms: int) -> float:
    """How far ahead something must be known to be ready in time: a look later it would be too late."""
    return state.lead.quantile(_LEAD_LEVEL) + _LOOKS * step_ms / 1000


def counts_of(limits: tuple[Limit, ...], spec: WorkloadSpec) -> tuple[int, ...]:
    """The counts that limits may lead to, within bounds: their risk should be stated."""
    counts = [count for limit in limits for count in (limit.low, limit.high) if count is not None]
    return tuple(sorted({min(max(count, spec.min_replicas), spec.max_replicas) for count in counts}))


def sight_limit(result: PlanResult, fleet: FleetFacts | None) -> tuple[Limit, ...]:
    """What a plan says that sees less far than a start may take: nothing, unless it does.

    Where even the median start takes longer, nobody knows what comes before a replica given up now could be back.
    """
    lead = result.lead_time_s
    if result.sight_s is None or lead is None or fleet is None:
        return ()
    median_s = lead.values[lead.levels.index(0.5)]
    low = fleet.ready + fleet.pending if median_s > result.sight_s else None
    start_text = f"takes {median_s:.0f} s as a rule" if low is not None else f"may take {lead.values[-1]:.0f} s"
    return (Limit("horizon", low, None, f"a start {start_text}, forecasts reach {result.sight_s:.0f} s"),)


def _first_request(state: LearnedState, window: Window, fleet: FleetFacts | None) -> tuple[Limit, ...]:
    """Requests that nobody is there to serve bring the first replica back, whatever a forecast says."""
    if state.spec.min_replicas > 0 or fleet is None or fleet.ready + fleet.pending > 0:
        return ()
    waiting, rate = window.newest("engine.waiting_max") or 0.0, window.newest("request.arrival_rate") or 0.0
    if not (waiting > 0 or rate > 0):
        return ()
    cause = f"{waiting:g} requests wait" if waiting > 0 else f"{rate:.3g} requests/s arrive"
    return (Limit("first_request", 1, None, f"{cause} and no replica is there"),)


def _scheduled(state: LearnedState, origin_ts_ms: int, reach_ms: int) -> tuple[Limit, ...]:
    schedule = state.spec.schedule
    if not schedule:
        return ()
    floor = floor_within(schedule, origin_ts_ms, reach_ms, _expected(state))
    ceiling = ceiling_at(schedule, origin_ts_ms)
    limits = []
    if floor is not None:
        limits.append(Limit("schedule", floor.replicas, None, _why(floor, "at least", schedule, origin_ts_ms)))
    if ceiling is not None:
        limits.append(Limit("schedule", None, ceiling.replicas, _why(ceiling, "at most", schedule, origin_ts_ms)))
    return tuple(limits)


def _expected(state: LearnedState) -> dict[str, int]:
    """Replicas for the load that events announce, from the load just before them."""
    if not state.capacity.known:
        return {}
    carried = float(state.capacity.quantiles((_CAPACITY_LEVEL,))[0])
    loads = state.event_loads
    return {
        event.name: math.ceil(min(event.load_factor * loads[event.name] / carried, 1e9) - 1e-9)
        for event in state.spec.schedule.events
        if event.load_factor is not None and event.name in loads
    }


def _why(bound: InForce, bound_text: str, schedule: Schedule, origin_ts_ms: int) -> str:
    if bound.start_ts_ms > origin_ts_ms:
        when = f"from {local_text(bound.start_ts_ms, schedule.time_zone)}, within reach of the lead time"
    else:
        when = f"until {local_text(bound.end_ts_ms, schedule.time_zone)}"
    return f"{bound.name} asks for {bound_text} {bound.replicas} {when}"


# The last replica (scale to zero).
#
# It is removed when the workload has been idle for a declared time and a request within the lead time is unlikely. It
# is restored when that probability is several times the allowed one, so that the count does not flap. The first request
# restores it at once.


# Factor on the allowed probability from which on a replica is ordered before any request.
_RETURN_RISK_FACTOR: Final = 4.0
# Probability of a request from which on a replica is ordered in any case.
_MAX_RETURN_RISK: Final = 0.5


def chance_needed(rates: NDArray[np.float32], step_s: float, reach_s: float) -> float:
    """Probability that a request comes within the reach: arrivals are Poisson, given a path of their rate.

    Args:
        rates: [S, H], requests/s; steps beyond the paths count as their last one.
    """
    horizon = rates.shape[1]
    steps = max(math.ceil(reach_s / step_s - 1e-9), 1)
    none: list[float] = []
    for path in rates.astype(np.float64).tolist():
        expected = math.fsum(max(rate, 0.0) for rate in path[:steps]) + max(steps - horizon, 0) * max(path[-1], 0.0)
        none.append(math.exp(-expected * step_s))
    return min(max(1.0 - math.fsum(none) / len(none), 0.0), 1.0)


def with_last_replica(
    result: PlanResult, request: PlanInput, rule: IdleRule, idle_s: float | None, p_needed: float
) -> PlanResult:
    """The plan of a workload that may go to zero: none, where that is allowed, in place of the one or more planned.

    Args:
        idle_s: how long it has been idle; None = it is not.
        p_needed: that a request comes before a replica ordered later could serve.
    """
    result = replace(result, p_needed=p_needed)
    offered, here = (request.arrival_rate_now or 0.0) > 0 or request.waiting > 0, request.ready + request.pending > 0
    if result.refused is not None or offered:
        return result if here or not result.proposed else replace(result, proposer="first_request")
    if here:
        none = idle_s is not None and idle_s >= rule.idle_s and p_needed < rule.risk
    else:
        none = p_needed < min(_RETURN_RISK_FACTOR * rule.risk, max(_MAX_RETURN_RISK, rule.risk))
    return replace(result, proposed=0, proposer="idle") if none else result
