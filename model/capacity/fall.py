"""What was believed of a capacity before it fell, for as long as the fall may have been an incident.

A fleet whose replicas serve a fraction for some minutes (a disk, a network, a bad neighbour) teaches that they carry
little, and soon is so large that nothing they do can say otherwise: what each of them gets is below even that. So a
fall by half or more is doubted once misses have ended: with a half-life of an hour what is believed goes back to what
it was. If replicas do carry less now, misses come again on the way, at a fleet that shrinks step by step; then the fall
stands, and none is doubted for a day.
Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from model.capacity.evidence import LoadEvidence
from model.capacity.grid import SPACING

# Logarithm of the ratio of capacities from which on a fall is doubted.
_MIN_LOG_FALL: Final = math.log(0.5)
_HALF_LIFE_MS: Final = 3_600_000
# Longest duration of a fall that counts as an incident.
_MAX_FALL_MS: Final = 3_600_000
# Time without misses after which the incident is over.
_RECOVERY_MS: Final = 1_800_000
# Half-lives without misses after which the former capacity holds again.
_MAX_HALF_LIVES: Final = 6
_DAY_MS: Final = 86_400_000


class Fall:
    """A fall that may be under way, is doubted, or stands.

    Attributes:
        since_ms: of its first slot, or of the one that refuted the doubt.
        missed_ms: of the newest slot with too many misses.
        log_before: logarithm of the capacity believed before it.
        before: evidence that it rested on; None: the fall stands.
        doubted: whether what was believed is on its way back.
    """

    __slots__ = ("before", "doubted", "log_before", "missed_ms", "since_ms")

    def __init__(self, since_ms: int, log_before: float, before: LoadEvidence | None) -> None:
        self.since_ms = self.missed_ms = since_ms
        self.log_before = log_before
        self.before = before
        self.doubted = False

    def shifted(self, cells: int) -> Fall:
        """The same fall with all loads so many places of the lattice higher."""
        before = None if self.before is None else self.before.shifted(cells)
        moved = Fall(self.since_ms, self.log_before + cells * SPACING, before)
        moved.missed_ms, moved.doubted = self.missed_ms, self.doubted
        return moved

    def stored(self) -> dict[str, Any]:
        """Plain values; `of` gives back the same."""
        promises = [] if self.before is None else self.before.stored_promises()
        record = {"promises": promises} if promises else {}
        return record | {
            "since_ms": self.since_ms,
            "missed_ms": self.missed_ms,
            "log_before": self.log_before,
            "before": None if self.before is None else self.before.stored(),
            "doubted": self.doubted,
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Fall:
        """What `stored` was told of.

        Raises:
            ValueError: evidence that is damaged.
        """
        before = None
        if stored["before"] is not None:
            before = LoadEvidence.of(stored["before"], stored.get("promises", ()))
        fall = cls(stored["since_ms"], stored["log_before"], before)
        fall.missed_ms, fall.doubted = stored["missed_ms"], stored["doubted"]
        return fall


def after_misses(fall: Fall | None, now_ms: int, log_capacity: float, evidence: LoadEvidence) -> Fall:
    """What is to be doubted once a slot with too many misses is folded.

    Args:
        log_capacity, evidence: as of before it.
    """
    if fall is None:
        return Fall(now_ms, log_capacity, evidence.copy())
    if fall.doubted:
        return Fall(now_ms, log_capacity, None)
    fall.missed_ms = now_ms
    return fall


def after_good_slot(
    fall: Fall, now_ms: int, step_ms: float, log_capacity: float, evidence: LoadEvidence
) -> Fall | None:
    """What is still to be doubted; takes what was believed back into the evidence where that is so already."""
    if fall.before is None:
        return fall if now_ms - fall.since_ms < _DAY_MS else None
    quiet_ms = now_ms - fall.missed_ms
    fall.doubted = fall.doubted or (quiet_ms >= _RECOVERY_MS and log_capacity < fall.log_before + _MIN_LOG_FALL)
    if not fall.doubted:
        return fall if now_ms - fall.since_ms < _MAX_FALL_MS else None
    evidence.replace(-math.expm1(-math.log(2.0) * step_ms / _HALF_LIFE_MS), fall.before)
    return fall if quiet_ms < _MAX_HALF_LIVES * _HALF_LIFE_MS else None
