"""The decide stage without its log: plans in; decisions, leases and one commit record out.

    PackedPlans.plan ─▶ FleetBudget.share ─▶ build_situation ─▶ run_guards ─▶ apply ─▶ FleetBudget.record ─▶ *_record
         codec               budget             situation         guards     decision       budget           records

A fold changes the state only when it succeeds, so a plan that breaks the contract leaves no state half done. Of a large
plan some decisions may be out by then, as after a crash. They are adopted when the plan is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from agents.decide.budget import FleetBudget
from agents.decide.decision import apply, decision_id
from agents.decide.guards.chain import Guarded, run_guards
from agents.decide.records import command_record, control_letter, decision_record, decode_decision
from agents.decide.situation import (
    NO_OVERRIDE,
    PlanContext,
    build_context,
    build_situation,
    effective_mode,
    observed_replicas,
)
from agents.decide.state import (
    STAGE,
    DecideCommit,
    DecideState,
    PartitionMark,
    apply_controls,
    expire_overrides,
    forget_controls,
    pack_commit,
    unpack_commit,
)
from agents.planning.codec import CONTROLS_PARTITION, PackedPlans, Shown, open_plans
from agents.policy import Policy, WorkloadSpec
from agents.records import Decision, PlanOf
from streams.config import StreamConfig
from streams.log import UNREADABLE, Emission, LogRecord, OtherSettings, OutRecord, batched
from streams.runtime.commits import Commit, CommitChain
from streams.topics import Topics

__all__ = ["STAGE", "DecideKernel"]


class _DecisionKey(msgspec.Struct):
    """Workload and origin of a decision, read in a fraction of the time of the whole record."""

    workload: str
    origin_ts_ms: int


_KEYS = msgspec.json.Decoder(_DecisionKey)
_PIECE_WORKLOADS = 1024  # Number of workloads whose decisions are published at a time, about three megabytes.


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
        folded = self._resume_offset is not None and record.offset < self._resume_offset
        if plan.partition == CONTROLS_PARTITION and not folded:
            yield self._fold_controls(plan, after)
            return
        if folded or (mark is not None and plan.slot <= mark.slot):
            self._resume_offset = max(self._resume_offset or 0, after)
            yield Emission((), (), self._resume_offset)
            return
        read_stamp_ms = record.stamp_ms if self._expire_by_stamp else None
        context = build_context(plan, self._policy, self._fingerprint, self._stream, read_stamp_ms)
        state = self._state.copy()
        letters = self._take_controls(state, plan)
        state.advance_clock(plan.origin_ts_ms, context.lease_ms)
        previews = packed.shown()
        counts = [(workload_plan.workload, observed_replicas(workload_plan.fleet)) for workload_plan in previews]
        state.observe_replicas(counts, plan.partition, plan.origin_ts_ms)
        outputs: tuple[list[OutRecord], ...] = ()
        for piece in batched(self._decide_all(state, context, packed, previews), _PIECE_WORKLOADS):
            if outputs:
                yield Emission(outputs, (), record.offset)
            outputs = self._by_kind(out for outs in piece for out in outs)
        state.partitions[str(plan.partition)] = PartitionMark(plan.slot, plan.origin_ts_ms)
        forget_controls(state, self._topics.partitions)
        self._state, self._resume_offset = state, after
        self._unsealed.append((state, after))
        for workload_plan in previews:
            self._published.pop((workload_plan.workload, plan.origin_ts_ms), None)
        yield Emission((letters, *outputs) if letters else outputs, (), after, plan.end_stamp_ms)

    def _fold_controls(self, plan: PlanOf[msgspec.Raw], after: int) -> Emission:
        """Apply a record that brings control records alone. The next plan's commit record holds what they change."""
        letters: list[OutRecord] = []
        newest = self._state.controls_offset
        if newest is None or plan.slot > newest:
            state = self._state.copy()
            letters = self._take_controls(state, plan)
            state.controls_offset, state.controls_stamp_ms = plan.slot, plan.end_stamp_ms
            self._state = state
        self._resume_offset = after
        return Emission((letters,) if letters else (), (), after)

    def _take_controls(self, state: DecideState, plan: PlanOf[Any]) -> list[OutRecord]:
        """Apply the control records of a plan, and let old ones expire; returns the dead letters of those refused."""
        expire_overrides(state, plan.end_stamp_ms)
        refused = apply_controls(state, plan, lambda workload: self._policy.spec(workload) is not None)
        return [control_letter(self._topics, control, plan) for control in refused]

    def seal(self) -> list[OutRecord]:
        """A commit record for each plan decided since the last time; each packs the whole fleet."""
        unsealed, self._unsealed = self._unsealed, []
        return [record for state, resume_offset in unsealed for record in self._commit(state, resume_offset)]

    def _commit(self, state: DecideState, resume_offset: int) -> list[OutRecord]:
        policy = self._policy
        body = DecideCommit(resume_offset, self._fingerprint, policy.fleet, policy.epoch, self._stream.step_ms, state)
        return self._commits.append(pack_commit(body))

    def _decide_all(
        self, state: DecideState, context: PlanContext, packed: PackedPlans, previews: list[Shown]
    ) -> Iterator[tuple[OutRecord, ...]]:
        """The records of one workload after the other, in order of `_rank`; the state takes each one in."""
        topics, policy, origin_ts_ms = self._topics, self._policy, context.origin_ts_ms
        budget = FleetBudget(state, policy, origin_ts_ms, context.lease_ms)
        specs = [policy.spec(plan.workload) for plan in previews]
        ranks = [self._rank(state, s, plan.workload) for s, plan in zip(specs, previews, strict=True)]
        for number in sorted(range(len(previews)), key=ranks.__getitem__):
            workload, spec = previews[number].workload, specs[number]
            before = state.workloads.get(workload)
            if before is not None and before.origin_ts_ms == origin_ts_ms:
                continue  # decided from another partition's plan: the first decision of an origin stands
            limits, plan = policy.limits(workload), packed.plan(number)
            situation = build_situation(context, state, budget.share(before, spec), plan, spec, limits)
            published = self._published.get((workload, origin_ts_ms))
            verdict: Decision | Guarded | None = published
            if published is None and situation.decidable:
                verdict = run_guards(situation)
            outcome = apply(situation.history, situation, verdict)
            budget.record(situation, before, outcome)
            outs: tuple[OutRecord, ...] = ()
            if published is None:
                outs = (decision_record(topics.decisions, policy.fleet, outcome.decision),)
            if outcome.command is not None:
                outs += (command_record(topics.commands, policy.fleet, outcome.command),)
            yield outs

    @staticmethod
    def _rank(state: DecideState, spec: WorkloadSpec | None, workload: str) -> tuple[bool, int, bool, str]:
        """Declared before undeclared, then the highest priority, then `act` before `observe`, then by name."""
        priority = 0 if spec is None else spec.priority
        mode, _ = effective_mode(spec, state.operator.get(workload, NO_OVERRIDE))
        return spec is None, -priority, mode != "act", workload

    def _by_kind(self, outs: Iterable[OutRecord]) -> tuple[list[OutRecord], ...]:
        """Dead letters, decisions, then the commands that rest on them, each in the order of the workloads."""
        topics = self._topics.dead_letters, self._topics.decisions, self._topics.commands
        ordered = sorted(outs, key=_key)
        return tuple(group for group in ([out for out in ordered if out.topic == topic] for topic in topics) if group)

    def _adopt(self, value: bytes) -> None:
        """Remember a decision already in the log; its plan will be folded again and must not be decided anew."""
        try:
            key = _KEYS.decode(value)
            history = self._state.workloads.get(key.workload)
            if history is not None and key.origin_ts_ms <= history.origin_ts_ms:
                return  # as nearly all that are read, for clocks of brokers may differ by a minute
            decision = decode_decision(value)
        except UNREADABLE:
            return  # anyone's bytes on a public topic must not stop the stage
        expected_id = decision_id(
            self._policy.fleet,
            decision.workload,
            decision.origin_ts_ms,
            decision.fingerprint.policy,
            decision.fingerprint.model,
        )
        if decision.decision_id == expected_id:
            self._published.setdefault((decision.workload, decision.origin_ts_ms), decision)


def _key(out: OutRecord) -> bytes:
    return out.key or b""
