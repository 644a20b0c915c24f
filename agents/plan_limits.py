"""The limits that a plan carries beside its proposal: what was declared of this time, each with its reason."""

from __future__ import annotations

import math
from typing import Final

from agents.planning.limits import batch_limit
from agents.planning.request import PlanResult
from agents.policy import WorkloadSpec
from agents.records import Limit
from agents.schedule import InForce, Schedule, ceiling_at, floor_within, local_text
from agents.workload.state import WorkloadState
from streams.pages.page import FleetFacts
from streams.windows.table import Window

_LEAD_LEVEL: Final = 0.95
_CAPACITY_LEVEL: Final = 0.1  # what is expected is served by replicas that carry at least this quantile
_LOOKS: Final = 2  # steps until the next look, and until its command is out


def limits_of(
    state: WorkloadState, window: Window, fleet: FleetFacts | None, origin_ts_ms: int, step_ms: int
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


def reach_s(state: WorkloadState, step_ms: int) -> float:
    """How far ahead something must be known to be ready in time: a look later it would be too late."""
    return state.lead.quantile(_LEAD_LEVEL) + _LOOKS * step_ms / 1000


def counts_of(limits: tuple[Limit, ...], spec: WorkloadSpec) -> tuple[int, ...]:
    """The counts that limits may lead to, within bounds: their risk should be stated."""
    told = [count for limit in limits for count in (limit.low, limit.high) if count is not None]
    return tuple(sorted({min(max(count, spec.min_replicas), spec.max_replicas) for count in told}))


def sight_limit(result: PlanResult, fleet: FleetFacts | None) -> tuple[Limit, ...]:
    """What a plan says that sees less far than a start may take: nothing, unless it does.

    Where even the median start takes longer, nobody knows what comes before a replica given up now could be back.
    """
    lead = result.lead_time_s
    if result.sight_s is None or lead is None or fleet is None:
        return ()
    median_s = lead.values[lead.levels.index(0.5)]
    low = fleet.ready + fleet.pending if median_s > result.sight_s else None
    told = f"takes {median_s:.0f} s as a rule" if low is not None else f"may take {lead.values[-1]:.0f} s"
    return (Limit("horizon", low, None, f"a start {told}, forecasts reach {result.sight_s:.0f} s"),)


def _first_request(state: WorkloadState, window: Window, fleet: FleetFacts | None) -> tuple[Limit, ...]:
    """Requests that nobody is there to serve bring the first replica back, whatever a forecast says."""
    if state.spec.min_replicas > 0 or fleet is None or fleet.ready + fleet.pending > 0:
        return ()
    waiting, rate = window.newest("engine.waiting_max") or 0.0, window.newest("request.arrival_rate") or 0.0
    if not (waiting > 0 or rate > 0):
        return ()
    seen = f"{waiting:g} requests wait" if waiting > 0 else f"{rate:.3g} requests/s arrive"
    return (Limit("first_request", 1, None, f"{seen} and no replica is there"),)


def _scheduled(state: WorkloadState, origin_ts_ms: int, reach_ms: int) -> tuple[Limit, ...]:
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


def _expected(state: WorkloadState) -> dict[str, int]:
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


def _why(bound: InForce, words: str, schedule: Schedule, origin_ts_ms: int) -> str:
    if bound.start_ts_ms > origin_ts_ms:
        when = f"from {local_text(bound.start_ts_ms, schedule.time_zone)}, within reach of the lead time"
    else:
        when = f"until {local_text(bound.end_ts_ms, schedule.time_zone)}"
    return f"{bound.name} asks for {words} {bound.replicas} {when}"
