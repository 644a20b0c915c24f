"""Plans of workloads with SLO classes: a request for each class, and the plan that serves all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agents.planning.request import PlanInput, PlanResult
from agents.policy import Policy, Slo, SloClass, strictest
from agents.records import ClassRisk
from agents.workload.slo_classes import Classes, ClassState
from model.calibration.budget import ErrorBudget
from model.calibration.risk import RiskCalibration


@dataclass(frozen=True, slots=True)
class ClassRow:
    """The planner's request for one class, with its allowed risk and budget."""

    slo_class: SloClass
    request: PlanInput
    allowed: float
    budget: ErrorBudget


def class_rows(
    request: PlanInput,
    classes: Classes,
    budget: ErrorBudget,
    policy: Policy,
    calibration: RiskCalibration,
) -> list[ClassRow]:
    """A request for each class that telemetry tells of, and one for the strictest of the others; none without classes.

    Args:
        budget: of all requests together.
        policy: its risks hold where a class declares none.
        calibration: of risks that all requests together are held to.
    """
    declared = request.declared.slo.classes
    states = [(c, classes.planned_state(c.name)) for c in declared]
    rows = [(c, state, classes.share(c.name)) for c, state in states if state is not None]
    others = [c for c, state in states if state is None]
    if others:
        rows.append((strictest(others), ClassState(request.capacity, budget, calibration), 1.0))
    result = []
    for slo_class, state, share in rows:
        declared_risk = policy.epsilon if slo_class.epsilon is None else slo_class.epsilon
        slo = Slo(slo_class.ttft_s, slo_class.tpot_s, slo_class.objective)
        class_request = replace(
            request,
            spec=replace(request.declared, slo=slo),
            capacity=state.capacity,
            epsilon=declared_risk,
            price=state.budget.miss_price(slo_class.objective),
            per_unit=request.per_unit * share,
            shift=state.calibration.shift,
        )
        result.append(ClassRow(slo_class, class_request, declared_risk, state.budget))
    return result


def bound_by(rows: Sequence[ClassRow], results: Sequence[PlanResult]) -> PlanResult:
    """The plan of the class that requires most replicas, which serves the others too, with the risk of each class."""
    at = max(range(len(rows)), key=lambda k: (results[k].proposed or 0, -k))
    class_risks = tuple(_class_risk(row, result) for row, result in zip(rows, results, strict=True))
    reactive = [r.reactive_replicas for r in results if r.reactive_replicas is not None]
    return replace(
        results[at],
        slo_class=rows[at].slo_class.name,
        classes=class_risks,
        class_risks=tuple(result.risks for result in results),
        reactive_replicas=max(reactive, default=None),
    )


def _class_risk(row: ClassRow, result: PlanResult) -> ClassRisk:
    risk = next((r.p_miss for r in result.risks if r.replicas == result.proposed), None)
    return ClassRisk(
        name=row.slo_class.name,
        objective=row.slo_class.objective,
        epsilon=row.allowed,
        replicas=result.proposed,
        p_miss=risk,
        budget_left_ratio=row.budget.left_ratio(row.slo_class.objective),
    )
