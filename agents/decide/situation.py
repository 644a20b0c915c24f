"""From state and plan to the Situation the guards judge: windows, budgets and modes reduced to plain numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

from agents.decide.budget import ClaimBook
from agents.decide.frame import Frame
from agents.decide.state import (
    DecideState,
    OperatorWord,
    WorkloadState,
    in_force,
    measured_w,
    observed_replicas,
    queues,
    seen_steps,
)
from agents.policy import GuardLimits, Mode, WorkloadSpec
from agents.records import Pin, WorkloadPlan

# What a guard may look at: everything known of one workload at one origin, already reduced to plain numbers.


@dataclass(frozen=True, slots=True)
class Situation:
    """One workload at one origin.

    Attributes:
        plan: what the forecast stage says.
        spec: the declaration; None = not declared.
        limits: of the guards.
        current: replicas that count as being in force; what "hold" keeps.
        mode: in force; `observe` never has a command.
        mode_reason: why it is `observe`.
        paused: "fleet" or "workload" when the kill switch is on.
        pin: in force at this origin.
        overdue_ms: how long past its lease the plan was read; None = in time, or not checked.
        seen_steps: steps with an observed arrival rate so far, up to the warm-up.
        window_max: largest proposal within the down window, this one included.
        window_min: smallest proposal within the up window, this one included.
        added: replicas added within the up period; removed: those removed within the down period.
        removals_left: replicas the whole fleet may still lose within the minute; None = no limit.
        gpus_left: GPUs left for this workload, its own included, those kept for higher priorities not; None = no limit.
        kept_gpus: GPUs kept for higher priorities.
        owed_gpus: GPUs that it is to give up for workloads of higher priority; owed_to: the first of them.
        power_left_w: power left for this workload, its own included; None = no limit.
        power_w_per_replica: declared, or measured where that is more; 0 = not known.
        fleet_need: replicas this workload must keep so that the fleet stays above its floor.
        newest_ts_ms: origin of the newest decision of this workload; a plan that is not newer is fenced off.
        origin_ts_ms: of this plan.
    """

    plan: WorkloadPlan
    spec: WorkloadSpec | None
    limits: GuardLimits
    current: int
    mode: Mode = "observe"
    mode_reason: str = ""
    paused: str | None = None
    pin: Pin | None = None
    overdue_ms: int | None = None
    seen_steps: int = 0
    window_max: int | None = None
    window_min: int | None = None
    added: int = 0
    removed: int = 0
    removals_left: int | None = None
    gpus_left: int | None = None
    kept_gpus: int = 0
    owed_gpus: int = 0
    owed_to: str = ""
    power_left_w: float | None = None
    power_w_per_replica: float = 0.0
    fleet_need: int = 0
    newest_ts_ms: int | None = None
    origin_ts_ms: int = 0


class Fleet:
    """Sums over all workloads that the budgets need, kept while the workloads of one plan are decided.

    Another workload counts with the larger of what it shows and what was ordered for the caps, with the smaller for the
    floor, so an order not yet carried out is never counted on.
    """

    def __init__(self, state: DecideState, frame: Frame) -> None:
        policy = frame.policy
        self.spec = policy.spec
        self.claims = ClaimBook(state.claims, frame.origin_ts_ms, frame.lease_ms)
        self._limits = policy.guards
        self._leaving = 0  # GPUs of replicas that were ordered away and still show
        self._givable: Counter[int] = Counter()  # by priority, GPUs of replicas above `min_replicas` that obey commands
        self.gpus = 0
        self.power_mw = 0  # integers: the sum may not depend on the order of addition
        self.least = 0
        for workload, known in state.workloads.items():
            self._add(workload, known, 1)

    def replace(self, workload: str, old: WorkloadState | None, new: WorkloadState | None) -> None:
        if old is not None:
            self._add(workload, old, -1)
        if new is not None:
            self._add(workload, new, 1)

    def _add(self, workload: str, known: WorkloadState, sign: int) -> None:
        gpus = self.gpus_of(workload)
        self.gpus += sign * known.known * gpus
        self.power_mw += sign * known.known * _mw(self.power_w_of(workload, known.power_w))
        self.least += sign * least(known)
        if known.ordered is None:
            return
        self._leaving += sign * (known.known - least(known)) * gpus if known.ordered < known.known else 0
        spec = self.spec(workload)
        if self._limits.fleet_reclaim and spec is not None:
            self._givable[spec.priority] += sign * max(0, least(known) - spec.min_replicas) * gpus

    def kept_gpus(self, priority: int) -> int:
        """GPUs that are kept for workloads of higher priority which lack some."""
        return self.claims.kept_gpus(priority, self._supply)

    def owed(self, priority: int) -> tuple[int, str]:
        """GPUs that a workload of this priority is to give up, and for whom first."""
        gpus = self.claims.owed_gpus(priority, self._supply, self._givable) if self._limits.fleet_reclaim else 0
        return gpus, self.claims.first_above(priority) if gpus else ""

    @property
    def _supply(self) -> int:
        most = self._limits.fleet_max_gpus
        return 0 if most is None else max(0, most - self.gpus) + self._leaving

    def gpus_of(self, workload: str) -> int:
        """GPUs of one replica; an undeclared workload counts one."""
        spec = self.spec(workload)
        return 1 if spec is None else spec.gpus_per_replica

    def power_w_of(self, workload: str, measured_w: float | None) -> float:
        """Watts of one replica: what was declared, or more where more was measured; 0 where neither is known."""
        spec = self.spec(workload)
        return max(0.0 if spec is None else spec.power_w_per_replica or 0.0, measured_w or 0.0)


def _mw(watts: float) -> int:
    return round(watts * 1000.0)


def least(known: WorkloadState) -> int:
    counts = [c for c in (known.observed, known.ordered) if c is not None]
    return min(counts, default=0)


def current_replicas(known: WorkloadState | None, plan: WorkloadPlan, frame: Frame) -> int | None:
    """Replicas that count as in force; the last seen ones when the plan knows none; None when nobody knows."""
    observed = observed_replicas(plan.fleet)
    if observed is None and known is not None:
        observed = known.observed
    if observed is None:
        return None
    return in_force(observed, known.command if known else None, frame)


def effective_mode(spec: WorkloadSpec | None, word: OperatorWord) -> tuple[Mode, str]:
    """The mode in force, and why it is `observe`."""
    if spec is None:
        return "observe", "observe: no configuration declares this workload"
    wanted = word.mode or spec.mode
    if wanted == "act" and not spec.target.name:
        return "observe", "observe: the declaration names no target"
    return cast(Mode, wanted), "" if wanted == "act" else "observe: no command is published"


def assess(
    state: DecideState, fleet: Fleet, plan: WorkloadPlan, frame: Frame, current: int, overdue_ms: int | None
) -> Situation:
    """Everything the guards may know of one workload at this origin."""
    g, limits = frame.policy.guards, frame.policy.limits(plan.workload)
    known = state.workloads.get(plan.workload)
    word = state.operator.get(plan.workload, OperatorWord())
    spec = fleet.spec(plan.workload)
    mode, mode_reason = effective_mode(spec, word)
    pin = word.pin
    if pin is not None and pin.until_ts_ms is not None and frame.origin_ts_ms >= pin.until_ts_ms:
        pin = None
    highs, lows = queues(known, plan, frame)
    changes = known.changes if known else ()
    gpus = fleet.gpus_of(plan.workload)
    mine = known.known if known else 0
    mine_mw = mine * _mw(fleet.power_w_of(plan.workload, known.power_w if known else None))
    others_least = fleet.least - (least(known) if known else 0)
    removed = sum(n for _, n in state.removals)
    priority = 0 if spec is None else spec.priority
    kept_gpus, (owed_gpus, owed_to) = fleet.kept_gpus(priority), fleet.owed(priority)
    return Situation(
        plan=plan,
        spec=spec,
        limits=limits,
        current=current,
        mode=mode,
        mode_reason=mode_reason,
        paused="fleet" if state.paused else "workload" if word.paused else None,
        pin=pin,
        overdue_ms=overdue_ms,
        seen_steps=seen_steps(known, plan, frame),
        window_max=highs[0][1] if highs else None,
        window_min=lows[0][1] if lows else None,
        added=sum(n for t, n in changes if n > 0 and t > frame.origin_ts_ms - limits.up_period_s * 1000.0),
        removed=-sum(n for t, n in changes if n < 0 and t > frame.origin_ts_ms - limits.down_period_s * 1000.0),
        removals_left=None if g.fleet_removals_per_minute is None else g.fleet_removals_per_minute - removed,
        gpus_left=None if g.fleet_max_gpus is None else g.fleet_max_gpus - (fleet.gpus - mine * gpus) - kept_gpus,
        kept_gpus=kept_gpus,
        owed_gpus=owed_gpus,
        owed_to=owed_to,
        power_left_w=(
            None if g.fleet_max_power_w is None else g.fleet_max_power_w - (fleet.power_mw - mine_mw) / 1000.0
        ),
        power_w_per_replica=fleet.power_w_of(plan.workload, measured_w(known, plan)),
        fleet_need=max(0, g.fleet_min_replicas - others_least),
        newest_ts_ms=known.origin_ts_ms if known and known.origin_ts_ms >= 0 else None,
        origin_ts_ms=frame.origin_ts_ms,
    )
