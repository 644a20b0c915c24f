"""Decayed counts of requests that were good and that missed, on a fixed lattice of log loads.

A workload sees loads within a factor of a few, so only the stretch of the lattice that holds any is kept. Sums over it
are exactly rounded: what was restored, on a stretch cut anew, adds up to the same bits.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Counts = NDArray[np.float32]

BINS: Final = 701
_NOTHING: Final = 1e-4  # of a request: less is forgotten


class LoadEvidence:
    """Counts of one workload, lattice index by lattice index of 0..`BINS` - 1."""

    __slots__ = ("_counts", "_first", "_total")

    def __init__(self) -> None:
        self._first = 0
        self._counts = np.zeros((2, 0), dtype=np.float32)  # requests that were good, and that missed
        self._total: float | None = None  # None = it has changed

    @property
    def total(self) -> float:
        """Requests held."""
        if self._total is None:
            self._total = math.fsum(self._counts.ravel().tolist())
        return self._total

    def fade(self, keep: float) -> None:
        """Multiply every count."""
        self._total = None
        _fade(self._counts, np.float32(keep))

    def add(self, place: float, good: float, missed: float) -> None:
        """Count requests at a place of the lattice, shared between the two indices beside it."""
        self._total = None
        place = min(max(place, 0.0), BINS - 1.001)
        low = int(place)
        self._reach(low, low + 2)
        _add(self._counts, low - self._first, place - low, good, missed)

    def replace(self, share: float, other: LoadEvidence) -> None:
        """Put so large a share of other counts in the place of as large a share of these."""
        self.fade(1.0 - share)
        width = other._counts.shape[1]
        if width:
            self._reach(other._first, other._end)
            at = other._first - self._first
            self._counts[:, at : at + width] += np.float32(share) * other._counts

    def moved(self, places: int) -> LoadEvidence:
        """The same counts so many indices higher; what would lie outside the lattice is left out."""
        moved, width = LoadEvidence(), self._counts.shape[1]
        low, high = max(self._first + places, 0), min(self._first + places + width, BINS)
        if low < high:
            begin = low - self._first - places
            moved._first, moved._counts = low, self._counts[:, begin : begin + high - low].copy()
        return moved

    @property
    def stretch(self) -> tuple[int, NDArray[np.float32]]:
        """Index of the first load held, and the counts [2, ...] from there on; not to be changed."""
        return self._first, self._counts

    def highest_good(self, least: float) -> int | None:
        """Highest index at or above which this many good requests were seen."""
        enough = np.cumsum(self._counts[0, ::-1], dtype=np.float64)[::-1] >= least
        return self._first + int(np.flatnonzero(enough)[-1]) if enough.any() else None

    def mean(self) -> float | None:
        """Mean index of the requests; None where none is held."""
        each = self._counts.sum(axis=0, dtype=np.float64).tolist()
        total = math.fsum(each)
        return math.fsum(n * (self._first + k) for k, n in enumerate(each)) / total if total > 0 else None

    def stored(self) -> tuple[bytes, bytes]:
        """Indices in use as int16, and their counts as float32 [2, ...], both little-endian."""
        bins, counts = np.empty(self._counts.shape[1], "<i2"), np.empty(self._counts.size, "<f4")
        used = _used(self._counts, self._first, bins, counts)
        return bins[:used].tobytes(), counts[: 2 * used].tobytes()

    @classmethod
    def of(cls, bins: bytes, weights: bytes) -> LoadEvidence:
        """What `stored` was told of.

        Raises:
            ValueError: lengths that do not fit, or indices outside the lattice.
        """
        used = np.frombuffer(bins, dtype="<i2").astype(np.int64)
        evidence = cls()
        if len(used):
            if used.min() < 0 or used.max() >= BINS:
                raise ValueError(f"evidence of capacity has indices outside 0..{BINS - 1}")
            evidence._first = int(used.min())
            evidence._counts = np.zeros((2, int(used.max()) + 1 - evidence._first), dtype=np.float32)
            evidence._counts[:, used - evidence._first] = np.frombuffer(weights, dtype="<f4").reshape(2, len(used))
        return evidence

    @property
    def _end(self) -> int:
        return self._first + self._counts.shape[1]

    def _reach(self, low: int, high: int) -> None:
        """Hold the indices from low to high - 1, too."""
        if self._counts.shape[1] == 0:
            self._first = low
        before, after = max(self._first - low, 0), max(high - self._end, 0)
        if before or after:
            self._counts = np.pad(self._counts, ((0, 0), (before, after)))
            self._first -= before


@compiled
def _fade(counts: Counts, keep: np.float32) -> None:
    """Multiply, and forget what is next to nothing."""
    nothing = np.float32(_NOTHING)
    for label in range(counts.shape[0]):
        for k in range(counts.shape[1]):
            count = counts[label, k] * keep
            counts[label, k] = np.float32(0.0) if count < nothing else count


@compiled
def _add(counts: Counts, at: int, above: float, good: float, missed: float) -> None:
    """Share good and missed requests between a column and the next one, which gets the part `above`."""
    counts[0, at] += np.float32(good * (1.0 - above))
    counts[0, at + 1] += np.float32(good * above)
    counts[1, at] += np.float32(missed * (1.0 - above))
    counts[1, at + 1] += np.float32(missed * above)


@compiled
def _used(counts: Counts, first: int, bins: NDArray[np.int16], stored: Counts) -> int:
    """How many columns hold anything; their indices, and their counts [2, used] one after the other."""
    used = 0
    for k in range(counts.shape[1]):
        if counts[0, k] + counts[1, k] != 0:
            bins[used] = first + k
            used += 1
    for u in range(used):
        stored[u] = counts[0, bins[u] - first]
        stored[used + u] = counts[1, bins[u] - first]
    return used
