"""State of the decide stage: what it remembers of workloads and operators between plans, and the bytes of its commit.

Values are immutable but for `DecideState`, of which a fold changes a copy. So a fold that fails leaves no half state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from agents.planning.codec import CONTROLS_PARTITION
from agents.policy import Policy, check_fleet
from agents.records import Pin, PlanOf
from streams.config import StreamConfig
from streams.log import UNREADABLE, ContractBroken, OtherSettings
from streams.records.facts import Control
from streams.runtime.commits import Commit, encode_body
from streams.topics import DAY_MS

MINUTE_MS = 60_000  # Period of the fleet's removal budget.
MIN_CONTROL_IDS = 256  # Number of operator records whose ids are remembered in any case: someone may send one again.
MAX_CONTROL_IDS = 16_384  # however far a partition is behind
# Overrides of workloads that are not declared: how many are kept, and for how long after the last word about one.
MAX_UNDECLARED_OVERRIDES = 1_024
UNDECLARED_OVERRIDE_MS = DAY_MS
_COPY_SPREAD_MS = 300_000  # Longest time between the copies of an operator record on two partitions.
# A partition without any plan has lost what it did not read: telemetry is kept for a day, in segments of a week.
_SILENT_PARTITION_MS = 8 * DAY_MS

Series = tuple[tuple[int, int], ...]  # (instant in ms, replicas), in order of time


class LastCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The lease in force of one workload.

    Attributes:
        changed_ts_ms: instant of the lease's last change of replicas.
        observed: replicas seen at that change; `replicas` from the time on at which the fleet showed them.
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


class WorkloadHistory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the next decision of one workload needs of the earlier ones.

    Attributes:
        origin_ts_ms: origin of its newest decision; -1 = only its replicas have been seen.
        partition: pages partition that its newest plan came from.
        observed: replicas last seen; None = never seen.
        ordered: replicas of the lease in force; None = the newest decision gave no command.
        seen_steps: steps with an observed arrival rate, up to the warm-up.
        highs, lows: (origin, proposal) that can still be the largest (smallest) of a window; monotone queues.
        changes: (origin, signed replicas) of the commands within the periods of the step limits.
        power_w: measured draw of one replica; None = not measured yet.
    """

    origin_ts_ms: int
    partition: int
    observed: int | None = None
    ordered: int | None = None
    seen_steps: int = 0
    command: LastCommand | None = None
    highs: Series = ()
    lows: Series = ()
    changes: Series = ()
    power_w: float | None = None


class GpuClaim(msgspec.Struct, frozen=True, array_like=True):
    """GPUs that one workload lacked at its newest decision, under the fleet's budget.

    Attributes:
        origin_ts_ms: origin of that decision.
        since_ts_ms: origin of the first decision from which on it lacked some without a break.
        moved_ts_ms: origin of the newest of these decisions that gave it some; before that, of the first.
        gpus: GPUs of all the replicas that it lacked.
        gpus_per_replica: GPUs of one of them.
        priority: that of the workload; larger is served first.
    """

    origin_ts_ms: int
    since_ts_ms: int
    moved_ts_ms: int
    gpus: int
    gpus_per_replica: int
    priority: int


class OperatorOverride(msgspec.Struct, frozen=True, array_like=True):
    """What operators ordered for one workload; it survives the workload's retirement."""

    mode: str | None = None
    pin: Pin | None = None
    paused: bool = False


class PartitionMark(msgspec.Struct, frozen=True, array_like=True):
    """The newest plan folded of one pages partition."""

    slot: int
    origin_ts_ms: int


