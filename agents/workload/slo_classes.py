"""SLO classes of one workload: the state that is learned of each class, and the promises of a workload without classes.

All classes wait in one queue. A class misses when the wait exceeds its own TTFT, so each class has its own capacity:
the load at which it begins to miss. Classes without telemetry, or with too few requests for a capacity, are planned
together: the strictest of them governs, with the numbers of all requests.
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
from model.calibration.budget import ErrorBudget
from model.calibration.risk import FinishedRequests, RiskCalibration
from model.capacity.attribution import Strain
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from streams.records.facts import SloCounts
from streams.windows.table import Window

# Outcomes of the requests of one class, slot by slot, until the stated risks of these slots are judged.


Tally = tuple[int, float, float]  # end of the slot, good ones and all that finished in it

# Longest window of a stated risk in slots; plans cover at most 64 steps.
_MAX_WINDOW_SLOTS: Final = 256


class ClassTallies:
    """Good requests and all that finished, by slot; slots in which none did are left out."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: list[Tally] = []

    def add(self, end_ts_ms: int, good: float, total: float) -> None:
        """Count the newest slot."""
        if total > 0:
            self._tallies.append((end_ts_ms, good, total))

    def keep_after(self, begin_ts_ms: int) -> None:
        """Forget what ended by then."""
        self._tallies = [tally for tally in self._tallies if tally[0] > begin_ts_ms]

    def finished(self, end_ts_ms: int, step_s: float, delay_s: float) -> FinishedRequests:
        """As what finished of all requests stands in a window, up to the slot that ends then."""
        step_ms = round(step_s * 1000)
        recent = [tally for tally in self._tallies if end_ts_ms - tally[0] < _MAX_WINDOW_SLOTS * step_ms]
        num_slots = (end_ts_ms - recent[0][0]) // step_ms + 1 if recent else 1
        values, observed = np.zeros((num_slots, 2), np.float32), np.zeros((num_slots, 2), np.bool_)
        for at_ms, good, total in recent:
            slot = num_slots - 1 - (end_ts_ms - at_ms) // step_ms
            values[slot], observed[slot] = (total / step_s, 1.0 - good / total), True
        return FinishedRequests(values, observed, (0, 1), end_ts_ms, step_ms, delay_s)

    def snapshot(self) -> tuple[Tally, ...]:
        """The whole state; `restore` returns the same bits."""
        return tuple(self._tallies)

    @classmethod
    def restore(cls, snapshot: Sequence[Tally]) -> ClassTallies:
        """The tallies that a snapshot was taken of."""
        tallies = cls()
        tallies._tallies = list(snapshot)
        return tallies


# Most steps between two counts of a source whose difference belongs to the newest slot.
_MAX_COUNT_GAP_STEPS: Final = 4
# Time after which the counts of a silent source are dropped.
_FORGET_SOURCE_MS: Final = 3_600_000


@dataclass(slots=True)
class ClassState:
    """The learned state of one class, and the recent outcomes of its requests."""

    capacity: CapacityPosterior
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    calibration: RiskCalibration = field(default_factory=RiskCalibration)
    tallies: ClassTallies = field(default_factory=ClassTallies)


class ClassesSnapshot(msgspec.Struct, frozen=True):
    """`Classes` in a commit record."""

    capacity: dict[str, dict[str, Any]] = {}
    budget: dict[str, dict[str, Any]] = {}
    calibration: dict[str, dict[str, Any]] = {}
    tallies: dict[str, tuple[Tally, ...]] = {}
    counts: tuple[SloCounts, ...] = ()


