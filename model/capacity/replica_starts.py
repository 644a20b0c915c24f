"""Lead times read from a fleet's counts, whoever scales it.

Replica n is ordered when the desired count reaches n, and serves when the ready count reaches n: the oldest order is
served first. Counts come at intervals, so an event lies between two reports, and the middle between them stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Share of a lead time that the distance between reports may leave open.
_MAX_OPEN_RATIO: Final = 0.5
# Beyond so many ordered replicas the newest ones are not followed.
_MAX_ORDERED: Final = 256
# An actuator that reports lead times measures them better than counts do; after a day without reports it is gone.
_REPORTED_FOR_MS: Final = 86_400_000


class ReplicaStarts:
    """Follows the replicas that are ordered and do not serve yet, for one workload."""

    __slots__ = ("_desired", "_ordered", "_ready", "_reported_ms", "_ts_ms")

    def __init__(self) -> None:
        self._ts_ms = self._ready = self._desired = 0  # of the newest report; time 0 = none yet
        self._reported_ms = 0
        # Of each ordered replica: its number, the middle of its order's interval, half the interval; in milliseconds.
        self._ordered: list[tuple[int, float, float]] = []

    def report(self, ts_ms: int) -> None:
        """Note that an actuator has reported a lead time of this workload."""
        self._reported_ms = max(self._reported_ms, ts_ms)

    def observe(self, ts_ms: int, ready: int, desired: int) -> list[float]:
        """Lead times in seconds, of replicas that have come to serve since the last report, in order of their number.

        A report that is not newer than the last one changes nothing. When replicas that served are lost, those that
        are ordered cannot be told from replacements, and are not followed any more.
        """
        if ts_ms <= self._ts_ms:
            return []
        before_ms, ready_before, desired_before = self._ts_ms, self._ready, self._desired
        self._ts_ms, self._ready, self._desired = ts_ms, ready, desired
        if before_ms == 0 or (ready == ready_before and desired == desired_before):
            return []
        middle_ms, half_ms = 0.5 * (before_ms + ts_ms), 0.5 * (ts_ms - before_ms)
        if ready < min(ready_before, desired):
            self._ordered.clear()
        if self._ordered and desired < desired_before:
            self._ordered = [order for order in self._ordered if order[0] <= desired]
        lead_times_s = []
        while self._ordered and self._ordered[0][0] <= ready:
            _, ordered_ms, open_ms = self._ordered.pop(0)
            lead_ms = middle_ms - ordered_ms
            if open_ms + half_ms <= _MAX_OPEN_RATIO * lead_ms and not self._is_reported(ts_ms):
                lead_times_s.append(lead_ms / 1000)
        for number in range(max(desired_before, ready) + 1, desired + 1):
            if len(self._ordered) < _MAX_ORDERED:
                self._ordered.append((number, middle_ms, half_ms))
        return lead_times_s

    def _is_reported(self, ts_ms: int) -> bool:
        return self._reported_ms > 0 and ts_ms < self._reported_ms + _REPORTED_FOR_MS

    def snapshot(self) -> list[list[float]]:
        """The whole state as plain values: the newest report, then the ordered replicas; empty before any report."""
        if self._ts_ms == 0 and self._reported_ms == 0:
            return []
        return [[self._ts_ms, self._ready, self._desired, self._reported_ms], *map(list, self._ordered)]

    @classmethod
    def restore(cls, state: Sequence[Sequence[float]]) -> ReplicaStarts:
        """The starts that a snapshot was taken of."""
        starts = cls()
        if state:
            starts._ts_ms, starts._ready, starts._desired, starts._reported_ms = map(int, state[0])
            starts._ordered = [(int(number), middle_ms, half_ms) for number, middle_ms, half_ms in state[1:]]
        return starts