class DecideState(msgspec.Struct):
    """Every number that the next decision reads.

    Attributes:
        control_ids: ids of the operator records applied that a partition may still repeat, in order of arrival.
        control_stamps_ms: for each of them, a time on the broker's clock by which it had been written.
        removals: (clock, replicas) that commands of the last minute took from the fleet.
        clock_ms: the fleet's clock, the newest origin of any partition.
        claims: by workload, GPUs that it lacks under the fleet's budget.
        controls_offset: of the newest control record applied of the `controls` topic; None before the first.
        controls_stamp_ms: its broker stamp.
        undeclared_ms: by workload with an override that is not declared, the broker's time of the newest word about it.
    """

    workloads: dict[str, WorkloadHistory] = {}
    operator: dict[str, OperatorOverride] = {}
    paused: bool = False
    control_ids: tuple[str, ...] = ()
    control_stamps_ms: tuple[int, ...] = ()
    removals: Series = ()
    partitions: dict[str, PartitionMark] = {}
    clock_ms: int = 0
    claims: dict[str, GpuClaim] = {}
    controls_offset: int | None = None
    controls_stamp_ms: int = 0
    undeclared_ms: dict[str, int] = {}

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
            self.controls_offset,
            self.controls_stamp_ms,
            dict(self.undeclared_ms),
        )

    def advance_clock(self, origin_ts_ms: int, lease_ms: int) -> None:
        """Move the fleet's clock to an origin; drop removals older than a minute and claims older than a lease."""
        self.clock_ms = max(self.clock_ms, origin_ts_ms)
        self.removals = tuple(removal for removal in self.removals if removal[0] > self.clock_ms - MINUTE_MS)
        oldest_ms = self.clock_ms - lease_ms
        self.claims = {w: claim for w, claim in self.claims.items() if claim.origin_ts_ms > oldest_ms}

    def observe_replicas(self, counts: Iterable[tuple[str, int | None]], partition: int, origin_ts_ms: int) -> None:
        """Take in the replica counts of a plan before its first workload is decided: the budgets need all of them.

        Args:
            counts: (workload, replicas that the fleet shows); None = it shows nothing.
        """
        for workload, observed in counts:
            if observed is None:
                continue
            history = self.workloads.get(workload)
            if history is None:
                self.workloads[workload] = WorkloadHistory(-1, partition, observed)
            elif history.origin_ts_ms < origin_ts_ms:
                self.workloads[workload] = msgspec.structs.replace(history, observed=observed)


# --- Operator records. Each partition brings them, and each is applied once. A partition that is behind repeats them
# long after the others, so an id is remembered until no partition can still bring it. That is judged by the brokers'
# clock and the partitions' progress, never by a publisher's clock (ADR 25).


def apply_controls(
    state: DecideState, plan: PlanOf[Any], is_declared: Callable[[str], bool] = lambda _workload: True
) -> list[Control]:
    """Apply the operator records of a plan to the state (a draft that the caller owns), once per id.

    Returns:
        Those refused: about an undeclared workload, of which there are too many.
    """
    refused: list[Control] = []
    if not plan.controls:
        return refused
    # Each copy of a record in telemetry has its id; those of the controls topic come once, in order of offsets.
    is_copied = plan.partition != CONTROLS_PARTITION
    applied = set(state.control_ids) if is_copied else set()
    new_ids = []
    # The plan's stamp is that of a later record than the control's own; plans of earlier releases may have none.
    written_by_ms = max(plan.end_stamp_ms, plan.origin_ts_ms)
    for control in plan.controls:
        if control.control_id in applied:
            continue
        applied.add(control.control_id)
        new_ids.append(control.control_id)
        workload = control.workload
        undeclared = workload is not None and not is_declared(workload)
        full = len(state.undeclared_ms) >= MAX_UNDECLARED_OVERRIDES
        if undeclared and full and workload not in state.undeclared_ms:
            refused.append(control)
            continue
        _apply_control(state, control)
        if workload is not None and undeclared and workload in state.operator:
            state.undeclared_ms[workload] = written_by_ms
        elif workload is not None:
            state.undeclared_ms.pop(workload, None)
    if is_copied:
        state.control_ids = (*state.control_ids, *new_ids)[-MAX_CONTROL_IDS:]
        state.control_stamps_ms = (*state.control_stamps_ms, *(written_by_ms,) * len(new_ids))[-MAX_CONTROL_IDS:]
    return refused


