"""The planner's question about a workload and its answer, and their conversion to the unit of the workload."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agents.policy import Unit, WorkloadSpec
from agents.records import ClassRisk, LevelRisk, Quantiles
from agents.workload.units import (
    SIGNIFICANT_SIGMAS,
    demand_column,
    load_factor,
    newest_load,
    patience_s,
    tokens_per_request,
)
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from streams.windows.table import Window


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The state of one workload at its origin, as the planner reads it.

    Attributes:
        spec: the declaration, or None for an undeclared workload: defaults hold.
        ready, pending, draining: replicas as last reported.
        arrival_rate_now: requests/s of the last slot; None when not observed.
        waiting_now: requests waiting; None when not observed, taken as none.
        last_replicas: count of the previous plan.
        pending_remaining_s: for the pending replicas of which it is known, the time until they serve.
        epsilon: in place of the policy's.
        price: replicas that a replica's worth of missed requests costs.
        busy_replicas: that what engines work on now takes; 0: not known.
        per_unit: requests judged per unit of demand: all of them, those of one class, or one in so many tokens.
        day_ago: means of the demand over ten minutes each, from those on that the origin lay in a day earlier; None
            where not observed.
        beside: more counts whose risk is wanted.
        keeps_one: whether the last replica goes by another rule than the risk.
        shift: of the logits of computed risks to those stated (`model.calibration.risk`).
    """

    workload: str
    origin_ts_ms: int
    step_ms: int
    spec: WorkloadSpec | None
    ready: int
    pending: int
    draining: int
    arrival_rate_now: float | None
    waiting_now: float | None
    capacity: CapacityPosterior
    lead: LeadTimePosterior
    last_replicas: int | None = None
    pending_remaining_s: tuple[float, ...] = ()
    epsilon: float | None = None
    price: float = 36.0
    busy_replicas: float = 0.0
    per_unit: float = 1.0
    day_ago: tuple[float | None, ...] = ()
    beside: tuple[int, ...] = ()
    keeps_one: bool = False
    shift: float = 0.0

    @property
    def declared(self) -> WorkloadSpec:
        return self.spec or WorkloadSpec(self.workload)

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most replicas."""
        spec = self.declared
        return spec.min_replicas, max(spec.max_replicas, spec.min_replicas)

    @property
    def searched(self) -> tuple[int, int]:
        """Counts to choose from by their risk."""
        low, high = self.bounds
        return min(max(low, 1), high) if self.keeps_one else low, high

    @property
    def waiting(self) -> float:
        """Requests waiting, as the queue simulation takes them."""
        waiting = self.waiting_now
        return max(waiting, 0.0) if waiting is not None and math.isfinite(waiting) else 0.0


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The plan of one workload.

    Attributes:
        refused: `forecast` (paths not finite); there is no count then.
        proposer: what the count rests on: `cheapest` (replicas and expected misses cost least), `queue_bound` (more,
            for replicas would fall behind too often), `maximum` (the bounds allow neither), `capacity_unknown`
            (nothing learned yet: as it is), `idle` (none: nothing to do, and hardly anything before one could come
            back) or `first_request` (requests came while there was none).
        proposals: replicas by proposer, within bounds.
        risks: as they are stated, of ascending counts: around the proposed one, the other proposals, and the count
            commanded now.
        peak: of the arrival rate over the window, 1/s.
        window_s: length of the window from the median lead time to its 95th percentile plus the commit time.
        sight_s: how far the paths reach where that window ends beyond them; then it is as late as they show.
        capacity: 1/s per ready replica.
        miss_price: replicas that a replica's worth of missed requests cost.
        p_needed: where the last replica may go, the chance that it is needed before it could come back.
        slo_class, classes: where there are several SLO classes, which one asked for most, and what each asks for.
        class_risks: as `risks`, of each of `classes`.
        heavier_ratio: 95th percentile of the work of a request at the end of the paths, by that of now.
    """

    workload: str
    refused: str | None
    epsilon: float
    proposed: int | None = None
    proposer: str | None = None
    proposals: dict[str, int] = field(default_factory=dict)
    risks: tuple[LevelRisk, ...] = ()
    peak: Quantiles | None = None
    window_s: float | None = None
    sight_s: float | None = None
    capacity: Quantiles | None = None
    lead_time_s: Quantiles | None = None
    reactive_replicas: int | None = None
    p_needed: float | None = None
    slo_class: str | None = None
    classes: tuple[ClassRisk, ...] = ()
    class_risks: tuple[tuple[LevelRisk, ...], ...] = ()
    heavier_ratio: float | None = None
    miss_price: float | None = None


if TYPE_CHECKING:  # decisions are made where no model is
    from torch import Tensor


def unit_input(request: PlanInput, spec: WorkloadSpec, unit: Unit, window: Window) -> PlanInput:
    """The request in this unit; of the tokens of one slot only a significant part counts."""
    if unit == "requests":
        return request
    tokens, rate, now = tokens_per_request(unit, window), request.arrival_rate_now, newest_load(unit, window)
    if now is not None and rate is not None and rate > 0:
        requests = rate * request.step_ms / 1000
        now *= max(0.0, 1.0 - SIGNIFICANT_SIGMAS / math.sqrt(requests))
    slo = replace(spec.slo, ttft_s=patience_s(spec, tokens))
    return replace(
        request,
        spec=replace(spec, slo=slo),
        arrival_rate_now=now,
        waiting_now=None if request.waiting_now is None else request.waiting_now * (tokens or 0.0),
        per_unit=1.0 / max(tokens, 1.0) if tokens is not None else 1.0,
    )


def unit_demand(
    units: Sequence[Unit], windows: Sequence[Window], arrivals: Tensor, others: Callable[[int], Tensor | None]
) -> Tensor:
    """What each workload is planned by, [B, S, H].

    Args:
        arrivals: [B, S, H].
        others: likewise of a column; None where it is not forecast.
    """
    if all(unit == "requests" for unit in units):
        return arrivals
    demand = arrivals.clone()
    for b, (unit, window) in enumerate(zip(units, windows, strict=True)):
        column = demand_column(unit, window)
        loads = others(column) if column else None
        if loads is not None:
            demand[b] = loads[b] * load_factor(unit, window)
    return demand
