"""Cells of two bytes for means of demand: a float without a sign, six bits of exponent and ten of mantissa.

They keep 0 and 2^-30 to 2^33 within 1/2048, which is far below the noise of a mean, and as `sparse_cells` they know
whether they were observed: all bits zero means they were not. Rounding is by integers, so it is the same everywhere.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Halves = NDArray[np.uint16]

_MANTISSA_BITS: Final = 10
_DROPPED_BITS: Final = 23 - _MANTISSA_BITS
_LEAST_EXPONENT: Final = np.uint32((127 - 31) << _MANTISSA_BITS)
_ZERO: Final = 1  # an observed zero; all bits zero is nothing
_MOST: Final = 0xFFFF


def empty(shape: tuple[int, ...]) -> Halves:
    """Cells of which none is observed; takes memory only as it is written."""
    return np.zeros(shape, np.uint16)


def pack(values: NDArray[np.float32], observed: NDArray[np.bool_]) -> Halves:
    """Cells of values, of any shape, and of which of them were observed; what is below 0 counts as 0."""
    bits = np.maximum(values, 0.0).astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(1 << (_DROPPED_BITS - 1))) >> np.uint32(_DROPPED_BITS)
    above = np.maximum(rounded, _LEAST_EXPONENT) - _LEAST_EXPONENT
    return np.where(observed, np.clip(above, _ZERO, _MOST), 0).astype(np.uint16)


def observed(cells: Halves) -> NDArray[np.bool_]:
    """Which cells hold a value."""
    seen: NDArray[np.bool_] = cells != 0
    return seen


def values(cells: Halves) -> NDArray[np.float32]:
    """The values, 0 where there is none."""
    return _VALUES.take(cells)


def value(cell: int) -> float | None:
    """The value of one cell; None where there is none."""
    return _VALUES.item(cell) if cell else None


def _values(cells: Halves) -> NDArray[np.float32]:
    bits = (cells.astype(np.uint32) + _LEAST_EXPONENT) << np.uint32(_DROPPED_BITS)
    return np.where(cells > _ZERO, bits.view(np.float32), np.float32(0))


# Of every cell that there can be: a week of them is read in every slot.
_VALUES: Final = _values(np.arange(_MOST + 1, dtype=np.uint16))
