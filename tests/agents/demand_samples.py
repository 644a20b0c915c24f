"""Pools, whole services and requests to the planner, as tests of the units of load declare them."""

from __future__ import annotations

from typing import Any

from agents.plan_request import PlanInput
from agents.policy import Role, Slo, WorkloadSpec
from model.capacity import CapacityPosterior
from model.lead_time import LeadTimePosterior
from streams.catalogue import DEFAULT_CATALOGUE
from streams.pages import FleetFacts

STEP_MS = 15_000
COLUMNS = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
CARRIED = 8_000.0  # tokens/s of one replica
FIVE = FleetFacts(0, ready=5, pending=0, draining=0)


def pool(role: Role, **changes: Any) -> WorkloadSpec:
    slo = changes.pop("slo", Slo(2.0, 0.05, 0.99))
    return WorkloadSpec("w", max_replicas=64, role=role, slo=slo, **changes)


def request(declared: WorkloadSpec, **changes: Any) -> PlanInput:
    capacity, lead = CapacityPosterior(CARRIED), LeadTimePosterior(20.0)
    known = {"arrival_rate_now": 16.0, "waiting_now": 0.0, **changes}
    return PlanInput("w", 0, STEP_MS, declared, 5, 0, 0, capacity=capacity, lead=lead, **known)
