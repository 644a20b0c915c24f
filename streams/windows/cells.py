"""Cells of the rings: numbers that know whether they were observed, without a mask beside them.

All bits zero means: not observed. So memory that nobody has written yet is empty as it comes, and takes no space.

| kind | bytes | holds | an observed zero |
|---|---|---|---|
| full | 4 | a float32 as it is | minus zero, read back as zero |
| half | 2 | a float without a sign: six bits of exponent, ten of mantissa | the smallest code |

A half cell keeps 0 and 2^-30 to 2^33 within 1/2048, which is far below the noise of a mean. It rounds by integer
arithmetic, so the result is the same on every machine.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

FullCells = NDArray[np.float32]
HalfCells = NDArray[np.uint16]
T = TypeVar("T", bound=np.generic)

_MINUS_ZERO: Final = np.float32(-0.0)
_MANTISSA_BITS: Final = 10
_DROPPED_BITS: Final = 23 - _MANTISSA_BITS
_MIN_EXPONENT: Final = np.uint32((127 - 31) << _MANTISSA_BITS)
_ZERO_CODE: Final = 1
_MAX_CODE: Final = 0xFFFF


def pack_full(values: NDArray[Any], observed: NDArray[np.bool_]) -> FullCells:
    """Full cells of values, of any shape, and of which of them were observed.

    >>> cells = pack_full(np.array([1.5, 0.0, 7.0]), np.array([True, True, False]))
    >>> full_values(cells).tolist(), full_observed(cells).tolist()
    ([1.5, 0.0, 0.0], [True, True, False])
    """
    packed = np.where(observed, values, np.float32(0)).astype(np.float32, copy=False)
    packed[observed & (packed == 0)] = _MINUS_ZERO
    return packed


def full_observed(cells: FullCells) -> NDArray[np.bool_]:
    """Which full cells hold a value."""
    observed: NDArray[np.bool_] = np.ascontiguousarray(cells).view(np.uint32) != 0
    return observed


def full_values(cells: FullCells) -> NDArray[np.float32]:
    """The values of full cells, 0 where there is none."""
    return cells + np.float32(0)


def pack_half(values: NDArray[np.float32], observed: NDArray[np.bool_]) -> HalfCells:
    """Half cells of values, of any shape, and of which of them were observed; a value below 0 counts as 0.

    >>> cells = pack_half(np.array([4.5, 0.0, 7.0], np.float32), np.array([True, True, False]))
    >>> half_values(cells).tolist(), half_observed(cells).tolist()
    ([4.5, 0.0, 0.0], [True, True, False])
    """
    bits = np.maximum(values, 0.0).astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(1 << (_DROPPED_BITS - 1))) >> np.uint32(_DROPPED_BITS)
    above = np.maximum(rounded, _MIN_EXPONENT) - _MIN_EXPONENT
    return np.where(observed, np.clip(above, _ZERO_CODE, _MAX_CODE), 0).astype(np.uint16)


def half_observed(cells: HalfCells) -> NDArray[np.bool_]:
    """Which half cells hold a value."""
    observed: NDArray[np.bool_] = cells != 0
    return observed


def half_values(cells: HalfCells) -> NDArray[np.float32]:
    """The values of half cells, 0 where there is none."""
    return _HALF_VALUES.take(cells)


def half_value(cell: int) -> float | None:
    """The value of one half cell; None where there is none."""
    return _HALF_VALUES.item(cell) if cell else None


def _unpack_half(cells: HalfCells) -> NDArray[np.float32]:
    bits = (cells.astype(np.uint32) + _MIN_EXPONENT) << np.uint32(_DROPPED_BITS)
    return np.where(cells > _ZERO_CODE, bits.view(np.float32), np.float32(0))


# The value of every code: a week of half cells is read in every slot.
_HALF_VALUES: Final = _unpack_half(np.arange(_MAX_CODE + 1, dtype=np.uint16))


def grow_rows(cells: NDArray[T], capacity: int) -> NDArray[T]:
    """The same cells, of either kind, with room for more rows; the new rows stay unwritten."""
    larger = np.zeros((capacity, *cells.shape[1:]), cells.dtype)
    larger[: len(cells)] = cells
    return larger


def from_oldest(ring: NDArray[T], newest: int) -> NDArray[T]:
    """The cells of a ring, of either kind, oldest first.

    Args:
        newest: number of the newest entry; it stands at this number modulo the length.

    >>> from_oldest(np.array([40, 10, 20, 30]), newest=4).tolist()
    [10, 20, 30, 40]
    """
    cut = (newest + 1) % len(ring)
    return np.concatenate((ring[cut:], ring[:cut]))