@dataclass(slots=True)
class Classes:
    """The SLO classes of one workload that telemetry has reported.

    Attributes:
        states: learned states by class name.
        counts: the newest counters of each source, by its name.
    """

    states: dict[str, ClassState] = field(default_factory=dict)
    counts: dict[str, SloCounts] = field(default_factory=dict)

    def learn(
        self,
        spec: WorkloadSpec,
        counts: Sequence[SloCounts],
        slot: SlotEvidence,
        replicas: int | None = None,
        plan_every: int = 1,
        goal_ratio: float = 0.5,
    ) -> None:
        """Fold what sources counted up to a slot's end.

        Args:
            slot: what it says of all requests together.
            replicas: in force, ready or on their way; None = nobody knows.
            plan_every: slots between plans.
            goal_ratio: share of the allowed misses that is aimed at.
        """
        if not spec.slo.classes:
            return
        added = self._added(counts, slot)
        for declared in spec.slo.classes:
            good, total = added.get(declared.name, (0.0, 0.0))
            state = self.states.get(declared.name)
            if state is None:
                if total <= 0:
                    continue
                state = self.states[declared.name] = ClassState(
                    CapacityPosterior(spec.capacity_rps, off_by=spec.capacity_off_by, objective=declared.objective)
                )
            state.tallies.add(slot.end_ts_ms, good, total)
            if replicas is not None:
                finished = state.tallies.finished(slot.end_ts_ms, slot.step_s, slot.residence_s or 0.0)
                state.calibration.settle(
                    replicas, slot.end_ts_ms, finished, declared.objective, slot.step_s, plan_every
                )
            state.tallies.keep_after(state.calibration.oldest_begin_ms or slot.end_ts_ms)
            requests, missed = (total, 1.0 - good / total) if total > 0 else (None, None)
            state.budget.observe(slot.end_ts_ms, requests, missed, declared.objective, goal_ratio)
            state.capacity.observe(
                replace(
                    slot, miss_ratio=missed, finished=requests, ttft_s=declared.ttft_s, objective=declared.objective
                )
            )

    def expect(self, plan: WorkloadPlan, begin_ts_ms: int, end_ts_ms: int) -> None:
        """Store the stated risks of a plan for each class with a capacity of its own."""
        for class_risk, risks in zip(plan.classes, plan.class_risks, strict=False):
            state = self.planned_state(class_risk.name)
            if state is not None:
                state.calibration.offer(begin_ts_ms, end_ts_ms, [(risk.replicas, risk.p_miss) for risk in risks])

    def planned_state(self, name: str) -> ClassState | None:
        """The state of a class whose capacity is known; None otherwise."""
        state = self.states.get(name)
        return state if state is not None and state.capacity.known else None

    def _added(self, newest: Sequence[SloCounts], slot: SlotEvidence) -> dict[str, tuple[float, float]]:
        """Good ones and all since each source's last word, by class; a count that fell says nothing."""
        added: dict[str, tuple[float, float]] = {}
        patience_ms = _MAX_COUNT_GAP_STEPS * slot.step_s * 1000
        for word in newest:
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
        oldest_ms = slot.end_ts_ms - _FORGET_SOURCE_MS
        self.counts = {source: word for source, word in sorted(self.counts.items()) if word.ts_ms >= oldest_ms}
        return added

    def share(self, name: str) -> float:
        """Share of all counted requests that belongs to this class; 1 without any."""
        totals = [(counts.name, counts.total) for word in self.counts.values() for counts in word.classes]
        total = math.fsum(number for _, number in totals)
        return math.fsum(number for class_name, number in totals if class_name == name) / total if total > 0 else 1.0

    def snapshot(self) -> ClassesSnapshot | None:
        """The whole state; None without any."""
        if not self.states and not self.counts:
            return None
        return ClassesSnapshot(
            {name: state.capacity.snapshot() for name, state in sorted(self.states.items())},
            {name: state.budget.snapshot() for name, state in sorted(self.states.items())},
            {name: state.calibration.snapshot() for name, state in sorted(self.states.items())},
            {name: state.tallies.snapshot() for name, state in sorted(self.states.items())},
            tuple(self.counts.values()),
        )

    @classmethod
    def restore(cls, snapshot: ClassesSnapshot | None, spec: WorkloadSpec) -> Classes:
        """The classes that a snapshot was taken of, under the present declaration."""
        if snapshot is None:
            return cls()
        objectives = {slo_class.name: slo_class.objective for slo_class in spec.slo.classes}
        states = {
            name: ClassState(
                CapacityPosterior.restore(
                    capacity, spec.capacity_rps, off_by=spec.capacity_off_by, objective=objectives[name]
                ),
                ErrorBudget.restore(snapshot.budget[name]),
                RiskCalibration.restore(snapshot.calibration.get(name, {})),
                ClassTallies.restore(snapshot.tallies.get(name, ())),
            )
            for name, capacity in snapshot.capacity.items()
            if name in objectives
        }
        return cls(states, {word.source: word for word in snapshot.counts})


NO_CLASSES: Final = Classes()  # shared by all workloads without classes


# The promises of an SLO (TTFT and TPOT), and the capacity of one replica within each.
#
# Only a whole service without SLO classes has both: a prefill or decode pool has one promise, and classes have no
# percentiles.


_P95: Final = ("request.ttft_p95_s", "request.tpot_p95_s")


def strain_of(spec: WorkloadSpec, window: Window) -> Strain | None:
    """Of the newest slot; None where promises are not told apart, or no telemetry of the context tells of both."""
    if not _has_promises(spec):
        return None
    ttft_s, tpot_s = window.newest(_P95[0]), window.newest(_P95[1])
    if (ttft_s is None or tpot_s is None) and not all(_ever_observed(window, name) for name in _P95):
        return None
    return Strain(_limit_ratio(ttft_s, spec.slo.ttft_s), _limit_ratio(tpot_s, spec.slo.tpot_s))


def promise_capacities(
    spec: WorkloadSpec, capacity: CapacityPosterior, replicas: int | None, peak: Quantiles | None
) -> tuple[PromiseCapacity, ...]:
    """Of each promise that is known to have been missed, the one that gives way first at the head.

    Args:
        replicas, peak: of the plan; without one, or without replicas, nothing is told.
    """
    if not _has_promises(spec) or not replicas or peak is None:
        return ()
    load = peak.values[peak.levels.index(0.5)] / replicas
    capacities = [
        PromiseCapacity(promise, Quantiles(LEVELS, tuple(belief.quantiles(LEVELS).tolist())), belief.miss_share(load))
        for promise, belief in capacity.promises().items()
    ]
    return tuple(sorted(capacities, key=lambda one: one.capacity.values[LEVELS.index(0.5)]))


def _has_promises(spec: WorkloadSpec) -> bool:
    """Whether it is a whole service without classes, which promises both."""
    return spec.role == "both" and not spec.slo.classes


def _ever_observed(window: Window, name: str) -> bool:
    column = window.columns.get(name)
    return column is not None and window.observed_steps[column] > 0


def _limit_ratio(measured_s: float | None, limit_s: float) -> float | None:
    return None if measured_s is None else measured_s / limit_s
