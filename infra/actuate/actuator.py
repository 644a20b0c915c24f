"""What the core asks of an adapter, and how an adapter says that it could not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from agents.records import Command, Target

Status = Literal["accepted", "applied", "refused", "expired", "failed"]


class NotApplied(Exception):
    """The change was not made, or it is not known whether it was.

    Attributes:
        sure: the target surely did not change, so the change need not count against the rate caps.
        refused: the other side said no, which asking again would not change.
    """

    def __init__(self, detail: str, *, sure: bool = False, refused: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.sure, self.refused = detail, sure, refused


class Overtaken(NotApplied):
    """Somebody else changed the target between our look and our write: look and judge again."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, sure=True)


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """One change to make now.

    Attributes:
        command: that asks for it; None when a local pin does, without any command.
        replicas: to set; what the rate caps left of the command, or the pin's count.
        observed: the count it was judged against; None = nobody knows (a pin is set all the same).
        place: epoch and sequence of the newest command of the workload.
        still_wanted: False once the lease ran out, a newer command came, or the kill switch was thrown; ask before
            every further attempt.
    """

    workload: str
    target: Target
    replicas: int
    observed: int | None
    command: Command | None
    place: tuple[int, int]
    still_wanted: Callable[[], bool]


class Actuator(Protocol):
    """One place where replicas change."""

    @property
    def name(self) -> str:
        """Of the kind of actuator, for outcomes, audit lines and metrics."""
        ...

    @property
    def done(self) -> Literal["applied", "accepted"]:
        """What a change is called when `apply` returns: made, or handed over to somebody who will make it."""
        ...

    async def observe(self, workload: str, target: Target, expected: int | None, in_force: int | None) -> int | None:
        """Replicas that the target has (is set to) at this moment; None only where `expected` is None.

        Args:
            workload: id.
            target: what is scaled.
            expected: what the command says; None for a pin, which has no command.
            in_force: what this actuator has last granted, while that holds.

        Raises:
            NotApplied: nobody can say; nothing is changed then.
        """
        ...

    async def apply(self, change: ReplicaChange) -> str:
        """Make the change; returns a detail for the record, or nothing.

        Raises:
            Overtaken: the target is not what was observed any more.
            NotApplied: it was not made.
        """
        ...


class Event(NamedTuple):
    """What became of a command (or of a pin) at one moment.

    `wanted` is what was asked for, `after` what was set; `after` is None where nothing was changed.
    """

    ts_ms: int
    actuator: str
    workload: str
    target: Target
    status: Status
    reason: str
    command_id: str | None
    before: int | None
    wanted: int
    after: int | None
    valid_until_ts_ms: int | None
    p_miss: float | None
    why: str
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """For a JSON line."""
        t = self.target
        target = {"apiVersion": t.api_version, "kind": t.kind, "namespace": t.namespace, "name": t.name}
        return {**self._asdict(), "target": target}
