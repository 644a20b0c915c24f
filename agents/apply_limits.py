"""What bounds an actuator whatever it is told: rate caps, and the words an operator gives the actuator itself."""

from __future__ import annotations

import msgspec

from agents.situation import Pin


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


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's words to the actuator itself; they hold while Kafka and HARMONY are down.

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
    def _room(cap: int | None, wanted: int, used: int) -> int:
        return wanted if cap is None else max(0, min(wanted, cap - used))
