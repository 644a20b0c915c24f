"""The situation of one workload at one origin: all that the guards and the decision read, built once, as plain values.

history + plan + operator's overrides + the fleet's budgets  ─ build_situation ─▶  Situation
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from agents.decide.state import DecideState, GpuClaim, OperatorOverride, Series, WorkloadHistory
from agents.policy import GuardLimits, Mode, Policy, WorkloadSpec
from agents.records import Pin, PlanOf, WorkloadPlan
from streams.config import StreamConfig
from streams.records.facts import FleetFacts

NO_OVERRIDE = OperatorOverride()


class FleetShare(NamedTuple):
    """What the fleet's budgets leave to one workload; the fields are those of `Situation`."""

    removals_left: int | None
    gpus_left: int | None
    reserved_gpus: int
    reclaim_gpus: int
    reclaim_for: str
    power_left_w: float | None
    fleet_need: int


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What all workloads of one record of plans share.

    Attributes:
        origin_ts_ms: end of the last closed slot: the instant of event time at which the plans speak.
        lease_ms: time from the origin for which a command holds.
        sequence: number of the origin's step in Unix time; it orders the commands of a workload.
        overdue_ms: how long past its lease the record was read; None = in time, or not checked.
        partition: pages partition that the plans are of.
        model_fingerprint: of the model that made them.
        policy: in force.
        policy_fingerprint: of that policy.
        step_ms: length of one step.
    """

    origin_ts_ms: int
    lease_ms: int
    sequence: int
    overdue_ms: int | None
    partition: int
    model_fingerprint: str
    policy: Policy
    policy_fingerprint: str
    step_ms: int


def build_context(
    plan: PlanOf[Any], policy: Policy, policy_fingerprint: str, stream: StreamConfig, read_stamp_ms: int | None
) -> PlanContext:
    """The context of a record's workloads.

    Args:
        read_stamp_ms: the broker's stamp of the record; None = its age is not checked.
    """
    # The grace is added to the steps of the lease: no decision exists before its slot can close.
    lease_ms = stream.grace_ms + max(policy.guards.lease_steps, policy.plan_every + 1) * stream.step_ms
    late_ms = 0 if read_stamp_ms is None else read_stamp_ms - (plan.origin_ts_ms + lease_ms)
    return PlanContext(
        origin_ts_ms=plan.origin_ts_ms,
        lease_ms=lease_ms,
        sequence=plan.origin_ts_ms // stream.step_ms,
        overdue_ms=late_ms if late_ms > 0 else None,
        partition=plan.partition,
        model_fingerprint=plan.model_fingerprint,
        policy=policy,
        policy_fingerprint=policy_fingerprint,
        step_ms=stream.step_ms,
    )


@dataclass(frozen=True, slots=True)
class Situation:
    """One workload at one origin.

    Attributes:
        context: what it shares with the other workloads of the record.
        history: that of the workload, with this plan taken in; only the decision is still missing in it.
        plan: what the forecast stage says.
        spec: the declaration; None = not declared.
        limits: of the guards.
        current: replicas that count as being in force; what "hold" keeps; 0 where nobody knows them.
        has_current: whether anybody has ever reported replicas.
        fleet_replicas: replicas that the plan's fleet facts show; None = there are none.
        mode: in force; `observe` never has a command.
        mode_reason: why it is `observe`.
        paused: "fleet" or "workload" when the kill switch is on.
        pin: in force at this origin.
        overdue_ms: how long past its lease the plan was read; None = in time, or not checked.
        seen_steps: steps with an observed arrival rate so far, up to the warm-up.
        window_max: largest proposal within the down window, this one included.
        window_min: smallest proposal within the up window, this one included.
        added: replicas added within the up period.
        removed: replicas removed within the down period.
        removals_left: replicas the whole fleet may still lose within the minute; None = no limit.
        gpus_left: GPUs left for this workload, its own included, those kept for higher priorities not; None = no limit.
        reserved_gpus: GPUs kept for higher priorities.
        reclaim_gpus: GPUs that it is to give up for workloads of higher priority.
        reclaim_for: the first of these workloads.
        power_left_w: power left for this workload, its own included; None = no limit.
        power_w_per_replica: declared, or measured where that is more; 0 = not known.
        fleet_need: replicas this workload must keep so that the fleet stays above its floor.
        claim: GPUs that it lacked so far; None = none.
        newest_ts_ms: origin of the newest decision of this workload; a plan that is not newer is fenced off.
        origin_ts_ms: of this plan.
    """

    context: PlanContext
    history: WorkloadHistory
    plan: WorkloadPlan
    spec: WorkloadSpec | None
    limits: GuardLimits
    current: int
    has_current: bool = True
    fleet_replicas: int | None = None
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
    reserved_gpus: int = 0
    reclaim_gpus: int = 0
    reclaim_for: str = ""
    power_left_w: float | None = None
    power_w_per_replica: float = 0.0
    fleet_need: int = 0
    claim: GpuClaim | None = None
    newest_ts_ms: int | None = None
    origin_ts_ms: int = 0

    @property
    def decidable(self) -> bool:
        """Whether the guards can be asked: the workload is not retired, and there is a count to start from."""
        return self.has_current and self.plan.refused != "retired"


def build_situation(
    context: PlanContext,
    state: DecideState,
    share: FleetShare,
    plan: WorkloadPlan,
    spec: WorkloadSpec | None,
    limits: GuardLimits,
) -> Situation:
    """The situation of one workload; reads the state, changes nothing.

    Args:
        state: that of the stage, with the plan's operator records and replica counts taken in.
        share: what the fleet's budgets leave to the workload.
        plan: of the workload.
        spec: the declaration of the workload; None = not declared.
        limits: of its guards.
    """
    origin_ts_ms = context.origin_ts_ms
    before = state.workloads.get(plan.workload)
    fleet_replicas = observed_replicas(plan.fleet)
    history = _with_plan(before, context, plan, fleet_replicas, limits)
    current = _replicas_in_force(history, context)
    override = state.operator.get(plan.workload, NO_OVERRIDE)
    mode, mode_reason = effective_mode(spec, override)
    pin = override.pin
    if pin is not None and pin.until_ts_ms is not None and origin_ts_ms >= pin.until_ts_ms:
        pin = None
    added_after_ms = origin_ts_ms - limits.up_period_s * 1000.0
    removed_after_ms = origin_ts_ms - limits.down_period_s * 1000.0
    return Situation(
        context=context,
        history=history,
        plan=plan,
        spec=spec,
        limits=limits,
        current=0 if current is None else current,
        has_current=current is not None,
        fleet_replicas=fleet_replicas,
        mode=mode,
        mode_reason=mode_reason,
        paused="fleet" if state.paused else "workload" if override.paused else None,
        pin=pin,
        overdue_ms=context.overdue_ms,
        seen_steps=history.seen_steps,
        window_max=history.highs[0][1] if history.highs else None,
        window_min=history.lows[0][1] if history.lows else None,
        added=sum(n for t, n in history.changes if n > 0 and t > added_after_ms),
        removed=-sum(n for t, n in history.changes if n < 0 and t > removed_after_ms),
        removals_left=share.removals_left,
        gpus_left=share.gpus_left,
        reserved_gpus=share.reserved_gpus,
        reclaim_gpus=share.reclaim_gpus,
        reclaim_for=share.reclaim_for,
        power_left_w=share.power_left_w,
        power_w_per_replica=replica_power_w(spec, history.power_w),
        fleet_need=share.fleet_need,
        claim=state.claims.get(plan.workload),
        newest_ts_ms=before.origin_ts_ms if before is not None and before.origin_ts_ms >= 0 else None,
        origin_ts_ms=origin_ts_ms,
    )


def observed_replicas(facts: FleetFacts | None) -> int | None:
    """The count that a command's compare-and-set meets; None where the fleet reports nothing."""
    return None if facts is None else facts.wanted


