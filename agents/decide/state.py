"""What the decide stage remembers between plans, and the one function that changes it.

`apply` takes only the plan and the decision (made just now, or adopted from the log), so live running, replay and
adoption after a crash reach the same state.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agents.decide.budget import Claim, claim_of
from agents.decide.frame import Frame
from agents.planning.codec import Shown
from agents.policy import Policy, check_fleet
from agents.records import Decision, Pin, WorkloadPlan
from streams.config import StreamConfig
from streams.log import UNREADABLE, ContractBroken, OtherSettings
from streams.records.facts import FleetFacts
from streams.runtime.commits import Commit, pack

MINUTE_MS = 60_000


class LastCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The lease in force.

    `changed_ts_ms` is of its last change; `observed` the count seen then, or `replicas` from the time it was seen on.
    """

    command_id: str
    decision_id: str
    replicas: int
    epoch: int
    sequence: int
    issued_ts_ms: int
    valid_until_ts_ms: int
    changed_ts_ms: int
    observed: int


class WorkloadState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One workload.

    Attributes:
        origin_ts_ms: of its newest decision.
        observed: replicas last seen; ordered: those of the lease in force, None when the last decision had no command.
        seen_steps: steps with an observed arrival rate, up to the warm-up.
        highs, lows: (origin, proposal) that can still be the largest (smallest) of a window; monotone queues.
        changes: (origin, signed replicas) of the commands within the step-limit periods.
        power_w: measured draw of one replica; None = not yet.
    """

    origin_ts_ms: int
    partition: int
    observed: int | None = None
    ordered: int | None = None
    seen_steps: int = 0
    command: LastCommand | None = None
    highs: tuple[tuple[int, int], ...] = ()
    lows: tuple[tuple[int, int], ...] = ()
    changes: tuple[tuple[int, int], ...] = ()
    power_w: float | None = None

    @property
    def known(self) -> int:
        """Replicas it may hold by now: the larger of what was seen and what was ordered."""
        return max(self.observed or 0, self.ordered or 0)


class OperatorWord(msgspec.Struct, frozen=True, array_like=True):
    """What operators said of one workload; survives its retirement."""

    mode: str | None = None
    pin: Pin | None = None
    paused: bool = False


class PartitionMark(msgspec.Struct, frozen=True, array_like=True):
    """The newest plan folded of one pages partition."""

    slot: int
    origin_ts_ms: int


class DecideState(msgspec.Struct):
    """Every number the next decision reads; see `decide_commit` for its bytes.

    Attributes:
        control_ids: of operators' words taken in that a partition may still repeat, in the order in which they came.
        control_stamps_ms: of each of them, a time on the broker's clock by which it had been written.
        claims: of the workloads that lack GPUs under the fleet's budget.
    """

    workloads: dict[str, WorkloadState] = {}
    operator: dict[str, OperatorWord] = {}
    paused: bool = False
    control_ids: tuple[str, ...] = ()
    control_stamps_ms: tuple[int, ...] = ()
    removals: tuple[tuple[int, int], ...] = ()
    partitions: dict[str, PartitionMark] = {}
    clock_ms: int = 0
    claims: dict[str, Claim] = {}

    def copy(self) -> DecideState:
        """A draft to fold into; the values are immutable, so a shallow copy is enough."""
        return DecideState(
            dict(self.workloads),
            dict(self.operator),
            self.paused,
            self.control_ids,
            self.control_stamps_ms,
            self.removals,
            dict(self.partitions),
            self.clock_ms,
            dict(self.claims),
        )


def observed_replicas(facts: FleetFacts | None) -> int | None:
    """The count a command's compare-and-set meets: the wanted one where the fleet tells it, else ready and pending."""
    if facts is None:
        return None
    return facts.desired if facts.desired is not None else facts.ready + facts.pending


def in_force(observed: int, command: LastCommand | None, frame: Frame) -> int:
    """Replicas to count from: a change younger than its lease, which the fleet does not show yet, counts as made."""
    if command is None or frame.origin_ts_ms >= command.changed_ts_ms + frame.lease_ms:
        return observed
    return command.replicas if observed == command.observed else observed


