"""What became of one SLO class's requests, slot by slot, for as long as a stated risk waits to be judged by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from model.calibration.risk import Finished

Tally = tuple[int, float, float]  # end of the slot, good ones and all that finished in it

_MOST_SLOTS: Final = 256  # no window is longer: plans see at most 64 steps


class ClassTallies:
    """Good requests and all that finished, by slot; slots in which none did are left out."""

    __slots__ = ("_tallies",)

    def __init__(self, tallies: Sequence[Tally] = ()) -> None:
        self._tallies = list(tallies)

    def add(self, end_ts_ms: int, good: float, total: float) -> None:
        """Count the newest slot."""
        if total > 0:
            self._tallies.append((end_ts_ms, good, total))

    def keep_after(self, begin_ts_ms: int) -> None:
        """Forget what ended by then."""
        self._tallies = [tally for tally in self._tallies if tally[0] > begin_ts_ms]

    def finished(self, end_ts_ms: int, step_s: float, delay_s: float) -> Finished:
        """As what finished of all requests stands in a window, up to the slot that ends then."""
        step_ms = round(step_s * 1000)
        recent = [tally for tally in self._tallies if end_ts_ms - tally[0] < _MOST_SLOTS * step_ms]
        num_slots = (end_ts_ms - recent[0][0]) // step_ms + 1 if recent else 1
        values, observed = np.zeros((num_slots, 2), np.float32), np.zeros((num_slots, 2), np.bool_)
        for at_ms, good, total in recent:
            slot = num_slots - 1 - (end_ts_ms - at_ms) // step_ms
            values[slot], observed[slot] = (total / step_s, 1.0 - good / total), True
        return Finished(values, observed, (0, 1), end_ts_ms, step_ms, delay_s)

    def snapshot(self) -> tuple[Tally, ...]:
        """The whole state; the constructor takes it back."""
        return tuple(self._tallies)
