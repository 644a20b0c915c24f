"""The chain of guards: from a proposal to the replica count that is safe to publish, with every change on record.

    pin ─ kill switch ─ mode ─ expired ─ first request ─ no plan ─ warm-up ─ fence   gates: the first (not mode) ends it
      └▶ freshness ─ coverage ─ sanity ─ missing metric ─ horizon      doubts: never below what is in force
          └▶ bounds ─ budget ─ power ─ floor ─ step limits ─ removals     limits: how far, how fast
              └▶ stabilization ─ tolerance ─ model guard ─ reclaim ─ first request ─ batch ─ schedule ─ bounds

`GATES` and `GUARDS` below list them in the order in which they are asked. A guard that raises means hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agents.decide.guards import gates, limits
from agents.decide.situation import Situation
from agents.records import GuardStep

Guard = Callable[[Situation, int], GuardStep | None]

# The first gate that answers ends the chain with its count, all but `mode`.
GATES: tuple[Guard, ...] = (
    gates.pin,  # An operator holds the workload at a count; this wins over everything else.
    gates.kill_switch,  # An operator has paused the fleet or the workload: hold.
    gates.mode,  # In `observe` the chain goes on, but there will be no command.
    gates.expired,  # The plan was read after its lease ran out: hold.
    limits.first_request,  # Requests wait and no replica runs: start the first one, even without a plan.
    gates.refused,  # The forecast stage made no plan: hold for its reason.
    gates.warm_up,  # Too few steps have been observed so far: hold.
    gates.fence,  # The log already has a decision of this origin or a later one: hold.
)
# Each guard gets the count that the one before it left.
GUARDS: tuple[Guard, ...] = (
    gates.freshness,  # No scale-down on old telemetry or on old fleet facts.
    gates.coverage,  # No scale-down when too few sources report, or too little of the context was observed.
    gates.sanity,  # No scale-down on a sudden zero, a cliff, a flat line or a censored rate.
    gates.missing_metric,  # On the way down, silent sources count as fully loaded.
    gates.horizon,  # No scale-down where most starts take longer than the plan could see.
    limits.bounds,  # Within the declared minimum and maximum.
    limits.fleet_budget,  # No growth beyond the fleet's GPUs.
    limits.fleet_power,  # No growth beyond the fleet's power ceiling.
    limits.fleet_floor,  # The fleet keeps its minimum number of replicas.
    limits.step_limit,  # At most so many replicas, or such a share, up or down per period.
    limits.removal_limit,  # At most so many replicas per minute leave the whole fleet.
    limits.stabilization,  # Down to the largest proposal of the down window, up to the smallest of the up window.
    limits.tolerance,  # No change that is small beside the count in force.
    limits.model_guard,  # Never below what the load of now needs.
    limits.reclaim,  # Give up replicas for workloads of higher priority that lack GPUs.
    limits.first_request,  # Requests wait and no replica runs: start the first one.
    limits.batch,  # At least what does the work with deadlines in time.
    limits.schedule,  # Within the ceiling and the floor of the calendar and of known events.
    limits.bounds,  # Within the declared minimum and maximum, whatever was added since.
)
_FAILED = "guard failed: "  # Start of the reason of a guard that raised.
_GATES_WITH_COMMAND = ("pin", "first_request")  # Gates that end the chain with a count of their own.


@dataclass(frozen=True, slots=True)
class Guarded:
    """The verdict of the chain.

    Attributes:
        final: replicas.
        reason: name of the last guard that changed the count; else of the proposer.
        steps: every guard that answered, in order.
        at_gate: a gate decided before the plan was looked at, so there is nothing to command.
    """

    final: int
    reason: str
    steps: tuple[GuardStep, ...]
    at_gate: bool


def run_guards(s: Situation, gate_order: tuple[Guard, ...] = GATES, guard_order: tuple[Guard, ...] = GUARDS) -> Guarded:
    """Take the plan's proposal through the chain."""
    value, reason, steps = _proposal(s)
    for gate in gate_order:
        step = _ask(gate, s, value)
        if step is None:
            continue
        steps.append(step)
        if step.guard == "mode" and not step.reason.startswith(_FAILED):
            continue
        return Guarded(step.after, step.guard, tuple(steps), at_gate=step.guard not in _GATES_WITH_COMMAND)
    for guard in guard_order:
        step = _ask(guard, s, value)
        if step is None:
            continue
        steps.append(step)
        value, reason = step.after, step.guard
        if step.reason.startswith(_FAILED):
            break
    return Guarded(value, reason, tuple(steps), at_gate=False)


def _ask(guard: Guard, s: Situation, value: int) -> GuardStep | None:
    try:
        return guard(s, value)
    except Exception as error:  # noqa: BLE001 - a broken guard must not stop the fleet, nor move it
        return GuardStep(getattr(guard, "__name__", "guard"), value, s.current, _FAILED + type(error).__name__)


def _proposal(s: Situation) -> tuple[int, str, list[GuardStep]]:
    """Count, reason and steps that the chain starts with.

    Without a proposal the reactive need stands in, and never less than what is in force.
    """
    plan = s.plan
    if plan.proposed is not None:
        short = next((limit for limit in plan.standing if limit.guard == "horizon"), None)
        steps = [] if short is None else [GuardStep("horizon", plan.proposed, plan.proposed, short.reason)]
        return plan.proposed, plan.proposer or "plan", steps
    if plan.refused is not None:
        return s.current, plan.refused, []
    need = s.current if plan.reactive_replicas is None else max(s.current, plan.reactive_replicas)
    reason = "no proposal: the reactive need, never below what is in force"
    return need, "fallback", [GuardStep("fallback", s.current, need, reason)]