def proposal_of(plan: WorkloadPlan) -> int | None:
    """What the plan asks for, for the stabilization windows."""
    return plan.proposed if plan.proposed is not None else plan.reactive_replicas


def queues(
    state: WorkloadState | None, plan: WorkloadPlan, frame: Frame
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Both monotone queues with this plan's proposal in; their first entries are the window's maximum and minimum."""
    g = frame.policy.limits(plan.workload)
    value = proposal_of(plan)
    highs = _expire(state.highs if state else (), frame.origin_ts_ms, g.stabilization_down_s)
    lows = _expire(state.lows if state else (), frame.origin_ts_ms, g.stabilization_up_s)
    if value is None:
        return highs, lows
    entry = ((frame.origin_ts_ms, value),)
    return tuple(x for x in highs if x[1] > value) + entry, tuple(x for x in lows if x[1] < value) + entry


def seen_steps(state: WorkloadState | None, plan: WorkloadPlan, frame: Frame) -> int:
    """Observed steps so far. A hole later on does not undo the warm-up, so it is counted, not read off the context."""
    before = 0 if state is None else state.seen_steps
    if state is not None and state.origin_ts_ms >= 0 and plan.inputs.arrival_rate is not None:
        steps = (frame.origin_ts_ms - state.origin_ts_ms) // frame.stream.step_ms
        before += min(max(steps, 0), frame.policy.plan_every)
    return min(max(before, plan.inputs.observed_steps), frame.policy.guards.warm_up_steps)


def measured_w(state: WorkloadState | None, plan: WorkloadPlan) -> float | None:
    """Measured draw of one replica: what the plan says, else what was said last."""
    return state.power_w if plan.power_w is None and state is not None else plan.power_w


def notice(state: DecideState, frame: Frame, shown: Iterable[Shown]) -> None:
    """Take in the replica counts a plan brings, before its first workload is decided: the budgets need all of them."""
    for workload, observed in ((told.workload, observed_replicas(told.fleet)) for told in shown):
        if observed is None:
            continue
        known = state.workloads.get(workload)
        if known is None:
            state.workloads[workload] = WorkloadState(-1, frame.plan.partition, observed)
        elif known.origin_ts_ms < frame.origin_ts_ms:
            state.workloads[workload] = msgspec.structs.replace(known, observed=observed)


def apply(state: DecideState, plan: WorkloadPlan, decision: Decision, frame: Frame) -> None:
    """Take one decision into the state (a draft that the caller owns)."""
    claim = claim_of(state.claims.pop(plan.workload, None), plan, decision, frame)
    if decision.action == "retired":
        state.workloads.pop(plan.workload, None)
        return
    if claim is not None:
        state.claims[plan.workload] = claim
    before = state.workloads.get(plan.workload)
    highs, lows = queues(before, plan, frame)
    g = frame.policy.limits(plan.workload)
    period_s = max(g.up_period_s, g.down_period_s)
    changes = _expire(before.changes if before else (), frame.origin_ts_ms, period_s)
    command = before.command if before else None
    final, current = decision.replicas.final, decision.replicas.current
    if decision.command_id is not None and final is not None and current is not None:
        # What had come about and is ordered again has been changed by somebody else meanwhile: it is another move.
        moved = command is None or command.command_id != decision.command_id or command.observed == command.replicas
        if moved and final != current:
            changes += ((frame.origin_ts_ms, final - current),)
        if moved and final < current:
            _count_removal(state, current - final)
        command = _renew(command, decision, decision.command_id, final, current, plan, frame)
    observed = observed_replicas(plan.fleet)
    state.workloads[plan.workload] = WorkloadState(
        origin_ts_ms=max(frame.origin_ts_ms, before.origin_ts_ms if before else 0),
        partition=frame.plan.partition,
        observed=observed if observed is not None or before is None else before.observed,
        ordered=None if decision.command_id is None else final,
        seen_steps=seen_steps(before, plan, frame),
        command=command,
        highs=highs,
        lows=lows,
        changes=changes,
        power_w=measured_w(before, plan),
    )


def _count_removal(state: DecideState, replicas: int) -> None:
    if state.removals and state.removals[-1][0] == state.clock_ms:
        replicas += state.removals[-1][1]
        state.removals = state.removals[:-1]
    state.removals += ((state.clock_ms, replicas),)


def _renew(
    last: LastCommand | None,
    decision: Decision,
    command_id: str,
    final: int,
    current: int,
    plan: WorkloadPlan,
    frame: Frame,
) -> LastCommand:
    observed = observed_replicas(plan.fleet)
    changed_ts_ms, seen = frame.origin_ts_ms, current if observed is None else observed
    again = last is not None and last.observed == last.replicas and final != current
    if last is not None and last.command_id == command_id and not again:
        changed_ts_ms, seen = last.changed_ts_ms, final if observed == final else last.observed
    return LastCommand(
        command_id=command_id,
        decision_id=decision.decision_id,
        replicas=final,
        epoch=frame.policy.epoch,
        sequence=frame.sequence,
        issued_ts_ms=frame.origin_ts_ms,
        valid_until_ts_ms=frame.origin_ts_ms + frame.lease_ms,
        changed_ts_ms=changed_ts_ms,
        observed=seen,
    )


def advance_clock(state: DecideState, frame: Frame) -> None:
    """The fleet's clock is the newest origin of any partition; budgets per minute and claims are counted on it."""
    state.clock_ms = max(state.clock_ms, frame.origin_ts_ms)
    state.removals = tuple(r for r in state.removals if r[0] > state.clock_ms - MINUTE_MS)
    oldest = state.clock_ms - frame.lease_ms
    state.claims = {w: claim for w, claim in state.claims.items() if claim.origin_ts_ms > oldest}


def _expire(entries: tuple[tuple[int, int], ...], origin_ts_ms: int, window_s: float) -> tuple[tuple[int, int], ...]:
    oldest = origin_ts_ms - window_s * 1000.0
    return tuple(e for e in entries if e[0] > oldest)


# The body of the decide stage's commit record: everything the next output reads; `streams.runtime.commits` seals it.


STAGE = "decide"
_REMEDY = ", or accept a new start with `harmony state reset`"


class DecideCommit(msgspec.Struct, frozen=True):
    """`resume_offset` is the next `plans` offset; `policy_fingerprint` was in force when it was written."""

    resume_offset: int
    policy_fingerprint: str
    fleet: str
    epoch: int
    step_ms: int
    state: DecideState
    v: int = 1


_DECODER = msgspec.msgpack.Decoder(DecideCommit)


def pack_commit(commit: DecideCommit) -> bytes:
    """Equal states give equal bytes."""
    return pack(commit)


def unpack_commit(commit: Commit, policy: Policy, stream: StreamConfig) -> DecideCommit:
    """Read a commit record that this policy may go on from.

    Raises:
        ContractBroken: foreign, of another version, fleet or step, or of a later epoch; names the remedy.
    """
    try:
        body = _DECODER.decode(commit.body)
    except UNREADABLE as error:
        raise ContractBroken(
            f"the decide stage's commit record cannot be read ({error}): run the release that wrote it{_REMEDY}"
        ) from error
    if body.v != 1:
        raise OtherSettings(
            f"the decide stage's commit record has version {body.v}, this release reads 1: "
            f"run the release that wrote it{_REMEDY}"
        )
    check_fleet(body.fleet, policy.fleet, "the commits topic")
    if body.step_ms != stream.step_ms:
        raise OtherSettings(
            f"the committed state has a step of {body.step_ms} ms, the configuration {stream.step_ms} ms: "
            f"restore the old step{_REMEDY}"
        )
    if body.epoch > policy.epoch:
        raise OtherSettings(
            f"the committed state has epoch {body.epoch}, the policy {policy.epoch}: actuators would refuse every "
            f"command; set the epoch to {body.epoch}{_REMEDY}"
        )
    state = body.state
    if len(state.control_stamps_ms) != len(state.control_ids):  # releases without them wrote it
        state.control_stamps_ms = (commit.stamp_ms,) * len(state.control_ids)
    return body
