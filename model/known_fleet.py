"""Which slots say nothing of a capacity because the fleet changes or has just changed."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from model.slot_evidence import SlotEvidence

_SETTLE_RESIDENCES: Final = 1.5
_STUCK_MS: Final = 600_000  # a fleet pending or draining unchanged for this long is stuck, not changing


class KnownFleet(NamedTuple):
    """Replicas as last told, and since when they are so many.

    Attributes:
        changed_ts_ms: end of the slot that first told so; None = the first fleet ever seen.
    """

    ready: int
    pending: int
    draining: int
    changed_ts_ms: int | None

    @classmethod
    def after(cls, before: KnownFleet | None, slot: SlotEvidence) -> KnownFleet | None:
        """What is known with one more slot, which may say nothing of replicas."""
        if slot.ready is None:
            return before
        counts = (slot.ready, slot.pending, slot.draining)
        if before is not None and before[:3] == counts:
            return before
        # The first fleet ever seen is taken as settled: a restart of ours is no cold start of theirs.
        return cls(*counts, None if before is None else slot.end_ts_ms)

    def refuses(
        self, slot: SlotEvidence, least_ms: int, residence_s: float
    ) -> Literal["fleet_changing", "cold_start"] | None:
        """Why this slot, the newest that was told of, must be refused; None where it need not.

        Args:
            least_ms: for which slots are refused after a change, or longer while what was served then still is.
            residence_s: that requests stay; 0 = unknown.
        """
        since_ms = None if self.changed_ts_ms is None else slot.end_ts_ms - self.changed_ts_ms
        if self.pending > 0 or self.draining > 0:
            return None if since_ms is not None and since_ms >= _STUCK_MS else "fleet_changing"
        # What was being served at the change stays where it was, so the old fleet's misses last as long as requests do.
        settle_ms = max(least_ms, _SETTLE_RESIDENCES * residence_s * 1000.0)
        return "cold_start" if since_ms is not None and since_ms < min(settle_ms, _STUCK_MS) else None
