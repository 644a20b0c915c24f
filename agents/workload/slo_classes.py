"""Several SLO classes of one workload: what is learned of each, and a plan that keeps every one of them.

All classes wait in the same queue, so a class misses when that queue is longer than its own patience, and each has its
own capacity: the load at which it begins to miss. Classes that no telemetry tells of are not told apart: the strictest
of them governs, by what is learned of all requests together. So it is with those that send too few requests for their
capacity to be known: a plan without one keeps every replica that there is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from agents.class_tallies import ClassTallies, Tally
from agents.planning.request import PlanInput, PlanResult
from agents.policy import Policy, Slo, SloClass, WorkloadSpec, strictest
from agents.records import ClassRisk, WorkloadPlan
from model.calibration.budget import ErrorBudget
from model.calibration.risk import RiskCalibration
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from streams.pages.page import SloCounts

_PATIENCE_STEPS: Final = 4  # between two counts of a source, beyond which their difference is of no slot
_FORGET_MS: Final = 3_600_000


@dataclass(slots=True)
class ClassState:
    """What is learned of one class, and what its requests have come to of late."""

    capacity: CapacityPosterior
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    calibration: RiskCalibration = field(default_factory=RiskCalibration)
    tallies: ClassTallies = field(default_factory=ClassTallies)


class ClassesSnapshot(msgspec.Struct, frozen=True):
    """`Classes` as they stand in a commit record."""

    capacity: dict[str, dict[str, Any]] = {}
    budget: dict[str, dict[str, Any]] = {}
    calibration: dict[str, dict[str, Any]] = {}
    tallies: dict[str, tuple[Tally, ...]] = {}
    counts: tuple[SloCounts, ...] = ()


@dataclass(slots=True)
class Classes:
    """The classes of one workload that telemetry has told of.

    Attributes:
        known: by name.
        counts: the last word of each source, by its name.
    """

    known: dict[str, ClassState] = field(default_factory=dict)
    counts: dict[str, SloCounts] = field(default_factory=dict)

    def learn(
        self,
        spec: WorkloadSpec,
        told: Sequence[SloCounts],
        slot: SlotEvidence,
        replicas: int | None = None,
        plan_every: int = 1,
    ) -> None:
        """Fold what sources counted up to a slot's end.

        Args:
            slot: what it says of all requests together.
            replicas: in force, ready or on their way; None = nobody knows.
            plan_every: slots between plans.
        """
        if not spec.slo.classes:
            return
        added = self._added(told, slot)
        for declared in spec.slo.classes:
            good, total = added.get(declared.name, (0.0, 0.0))
            known = self.known.get(declared.name)
            if known is None:
                if total <= 0:
                    continue
                known = self.known[declared.name] = ClassState(
                    CapacityPosterior(spec.capacity_rps, off_by=spec.capacity_off_by, objective=declared.objective)
                )
            known.tallies.add(slot.end_ts_ms, good, total)
            if replicas is not None:
                finished = known.tallies.finished(slot.end_ts_ms, slot.step_s, slot.residence_s or 0.0)
                known.calibration.settle(
                    replicas, slot.end_ts_ms, finished, declared.objective, slot.step_s, plan_every
                )
            known.tallies.keep_after(known.calibration.oldest_begin_ms or slot.end_ts_ms)
            requests, missed = (total, 1.0 - good / total) if total > 0 else (None, None)
            known.budget.observe(slot.end_ts_ms, requests, missed)
            known.capacity.observe(
                replace(
                    slot, miss_ratio=missed, finished=requests, ttft_s=declared.ttft_s, objective=declared.objective
                )
            )

    def expect(self, plan: WorkloadPlan, begin_ts_ms: int, end_ts_ms: int) -> None:
        """Remember what a plan states of its window for each class that is told apart."""
        for told, risks in zip(plan.classes, plan.class_risks, strict=False):
            known = self.told_apart(told.name)
            if known is not None:
                known.calibration.offer(begin_ts_ms, end_ts_ms, [(risk.replicas, risk.p_miss) for risk in risks])

    def told_apart(self, name: str) -> ClassState | None:
        """What is learned of a class, where it is enough to plan by."""
        known = self.known.get(name)
        return known if known is not None and known.capacity.known else None

    def _added(self, told: Sequence[SloCounts], slot: SlotEvidence) -> dict[str, tuple[float, float]]:
        """Good ones and all since each source's last word, by class; a count that fell says nothing."""
        added: dict[str, tuple[float, float]] = {}
        patience_ms = _PATIENCE_STEPS * slot.step_s * 1000
        for word in told:
            before = self.counts.get(word.source)
            if before is not None and 0 < word.ts_ms - before.ts_ms <= patience_ms:
                last = {counts.name: counts for counts in before.classes}
                for counts in word.classes:
                    old = last.get(counts.name)
                    if old is not None and counts.total >= old.total and counts.good >= old.good:
                        total = counts.total - old.total
                        good, sum_total = added.get(counts.name, (0.0, 0.0))
                        added[counts.name] = good + min(counts.good - old.good, total), sum_total + total
            if before is None or word.ts_ms > before.ts_ms:
                self.counts[word.source] = word
        oldest_ms = slot.end_ts_ms - _FORGET_MS
        self.counts = {source: word for source, word in sorted(self.counts.items()) if word.ts_ms >= oldest_ms}
        return added

    def share(self, name: str) -> float:
        """Part of all requests ever told of that was of this class; 1 where nothing was."""
        told = [(counts.name, counts.total) for word in self.counts.values() for counts in word.classes]
        total = math.fsum(number for _, number in told)
        return math.fsum(number for its, number in told if its == name) / total if total > 0 else 1.0

    def snapshot(self) -> ClassesSnapshot | None:
        """None where nothing has been told."""
        if not self.known and not self.counts:
            return None
        return ClassesSnapshot(
            {name: known.capacity.snapshot() for name, known in sorted(self.known.items())},
            {name: known.budget.snapshot() for name, known in sorted(self.known.items())},
            {name: known.calibration.snapshot() for name, known in sorted(self.known.items())},
            {name: known.tallies.snapshot() for name, known in sorted(self.known.items())},
            tuple(self.counts.values()),
        )

    @classmethod
    def restore(cls, snapshot: ClassesSnapshot | None, spec: WorkloadSpec) -> Classes:
        """As they were, under the classes declared now."""
        if snapshot is None:
            return cls()
        objectives = {slo_class.name: slo_class.objective for slo_class in spec.slo.classes}
        known = {
            name: ClassState(
                CapacityPosterior.restore(
                    capacity, spec.capacity_rps, off_by=spec.capacity_off_by, objective=objectives[name]
                ),
                ErrorBudget.restore(snapshot.budget[name]),
                RiskCalibration.restore(snapshot.calibration.get(name, {})),
                ClassTallies(snapshot.tallies.get(name, ())),
            )
            for name, capacity in snapshot.capacity.items()
            if name in objectives
        }
        return cls(known, {word.source: word for word in snapshot.counts})


