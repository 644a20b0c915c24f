"""Who lacks GPUs under the fleet's budget, and who gives way.

A workload that the budget cut short leaves a claim. Until it is met or has run out, GPUs that come free are kept for it
from workloads of lower priority; where the policy says so (`fleet_reclaim`), these give up replicas for it as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from agents.policy import WorkloadSpec
from agents.records import Decision, WorkloadPlan

if TYPE_CHECKING:
    from agents.decide.frame import Frame

_FLOORS = ("schedule", "batch")


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What one workload lacked at its newest decision.

    Attributes:
        origin_ts_ms: of that decision; since_ts_ms: of the first of those that lacked something without a break;
            moved_ts_ms: of the newest of these that gave it something, else of the first.
        gpus: for all the replicas it lacked; unit: for one of them.
    """

    origin_ts_ms: int
    since_ts_ms: int
    moved_ts_ms: int
    gpus: int
    unit: int
    priority: int


def claim_of(before: Claim | None, plan: WorkloadPlan, decision: Decision, frame: Frame) -> Claim | None:
    """The claim that a decision leaves; None where the budget took nothing that bounds and pace would have allowed."""
    g, spec = frame.policy.limits(plan.workload), frame.policy.spec(plan.workload)
    final, current = decision.replicas.final, decision.replicas.current
    if g.fleet_max_gpus is None or spec is None or decision.command_id is None or final is None or current is None:
        return None
    cut = next((step for step in decision.guards if step.guard == "fleet_budget"), None)
    if cut is None and plan.proposed is None and before is not None:
        return before  # nobody asked for more than what is in force: it stands until a plan speaks, or it runs out
    wanted = _declared_floor(plan, spec) if cut is not None or g.fleet_max_power_w is None else 0
    if cut is not None and final >= cut.after:
        pace = max(g.up_replicas, math.floor(current * g.up_ratio))
        wanted = max(wanted, min(cut.before, current + pace))
    gpus = (wanted - final) * spec.gpus_per_replica
    if gpus <= 0:
        return None
    origin = frame.origin_ts_ms
    since_ts_ms = origin if before is None else before.since_ts_ms
    moved_ts_ms = origin if before is None or final > current else before.moved_ts_ms
    return Claim(origin, since_ts_ms, moved_ts_ms, gpus, spec.gpus_per_replica, spec.priority)


def _declared_floor(plan: WorkloadPlan, spec: WorkloadSpec) -> int:
    """What calendar and deadlines ask for, within the bounds: floors that the budget ends without a step of its own."""
    lows = [limit.low for limit in plan.standing if limit.guard in _FLOORS and limit.low is not None]
    return min(max(lows, default=0), spec.max_replicas)


class ClaimBook:
    """The claims of a fleet, added up, while the workloads of one plan are decided.

    Args:
        claims: read when it is asked whose they are; changes are told by `replace`.
    """

    def __init__(self, claims: Mapping[str, Claim], origin_ts_ms: int, lease_ms: int) -> None:
        self._claims = claims
        self._origin_ts_ms, self._lease_ms = origin_ts_ms, lease_ms
        self._all: Counter[tuple[int, int]] = Counter()  # GPUs by (-priority, unit)
        self._old: Counter[tuple[int, int]] = Counter()  # ... of those that were there before this origin
        self._waiting: Counter[tuple[int, int]] = Counter()  # claims that were given nothing for as long as a lease
        for claim in claims.values():
            self.replace(None, claim)

    def replace(self, before: Claim | None, after: Claim | None) -> None:
        """A decision left another claim, or none."""
        for claim, sign in ((before, -1), (after, 1)):
            if claim is None:
                continue
            key, gpus = (-claim.priority, claim.unit), sign * claim.gpus
            self._all[key] += gpus
            if claim.since_ts_ms < self._origin_ts_ms:
                self._old[key] += gpus
            self._waiting[key] += sign * (claim.moved_ts_ms <= self._origin_ts_ms - self._lease_ms)

    def kept_gpus(self, priority: int, supply: int) -> int:
        """GPUs, free or about to be (`supply`), that are kept for claims of higher priority."""
        return sum(_met(self._all, priority, supply, {}).values()) if self._claims else 0

    def owed_gpus(self, priority: int, supply: int, givable: Mapping[int, int]) -> int:
        """GPUs that workloads of this priority are to give up for higher ones; lower ones are asked first.

        Only claims that were there before this origin count: who lacks something for one slot alone is waited for, and
        in which order partitions are decided makes no difference. Where those below give nothing for the time of a
        lease, as doubts or floors of their own forbid it, the next ones are asked for all of it.

        Args:
            givable: GPUs that workloads of each priority could give up.
        """
        if not self._claims:
            return 0
        met = _met(self._old, priority, supply, givable)
        in_vain = any(self._waiting[key] for key, gpus in met.items() if gpus)
        return max(0, sum(met.values()) - supply - (0 if in_vain else _below(givable, priority)))

    def first_above(self, priority: int) -> str:
        """The workload of the highest priority that lacks most."""
        above = [(c.priority, c.gpus, w) for w, c in self._claims.items() if c.priority > priority]
        return max(above)[2] if above else ""


def _met(
    asked: Mapping[tuple[int, int], int], priority: int, supply: int, givable: Mapping[int, int]
) -> dict[tuple[int, int], int]:
    """GPUs of claims above a priority that can be met: the highest first, and no part of a replica."""
    met: dict[tuple[int, int], int] = {}
    for (lower, unit), gpus in sorted(asked.items()):
        if -lower <= priority:
            break
        reach = supply + _below(givable, -lower) - sum(met.values())
        met[lower, unit] = min(gpus, max(0, reach) // unit * unit)
    return met


def _below(givable: Mapping[int, int], priority: int) -> int:
    """GPUs that workloads of a lower priority could give up."""
    return sum(gpus for p, gpus in givable.items() if p < priority)
