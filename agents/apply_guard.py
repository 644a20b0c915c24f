"""The last check before replicas change: every actuator asks it at apply time, with its own clock and its own count.

Commands may come late, twice or out of order. Compare-and-set on (epoch, sequence) means that an older one never wins,
and comparing the observed replicas with the expected ones means that nobody else's change is overwritten unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from agents.records import Command

Reason = Literal[
    "applied", "renewed", "already_there", "expired", "superseded", "conflict", "changed_by_others", "not_sane"
]


class Verdict(NamedTuple):
    """`accepted`: the lease counts. `apply`: replicas must be set now (false where they already are as wanted)."""

    accepted: bool
    reason: Reason
    apply: bool = False


class Lease(msgspec.Struct, frozen=True):
    """What an actuator remembers of one workload.

    `epoch`, `sequence` and `command_id` are those of the newest command seen; `replicas` those last accepted, until
    `valid_until_ts_ms` (0 before the first acceptance).
    """

    epoch: int
    sequence: int
    command_id: str
    accepted_id: str | None = None
    replicas: int | None = None
    valid_until_ts_ms: int = 0


class ApplyGuard:
    """Decides per workload whether a command may be applied. Holds no clock: callers pass `now_ms`.

    Args:
        max_replicas: commands above it are refused, whatever the policy said.
        leases: of an earlier life, see `snapshot`.
    """

    def __init__(self, max_replicas: int = 100_000, leases: Mapping[str, Lease] | None = None) -> None:
        self._max_replicas = max_replicas
        self._leases: dict[str, Lease] = dict(leases or {})

    def check(self, command: Command, now_ms: int, observed_current: int) -> Verdict:
        """Judge one command right before it would be applied.

        Args:
            command: as read from the commands topic.
            now_ms: the actuator's clock (simulated time in accelerated runs).
            observed_current: replicas the target has at this moment.
        """
        if not self._sane(command):
            return Verdict(accepted=False, reason="not_sane")
        lease = self._leases.get(command.workload)
        place, newest = (command.epoch, command.sequence), (lease.epoch, lease.sequence) if lease else (-1, -1)
        if place < newest:
            return Verdict(accepted=False, reason="superseded")
        if lease is not None and place == newest and command.command_id != lease.command_id:
            return Verdict(accepted=False, reason="conflict")
        # From here on the command is the newest known, and older ones are refused even if this one is not carried out.
        lease = Lease(
            command.epoch,
            command.sequence,
            command.command_id,
            lease.accepted_id if lease else None,
            lease.replicas if lease else None,
            lease.valid_until_ts_ms if lease else 0,
        )
        self._leases[command.workload] = lease
        if now_ms >= command.valid_until_ts_ms:
            return Verdict(accepted=False, reason="expired")
        if observed_current not in (command.expected_current, command.replicas, lease.replicas):
            return Verdict(accepted=False, reason="changed_by_others")
        self._leases[command.workload] = msgspec.structs.replace(
            lease,
            accepted_id=command.command_id,
            replicas=command.replicas,
            valid_until_ts_ms=command.valid_until_ts_ms,
        )
        if observed_current == command.replicas:
            renewed = lease.accepted_id == command.command_id
            return Verdict(accepted=True, reason="renewed" if renewed else "already_there")
        return Verdict(accepted=True, reason="applied", apply=True)

    def replicas(self, workload: str, now_ms: int) -> int | None:
        """Replicas of the lease in force; None when there is none, or it has run out (answer an error, never 0)."""
        lease = self._leases.get(workload)
        if lease is None or lease.replicas is None or now_ms >= lease.valid_until_ts_ms:
            return None
        return lease.replicas

    def snapshot(self) -> dict[str, Lease]:
        """To be stored by the actuator and given to the next life's constructor."""
        return dict(self._leases)

    def snapshot_bytes(self) -> bytes:
        return msgspec.json.encode(self._leases, order="deterministic")

    @classmethod
    def restore(cls, snapshot: bytes, max_replicas: int = 100_000) -> ApplyGuard:
        """Raises msgspec.MsgspecError when the bytes are not a snapshot; refuse to act then."""
        return cls(max_replicas, msgspec.json.decode(snapshot, type=dict[str, Lease]))

    def _sane(self, command: Command) -> bool:
        """Types too: a hand-made command has not been through a decoder."""
        numbers = (command.replicas, command.expected_current, command.epoch, command.sequence)
        if any(type(n) is not int or n < 0 for n in numbers):
            return False
        return command.replicas <= self._max_replicas and command.issued_ts_ms < command.valid_until_ts_ms
