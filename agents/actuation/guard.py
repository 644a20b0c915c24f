"""The last check before replicas change: every actuator asks it at apply time, with its own clock and its own count.

Commands may come late, twice or out of order. Compare-and-set on (epoch, sequence) means that an older one never wins,
and comparing the observed replicas with the expected ones means that nobody else's change is overwritten unseen.

    sane ─ epoch ─ newest ─▶ local pin ─ kill switch ─▶ in time ─ nobody else's change ─ clocks agree ─▶ caps ─▶ apply
                             └ wins over all that follows; a pin in the log ("reason": "pin") passes all but "in time"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from agents.records import Command, Pin
from streams.records.limits import MAX_REPLICAS

# What bounds an actuator whatever it is told: rate caps, and the overrides of its operator.


class RateCaps(msgspec.Struct, frozen=True):
    """How fast replicas may change, a second wall behind the policy's step limits. None = no cap.

    Attributes:
        max_added: replicas one workload may gain within the period.
        max_removed: replicas one workload may lose within it.
        max_removed_fleet: replicas all workloads together may lose within it.
        period_ms: the period.
    """

    max_added: int | None = None
    max_removed: int | None = None
    max_removed_fleet: int | None = None
    period_ms: int = 60_000


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's overrides of this actuator: they hold while Kafka and HARMONY are down.

    Attributes:
        stopped: who threw the kill switch, and why; None = it is not thrown.
        pins: per workload, the count to hold and until when; a pin wins over everything, the kill switch included.
    """

    stopped: str | None = None
    pins: dict[str, Pin] = {}

    def pin(self, workload: str, now_ms: int) -> Pin | None:
        """The pin in force."""
        pin = self.pins.get(workload)
        if pin is None or (pin.until_ts_ms is not None and now_ms >= pin.until_ts_ms):
            return None
        return pin


class Change(msgspec.Struct, frozen=True, array_like=True):
    """Replicas that one workload was told to gain (or lose, negative)."""

    ts_ms: int
    workload: str
    replicas: int


class ChangeWindow:
    """The changes of the last period, and how much of another one the caps allow."""

    def __init__(self, caps: RateCaps, changes: tuple[Change, ...] = ()) -> None:
        self._caps = caps
        self._changes = list(changes)

    @property
    def changes(self) -> tuple[Change, ...]:
        """To be stored; those outside the period are gone."""
        return tuple(self._changes)

    def allowed(self, workload: str, delta: int, now_ms: int) -> int:
        """`delta`, or the part of it that the caps leave, possibly 0."""
        # A clock that was set back leaves entries in its future; they count, so that it cannot open the caps.
        oldest = now_ms - self._caps.period_ms
        self._changes = [c for c in self._changes if c.ts_ms > oldest]
        if delta > 0:
            return min(delta, self._room(self._caps.max_added, delta, self._sum(workload, 1)))
        lost = self._room(self._caps.max_removed, -delta, self._sum(workload, -1))
        return -min(lost, self._room(self._caps.max_removed_fleet, -delta, self._sum(None, -1)))

    def count(self, workload: str, delta: int, now_ms: int) -> None:
        """Take in a change that is about to be made."""
        self._changes.append(Change(now_ms, workload, delta))

    def forget(self, workload: str) -> None:
        """Take back the newest change of a workload: it surely was not made."""
        for i in range(len(self._changes) - 1, -1, -1):
            if self._changes[i].workload == workload:
                del self._changes[i]
                return

    def _sum(self, workload: str | None, sign: int) -> int:
        return sum(sign * c.replicas for c in self._changes if sign * c.replicas > 0 and workload in (None, c.workload))

    @staticmethod
    def _room(cap: int | None, count: int, used: int) -> int:
        return count if cap is None else max(0, min(count, cap - used))


Reason = Literal[
    "applied",
    "renewed",
    "already_there",
    "limited",
    "pinned",
    "expired",
    "epoch_jump",
    "sequence_jump",
    "superseded",
    "conflict",
    "changed_by_others",
    "ahead",
    "stopped",
    "not_sane",
]
# The guard of the decide stage that speaks when an operator has pinned a workload in the log.
PIN = "pin"


