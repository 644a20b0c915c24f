"""Which promise of the SLO a slot's requests missed, and what one replica carries within each of them.

Told apart are the promises of a whole service without SLO classes: a pool that does one half of the work has only one
promise, and of classes no percentiles are told.
"""

from __future__ import annotations

from typing import Final

from agents.planning.request import LEVELS
from agents.policy import WorkloadSpec
from agents.records import PromiseCapacity, Quantiles
from agents.workload.units import fixed_unit
from model.capacity.attribution import Strain
from model.capacity.posterior import CapacityPosterior
from streams.windows.table import Window

_P95: Final = ("request.ttft_p95_s", "request.tpot_p95_s")


def strain_of(spec: WorkloadSpec, window: Window) -> Strain | None:
    """Of the newest slot; None where promises are not told apart, or no telemetry of the context tells of both."""
    if fixed_unit(spec) is not None:
        return None
    ttft_s, tpot_s = window.newest(_P95[0]), window.newest(_P95[1])
    if (ttft_s is None or tpot_s is None) and not all(_ever_told(window, name) for name in _P95):
        return None
    return Strain(_over(ttft_s, spec.slo.ttft_s), _over(tpot_s, spec.slo.tpot_s))


def promise_capacities(
    spec: WorkloadSpec, capacity: CapacityPosterior, replicas: int | None, peak: Quantiles | None
) -> tuple[PromiseCapacity, ...]:
    """Of each promise that is known to have been missed, the one that gives way first at the head.

    Args:
        replicas, peak: of the plan; without one, or without replicas, nothing is told.
    """
    if fixed_unit(spec) is not None or not replicas or peak is None:
        return ()
    load = peak.values[peak.levels.index(0.5)] / replicas
    known = [
        PromiseCapacity(promise, Quantiles(LEVELS, tuple(belief.quantiles(LEVELS).tolist())), belief.miss_share(load))
        for promise, belief in capacity.promises().items()
    ]
    return tuple(sorted(known, key=lambda one: one.capacity.values[LEVELS.index(0.5)]))


def _ever_told(window: Window, name: str) -> bool:
    column = window.columns.get(name)
    return column is not None and window.observed_steps[column] > 0


def _over(measured_s: float | None, limit_s: float) -> float | None:
    return None if measured_s is None else measured_s / limit_s
