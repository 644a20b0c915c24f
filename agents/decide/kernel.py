"""The decide stage without its log: plans in, decisions and leases and one commit record out.

A fold changes the state only when it succeeds, so a plan that breaks the contract leaves no state half done. Of a large
one some decisions may be out by then, as after a crash: they are adopted when it is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from agents.decide.frame import Frame
from agents.decide.guards.chain import run_guards
from agents.decide.records import build_command, build_decision, command_record, decision_record, decode_decision
from agents.decide.situation import Fleet, assess, current_replicas, effective_mode
from agents.decide.state import (
    STAGE,
    DecideCommit,
    DecideState,
    OperatorWord,
    PartitionMark,
    advance_clock,
    apply,
    notice,
    pack_commit,
    unpack_commit,
)
from agents.planning.codec import PackedPlans, Shown, open_plans
from agents.policy import Policy
from agents.records import Decision, Pin, PlanOf, WorkloadPlan, decision_id
from streams.config import StreamConfig
from streams.log import UNREADABLE, Emission, LogRecord, OtherSettings, OutRecord, batched
from streams.records.facts import Control
from streams.runtime.commits import Commit, CommitChain
from streams.topics import DAY_MS, Topics

__all__ = ["STAGE", "DecideKernel"]


# Operators' words as the decide stage hears them: from every partition, and taken into its state once.
#
# A partition that is behind repeats words long after the others, so an id is remembered until no partition can still
# bring it. That is asked of the brokers' clock and of the partitions' progress, never of a publisher's clock (ADR 25).


# Ids that are remembered in any case: someone may send a word again.
CONTROLS_KEPT = 256
# Between the copies of a word on two partitions: a publisher's retries, and brokers' clocks.
_SPREAD_MS = 300_000
# What a partition without any plan has not read by then is gone: telemetry is kept for a day, in segments of a week.
_UNHEARD_MS = 8 * DAY_MS


def apply_controls(state: DecideState, plan: PlanOf[Any]) -> None:
    """Take what operators say in a plan into the state (a draft that the caller owns), once per id."""
    if not plan.controls:
        return
    known = set(state.control_ids)
    fresh = []
    for control in plan.controls:
        if control.control_id not in known:
            known.add(control.control_id)
            fresh.append(control.control_id)
            _obey(state, control)
    # The plan's stamp is that of a later record than the word's own; plans of earlier releases may have none.
    heard_ms = max(plan.end_stamp_ms, plan.origin_ts_ms)
    state.control_ids += tuple(fresh)
    state.control_stamps_ms += (heard_ms,) * len(fresh)


def forget_controls(state: DecideState, num_partitions: int) -> None:
    """Drop the oldest ids that every partition has passed.

    A slot closes no earlier than it ends on the brokers' clock, for grace >= skew, so a plan's origin says up to when
    its partition has brought what was said. Where event time lies in the past, it says less, and more is remembered.

    Args:
        num_partitions: of the pages topic.
    """
    passed_ms = min((mark.origin_ts_ms for mark in state.partitions.values()), default=0)
    if len(state.partitions) < num_partitions:
        passed_ms = min(passed_ms, state.clock_ms - _UNHEARD_MS)
    drop = 0
    while len(state.control_ids) - drop > CONTROLS_KEPT and state.control_stamps_ms[drop] + _SPREAD_MS < passed_ms:
        drop += 1
    state.control_ids = state.control_ids[drop:]
    state.control_stamps_ms = state.control_stamps_ms[drop:]


def _obey(state: DecideState, control: Control) -> None:
    """Change what a word says; one without meaning changes nothing."""
    if control.workload is None:
        if control.action in ("pause", "resume"):
            state.paused = control.action == "pause"
        return
    word = state.operator.get(control.workload, OperatorWord())
    if control.action in ("pause", "resume"):
        word = msgspec.structs.replace(word, paused=control.action == "pause")
    elif control.action == "mode" and control.mode in ("observe", "act"):
        word = msgspec.structs.replace(word, mode=control.mode)
    elif control.action == "unpin":
        word = msgspec.structs.replace(word, pin=None)
    elif control.action == "pin" and control.replicas is not None and control.replicas >= 0:
        pin = Pin(control.replicas, control.until_ts_ms, control.by, control.reason)
        word = msgspec.structs.replace(word, pin=pin)
    if word == OperatorWord():
        state.operator.pop(control.workload, None)
    else:
        state.operator[control.workload] = word


class _Place(msgspec.Struct):
    """Whose decision it is, and when; read in a fraction of the time of all that it says."""

    workload: str
    origin_ts_ms: int


_PLACES = msgspec.json.Decoder(_Place)
_PIECE = 1024  # workloads whose decisions are published at a time, three megabytes


class DecideKernel:
    """Folds the `plans` log, record by record.

    Args:
        policy: in force from the next plan on.
        stream: must have the step that the plans were made with.
        topics: names to publish to, and the number of partitions that plans come from.
        expire_by_stamp: hold plans read after their lease ran out by the broker's stamp; off where event time is not
            wall time (replays and accelerated runs).
    """

    def __init__(self, policy: Policy, stream: StreamConfig, topics: Topics, *, expire_by_stamp: bool = False) -> None:
        self._policy = policy
        self._stream = stream
        self._topics = topics
        self._expire_by_stamp = expire_by_stamp
        self._fingerprint = policy.fingerprint()
        self._state = DecideState()
        self._commits = CommitChain(topics.commits, STAGE, 0)
        self._resume_offset: int | None = None
        self._published: dict[tuple[str, int], Decision] = {}
        self._unsealed: list[tuple[DecideState, int]] = []

    @classmethod
    def restore(
        cls,
        policy: Policy,
        stream: StreamConfig,
        topics: Topics,
        *,
        commit: Commit | None,
        published: Iterable[bytes] = (),
        expire_by_stamp: bool = False,
    ) -> DecideKernel:
        """The kernel as it stood at a commit record.

        Args:
            commit: the newest of this stage; None on a first start.
            published: values of the decisions published after it; more (older ones, foreign ones) do no harm.

        Raises:
            ContractBroken: the commit record is of another release, fleet or step, or of a later epoch.
        """
        kernel = cls(policy, stream, topics, expire_by_stamp=expire_by_stamp)
        if commit is not None:
            body = unpack_commit(commit, policy, stream)
            kernel._state, kernel._resume_offset = body.state, body.resume_offset
            kernel._commits.follow(commit)
        for value in published:
            kernel._adopt(value)
        return kernel

    @property
    def state(self) -> DecideState:
        """To read; folds replace it."""
        return self._state

    @property
    def resume_offset(self) -> int | None:
        """The next `plans` offset to fold; None before the first."""
        return self._resume_offset

    def fold(self, record: LogRecord) -> Emission:
        """Decide every workload of one plan, with the commit record that follows its outputs.

        Raises:
            ContractBroken: as `decide`.
        """
        before, pieces = self._state, list(self.decide(record))
        if self._state is before:
            return pieces[-1]
        outputs = self._by_kind(out for piece in pieces for group in piece.outputs for out in group)
        return pieces[-1]._replace(outputs=outputs, commits=self.seal())

    def decide(self, record: LogRecord) -> Iterator[Emission]:
        """Decide every workload of one plan, of a large one so many at a time; whoever asks seals it when all is out.

        Until the last of them a crash must read the plan again, and the state is that of before.

        Raises:
            ContractBroken: the record is not a plan of this release, or of another step.
        """
        packed = open_plans(record.value, record.offset)
        plan = packed.record
        if plan.step_ms != self._stream.step_ms:
            raise OtherSettings(
                f"plans/0: offset {record.offset} has a step of {plan.step_ms} ms, this worker runs with "
                f"{self._stream.step_ms} ms: restore the old step, or run `harmony state reset`"
            )
        mark = self._state.partitions.get(str(plan.partition))
        after = record.offset + 1
        seen = self._resume_offset is not None and record.offset < self._resume_offset
        if seen or (mark is not None and plan.slot <= mark.slot):
            self._resume_offset = max(self._resume_offset or 0, after)
            yield Emission((), (), self._resume_offset)
            return
        frame = Frame(plan, self._policy, self._fingerprint, self._stream)
        state = self._state.copy()
        apply_controls(state, plan)
        advance_clock(state, frame)
        shown = packed.shown()
        outputs: tuple[list[OutRecord], ...] = ()
        for some in batched(self._decide_all(state, frame, packed, shown, self._overdue_ms(frame, record)), _PIECE):
            if outputs:
                yield Emission(outputs, (), record.offset)
            outputs = self._by_kind(out for made in some for out in made)
        state.partitions[str(plan.partition)] = PartitionMark(plan.slot, plan.origin_ts_ms)
        forget_controls(state, self._topics.partitions)
        self._state, self._resume_offset = state, after
        self._unsealed.append((state, after))
        for told in shown:
            self._published.pop((told.workload, plan.origin_ts_ms), None)
        yield Emission(outputs, (), after, plan.end_stamp_ms)

    def seal(self) -> list[OutRecord]:
        """A commit record for each plan decided since the last time; each packs the whole fleet."""
        unsealed, self._unsealed = self._unsealed, []
        return [record for state, resume_offset in unsealed for record in self._commit(state, resume_offset)]

    def _commit(self, state: DecideState, resume_offset: int) -> list[OutRecord]:
        policy = self._policy
        body = DecideCommit(resume_offset, self._fingerprint, policy.fleet, policy.epoch, self._stream.step_ms, state)
        return self._commits.append(pack_commit(body))

    def _decide_all(
        self, state: DecideState, frame: Frame, packed: PackedPlans, shown: Sequence[Shown], overdue_ms: int | None
    ) -> Iterator[tuple[OutRecord, ...]]:
        """The records of one workload after the other."""
        fleet_name = self._policy.fleet
        notice(state, frame, shown)
        fleet = Fleet(state, frame)
        ranks = [(-_priority(fleet, told.workload), told.workload) for told in shown]
        for number in sorted(range(len(shown)), key=ranks.__getitem__):
            known = state.workloads.get(shown[number].workload)
            if known is not None and known.origin_ts_ms == frame.origin_ts_ms:
                continue  # decided from another partition's plan: the first decision of an origin stands
            plan = packed.plan(number)
            made: tuple[OutRecord, ...] = ()
            decision = self._published.get((plan.workload, frame.origin_ts_ms))
            if decision is None:
                decision = self._decide(state, fleet, plan, frame, overdue_ms)
                made += (decision_record(self._topics.decisions, fleet_name, decision),)
            command = build_command(frame, plan, decision, fleet.spec(plan.workload))
            if command is not None:
                made += (command_record(self._topics.commands, fleet_name, command),)
            claim = state.claims.get(plan.workload)
            apply(state, plan, decision, frame)
            fleet.claims.replace(claim, state.claims.get(plan.workload))
            fleet.replace(plan.workload, known, state.workloads.get(plan.workload))
            yield made

    def _by_kind(self, outs: Iterable[OutRecord]) -> tuple[list[OutRecord], ...]:
        """Decisions, then the commands that rest on them, each in the order of the workloads."""
        ordered, topics = sorted(outs, key=_key), (self._topics.decisions, self._topics.commands)
        return tuple(group for group in ([out for out in ordered if out.topic == topic] for topic in topics) if group)

    def _decide(
        self, state: DecideState, fleet: Fleet, plan: WorkloadPlan, frame: Frame, overdue_ms: int | None
    ) -> Decision:
        known = state.workloads.get(plan.workload)
        current = current_replicas(known, plan, frame)
        spec = fleet.spec(plan.workload)
        last = known.command if known else None
        if current is None or plan.refused == "retired":
            mode, _ = effective_mode(spec, state.operator.get(plan.workload, OperatorWord()))
            return build_decision(frame, plan, spec, mode, current, None, last, command=False)
        situation = assess(state, fleet, plan, frame, current, overdue_ms)
        guarded = run_guards(situation)
        command = situation.mode == "act" and not guarded.held and overdue_ms is None
        return build_decision(frame, plan, spec, situation.mode, current, guarded, last, command)

    def _overdue_ms(self, frame: Frame, record: LogRecord) -> int | None:
        if not self._expire_by_stamp:
            return None
        late = record.stamp_ms - (frame.origin_ts_ms + frame.lease_ms)
        return late if late > 0 else None

    def _adopt(self, value: bytes) -> None:
        """Remember a decision already in the log; its plan will be folded again and must not be decided anew."""
        try:
            place = _PLACES.decode(value)
            known = self._state.workloads.get(place.workload)
            if known is not None and place.origin_ts_ms <= known.origin_ts_ms:
                return  # as nearly all that are read, for clocks of brokers may differ by a minute
            decision = decode_decision(value)
        except UNREADABLE:
            return  # anyone's bytes on a public topic must not stop the stage
        mine = decision_id(
            self._policy.fleet,
            decision.workload,
            decision.origin_ts_ms,
            decision.fingerprint.policy,
            decision.fingerprint.model,
        )
        if decision.decision_id != mine:
            return
        self._published.setdefault((decision.workload, decision.origin_ts_ms), decision)


def _key(out: OutRecord) -> bytes:
    return out.key or b""


def _priority(fleet: Fleet, workload: str) -> int:
    spec = fleet.spec(workload)
    return 0 if spec is None else spec.priority
