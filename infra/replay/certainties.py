"""What the planner is told in ablations: its capacity and its lead time as certain as a setting, not learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.forecast.workloads import Answers, ForecastEngine
from agents.workload.state import WorkloadState
from agents.workload.subject import Subject
from model.capacity.grid import GRID
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import SPACING, CapacityPosterior

_AS_GOOD_AS_CERTAIN: Final = 1e9  # outcomes seen, all of them alike

Certainty = Callable[[WorkloadState], WorkloadState]


class FixedCapacity(CapacityPosterior):
    """Always the declared figure, to within the width of one cell; the curve of misses is the prior's."""

    def __init__(self, declared_rps: float, objective: float) -> None:
        super().__init__(declared_rps, objective=objective)
        self._log_rps = float(np.log(declared_rps))

    def cumulative(self) -> tuple[float, NDArray[np.float64]]:
        """As of a posterior."""
        below = GRID // 2
        return self._log_rps - (below + 0.5) * SPACING, np.repeat((0.0, 1.0), (below + 1, GRID - below))


def fixed_lead_time(lead_s: float) -> LeadTimePosterior:
    """One that is always as long as declared."""
    seen = LeadTimePosterior(lead_s).snapshot()
    certain = {"count": _AS_GOOD_AS_CERTAIN, "scale": 1.0 / _AS_GOOD_AS_CERTAIN}
    return LeadTimePosterior.restore(seen | certain, lead_s)


def capacity_is_declared(state: WorkloadState) -> WorkloadState:
    """Whatever was observed since."""
    declared = state.spec.capacity_rps
    return state if declared is None else replace(state, capacity=FixedCapacity(declared, state.spec.slo.objective))


def lead_time_is_declared(state: WorkloadState) -> WorkloadState:
    """Whatever the outcomes say."""
    return replace(state, lead=fixed_lead_time(state.spec.lead_time_s))


class CertainEngine:
    """An engine that is told something else than what has been learned."""

    def __init__(self, inner: ForecastEngine, certainty: Certainty) -> None:
        self._inner = inner
        self._certainty = certainty

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    @property
    def min_context(self) -> int:
        return self._inner.min_context

    async def plan(
        self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool, partition_size: int
    ) -> Answers:
        """As an engine does."""
        told = [replace(subject, state=self._certainty(subject.state)) for subject in subjects]
        return await self._inner.plan(told, origin_ts_ms, with_forecast, partition_size)
