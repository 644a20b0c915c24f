"""What the forecast kernel asks of its engine: subjects in, plans and forecasts out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.forecast.publish import Forecasts
from agents.records import InputFacts, Limit, WorkloadPlan
from agents.workload.state import WorkloadState
from streams.pages.page import FleetFacts
from streams.windows.table import Window


@dataclass(frozen=True, slots=True)
class Subject:
    """One workload at one origin: all that the engine needs to forecast and plan it.

    `refused` names why it must not be planned; it is forecast all the same where its context allows. `standing`
    limits hold beside the declared bounds.
    """

    window: Window
    state: WorkloadState
    inputs: InputFacts
    fleet: FleetFacts | None
    facts_age_ms: int | None
    pending_since_ms: int | None
    refused: str | None
    standing: tuple[Limit, ...] = ()


# Makes what is published of some workloads' forecasts, when it is asked to; once.
Making = Callable[[], Awaitable[Forecasts]]


@dataclass(frozen=True, slots=True)
class Answers:
    """What the engine answers.

    Attributes:
        plans: one per subject, in their order.
        forecasts: commands do not wait for them. Until they are made, each holds futures, a hundred times as large.
    """

    plans: list[WorkloadPlan]
    forecasts: Sequence[Making] = ()


class ForecastEngine(Protocol):
    """Forecasts and plans the workloads of one slot."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def min_context(self) -> int: ...

    async def plan(
        self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool, partition_size: int
    ) -> Answers:
        """`partition_size` is the number of the partition's workloads, of which these are some or all."""
        ...