def expire_overrides(state: DecideState, now_ms: int) -> None:
    """Drop the overrides of undeclared workloads about which nothing was ordered for a day of the broker's clock."""
    oldest_ms = now_ms - UNDECLARED_OVERRIDE_MS
    for workload in [w for w, since_ms in state.undeclared_ms.items() if since_ms < oldest_ms]:
        del state.undeclared_ms[workload]
        state.operator.pop(workload, None)


def forget_controls(state: DecideState, num_partitions: int) -> None:
    """Drop the oldest ids that every partition has passed.

    A slot closes no earlier than it ends on the brokers' clock, for grace >= skew. So a plan's origin says up to when
    its partition has brought everything. Where event time lies in the past, it says less, and more is remembered.

    Args:
        num_partitions: of the pages topic.
    """
    passed_ms = min((mark.origin_ts_ms for mark in state.partitions.values()), default=0)
    if len(state.partitions) < num_partitions:
        passed_ms = min(passed_ms, state.clock_ms - _SILENT_PARTITION_MS)
    num_dropped = 0
    while (
        len(state.control_ids) - num_dropped > MIN_CONTROL_IDS
        and state.control_stamps_ms[num_dropped] + _COPY_SPREAD_MS < passed_ms
    ):
        num_dropped += 1
    state.control_ids = state.control_ids[num_dropped:]
    state.control_stamps_ms = state.control_stamps_ms[num_dropped:]


def _apply_control(state: DecideState, control: Control) -> None:
    """Change what one record orders; a record without meaning changes nothing."""
    if control.workload is None:
        if control.action in ("pause", "resume"):
            state.paused = control.action == "pause"
        return
    override = state.operator.get(control.workload, OperatorOverride())
    if control.action in ("pause", "resume"):
        override = msgspec.structs.replace(override, paused=control.action == "pause")
    elif control.action == "mode" and control.mode in ("observe", "act"):
        override = msgspec.structs.replace(override, mode=control.mode)
    elif control.action == "unpin":
        override = msgspec.structs.replace(override, pin=None)
    elif control.action == "pin" and control.replicas is not None and control.replicas >= 0:
        pin = Pin(control.replicas, control.until_ts_ms, control.by, control.reason)
        override = msgspec.structs.replace(override, pin=pin)
    if override == OperatorOverride():
        state.operator.pop(control.workload, None)
    else:
        state.operator[control.workload] = override


# --- The body of the stage's commit record: everything that the next output reads; `streams.runtime.commits` seals it.

STAGE = "decide"
_REMEDY = ", or accept a new start with `harmony state reset`"


class DecideCommit(msgspec.Struct, frozen=True):
    """Body of a commit record.

    Attributes:
        resume_offset: next offset of `plans` to fold.
        policy_fingerprint: that in force when the record was written.
    """

    resume_offset: int
    policy_fingerprint: str
    fleet: str
    epoch: int
    step_ms: int
    state: DecideState
    v: int = 1


_DECODER = msgspec.msgpack.Decoder(DecideCommit)


def pack_commit(commit: DecideCommit) -> bytes:
    """The bytes of a commit's body; equal states give equal bytes."""
    return encode_body(commit)


def unpack_commit(commit: Commit, policy: Policy, stream: StreamConfig) -> DecideCommit:
    """The body of a commit record that this policy may go on from.

    Raises:
        ContractBroken: the record is foreign, of another version, fleet or step, or of a later epoch; names the remedy.
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
    # An earlier release took records of control records for those of one more partition, which never brings telemetry.
    state.partitions.pop(str(CONTROLS_PARTITION), None)
    # What is declared may have changed, and earlier releases kept every override.
    undeclared = [workload for workload in state.operator if policy.spec(workload) is None]
    state.undeclared_ms = {w: state.undeclared_ms.get(w, commit.stamp_ms) for w in undeclared}
    return body
