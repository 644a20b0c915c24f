"""Decayed counts of requests that were good and that missed, on a fixed lattice of log loads.

A workload sees loads within a factor of a few, a dozen of the lattice's hundreds, so only those that hold any are kept.
Sums over them are exactly rounded: what was restored adds up to the same bits.

Where a load may come to be counted in another unit, the same counts are also kept at what the loads were in that: no
one factor turns requests/s into tokens/s once requests have had this length and that.

Beside those that missed are counted which promise they missed, as far as that is known (`model.capacity.attribution`):
rows of the same lattice, which fade and move with the others, and which nothing reads that is told of both promises
together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.capacity.attribution import UNTOLD, MissedBy
from model.compiled import compiled

Cells = NDArray[np.float32]

BINS: Final = 701
_NOTHING: Final = 1e-4  # of a request: less is forgotten
_JOINT: Final = 3  # rows: indices, good, missed; behind them what missed each promise
_ROWS: Final = 5


class LoadEvidence:
    """Counts of one workload, lattice index by lattice index of 0..`BINS` - 1."""

    __slots__ = ("_cells", "_other", "_total")

    def __init__(self) -> None:
        self._cells = np.zeros((_ROWS, 0), dtype=np.float32)
        self._total: float | None = None  # None = it has changed
        self._other: LoadEvidence | None = None  # in the other unit; None = there is none

    @property
    def cells(self) -> Cells:
        """[3, M], not to be changed: indices that hold anything, ascending; requests there that were good; missed."""
        return self._cells[:_JOINT]

    @property
    def cells_by_promise(self) -> Cells:
        """[5, M], not to be changed: as `cells`; those known to have missed the first token's promise, the tokens'."""
        return self._cells

    @property
    def total(self) -> float:
        """Requests held."""
        if self._total is None:
            self._total = math.fsum(self.cells[1:].ravel().tolist())
        return self._total

    def fade(self, keep: float) -> None:
        """Multiply every count."""
        self._total = None
        if _fade(self._cells, np.float32(keep)):
            self._cells = _in_use(self._cells)
        if self._other is not None:
            self._other.fade(keep)

    def add(self, place: float, good: float, missed: float, shift: float | None = None, by: MissedBy = UNTOLD) -> None:
        """Count requests at a place of the lattice, shared between the two indices beside it.

        Args:
            shift: how much higher their place is in the other unit; what was counted before it was told first is taken
                to be as far away. None = unknown: they are not counted there.
            by: which promise was missed.
        """
        if shift is not None:
            if self._other is None:
                self._other = self._at(round(shift))
            self._other.add(place + shift, good, missed, None, by)
        self._total = None
        place = min(max(place, 0.0), BINS - 1.001)
        low = int(place)
        ttft, tpot = missed * by.ttft, missed * by.tpot
        if not _add(self._cells, low, place - low, good, missed, ttft, tpot):
            self._cells = _reaching(self._cells, np.asarray((low, low + 1), np.float32))
            _add(self._cells, low, place - low, good, missed, ttft, tpot)
            self._cells = _in_use(self._cells)

    def replace(self, share: float, other: LoadEvidence) -> None:
        """Put so large a share of other counts in the place of as large a share of these."""
        if self._other is not None and other._other is not None:
            self._other.replace(share, other._other)
        self._total = None
        _fade(self._cells, np.float32(1.0 - share))
        cells = _reaching(self._cells, other._cells[0])
        cells[1:, np.searchsorted(cells[0], other._cells[0])] += np.float32(share) * other._cells[1:]
        self._cells = _in_use(cells)

    def copy(self) -> LoadEvidence:
        """The same counts, to be changed apart from these."""
        return LoadEvidence.of(self.stored(), self.stored_promises())

    def converted(self, shift: int) -> LoadEvidence:
        """In the other unit, with these beside it; where none has been counted in that, all of them so much higher."""
        if self._other is None:
            return self._at(shift)
        own, others = self.stored_promises(), self._other.stored_promises()
        known = [*(others or [b""]), *(own or [b""])[:1]] if own or others else ()
        return LoadEvidence.of([*self._other.stored(), *self.stored()[:2]], known)

    def _at(self, shift: int) -> LoadEvidence:
        """The same counts so many indices higher; what would lie outside the lattice is left out."""
        moved, indices = LoadEvidence(), self._cells[0] + shift
        inside = (indices >= 0) & (indices < BINS)
        # In rows: numpy keeps the order of a choice of columns, for which loops would be compiled once more.
        moved._cells = np.ascontiguousarray(np.vstack((indices[inside], self._cells[1:, inside])), np.float32)
        return moved

    def highest_good(self, least: float) -> int | None:
        """Highest index at or above which this many good requests were seen."""
        enough = np.cumsum(self._cells[1, ::-1], dtype=np.float64)[::-1] >= least
        return int(self._cells[0, np.flatnonzero(enough)[-1]]) if enough.any() else None

    def lowest_missed(self, least: float) -> int | None:
        """Lowest index at or below which this many requests missed."""
        enough = np.cumsum(self._cells[2], dtype=np.float64) >= least
        return int(self._cells[0, np.flatnonzero(enough)[0]]) if enough.any() else None

    def mean(self) -> float | None:
        """Mean index of the requests; None where none is held."""
        each = self.cells[1:].sum(axis=0, dtype=np.float64).tolist()
        total = math.fsum(each)
        indices = self._cells[0].tolist()
        return math.fsum(n * k for k, n in zip(indices, each, strict=True)) / total if total > 0 else None

    def stored(self) -> list[bytes]:
        """Indices in use as int16, and their counts as float32 [2, M], both little-endian; then the other unit's."""
        others = [] if self._other is None else self._other.stored()
        return [self._cells[0].astype("<i2").tobytes(), self.cells[1:].astype("<f4").tobytes(), *others]

    def stored_promises(self) -> list[bytes]:
        """Counts of what missed each promise as float32 [2, M], little-endian, then the other unit's; none known: [].

        Apart from the others, so that a release that does not know them reads those.
        """
        counts = self._cells[_JOINT:].astype("<f4").tobytes()
        # Bytes are looked at in a tenth of the time of numbers, and a commit stores them of every workload.
        own = counts if counts.strip(b"\0") else b""
        others = [] if self._other is None else self._other.stored_promises()
        return [own, *others] if own or others else []

    @classmethod
    def of(cls, stored: Sequence[bytes], promises: Sequence[bytes] = ()) -> LoadEvidence:
        """What `stored` and `stored_promises` were told of.

        Raises:
            ValueError: lengths that do not fit, or indices that are not ascending ones of the lattice.
        """
        bins, counts, *others = stored
        indices = np.frombuffer(bins, dtype="<i2")
        if len(indices) and (indices.min() < 0 or indices.max() >= BINS):
            raise ValueError(f"evidence of capacity has indices outside 0..{BINS - 1}")
        if (np.diff(indices) <= 0).any():
            raise ValueError("evidence of capacity has indices that are not ascending")
        evidence = cls()
        cells = np.zeros((_ROWS, len(indices)), np.float32)
        cells[0], cells[1:_JOINT] = indices, np.frombuffer(counts, dtype="<f4").reshape(2, len(indices))
        if promises and promises[0]:
            cells[_JOINT:] = np.frombuffer(promises[0], dtype="<f4").reshape(2, len(indices))
        evidence._cells = _in_use(cells)
        if others:
            evidence._other = cls.of(others, promises[1:])
        return evidence


