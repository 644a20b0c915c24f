"""The risk that a plan may take: the fleet's, or that of the workload's own objective; and what it says of itself."""

from __future__ import annotations

from agents.forecast.workloads import PartitionWorkloads
from agents.planning.request import PlanResult
from agents.planning.rows import RowPlanner
from agents.policy import Policy, Slo
from streams.catalogue import DEFAULT_CATALOGUE
from streams.meter import NullMeter
from tests.agents.planning.plan_samples import STEP_MS, STREAM, policy, spec
from tests.agents.workload.test_power_draw import slot_of


def allowed(p: Policy) -> float | None:
    """What a plan of a new workload `w` says it was allowed."""
    known = PartitionWorkloads(STREAM, DEFAULT_CATALOGUE, p, NullMeter(), min_context=1)
    known.fill(slot_of(0, None))
    (subject,) = known.subjects(["w"], 0, STEP_MS, {})
    return RowPlanner(p, STEP_MS).workload_plan(subject, PlanResult("w", None, 0.1), "pool").epsilon


def test_a_plan_may_take_the_risk_of_its_own_objective() -> None:
    fleet, own = policy(spec("w"), epsilon=0.03), policy(spec("w", slo=Slo(epsilon=0.03)), epsilon=0.2)
    assert allowed(own) == allowed(fleet)
    assert allowed(own) != allowed(policy(spec("w"), epsilon=0.2))


def test_a_plan_says_how_many_starts_its_lead_time_was_learned_from() -> None:
    p = policy(spec("w"))
    known = PartitionWorkloads(STREAM, DEFAULT_CATALOGUE, p, NullMeter(), min_context=1)
    known.fill(slot_of(0, None))
    (subject,) = known.subjects(["w"], 0, STEP_MS, {})
    for starts in range(3):
        told = RowPlanner(p, STEP_MS).workload_plan(subject, PlanResult("w", None, 0.1), "pool")
        assert told.lead_time_starts == starts
        subject.state.lead.update(50.0)
