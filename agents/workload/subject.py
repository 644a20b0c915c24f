"""What the forecast kernel asks of its engine: subjects in, plans and forecasts out."""

from __future__ import annotations

from dataclasses import dataclass

from agents.records import InputFacts, Limit
from agents.workload.state import WorkloadState
from streams.records.facts import FleetFacts
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