def _reaching(cells: Cells, indices: Cells) -> Cells:
    """A copy that has columns of these indices, too."""
    union = np.union1d(cells[0], indices)
    wider = np.zeros((_ROWS, len(union)), np.float32)
    wider[0] = union
    wider[1:, np.searchsorted(union, cells[0])] = cells[1:]
    return wider


def _in_use(cells: Cells) -> Cells:
    """Without the columns that hold nothing: no promise was missed by more than missed any."""
    used = cells[1:_JOINT].any(axis=0)
    return cells if used.all() else np.ascontiguousarray(cells[:, used])


@compiled
def _fade(cells: Cells, keep: np.float32) -> bool:
    """Multiply, and forget what is next to nothing; whether a column holds nothing now."""
    nothing, empty = np.float32(_NOTHING), False
    for k in range(cells.shape[1]):
        for label in range(1, _ROWS):
            count = cells[label, k] * keep
            cells[label, k] = np.float32(0.0) if count < nothing else count
        empty |= cells[1, k] == 0.0 and cells[2, k] == 0.0
    return empty


@compiled
def _add_to(counts: Cells, part: float, good: float, missed: float, ttft: float, tpot: float) -> None:
    counts[0] += np.float32(good * part)
    counts[1] += np.float32(missed * part)
    counts[2] += np.float32(ttft * part)
    counts[3] += np.float32(tpot * part)


@compiled
def _add(cells: Cells, low: int, above: float, good: float, missed: float, ttft: float, tpot: float) -> bool:
    """Share requests between an index and the next one, which gets the part `above`; false: there is a column to add.

    Nothing is counted then.
    """
    at, found = 0, cells.shape[1]
    while at < found and cells[0, at] < low:
        at += 1
    if at == found or cells[0, at] != low:
        return False
    if above > 0.0 and (at + 1 == found or cells[0, at + 1] != low + 1):
        return False
    _add_to(cells[1:, at], 1.0 - above, good, missed, ttft, tpot)
    if above > 0.0:
        _add_to(cells[1:, at + 1], above, good, missed, ttft, tpot)
    return True
