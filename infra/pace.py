"""Event time against the wall clock: how fast the slots of a run may follow each other."""

from __future__ import annotations

import math
from threading import Event
from time import monotonic

from infra.console.errors import HarmonyError


class Pace:
    """Holds slots to the wall clock. Lost time is not caught up in a rush.

    Args:
        slot_s: wall seconds per slot; 0 = as fast as possible.
    """

    def __init__(self, slot_s: float) -> None:
        self._slot_s = slot_s
        self._due_s: float | None = None
        self.behind_s = 0.0

    def wait(self, stop: Event) -> bool:
        """Sleep until the next slot is due; False when asked to stop meanwhile."""
        now_s = monotonic()
        due_s = now_s if self._due_s is None else self._due_s
        self.behind_s = max(0.0, now_s - due_s) if self._slot_s else 0.0
        if due_s > now_s and stop.wait(due_s - now_s):
            return False
        self._due_s = max(due_s, now_s - 1.0) + self._slot_s
        return True


def check_pace(speed: float, duration_s: float | None) -> None:
    """Pass a speed (event seconds per second) and a duration (wall seconds) that go together.

    Raises:
        HarmonyError: they do not (exit code 2).
    """
    if speed < 0 or not math.isfinite(speed):
        raise HarmonyError(f"The speed must be a number >= 0, got {speed:g}.", 2)
    if duration_s is not None and (speed == 0 or not 0 < duration_s < math.inf):
        raise HarmonyError("A duration needs to be positive, and a speed above 0: at 0 the run goes as it can.", 2)