class Verdict(NamedTuple):
    """`accepted`: the lease counts. `apply`: `replicas` must be set now (false where they already are as wanted)."""

    accepted: bool
    reason: Reason
    apply: bool = False
    replicas: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """What an actuator remembers of one workload.

    `epoch`, `sequence`, `command_id` and `wanted` are those of the newest command seen; `replicas` those last accepted
    and `ordered` those last granted by the caps, until `valid_until_ts_ms` (0 before the first acceptance); `pinned`:
    the accepted command was a pin in the log.
    """

    epoch: int
    sequence: int
    command_id: str
    wanted: int
    accepted_id: str | None = None
    replicas: int | None = None
    ordered: int | None = None
    valid_until_ts_ms: int = 0
    pinned: bool = False


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that must outlive the process: also the kill switch, which no restart may undo."""

    leases: dict[str, Lease]
    changes: tuple[Change, ...] = ()
    words: Overrides = Overrides()
    lead_steps: int | None = None
    v: Literal[1] = 1


class ApplyGuard:
    """Decides per workload whether a command may be applied. Holds no clock: callers pass `now_ms`.

    Args:
        max_replicas: commands above it are refused, whatever the policy said.
        leases: of an earlier life, see `snapshot`.
        caps: on the rate of change.
        max_ahead_ms: a command issued further ahead of the actuator's clock may only scale up, for one of the two
            clocks is wrong and its expiry cannot be judged; None = not checked.
        epoch: the declared one. A command of a higher epoch is refused, for it would make all commands that follow
            older ones. None = none is declared: epochs then move by one, from that of the first command on.
        step_ms: slot length of the workers, for a sequence is the number of a step in Unix time. A command of a step
            further ahead than `max_ahead_ms` is refused, for it would make those until then older ones. Where the first
            command lies ahead, as this clock is behind, the next ones may, too. None, or None above = not checked.
    """

    def __init__(
        self,
        max_replicas: int = MAX_REPLICAS,
        leases: Mapping[str, Lease] | None = None,
        *,
        caps: RateCaps = RateCaps(),  # noqa: B008 - immutable
        max_ahead_ms: int | None = None,
        epoch: int | None = None,
        step_ms: int | None = None,
    ) -> None:
        self._step_ms = step_ms
        self._lead_steps: int | None = None
        self._max_replicas = max_replicas
        self._max_ahead_ms = max_ahead_ms
        self._epoch = epoch
        self._caps = caps
        self._leases: dict[str, Lease] = dict(leases or {})
        self._window = ChangeWindow(caps)
        self._overrides = Overrides()

    @property
    def overrides(self) -> Overrides:
        """The operator's, as last given; they are part of the snapshot, so no restart undoes them."""
        return self._overrides

    def set_overrides(self, overrides: Overrides, now_ms: int) -> None:
        """Replace the operator's overrides.

        A pin in force ends the lease from before it: when it is over, the next command decides, not an old one.
        """
        self._overrides = overrides
        for workload in overrides.pins:
            lease = self._leases.get(workload)
            if lease is not None and overrides.pin(workload, now_ms) is not None:
                self._leases[workload] = Lease(lease.epoch, lease.sequence, lease.command_id, lease.wanted)

    def check(self, command: Command, now_ms: int, observed_current: int) -> Verdict:
        """Judge one command right before it would be applied.

        Args:
            command: as read from the commands topic.
            now_ms: the actuator's clock (simulated time in accelerated runs).
            observed_current: replicas the target has at this moment.
        """
        if not self.sane(command):
            return Verdict(accepted=False, reason="not_sane")
        if self.is_epoch_jump(command):
            return Verdict(accepted=False, reason="epoch_jump")
        if self.is_sequence_jump(command, now_ms):
            return Verdict(accepted=False, reason="sequence_jump")
        before = self._leases.get(command.workload)
        refusal = _out_of_order(command, before)
        if refusal is not None:
            return Verdict(accepted=False, reason=refusal)
        lease = _noticed(command, before)
        # From here on the command is the newest known, and older ones are refused even if this one is not carried out.
        self._leases[command.workload] = lease
        if self._step_ms is not None and self._lead_steps is None:
            self._lead_steps = max(0, command.sequence - now_ms // self._step_ms)
        pin_verdict = self.hold(command.workload, now_ms, observed_current)
        if pin_verdict is not None:
            return pin_verdict
        pinned = command.reason == PIN
        refusal = self._refusal(command, lease, now_ms, observed_current, pinned)
        if refusal is not None:
            return Verdict(accepted=False, reason=refusal)
        delta = command.replicas - observed_current
        if not pinned:
            delta = self._window.allowed(command.workload, delta, now_ms)
        granted = observed_current + delta
        self._leases[command.workload] = msgspec.structs.replace(
            lease,
            accepted_id=command.command_id,
            replicas=command.replicas,
            ordered=granted,
            valid_until_ts_ms=command.valid_until_ts_ms,
            pinned=pinned,
        )
        if delta != 0:
            self._window.count(command.workload, delta, now_ms)
        reason: Reason = "applied"
        if granted != command.replicas:
            reason = "limited"
        elif delta == 0:
            reason = "renewed" if lease.accepted_id == command.command_id else "already_there"
        return Verdict(accepted=True, reason=reason, apply=delta != 0, replicas=granted if delta != 0 else None)

    def hold(self, workload: str, now_ms: int, observed_current: int) -> Verdict | None:
        """What a local pin asks for, with or without a command; None when there is none in force."""
        pin = self._overrides.pin(workload, now_ms)
        if pin is None:
            return None
        apply = pin.replicas != observed_current
        return Verdict(accepted=False, reason="pinned", apply=apply, replicas=pin.replicas if apply else None)

    def not_applied(self, workload: str) -> None:
        """The change granted last was surely not made (refused, or overtaken by another writer): it frees its cap."""
        self._window.forget(workload)

    def replicas(self, workload: str, now_ms: int) -> int | None:
        """Replicas in force; None when there is no lease, or it has run out, or the kill switch is thrown (pins count).

        Answer None with an error, never with 0 or the last value.
        """
        pin = self._overrides.pin(workload, now_ms)
        if pin is not None:
            return pin.replicas
        lease = self._leases.get(workload)
        if lease is None or lease.ordered is None or now_ms >= lease.valid_until_ts_ms:
            return None
        return None if self._overrides.stopped is not None and not lease.pinned else lease.ordered

    @property
    def leases(self) -> dict[str, Lease]:
        """Per workload, for reading."""
        return dict(self._leases)

    def lease(self, workload: str) -> Lease | None:
        """What is remembered of one workload."""
        return self._leases.get(workload)

    def snapshot_bytes(self) -> bytes:
        """To be stored by the actuator, and given to the next life's `restore`."""
        snapshot = Snapshot(self._leases, self._window.changes, self._overrides, self._lead_steps)
        return msgspec.json.encode(snapshot, order="deterministic")

    @classmethod
    def restore(
        cls,
        snapshot: bytes,
        max_replicas: int = MAX_REPLICAS,
        *,
        caps: RateCaps = RateCaps(),  # noqa: B008 - immutable
        max_ahead_ms: int | None = None,
        epoch: int | None = None,
        step_ms: int | None = None,
    ) -> ApplyGuard:
        """Raises msgspec.MsgspecError when the bytes are not a snapshot; refuse to act then."""
        stored = msgspec.json.decode(snapshot, type=Snapshot)
        guard = cls(max_replicas, stored.leases, caps=caps, max_ahead_ms=max_ahead_ms, epoch=epoch, step_ms=step_ms)
        guard._window = ChangeWindow(caps, stored.changes)
        guard._overrides = stored.words
        guard._lead_steps = stored.lead_steps
        return guard

    def _refusal(self, command: Command, lease: Lease, now_ms: int, observed: int, pinned: bool) -> Reason | None:
        """Why the newest command may not be carried out; a pin is only asked whether it is still in force."""
        if self._overrides.stopped is not None and not pinned:
            return "stopped"
        if now_ms >= command.valid_until_ts_ms:
            return "expired"
        if pinned:
            return None
        if observed not in (command.expected_current, command.replicas, lease.replicas, lease.ordered):
            return "changed_by_others"
        ahead = self._max_ahead_ms is not None and command.issued_ts_ms > now_ms + self._max_ahead_ms
        if ahead and command.replicas < max(observed, self.replicas(command.workload, now_ms) or 0):
            return "ahead"
        return None

    def sane(self, command: Command) -> bool:
        """Whether it can be meant at all; types too, for a hand-made command has not been through a decoder."""
        numbers = (command.replicas, command.expected_current, command.epoch, command.sequence)
        if any(type(n) is not int or n < 0 for n in numbers):
            return False
        return command.replicas <= self._max_replicas and command.issued_ts_ms < command.valid_until_ts_ms

    @property
    def max_epoch(self) -> int | None:
        """The highest epoch that a command may have; None before the first command where no epoch is declared."""
        if self._epoch is not None:
            return self._epoch
        newest = max((lease.epoch for lease in self._leases.values()), default=None)
        return None if newest is None else newest + 1

    def is_epoch_jump(self, command: Command) -> bool:
        """Whether the command's epoch is above the declared one or, where none is declared, beyond the next one."""
        limit = self.max_epoch
        return limit is not None and command.epoch > limit

    def max_sequence(self, now_ms: int) -> int | None:
        """The highest sequence that a command may have; None where it is not checked, or before the first command."""
        if self._step_ms is None or self._max_ahead_ms is None or self._lead_steps is None:
            return None
        return now_ms // self._step_ms + self._lead_steps + -(-self._max_ahead_ms // self._step_ms)

    def is_sequence_jump(self, command: Command, now_ms: int) -> bool:
        """Whether the command's step lies further ahead than clocks may differ."""
        limit = self.max_sequence(now_ms)
        return limit is not None and command.sequence > limit


def _out_of_order(command: Command, newest: Lease | None) -> Reason | None:
    if newest is None:
        return None
    place, newest_place = (command.epoch, command.sequence), (newest.epoch, newest.sequence)
    if place < newest_place:
        return "superseded"
    same_id = command.command_id == newest.command_id
    # An id stands for one count, and a place in the order for one id: two bodies mean two writers.
    two_bodies = command.replicas != newest.wanted if same_id else place == newest_place
    return "conflict" if two_bodies else None


def _noticed(command: Command, before: Lease | None) -> Lease:
    lease = Lease(command.epoch, command.sequence, command.command_id, command.replicas)
    if before is None:
        return lease
    return msgspec.structs.replace(
        before, epoch=lease.epoch, sequence=lease.sequence, command_id=lease.command_id, wanted=lease.wanted
    )
