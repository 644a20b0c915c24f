"""Float32 cells that know whether they were observed, without a mask beside them.

All bits zero means: not observed. An observed zero is kept as minus zero, and read back as zero. So memory that nobody
has written yet is empty as it comes, and a ring costs four bytes per cell.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.float32]
T = TypeVar("T", bound=np.generic)

_MINUS_ZERO = np.float32(-0.0)


def empty(shape: tuple[int, ...]) -> Cells:
    """Cells of which none is observed; takes memory only as it is written."""
    return np.zeros(shape, np.float32)


def pack(values: NDArray[Any], observed: NDArray[np.bool_]) -> Cells:
    """Cells of values, of any shape, and of which of them were observed."""
    packed = np.where(observed, values, np.float32(0)).astype(np.float32, copy=False)
    packed[observed & (packed == 0)] = _MINUS_ZERO
    return packed


def observed(cells: Cells) -> NDArray[np.bool_]:
    """Which cells hold a value."""
    seen: NDArray[np.bool_] = np.ascontiguousarray(cells).view(np.uint32) != 0
    return seen


def values(cells: Cells) -> Cells:
    """The values, 0 where there is none."""
    return cells + np.float32(0)


def grown(cells: NDArray[T], capacity: int) -> NDArray[T]:
    """The same cells, of any kind, with more rows; those stay unwritten."""
    larger = np.zeros((capacity, *cells.shape[1:]), cells.dtype)
    larger[: len(cells)] = cells
    return larger


def from_oldest(ring: NDArray[T], newest: int) -> NDArray[T]:
    """A ring's cells, of any kind, oldest first: `newest` stands at its number modulo the length, oldest after it."""
    cut = (newest + 1) % len(ring)
    return np.concatenate((ring[cut:], ring[:cut]))
