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
import numpy as np

from agents.policy import WorkloadSpec
from agents.records import LEVELS, PromiseCapacity, Quantiles, WorkloadPlan
from agents.workload.units import fixed_unit
from model.calibration.budget import ErrorBudget
from model.calibration.risk import Finished, RiskCalibration
from model.capacity.attribution import Strain
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from streams.records.facts import SloCounts
from streams.windows.table import Window

# What became of one SLO class's requests, slot by slot, for as long as a stated risk waits to be judged by it.


Tally = tuple[int, float, float]  # end of the slot, good ones and all that finished in it

_MOST_SLOTS: Final = 256  # no window is longer: plans see at most 64 steps


class ClassTallies:
    """Good requests and all that finished, by slot; slots in which none did are left out."""

    __slots__ = ("_tallies",)

    def __init__(self, tallies: Sequence[Tally] = ()) -> None:
        self._tallies = list(tallies)

    def add(self, end_ts_ms: int, good: float, total: float) -> None:
        """Count the newest slot."""
        if total > 0:
            self._tallies.append((end_ts_ms, good, total))

    def keep_after(self, begin_ts_ms: int) -> None:
        """Forget what ended by then."""
        self._tallies = [tally for tally in self._tallies if tally[0] > begin_ts_ms]

    def finished(self, end_ts_ms: int, step_s: float, delay_s: float) -> Finished:
        """As what finished of all requests stands in a window, up to the slot that ends then."""
        step_ms = round(step_s * 1000)
        recent = [tally for tally in self._tallies if end_ts_ms - tally[0] < _MOST_SLOTS * step_ms]
        num_slots = (end_ts_ms - recent[0][0]) // step_ms + 1 if recent else 1
        values, observed = np.zeros((num_slots, 2), np.float32), np.zeros((num_slots, 2), np.bool_)
        for at_ms, good, total in recent:
            slot = num_slots - 1 - (end_ts_ms - at_ms) // step_ms
            values[slot], observed[slot] = (total / step_s, 1.0 - good / total), True
        return Finished(values, observed, (0, 1), end_ts_ms, step_ms, delay_s)

    def snapshot(self) -> tuple[Tally, ...]:
        """The whole state; the constructor takes it back."""
        return tuple(self._tallies)


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


# Which promise of the SLO a slot's requests missed, and what one replica carries within each of them.
#
# Told apart are the promises of a whole service without SLO classes: a pool that does one half of the work has only one
# promise, and of classes no percentiles are told.


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
