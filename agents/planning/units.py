"""extracted"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agents.policy import WorkloadSpec
from streams.windows.table import Window

if TYPE_CHECKING:  # decisions are made where no model is
    from torch import Tensor

    from agents.planning.request import PlanInput
from agents.workload.units import INDICATOR_OF, SURE_SIGMAS, Unit, demand_column, patience_s, tokens_per_request


def unit_input(request: PlanInput, spec: WorkloadSpec, unit: Unit, window: Window) -> PlanInput:
    """A request in this unit. Of a slot's tokens only those of requests that are surely no chance count."""
    if unit == "requests":
        return request
    tokens, rate, now = tokens_per_request(unit, window), request.arrival_rate_now, window.newest(INDICATOR_OF[unit])
    if now is not None and rate is not None and rate > 0:
        requests = rate * request.step_ms / 1000
        now *= max(0.0, 1.0 - SURE_SIGMAS / math.sqrt(requests))
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
        told = others(column) if column else None
        if told is not None:
            demand[b] = told[b]
    return demand
