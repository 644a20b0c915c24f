"""Decayed counts of requests that were good and that missed, on a fixed lattice of log loads.

A workload sees loads within a factor of a few, so only the stretch of the lattice that holds any is kept. Sums over it
are exactly rounded: what was restored, on a stretch cut anew, adds up to the same bits.

Where a load may come to be counted in another unit, the same counts are also kept at what the loads were in that: no
one factor turns requests/s into tokens/s once requests have had this length and that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    __slots__ = ("_counts", "_first", "_other", "_total")

    def __init__(self) -> None:
        self._first = 0
        self._counts = np.zeros((2, 0), dtype=np.float32)  # requests that were good, and that missed
        self._total: float | None = None  # None = it has changed
        self._other: LoadEvidence | None = None  # in the other unit; None = there is none

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
        if self._other is not None:
            self._other.fade(keep)

    def add(self, place: float, good: float, missed: float, shift: float | None = None) -> None:
        """Count requests at a place of the lattice, shared between the two indices beside it.

        Args:
            shift: how much higher their place is in the other unit; what was counted before it was told first is taken
                to be as far away. None = unknown: they are not counted there.
        """
        if shift is not None:
            if self._other is None:
                self._other = self._at(round(shift))
            self._other.add(place + shift, good, missed)
        self._total = None
        place = min(max(place, 0.0), BINS - 1.001)
        low = int(place)
        self._reach(low, low + 2)
        _add(self._counts, low - self._first, place - low, good, missed)

    def replace(self, share: float, other: LoadEvidence) -> None:
        """Put so large a share of other counts in the place of as large a share of these."""
        if self._other is not None and other._other is not None:
            self._other.replace(share, other._other)
        self._total = None
        _fade(self._counts, np.float32(1.0 - share))
        width = other._counts.shape[1]
        if width:
            self._reach(other._first, other._end)
            at = other._first - self._first
            self._counts[:, at : at + width] += np.float32(share) * other._counts

    def copy(self) -> LoadEvidence:
        """The same counts, to be changed apart from these."""
        return LoadEvidence.of(self.stored())

    def converted(self, shift: int) -> LoadEvidence:
        """In the other unit, with these beside it; where none has been counted in that, all of them so much higher."""
        if self._other is None:
            return self._at(shift)
        return LoadEvidence.of([*self._other.stored(), *self.stored()[:2]])

    def _at(self, shift: int) -> LoadEvidence:
        """The same counts so many indices higher; what would lie outside the lattice is left out."""
        moved, width = LoadEvidence(), self._counts.shape[1]
        low, high = max(self._first + shift, 0), min(self._first + shift + width, BINS)
        if low < high:
            begin = low - self._first - shift
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

    def lowest_missed(self, least: float) -> int | None:
        """Lowest index at or below which this many requests missed."""
        enough = np.cumsum(self._counts[1], dtype=np.float64) >= least
        return self._first + int(np.flatnonzero(enough)[0]) if enough.any() else None

    def mean(self) -> float | None:
        """Mean index of the requests; None where none is held."""
        each = self._counts.sum(axis=0, dtype=np.float64).tolist()
        total = math.fsum(each)
        return math.fsum(n * (self._first + k) for k, n in enumerate(each)) / total if total > 0 else None

    def stored(self) -> list[bytes]:
        """Indices in use as int16, and their counts as float32 [2, ...], both little-endian; then the other unit's."""
        bins, counts = np.empty(self._counts.shape[1], "<i2"), np.empty(self._counts.size, "<f4")
        used = _used(self._counts, self._first, bins, counts)
        others = [] if self._other is None else self._other.stored()
        return [bins[:used].tobytes(), counts[: 2 * used].tobytes(), *others]

    @classmethod
    def of(cls, stored: Sequence[bytes]) -> LoadEvidence:
        """What `stored` was told of.

        Raises:
            ValueError: lengths that do not fit, or indices outside the lattice.
        """
        bins, weights, *others = stored
        used = np.frombuffer(bins, dtype="<i2").astype(np.int64)
        evidence = cls()
        if len(used):
            if used.min() < 0 or used.max() >= BINS:
                raise ValueError(f"evidence of capacity has indices outside 0..{BINS - 1}")
            evidence._first = int(used.min())
            evidence._counts = np.zeros((2, int(used.max()) + 1 - evidence._first), dtype=np.float32)
            evidence._counts[:, used - evidence._first] = np.frombuffer(weights, dtype="<f4").reshape(2, len(used))
        if others:
            evidence._other = cls.of(others)
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
