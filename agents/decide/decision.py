"""From a situation and the guards' verdict to a decision, its command and the workload's next history; pure.

The next history and the command follow from the situation and the decision alone. So a decision adopted from the log
after a crash takes the place of the guards' verdict, and leads to the same state as in the life that made it.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import msgspec

from agents.decide.guards.chain import Guarded
from agents.decide.situation import Situation
from agents.decide.state import LastCommand, WorkloadHistory
from agents.policy import INDICATOR_OF, UNIT_OF, Policy, Slo
from agents.records import (
    Command,
    Decision,
    Fingerprint,
    ForecastView,
    ReplicaView,
    RiskView,
    Target,
    WorkloadPlan,
)


class Outcome(NamedTuple):
    """What one workload's turn at an origin leaves.

    Attributes:
        history: what is remembered of it from now on; None = it is retired.
        decision: to be published.
        command: to be published; None = the decision gives none.
        removed: replicas that the command takes away by a new move.
    """

    history: WorkloadHistory | None
    decision: Decision
    command: Command | None
    removed: int


def apply(history: WorkloadHistory, situation: Situation, verdict: Guarded | Decision | None) -> Outcome:
    """Turn the verdict on one workload into a decision, a command and the next history.

    Args:
        history: that of the workload with the plan taken in, `situation.history`.
        situation: what the verdict rests on.
        verdict: of the guards; or the decision that the log already has; None = the guards could not be asked.
    """
    decision = verdict if isinstance(verdict, Decision) else _decision(history.command, situation, verdict)
    command = _command(situation, decision)
    if decision.action == "retired":
        return Outcome(None, decision, command, 0)
    final, current = decision.replicas.final, decision.replicas.current
    if decision.command_id is None or final is None:
        return Outcome(history, decision, command, 0)
    lease, changes, removed = history.command, history.changes, 0
    if current is not None:
        # A count that had come about and is ordered again has been changed by somebody else: it is another move.
        moved = lease is None or lease.command_id != decision.command_id or lease.observed == lease.replicas
        if moved and final != current:
            changes += ((situation.origin_ts_ms, final - current),)
            removed = max(0, current - final)
        lease = _lease(lease, situation, decision, decision.command_id, final, current)
    history = msgspec.structs.replace(history, ordered=final, command=lease, changes=changes)
    return Outcome(history, decision, command, removed)


def decision_id(fleet: str, workload: str, origin_ts_ms: int, policy: str, model: str) -> str:
    """Deterministic id of a decision: a replay of the log gives the same one."""
    text = "\x1f".join((fleet, workload, str(origin_ts_ms), policy, model))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def command_id(fleet: str, workload: str, origin_ts_ms: int, replicas: int, epoch: int) -> str:
    """Deterministic id of a change of replicas; later leases of the same count keep it."""
    text = "\x1f".join((fleet, workload, str(origin_ts_ms), str(replicas), str(epoch)))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _decision(last: LastCommand | None, situation: Situation, guarded: Guarded | None) -> Decision:
    """The decision of one workload; without a verdict of the guards it holds, with the plan's reason."""
    context, plan, spec = situation.context, situation.plan, situation.spec
    policy, origin_ts_ms = context.policy, situation.origin_ts_ms
    current = situation.current if situation.has_current else None
    slo = spec.slo if spec else Slo()
    fingerprint = Fingerprint(context.policy_fingerprint, context.model_fingerprint)
    final = None if guarded is None else guarded.final
    if plan.refused == "retired":
        action = "retired"
    elif final is None or current is None or final == current:
        action = "hold"
    else:
        action = "up" if final > current else "down"
    lease_id = None
    if guarded is not None and final is not None and _commands(situation, guarded):
        if last is not None and (last.replicas, last.epoch) == (final, policy.epoch):
            lease_id = last.command_id
        else:
            lease_id = command_id(policy.fleet, plan.workload, origin_ts_ms, final, policy.epoch)
    return Decision(
        decision_id=decision_id(policy.fleet, plan.workload, origin_ts_ms, fingerprint.policy, fingerprint.model),
        workload=plan.workload,
        origin_ts_ms=origin_ts_ms,
        mode=situation.mode,
        action=action,
        reason=guarded.reason if guarded is not None else plan.refused or "no_fleet_facts",
        replicas=ReplicaView(
            ready=plan.fleet.ready if plan.fleet else None,
            pending=plan.fleet.pending if plan.fleet else None,
            current=current,
            proposed=plan.proposed,
            final=final,
        ),
        risk=_risk(plan, policy, slo, final),
        forecast=ForecastView(
            context.model_fingerprint,
            plan.forecast_source,
            plan.indicator or INDICATOR_OF[UNIT_OF[spec.role if spec else "both"]],
            "1/s",
            plan.window_s,
            plan.peak,
            plan.surge,
            plan.jumps,
        ),
        capacity_per_replica=plan.capacity,
        lead_time_s=plan.lead_time_s,
        proposer=plan.proposer,
        guards=guarded.steps if guarded is not None else (),
        shadow=_shadow(plan),
        inputs=plan.inputs,
        fingerprint=fingerprint,
        command_id=lease_id,
        work=plan.work,
        lead_time_starts=plan.lead_time_starts,
    )


