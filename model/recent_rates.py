"""A workload's load averaged over the last moments, in the unit that it is counted in and in the other one."""

from __future__ import annotations

import math
from typing import NamedTuple

from model.slot_evidence import SlotEvidence, usable


class RecentRates(NamedTuple):
    """Of the fleet, 1/s; None where the newest slot does not tell.

    Attributes:
        rate: as loads are counted.
        other: in the other unit.
    """

    rate: float | None = None
    other: float | None = None

    def after(self, slot: SlotEvidence, over_s: float) -> RecentRates:
        """With one more slot, averaged over so many seconds; anew where a rate was not known, or that is no time."""
        rate, other = usable(slot.arrival_rate), usable(slot.other_rate)
        return RecentRates(
            _averaged(self.rate, rate, slot.step_s, over_s), _averaged(self.other, other, slot.step_s, over_s)
        )

    def others_per_unit(self, at_most: float | None) -> float | None:
        """How many of the other unit one of this is, and no more than `at_most` where that is known."""
        if not self.rate or not self.other:
            return None
        factor = self.other / self.rate
        return min(factor, at_most) if at_most is not None and at_most > 0 else factor


def _averaged(before: float | None, now: float | None, step_s: float, over_s: float) -> float | None:
    if now is None or before is None or over_s <= 0:
        return now
    return before + (now - before) * -math.expm1(-step_s / over_s)
