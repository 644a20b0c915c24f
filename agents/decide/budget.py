"""The fleet's budgets: GPUs, power, the floor, removals per minute; and who gets the last GPUs.

A workload that the GPU budget cut short leaves a claim. Until the claim is met or has run out, GPUs that come free are
kept for it from workloads of lower priority. Where the policy says so (`fleet_reclaim`), these give up replicas too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from agents.decide.decision import Outcome
from agents.decide.situation import FleetShare, Situation, replica_power_w
from agents.decide.state import DecideState, GpuClaim, WorkloadHistory
from agents.policy import GuardLimits, Policy, WorkloadSpec
from agents.records import Decision, WorkloadPlan

_FLOOR_GUARDS = ("schedule", "batch")  # Guards whose lower bounds hold whatever the plan proposes.


class FleetBudget:
    """Sums over all workloads that the budgets need, kept up to date while the workloads of one plan are decided.

    Another workload counts with the larger of what it shows and what was ordered for the caps, and with the smaller
    for the floor. So nothing is spent that an order not yet carried out would have to bring.

    Declared before undeclared: for a declared workload only declared ones count. Of undeclared ones there is but what
    telemetry says, which no order can change; anyone who publishes telemetry could take the budget, or be the floor.

    Args:
        state: a draft that the caller owns; `record` changes it.
        origin_ts_ms: of the plan.
        lease_ms: time for which a command holds.
    """

    def __init__(self, state: DecideState, policy: Policy, origin_ts_ms: int, lease_ms: int) -> None:
        self._state = state
        self._limits = policy.guards
        self._claims = ClaimTotals(state.claims, origin_ts_ms, lease_ms)
        self._leaving_gpus = 0  # GPUs of replicas that were ordered away and still show
        self._givable_gpus: Counter[int] = Counter()  # by priority, of replicas above the minimum that obey commands
        self._gpus = 0
        self._power_mw = 0  # an integer: the sum must not depend on the order of addition
        self._undeclared_gpus = self._undeclared_mw = 0
        self._fewest_replicas = 0
        for workload, history in state.workloads.items():
            self._add(policy.spec(workload), history, 1)

    def share(self, history: WorkloadHistory | None, spec: WorkloadSpec | None) -> FleetShare:
        """What is left for one workload, with its own replicas handed back.

        Args:
            history: as it counts in the sums; None = it counts nothing.
            spec: its declaration; None = not declared.
        """
        limits, priority = self._limits, 0 if spec is None else spec.priority
        supply = self._supply()
        reserved_gpus = self._claims.reserved_gpus(priority, supply)
        reclaim_gpus, reclaim_for = 0, ""
        if limits.fleet_reclaim:
            reclaim_gpus = self._claims.reclaim_gpus(priority, supply, self._givable_gpus)
            reclaim_for = self._claims.first_above(priority) if reclaim_gpus else ""
        own = 0 if history is None else _most_replicas(history)
        own_fewest = 0 if history is None or spec is None else _fewest_replicas(history)
        removals_left = gpus_left = power_left_w = None
        if limits.fleet_removals_per_minute is not None:
            removals_left = limits.fleet_removals_per_minute - sum(n for _, n in self._state.removals)
        if limits.fleet_max_gpus is not None:
            own_gpus = own * replica_gpus(spec)
            others_gpus = self._gpus + (self._undeclared_gpus if spec is None else 0) - own_gpus
            gpus_left = limits.fleet_max_gpus - others_gpus - reserved_gpus
        if limits.fleet_max_power_w is not None:
            own_mw = own * _milliwatts(replica_power_w(spec, history.power_w)) if history is not None else 0
            others_mw = self._power_mw + (self._undeclared_mw if spec is None else 0) - own_mw
            power_left_w = limits.fleet_max_power_w - others_mw / 1000.0
        fleet_need = max(0, limits.fleet_min_replicas - (self._fewest_replicas - own_fewest))
        return FleetShare(removals_left, gpus_left, reserved_gpus, reclaim_gpus, reclaim_for, power_left_w, fleet_need)

    def record(self, situation: Situation, before: WorkloadHistory | None, outcome: Outcome) -> None:
        """Store what one decision leaves, in the state and in the sums.

        Args:
            before: the workload's history as it counts in the sums; None = it counts nothing.
        """
        state, workload, spec, history = self._state, situation.plan.workload, situation.spec, outcome.history
        claim = None
        if history is None:
            state.workloads.pop(workload, None)
        else:
            claim = claim_after(situation.claim, situation.plan, outcome.decision, spec, situation.limits)
            state.workloads[workload] = history
            self._add(spec, history, 1)
        if before is not None:
            self._add(spec, before, -1)
        if claim is not None:
            state.claims[workload] = claim
        elif situation.claim is not None:
            del state.claims[workload]
        self._claims.replace(situation.claim, claim)
        removed = outcome.removed
        if removed:
            if state.removals and state.removals[-1][0] == state.clock_ms:
                removed += state.removals[-1][1]
                state.removals = state.removals[:-1]
            state.removals += ((state.clock_ms, removed),)

    def _add(self, spec: WorkloadSpec | None, history: WorkloadHistory, sign: int) -> None:
        gpus, most, fewest = replica_gpus(spec), _most_replicas(history), _fewest_replicas(history)
        power_mw = 0
        if self._limits.fleet_max_power_w is not None:
            power_mw = sign * most * _milliwatts(replica_power_w(spec, history.power_w))
        if spec is None:
            self._undeclared_gpus += sign * most * gpus
            self._undeclared_mw += power_mw
            return
        self._gpus += sign * most * gpus
        self._power_mw += power_mw
        self._fewest_replicas += sign * fewest
        if history.ordered is None:
            return
        if history.ordered < most:
            self._leaving_gpus += sign * (most - fewest) * gpus
        if self._limits.fleet_reclaim:
            self._givable_gpus[spec.priority] += sign * max(0, fewest - spec.min_replicas) * gpus

    def _supply(self) -> int:
        """GPUs that are free, or about to be."""
        most = self._limits.fleet_max_gpus
        return 0 if most is None else max(0, most - self._gpus) + self._leaving_gpus


def replica_gpus(spec: WorkloadSpec | None) -> int:
    """GPUs of one replica; an undeclared workload counts one."""
    return 1 if spec is None else spec.gpus_per_replica


def _most_replicas(history: WorkloadHistory) -> int:
    """Replicas that a workload may hold by now: the larger of those seen and those ordered."""
    return max(history.observed or 0, history.ordered or 0)


def _fewest_replicas(history: WorkloadHistory) -> int:
    """Replicas that a workload surely holds: the smaller of those seen and those ordered."""
    if history.observed is None or history.ordered is None:
        return _most_replicas(history)
    return min(history.observed, history.ordered)


def _milliwatts(watts: float) -> int:
    return round(watts * 1000.0)


def claim_after(
    before: GpuClaim | None, plan: WorkloadPlan, decision: Decision, spec: WorkloadSpec | None, limits: GuardLimits
) -> GpuClaim | None:
    """The claim that a decision leaves; None where the budget took nothing that bounds and pace would have allowed.

    Args:
        before: the claim that the workload had.
        limits: those of the workload.
    """
    final, current = decision.replicas.final, decision.replicas.current
    if limits.fleet_max_gpus is None or spec is None or decision.command_id is None or final is None or current is None:
        return None
    cut = next((step for step in decision.guards if step.guard == "fleet_budget"), None)
    if cut is None and plan.proposed is None and before is not None:
        return before  # nobody asked for more than what is in force: it stands until a plan asks, or it runs out
    target = _declared_floor(plan, spec) if cut is not None or limits.fleet_max_power_w is None else 0
    if cut is not None and final >= cut.after:
        pace = max(limits.up_replicas, math.floor(current * limits.up_ratio))
        target = max(target, min(cut.before, current + pace))
    gpus = (target - final) * spec.gpus_per_replica
    if gpus <= 0:
        return None
    origin_ts_ms = decision.origin_ts_ms
    since_ts_ms = origin_ts_ms if before is None else before.since_ts_ms
    moved_ts_ms = origin_ts_ms if before is None or final > current else before.moved_ts_ms
    return GpuClaim(origin_ts_ms, since_ts_ms, moved_ts_ms, gpus, spec.gpus_per_replica, spec.priority)


def _declared_floor(plan: WorkloadPlan, spec: WorkloadSpec) -> int:
    """What calendar and deadlines ask for, within the bounds: floors that the budget ends without a step of its own."""
    lows = [limit.low for limit in plan.standing if limit.guard in _FLOOR_GUARDS and limit.low is not None]
    return min(max(lows, default=0), spec.max_replicas)


class ClaimTotals:
    """The claims of a fleet, added up by priority, while the workloads of one plan are decided.

    Args:
        claims: by workload, read when the workload that a claim belongs to is asked for; `replace` reports changes.
    """

    def __init__(self, claims: Mapping[str, GpuClaim], origin_ts_ms: int, lease_ms: int) -> None:
        self._claims = claims
        self._origin_ts_ms, self._lease_ms = origin_ts_ms, lease_ms
        # By (-priority, GPUs per replica): GPUs of all claims, GPUs of those that are older than this origin, and the
        # number of claims that were given nothing for as long as a lease.
        self._all: Counter[tuple[int, int]] = Counter()
        self._older: Counter[tuple[int, int]] = Counter()
        self._num_waiting: Counter[tuple[int, int]] = Counter()
        for claim in claims.values():
            self.replace(None, claim)

    def replace(self, before: GpuClaim | None, after: GpuClaim | None) -> None:
        """Exchange one claim for another, or none."""
        for claim, sign in ((before, -1), (after, 1)):
            if claim is None:
                continue
            key, gpus = (-claim.priority, claim.gpus_per_replica), sign * claim.gpus
            self._all[key] += gpus
            if claim.since_ts_ms < self._origin_ts_ms:
                self._older[key] += gpus
            self._num_waiting[key] += sign * (claim.moved_ts_ms <= self._origin_ts_ms - self._lease_ms)

    def reserved_gpus(self, priority: int, supply: int) -> int:
        """GPUs, free or about to be (`supply`), that are kept for claims of higher priority."""
        return sum(_claims_met(self._all, priority, supply, {}).values()) if self._claims else 0

    def reclaim_gpus(self, priority: int, supply: int, givable: Mapping[int, int]) -> int:
        """GPUs that workloads of this priority are to give up for higher ones; lower ones are asked first.

        Only claims older than this origin count: a lack of one slot is waited for, and the order in which partitions
        are decided makes no difference. Where those below give nothing for the time of a lease, as doubts or floors of
        their own forbid it, the next ones are asked for all of it.

        Args:
            givable: GPUs that workloads of each priority could give up.
        """
        if not self._claims:
            return 0
        met = _claims_met(self._older, priority, supply, givable)
        in_vain = any(self._num_waiting[key] for key, gpus in met.items() if gpus)
        return max(0, sum(met.values()) - supply - (0 if in_vain else _givable_below(givable, priority)))

    def first_above(self, priority: int) -> str:
        """The workload that lacks most among those of the highest priority."""
        above = [(c.priority, c.gpus, w) for w, c in self._claims.items() if c.priority > priority]
        return max(above)[2] if above else ""


def _claims_met(
    claims: Mapping[tuple[int, int], int], priority: int, supply: int, givable: Mapping[int, int]
) -> dict[tuple[int, int], int]:
    """GPUs of claims above a priority that can be met: the highest first, and no part of a replica."""
    met: dict[tuple[int, int], int] = {}
    for (lower, gpus_per_replica), gpus in sorted(claims.items()):
        if -lower <= priority:
            break
        reach = supply + _givable_below(givable, -lower) - sum(met.values())
        met[lower, gpus_per_replica] = min(gpus, max(0, reach) // gpus_per_replica * gpus_per_replica)
    return met


def _givable_below(givable: Mapping[int, int], priority: int) -> int:
    """GPUs that workloads of a lower priority could give up."""
    return sum(gpus for p, gpus in givable.items() if p < priority)
