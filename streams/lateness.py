"""How late samples are, counted in buckets as they are folded: cheap enough for every sample."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Bounds sit on the delays that matter: one step of the demo (5 s), the default grace (15 s), then the very late.
LATENESS_BOUNDS_MS: Final = (
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    15_000,
    20_000,
    30_000,
    60_000,
    120_000,
    300_000,
    900_000,
    3_600_000,
)


class LatenessTally:
    """Counts how far samples lay behind stream time. For measuring only: a restart begins again at nothing."""

    __slots__ = ("_counts", "_sum_ms")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self._sum_ms = 0

    def add(self, stream_time_ms: int | NDArray[np.int64], times_ms: ArrayLike) -> None:
        """Note samples of these event times [n], read at stream time, the same or [n]; one ahead of it is not late."""
        late_ms = np.asarray(stream_time_ms - np.asarray(times_ms, np.int64))
        found = np.bincount(np.searchsorted(LATENESS_BOUNDS_MS, late_ms), minlength=len(self._counts))
        self._counts = [a + b for a, b in zip(self._counts, found.tolist(), strict=True)]
        self._sum_ms += int(np.maximum(late_ms, 0).sum())

    def take(self) -> tuple[list[int], int]:
        """Counts per bucket (up to each bound, and above the last) and their sum in ms, since the last call."""
        counts, sum_ms = self._counts, self._sum_ms
        self._counts, self._sum_ms = [0] * len(counts), 0
        return counts, sum_ms
