"""A policy of somebody's own: it may propose another count than the planner; the guards have the last word.

It speaks where plans are made, so that what it said is in the `plans` log: the decide stage stays a function of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agents.policy import WorkloadSpec
from agents.records import WorkloadPlan
from agents.workload.subject import Subject


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """What a policy is asked about one workload.

    Attributes:
        spec: the declaration, with bounds and SLO; defaults where the workload is not declared.
        plan: the built-in plan: proposed count, risks of counts, capacity, lead time, replicas, inputs.
        demand_paths: float32 [S, H], arrivals in requests/s per sample path and step from the origin on; read-only.
            The plan's peak and capacity may be of tokens: `plan.indicator` says.
        last_proposed: count of the previous plan.
    """

    workload: str
    origin_ts_ms: int
    step_ms: int
    spec: WorkloadSpec
    plan: WorkloadPlan
    demand_paths: NDArray[np.float32]
    last_proposed: int | None


class Proposer(Protocol):
    """Answers for many workloads at once; the answer for one must not depend on the others."""

    @property
    def name(self) -> str:
        """Stands in decisions as the proposer."""
        ...

    def propose(self, questions: Sequence[PolicyQuestion]) -> Sequence[int | None]:
        """A count per question, in their order; None leaves the built-in plan as it is. Never raises."""
        ...


def with_proposals(
    proposer: Proposer,
    planned: Sequence[WorkloadPlan],
    subjects: Sequence[Subject],
    arrivals: Tensor,
    origin_ts_ms: int,
    step_ms: int,
) -> list[WorkloadPlan]:
    """The plans, with the counts of the policy where it has one.

    Args:
        planned: only those with a count of their own are asked about.
        arrivals: float32 [B, S, H], requests/s.
    """
    asked = [b for b, plan in enumerate(planned) if plan.refused is None and plan.risks]
    if not asked:
        return list(planned)
    paths = np.array(arrivals.numpy())  # ours stay untouched
    paths.flags.writeable = False
    questions = [
        PolicyQuestion(
            workload=planned[b].workload,
            origin_ts_ms=origin_ts_ms,
            step_ms=step_ms,
            spec=subjects[b].state.spec,
            plan=planned[b],
            demand_paths=paths[b],
            last_proposed=subjects[b].state.last_proposed,
        )
        for b in asked
    ]
    changed = list(planned)
    for b, count in zip(asked, proposer.propose(questions), strict=True):
        if count is not None:
            changed[b] = msgspec.structs.replace(planned[b], proposed=count, proposer=proposer.name)
    return changed