NO_CLASSES: Final = Classes()  # of all workloads that declare none: they never learn of any


@dataclass(frozen=True, slots=True)
class ClassRow:
    """What the planner is asked for one class, and what its risk rests on."""

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
    told = [(c, classes.told_apart(c.name)) for c in declared]
    rows = [(c, known, classes.share(c.name)) for c, known in told if known is not None]
    others = [c for c, known in told if known is None]
    if others:
        rows.append((strictest(others), ClassState(request.capacity, budget, calibration), 1.0))
    made = []
    for slo_class, known, share in rows:
        declared_risk = policy.epsilon if slo_class.epsilon is None else slo_class.epsilon
        allowed = known.budget.dared(declared_risk, slo_class.objective)
        slo = Slo(slo_class.ttft_s, slo_class.tpot_s, slo_class.objective)
        asked = replace(
            request,
            spec=replace(request.declared, slo=slo),
            capacity=known.capacity,
            epsilon=known.calibration.computed(allowed),
            bearable=known.budget.dared(policy.bearable_share(slo_class.objective), slo_class.objective),
            doubt_ratio=known.budget.tried(policy.doubt(declared_risk), slo_class.objective),
            per_unit=request.per_unit * share,
            shift=known.calibration.shift,
        )
        made.append(ClassRow(slo_class, asked, allowed, known.budget))
    return made


def bound_by(rows: Sequence[ClassRow], results: Sequence[PlanResult]) -> PlanResult:
    """The plan of the class that asks for most, which keeps the others too, with what each of them asks for."""
    at = max(range(len(rows)), key=lambda k: (results[k].proposed or 0, -k))
    told = tuple(_class_risk(row, result) for row, result in zip(rows, results, strict=True))
    reactive = [r.reactive_replicas for r in results if r.reactive_replicas is not None]
    return replace(
        results[at],
        slo_class=rows[at].slo_class.name,
        classes=told,
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