def replica_power_w(spec: WorkloadSpec | None, measured_w: float | None) -> float:
    """Watts of one replica: those declared, or those measured where they are more; 0 where neither is known."""
    return max(0.0 if spec is None else spec.power_w_per_replica or 0.0, measured_w or 0.0)


def _with_plan(
    before: WorkloadHistory | None, context: PlanContext, plan: WorkloadPlan, replicas: int | None, limits: GuardLimits
) -> WorkloadHistory:
    """The history with this plan in: counts, steps seen, the windows' queues; its last command is still in force."""
    origin_ts_ms, observed, seen_steps = context.origin_ts_ms, replicas, 0
    command, power_w = None, plan.power_w
    highs: Series = ()
    lows: Series = ()
    changes: Series = ()
    if before is not None:
        observed = before.observed if observed is None else observed
        power_w = before.power_w if power_w is None else power_w
        command, seen_steps = before.command, before.seen_steps
        highs = _newer_than(before.highs, origin_ts_ms, limits.stabilization_down_s)
        lows = _newer_than(before.lows, origin_ts_ms, limits.stabilization_up_s)
        changes = _newer_than(before.changes, origin_ts_ms, max(limits.up_period_s, limits.down_period_s))
        if before.origin_ts_ms >= 0 and plan.inputs.arrival_rate is not None:
            steps = (origin_ts_ms - before.origin_ts_ms) // context.step_ms
            seen_steps += min(max(steps, 0), context.policy.plan_every)
    # A hole later on does not undo the warm-up: steps are counted, not read off the context alone.
    seen_steps = min(max(seen_steps, plan.inputs.observed_steps), context.policy.guards.warm_up_steps)
    proposal = plan.proposed if plan.proposed is not None else plan.reactive_replicas
    if proposal is not None:
        # Monotone queues: the first entries are the window's maximum and minimum.
        highs = (*(x for x in highs if x[1] > proposal), (origin_ts_ms, proposal))
        lows = (*(x for x in lows if x[1] < proposal), (origin_ts_ms, proposal))
    return WorkloadHistory(
        origin_ts_ms=max(origin_ts_ms, before.origin_ts_ms if before else 0),
        partition=context.partition,
        observed=observed,
        ordered=None,
        seen_steps=seen_steps,
        command=command,
        highs=highs,
        lows=lows,
        changes=changes,
        power_w=power_w,
    )


def _newer_than(entries: Series, origin_ts_ms: int, window_s: float) -> Series:
    oldest_ms = origin_ts_ms - window_s * 1000.0
    return tuple(entry for entry in entries if entry[0] > oldest_ms)


def _replicas_in_force(history: WorkloadHistory, context: PlanContext) -> int | None:
    """Replicas to count from: a change younger than its lease that the fleet does not show yet counts as made.

    None when nobody has ever reported any.
    """
    observed, command = history.observed, history.command
    if observed is None or command is None or context.origin_ts_ms >= command.changed_ts_ms + context.lease_ms:
        return observed
    return command.replicas if observed == command.observed else observed


def effective_mode(spec: WorkloadSpec | None, override: OperatorOverride) -> tuple[Mode, str]:
    """The mode in force, and why it is `observe`."""
    if spec is None:
        return "observe", "observe: no configuration declares this workload"
    requested_mode = override.mode or spec.mode
    if requested_mode == "act" and not spec.target.name:
        return "observe", "observe: the declaration names no target"
    return cast(Mode, requested_mode), "" if requested_mode == "act" else "observe: no command is published"
