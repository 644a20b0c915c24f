"""What a fleet takes in while a queue stands: the most that it carries, whatever its misses say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from model.slot_evidence import SlotEvidence, usable

_LONGEST_S: Final = 60.0  # over which is averaged; what was true before has been told by then
_SHORTEST_S: Final = 15.0
_SIGMAS: Final = 2.0  # of a Poisson count, by which what was taken in may be less than it seems by chance


@dataclass(frozen=True, slots=True)
class StandingQueue:
    """Requests taken in since a queue stands, up to a minute back, on a fleet that did not change.

    A short slot is a noisy witness: it counts few requests, the queue at its two ends is as uncertain as they are, and
    what is taken in follows what happens to finish. So it is averaged, over no less than the time that requests stay.

    Most routers give a request to a replica when it comes, so a queue may stand at some replicas while those that have
    started since take in all they are given. Such a queue says what all of them take in only while it grows.

    Attributes:
        taken_in: requests that left the queue for a replica.
        seconds: over which they did.
        arrived: requests that came in that time.
        older: the queue is older than the fleet.
    """

    taken_in: float = 0.0
    seconds: float = 0.0
    arrived: float = 0.0
    older: bool = False

    def after(self, slot: SlotEvidence, before: float | None) -> StandingQueue:
        """With one more slot of the same fleet; none where no queue stands.

        A queue stands where it is longer, in this slot and the one before, than what arrives within the wait allowed
        (Little's law). What was taken in is what came, less what the queue grew by.

        Args:
            before: requests waiting in the slot before.
        """
        rate, waiting = usable(slot.arrival_rate), usable(slot.waiting)
        if rate is None or waiting is None or before is None or not slot.ready or slot.draining > 0:
            return self._nothing_of_it(slot)
        if slot.in_tokens or min(waiting, before) <= slot.ttft_s * rate:
            return self._nothing_of_it(slot)  # in tokens a queue also grows by the lengths of what waits
        arrived = rate * slot.step_s
        keep = min(1.0, max(0.0, _LONGEST_S - slot.step_s) / self.seconds) if self.seconds > 0 else 0.0
        return StandingQueue(
            self.taken_in * keep + arrived - (waiting - before),
            self.seconds * keep + slot.step_s,
            self.arrived * keep + arrived,
            self.older,
        )

    @staticmethod
    def on_new_fleet(slot: SlotEvidence) -> StandingQueue:
        """Nothing yet, on a fleet that was another one in the slot before, or that nothing was known of."""
        rate, waiting = usable(slot.arrival_rate), usable(slot.waiting)
        gone = rate is not None and waiting is not None and waiting <= slot.ttft_s * rate
        return NONE if gone else OLDER

    def at_most(self, ready: int, residence_s: float) -> float | None:
        """Requests/s that each ready replica surely does not take in more than; None where that cannot be said yet."""
        if self.taken_in <= 0 or self.seconds < min(max(_SHORTEST_S, residence_s), _LONGEST_S):
            return None
        if self.older and self.taken_in > self.arrived:
            return None
        return (self.taken_in + _SIGMAS * math.sqrt(self.taken_in)) / (self.seconds * ready)

    def rate(self, ready: int) -> float:
        """Requests/s that each ready replica takes in, on average."""
        return self.taken_in / (self.seconds * ready)

    def stored(self) -> list[float]:
        """As plain numbers; `of` gives back the same."""
        return [self.taken_in, self.seconds, self.arrived, float(self.older)]

    @classmethod
    def of(cls, stored: Sequence[float]) -> StandingQueue:
        """As it was stored; where what came was not stored yet, it begins anew."""
        if len(stored) < 4:
            return OLDER
        return cls(float(stored[0]), float(stored[1]), float(stored[2]), bool(stored[3]))

    def _nothing_of_it(self, slot: SlotEvidence) -> StandingQueue:
        """What is left after a slot that says nothing: only a queue that is surely gone is no older one."""
        return self.on_new_fleet(slot) if self.older else NONE


NONE: Final = StandingQueue()
OLDER: Final = StandingQueue(older=True)