def _commands(situation: Situation, guarded: Guarded) -> bool:
    """Whether the decision gives a command."""
    return situation.mode == "act" and not guarded.at_gate and situation.overdue_ms is None


def _shadow(plan: WorkloadPlan) -> dict[str, int]:
    """Replicas that other rules than the proposer would want; those of the reactive rule always, to compare with."""
    others = {proposer: count for proposer, count in plan.proposals.items() if proposer != plan.proposer}
    return others if plan.reactive_replicas is None else {**others, "reactive": plan.reactive_replicas}


def _risk(plan: WorkloadPlan, policy: Policy, slo: Slo, final: int | None) -> RiskView:
    levels = sorted(plan.risks, key=lambda r: r.replicas)
    stderr = next((r.p_miss_stderr for r in levels if r.replicas == final), None)
    if stderr is not None and not math.isfinite(stderr):
        stderr = None
    binding = next((c for c in plan.classes if c.name == plan.slo_class), None)
    return RiskView(
        epsilon=policy.epsilon_of(slo) if plan.epsilon is None else plan.epsilon,
        objective=slo.objective if binding is None else binding.objective,
        p_miss={str(r.replicas): r.p_miss for r in levels if math.isfinite(r.p_miss)},
        p_miss_stderr=stderr,
        budget_left_ratio=plan.budget_left_ratio,
        p_needed=plan.p_needed,
        slo_class=plan.slo_class,
        classes=plan.classes,
        miss_share={str(r.replicas): r.miss_share for r in levels if math.isfinite(r.miss_share)},
        miss_price=plan.miss_price,
        promises=plan.promises,
    )


def _command(situation: Situation, decision: Decision) -> Command | None:
    """The lease that a decision orders; None when it orders none."""
    context, spec, final = situation.context, situation.spec, decision.replicas.final
    observed = decision.replicas.current if situation.fleet_replicas is None else situation.fleet_replicas
    if decision.command_id is None or final is None or observed is None or spec is None:
        return None
    target = spec.target
    return Command(
        command_id=decision.command_id,
        decision_id=decision.decision_id,
        workload=decision.workload,
        target=Target(target.api_version, target.kind, target.namespace, target.name),
        replicas=final,
        expected_current=observed,
        epoch=context.policy.epoch,
        sequence=context.sequence,
        issued_ts_ms=decision.origin_ts_ms,
        valid_until_ts_ms=decision.origin_ts_ms + context.lease_ms,
        reason=decision.reason,
        p_miss=decision.risk.p_miss.get(str(final)),
        epsilon=decision.risk.epsilon,
    )


def _lease(
    last: LastCommand | None, situation: Situation, decision: Decision, lease_id: str, final: int, current: int
) -> LastCommand:
    """The lease in force after the decision; one renewed keeps the instant and the count of its last change."""
    context, fleet_replicas = situation.context, situation.fleet_replicas
    changed_ts_ms, observed = context.origin_ts_ms, current if fleet_replicas is None else fleet_replicas
    ordered_again = last is not None and last.observed == last.replicas and final != current
    if last is not None and last.command_id == lease_id and not ordered_again:
        changed_ts_ms, observed = last.changed_ts_ms, final if fleet_replicas == final else last.observed
    return LastCommand(
        command_id=lease_id,
        decision_id=decision.decision_id,
        replicas=final,
        epoch=context.policy.epoch,
        sequence=context.sequence,
        issued_ts_ms=context.origin_ts_ms,
        valid_until_ts_ms=context.origin_ts_ms + context.lease_ms,
        changed_ts_ms=changed_ts_ms,
        observed=observed,
    )
