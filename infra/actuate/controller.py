"""Reconciler that all actuators share: each command is judged at apply time, then carried out or refused.

command ─▶ declared? ─▶ observe ─▶ guard (agents.actuation.guard) ─▶ save to disk ─▶ apply ─▶ event
                           ▲                                                      │
                           └─────────── overtaken by another writer: once more ───┘
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec

from agents.actuation.guard import PIN, ApplyGuard, Verdict
from agents.policy import WorkloadSpec
from agents.records import Command, Target
from infra.actuate.actuator import Actuator, Event, NotApplied, Overtaken, ReplicaChange, Status
from infra.actuate.store import OverridesFile, Store

_ATTEMPTS = 3


class CommandController:
    """Reconciles targets with commands, one command of a workload at a time; workloads do not wait for each other.

    Args:
        actuator: makes the change.
        guard: judges each command; it belongs to this controller alone.
        clock: returns the time, in milliseconds since 1970.
        store: keeps leases and the audit log on disk; None = nothing outlives the process.
        overrides: the operator's file of kill switch and pins; None = there are none.
        declared: workloads that may be changed, with their targets and bounds; None = any.
        dry_run: the actuator changes nothing: no change uses up a cap, and each is reported once.
        report: called with each new event.
    """

    def __init__(
        self,
        actuator: Actuator,
        guard: ApplyGuard,
        clock: Callable[[], int],
        *,
        store: Store | None = None,
        overrides: OverridesFile | None = None,
        declared: Mapping[str, WorkloadSpec] | None = None,
        dry_run: bool = False,
        report: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        self._actuator, self.guard, self.clock = actuator, guard, clock
        self._store, self._overrides = store, overrides
        self._declared, self._dry_run, self._report = declared, dry_run, report
        self._targets: dict[str, Target] = {}
        self._newest: dict[str, tuple[int, int]] = {}
        self._reported: dict[str, tuple[object, ...]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        if declared is not None:
            self._targets = {w: _target(spec) for w, spec in declared.items() if spec.target.name}

    @property
    def targets(self) -> dict[str, Target]:
        """Target of every workload that has one, by declaration or by its newest command."""
        return dict(self._targets)

    def answer(self, workload: str) -> int | None:
        """Replicas in force now; None where no lease or pin holds, which a server answers with an error."""
        self.refresh_overrides()
        return self.guard.replicas(workload, self.clock())

    def refresh_overrides(self) -> None:
        """Read the operator's overrides, and record them if they changed."""
        overrides = self._overrides.read() if self._overrides is not None else None
        if overrides is None or overrides == self.guard.overrides:
            return
        self.guard.set_overrides(overrides, self.clock())
        if self._store is not None:
            self._store.audit({"ts_ms": self.clock(), "words": msgspec.to_builtins(overrides)})
            self._store.save(self.guard)

    def admit(self, command: Command) -> None:
        """Note a command before its turn, so that an older one under way ends."""
        is_jump = self.guard.is_epoch_jump(command) or self.guard.is_sequence_jump(command, self.clock())
        if self.guard.sane(command) and not is_jump and self._refusal(command) is None:
            place = command.epoch, command.sequence
            self._newest[command.workload] = max(place, self._newest.get(command.workload, place))

    async def handle(self, command: Command) -> Event:
        """Judge one command, and carry it out if the guard accepts it."""
        self.admit(command)
        refusal = self._refusal(command)
        if refusal is not None:
            return self._record(self._event(command, "refused", refusal, None, None))
        if self._declared is None:
            self._targets[command.workload] = command.target
        async with self._locks[command.workload]:
            event = await self._attempt(command)
            for _ in range(_ATTEMPTS - 1):
                if event.reason == "overtaken":
                    event = await self._attempt(command)
        return self._record(event)

    async def apply_pin(self, workload: str) -> Event | None:
        """Set the count of a local pin in force, if the target has another count."""
        async with self._locks[workload]:
            return await self._apply_pin(workload)

    async def _apply_pin(self, workload: str) -> Event | None:
        self.refresh_overrides()
        pin, target = self.guard.overrides.pin(workload, self.clock()), self._targets.get(workload)
        if pin is None or target is None:
            return None
        try:
            observed = await self._actuator.observe(workload, target, None, self.answer(workload))
            if observed == pin.replicas:
                return None
            place = self._place(workload)
            detail = await self._actuator.apply(
                ReplicaChange(
                    workload, target, pin.replicas, observed, None, place, lambda: self._still_pinned(workload)
                )
            )
        except NotApplied as error:
            return self._record(self._pin_event(workload, target, "failed", None, pin.replicas, None, error.detail))
        return self._record(
            self._pin_event(workload, target, self._actuator.done, observed, pin.replicas, pin.replicas, detail)
        )

    def save(self) -> None:
        """Write the guard's state to disk now."""
        if self._store is not None:
            self._store.save(self.guard)

    def _refusal(self, command: Command) -> str | None:
        """Reason why this actuator must not act on the command, before the guard is asked; None if it may."""
        if self._declared is None:
            return None
        spec = self._declared.get(command.workload)
        if spec is None:
            return "undeclared"
        if command.target != _target(spec):
            return "other_target"
        if command.reason != PIN and not spec.min_replicas <= command.replicas <= spec.max_replicas:
            return "out_of_bounds"
        return None

    async def _attempt(self, command: Command) -> Event:
        workload = command.workload
        try:
            expected = command.expected_current
            observed = await self._actuator.observe(workload, command.target, expected, self.answer(workload))
            if observed is None:
                raise NotApplied("nobody knows the target's count", sure=True)
        except NotApplied as error:
            return self._event(command, "failed", "not_observed", None, None, error.detail)
        self.refresh_overrides()
        before = self.guard.lease(workload)
        verdict = self.guard.check(command, self.clock(), observed)
        after = self.guard.lease(workload)
        # Saved before any change: after a crash, no older command may be obeyed. A renewal need not be saved: the
        # commands between it and the last saved one ask for the same count.
        if after != before and (before is None or after is None or after.command_id != before.command_id):
            self.save()
        if verdict.reason == "pinned":
            await self._apply_pin(workload)
        if verdict.reason == "pinned" or verdict.replicas is None:
            detail = self._jump_text(verdict, command)
            return self._event(command, _status(verdict), verdict.reason, observed, None, detail)
        self.save()
        place = command.epoch, command.sequence
        change = ReplicaChange(
            workload,
            command.target,
            verdict.replicas,
            observed,
            command,
            place,
            lambda: self._still_wanted(command),
        )
        try:
            detail = await self._actuator.apply(change)
        except NotApplied as error:
            if error.sure:
                self.guard.not_applied(workload)
            if isinstance(error, Overtaken):
                return self._event(command, "failed", "overtaken", observed, None, error.detail)
            if error.refused:
                return self._event(command, "refused", "refused_by_target", observed, None, error.detail)
            return self._event(command, "failed", "failed", observed, None, error.detail)
        if self._dry_run:
            self.guard.not_applied(workload)
        return self._event(command, self._actuator.done, verdict.reason, observed, verdict.replicas, detail)

    def _jump_text(self, verdict: Verdict, command: Command) -> str:
        if verdict.reason == "epoch_jump":
            return (
                f"its epoch is {command.epoch}, this actuator takes at most {self.guard.max_epoch}. After `harmony "
                f"state reset`, set advanced.planning.epoch to {command.epoch} in its settings and start it again; "
                "else see who writes commands"
            )
        if verdict.reason == "sequence_jump":
            return (
                f"its sequence is {command.sequence}, at most {self.guard.max_sequence(self.clock())} can have come by "
                "this machine's clock. If that clock is behind, or step_s is not that of the workers, correct it; else "
                "see who writes commands"
            )
        return ""

    def _still_wanted(self, command: Command) -> bool:
        self.refresh_overrides()
        now_ms = self.clock()
        if self._newest.get(command.workload, (-1, -1)) > (command.epoch, command.sequence):
            return False
        if self.guard.overrides.pin(command.workload, now_ms) is not None:
            return False
        stopped = self.guard.overrides.stopped is not None and command.reason != PIN
        return not stopped and now_ms < command.valid_until_ts_ms

    def _place(self, workload: str) -> tuple[int, int]:
        lease = self.guard.lease(workload)
        return (0, 0) if lease is None else (lease.epoch, lease.sequence)

    def _still_pinned(self, workload: str) -> bool:
        self.refresh_overrides()
        return self.guard.overrides.pin(workload, self.clock()) is not None

    def _record(self, event: Event) -> Event:
        """Report the event unless it repeats the last one of the workload; renewals of a lease are not reported."""
        fingerprint = (event.status, event.reason, event.command_id, event.before, event.wanted, event.after)
        act = event.after is not None and not self._dry_run
        if event.reason == "renewed" or (not act and self._reported.get(event.workload) == fingerprint):
            return event
        self._reported[event.workload] = fingerprint
        if self._store is not None:
            self._store.audit(event.as_dict())
        self._report(event)
        return event

    def _event(
        self, c: Command, status: Status, reason: str, before: int | None, after: int | None, detail: str = ""
    ) -> Event:
        return Event(
            self.clock(),
            self._actuator.name,
            c.workload,
            c.target,
            status,
            reason,
            c.command_id,
            before,
            c.replicas,
            after,
            c.valid_until_ts_ms,
            c.p_miss,
            c.reason,
            detail,
        )

    def _pin_event(
        self,
        workload: str,
        target: Target,
        status: Status,
        before: int | None,
        desired: int,
        after: int | None,
        detail: str,
    ) -> Event:
        pin = self.guard.overrides.pins.get(workload)
        until = pin.until_ts_ms if pin else None
        why = f"pin by {pin.by or 'the operator'}" + (f": {pin.reason}" if pin.reason else "") if pin else PIN
        return Event(
            self.clock(), self._actuator.name, workload, target, status, "pinned", None, before, desired, after, until,
            None, why, detail,
        )  # fmt: skip


def _target(spec: WorkloadSpec) -> Target:
    t = spec.target
    return Target(t.api_version, t.kind, t.namespace, t.name)


def _status(verdict: Verdict) -> Status:
    if verdict.accepted:
        return "accepted"
    return "expired" if verdict.reason == "expired" else "refused"
