"""Numbers to six significant digits, compiled: of each workload some hundreds are published in every slot."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]

_DIGITS: Final = 6
_LEAST, _MOST = -324, 308  # exponents of a float64
with np.errstate(over="ignore"):
    _SCALES: Final = np.power(10.0, _DIGITS - 1 - np.arange(_LEAST, _MOST + 1, dtype=np.float64))


def six_digits(values: Float) -> Float:
    """What a reader can use, in half the bytes; what is not finite has no digits, and is nan."""
    rounded = np.empty(values.shape)
    _round(np.ascontiguousarray(values).reshape(-1), rounded.reshape(-1))
    return rounded


@compiled
def _round(values: Float, rounded: Float) -> None:
    for k in range(len(values)):
        size = abs(values[k])
        if not size <= _BEYOND:
            rounded[k] = np.nan
            continue
        magnitude = math.floor(math.log10(size)) if size > 0 else 0
        scale = _SCALES[magnitude - _LEAST]
        rounded[k] = np.rint(values[k] * scale) / scale


_BEYOND: Final = float(np.finfo(np.float64).max)


def warm_up() -> None:
    """Compile or load it."""
    six_digits(np.ones(1))
