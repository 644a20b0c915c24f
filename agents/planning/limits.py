"""Work with deadlines beside online load: what is queued or declared, and the fewest replicas that do it in time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.policy import WorkloadSpec
from agents.records import Limit
from agents.schedule import CalendarRule, local_text, windows
from agents.signals import mean_ratio, ratio_of_sums
from agents.workload.state import WorkloadState
from agents.workload.units import INDICATOR_OF, demand_column
from model.planning.deadlines import Job, Means, fewest_in_time
from streams.pages.page import FleetFacts
from streams.windows.coarse import COARSE_ROWS, COARSE_STEP_MS, DAY_ROWS
from streams.windows.table import Window

_CAPACITY_LEVEL: Final = 0.1  # what must be done by a time is left to replicas that carry at least this quantile
_LEAD_LEVEL: Final = 0.95
_SLOTS: Final = 40  # whose mean is the load and the length of requests of now


@dataclass(frozen=True, slots=True)
class _Queued:
    """Tokens to be done between two instants."""

    release_ts_ms: int
    due_ts_ms: int
    tokens: float


def batch_limit(
    state: WorkloadState, window: Window, fleet: FleetFacts | None, origin_ts_ms: int, reach_ms: int
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
    floor = fewest_in_time(jobs, means, spec.min_replicas, spec.max_replicas)
    tokens, first = sum(q.tokens for q in queued), min(q.due_ts_ms for q in queued)
    late = "" if floor.in_time else "; it cannot all be done in time"
    reason = f"{tokens:.3g} tokens of batch work, the first due {local_text(first, spec.schedule.time_zone)}{late}"
    return (Limit("batch", floor.replicas, None, reason),)


def _queued(spec: WorkloadSpec, window: Window, origin_ts_ms: int, reach_ms: int) -> list[_Queued]:
    """What sources say is queued, and what is declared of those that say nothing.

    Of declared work nobody tells how much is done, so it is taken to be worked off evenly until it is due.
    """
    told = {queue.source for queue in window.facts.batch}
    queued = [
        _Queued(origin_ts_ms, job.due_ts_ms, job.tokens)
        for queue in window.facts.batch
        for job in queue.jobs
        if job.tokens > 0
    ]
    for batch in spec.batch.jobs:
        if batch.name in told:
            continue
        rule = CalendarRule(batch.name, batch.days, batch.start_minute, batch.end_minute)
        for start, end in windows(rule, spec.schedule.time_zone, origin_ts_ms, origin_ts_ms + reach_ms):
            left = min(1.0, (end - origin_ts_ms) / (end - start))
            queued.append(_Queued(max(start, origin_ts_ms), end, batch.tokens * left))
    return queued


def _tokens_per_request(state: WorkloadState, window: Window, carried: float) -> float | None:
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
    return lately or ratio_of_sums(*window.read_coarse(), generated, demand, COARSE_ROWS) or state.shape.output_tokens


def _online(window: Window, column: int, origin_ts_ms: int, last_ms: int) -> NDArray[np.float64]:
    """Load in steps of ten minutes: at first as now, then as a day before where that was seen."""
    seen = window.observed[-_SLOTS:, column]
    now = float(window.values[-_SLOTS:, column][seen].astype(np.float64).mean()) if seen.any() else 0.0
    steps = min(max(math.ceil((last_ms - origin_ts_ms) / COARSE_STEP_MS), 1), COARSE_ROWS)
    values, observed = window.read_coarse()
    online = np.full(steps, now)
    for k in range(steps):
        row = len(values) - DAY_ROWS + k % DAY_ROWS
        if k > 0 and row >= 0 and observed[row, column]:
            online[k] = float(values[row, column])
    return online
