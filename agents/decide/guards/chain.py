"""The chain of guards: from a proposal to the replica count that is safe to publish, each word on record.

    pin ─ kill switch ─ mode ─ expired ─ first request ─ no plan ─ warm-up ─ fence   gates: the first (not mode) ends it
      └▶ freshness ─ coverage ─ sanity ─ missing metric ─ horizon      doubts: never below what is in force
          └▶ bounds ─ budget ─ power ─ floor ─ release ─ step limits ─ removals     limits: how far, how fast
              └▶ stabilization ─ tolerance ─ model guard ─ reclaim ─ first request ─ batch ─ schedule ─ bounds

A guard that raises means hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agents.decide.guards import gates as safety
from agents.decide.guards import limits
from agents.decide.guards import limits as declared
from agents.decide.situation import Situation
from agents.records import GuardStep

Guard = Callable[[Situation, int], GuardStep | None]

GATES: tuple[Guard, ...] = (
    safety.pin,
    safety.kill_switch,
    safety.mode,
    safety.expired,
    declared.first_request,
    safety.refused,
    safety.warm_up,
    safety.fence,
)
GUARDS: tuple[Guard, ...] = (
    *safety.DOUBTS,
    safety.horizon,
    limits.bounds,
    limits.fleet_budget,
    limits.fleet_power,
    limits.fleet_floor,
    limits.release,
    limits.step_limit,
    limits.removal_limit,
    limits.stabilization,
    limits.tolerance,
    limits.model_guard,
    limits.reclaim,
    declared.first_request,
    declared.batch,
    declared.schedule,
    limits.bounds,
)


@dataclass(frozen=True, slots=True)
class Guarded:
    """What the chain leaves.

    Attributes:
        final: replicas.
        reason: name of the guard, or else of the proposer, that had the last word.
        steps: every guard that spoke, in order.
        held: decided before the plan was looked at, so there is nothing to command.
    """

    final: int
    reason: str
    steps: tuple[GuardStep, ...]
    held: bool


def run_guards(s: Situation, gates: tuple[Guard, ...] = GATES, guards: tuple[Guard, ...] = GUARDS) -> Guarded:
    """Take the plan's proposal through the chain."""
    value, reason, steps = _proposal(s)
    for gate in gates:
        step = _ask(gate, s, value)
        if step is None:
            continue
        steps.append(step)
        if step.guard == "mode" and not step.reason.startswith(_FAILED):
            continue
        return Guarded(step.after, step.guard, tuple(steps), held=step.guard not in _COMMANDING)
    for guard in guards:
        step = _ask(guard, s, value)
        if step is None:
            continue
        steps.append(step)
        value, reason = step.after, step.guard
        if step.reason.startswith(_FAILED):
            break
    return Guarded(value, reason, tuple(steps), held=False)


_FAILED = "guard failed: "
_COMMANDING = ("pin", "first_request")  # gates that end the chain with a count of their own


def _ask(guard: Guard, s: Situation, value: int) -> GuardStep | None:
    try:
        return guard(s, value)
    except Exception as error:  # noqa: BLE001 - a broken guard must not stop the fleet, nor move it
        return GuardStep(getattr(guard, "__name__", "guard"), value, s.current, _FAILED + type(error).__name__)


def _proposal(s: Situation) -> tuple[int, str, list[GuardStep]]:
    """Where the chain starts. Without a proposal the reactive need stands in, and never below what is in force."""
    plan = s.plan
    if plan.proposed is not None:
        short = next((limit for limit in plan.standing if limit.guard == "horizon"), None)
        told = [] if short is None else [GuardStep("horizon", plan.proposed, plan.proposed, short.reason)]
        return plan.proposed, plan.proposer or "plan", told
    if plan.refused is not None:
        return s.current, plan.refused, []
    need = s.current if plan.reactive_replicas is None else max(s.current, plan.reactive_replicas)
    reason = "no proposal: the reactive need, never below what is in force"
    return need, "fallback", [GuardStep("fallback", s.current, need, reason)]
