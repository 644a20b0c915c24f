"""What the forecast kernel asks of its engine: subjects in, plans and forecasts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.forecast_state import WorkloadState
from agents.records import ForecastRecord, InputFacts, Limit, WorkloadPlan
from streams.pages import FleetFacts
from streams.window_table import Window


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


@dataclass(frozen=True, slots=True)
class Planned:
    """What the engine answers for one subject."""

    plan: WorkloadPlan
    forecast: ForecastRecord | None


class ForecastEngine(Protocol):
    """Forecasts and plans the workloads of one slot; answers come back in the order given."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def min_context(self) -> int: ...

    async def plan(self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool) -> list[Planned]: ...
