"""The last slots of one workload as rows of numbers, in fixed memory, written in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class SlotRing:
    """Rows of `columns` numbers by slot; a slot's row takes the place of the one `slots` earlier.

    Args:
        slots: N, how many are kept.
        columns: K, numbers per row; NaN is "not known".
    """

    __slots__ = ("_rows", "_stamps")

    def __init__(self, slots: int, columns: int) -> None:
        self._stamps = np.full(slots, -1, np.int64)  # [N]
        self._rows = np.full((slots, columns), np.nan, np.float32)  # [N, K]

    def put(self, slot: int, values: Sequence[float] | Floats, column: int = 0) -> None:
        """Write numbers from `column` on. A slot older than what its place holds is dropped: it is out of reach."""
        place = slot % len(self._stamps)
        if slot < self._stamps[place]:
            return
        if slot > self._stamps[place]:
            self._stamps[place] = slot
            self._rows[place] = np.nan
        self._rows[place, column : column + len(values)] = values

    def read(self, first: int, last: int) -> Floats:
        """Rows of the slots first..last, [last - first + 1, K]; NaN where nothing is kept."""
        slots = np.arange(first, last + 1)
        places = slots % len(self._stamps)
        return np.where((self._stamps[places] == slots)[:, None], self._rows[places], np.nan).astype(np.float64)

    def first_slot(self) -> int | None:
        """Oldest slot kept, None when empty."""
        kept = self._stamps[self._stamps >= 0]
        return int(kept.min()) if len(kept) else None
