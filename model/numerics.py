"""Whole powers and roots of many numbers, compiled to steps that processors take several at a time."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]

_FRACTION_BITS: Final = 52  # of a number of 64 bits, below its exponent
_FRACTION: Final = (1 << _FRACTION_BITS) - 1
_ONE_BITS: Final = 1023 << _FRACTION_BITS
_WHOLE_BITS: Final = (1023 + _FRACTION_BITS) << _FRACTION_BITS  # with a whole number in the fraction: 2^52 and that
_WHOLE: Final = 2.0**_FRACTION_BITS + 1023.0
_ROUNDS: Final = 1.5 * 2.0**_FRACTION_BITS  # what is added to it is rounded, and stands in its last bits
_LEAST_NORMAL: Final = 2.0**-1022
_SQRT_2: Final = math.sqrt(2.0)
_LOG_2: Final = math.log(2.0)
_PER_LOG_2: Final = 1.0 / _LOG_2


@compiled
def power(base: float, exponent: int) -> float:
    """`base` to a whole power by squaring: a handful of multiplications."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@compiled
def raise_all(base: Float, exponent: int, result: Float) -> None:
    """`power` of many, the same bits: processors take several at a time. `base` is spent."""
    result[:] = 1.0
    while exponent > 0:
        if exponent & 1:
            for k in range(len(base)):
                result[k] *= base[k]
        exponent >>= 1
        if exponent > 0:
            for k in range(len(base)):
                base[k] *= base[k]


@compiled
def exponential(x: float) -> float:
    """exp(x) for x from -4 to 4 within 1e-7, by steps that make vector instructions: the eighth power of a series."""
    y = 0.125 * x
    late = 1 / 120 + y * (1 / 720 + y * (1 / 5040 + y * (1 / 40320)))
    e = 1.0 + y * (1.0 + y * (1 / 2 + y * (1 / 6 + y * (1 / 24 + y * late))))
    e *= e
    e *= e
    return e * e


@compiled
def roots_of(x: Float, degree: int, out: Float) -> None:
    """Roots of numbers in [0, 1] within 1e-9, in steps that processors take several at a time.

    A number is 2^e m, and so is its logarithm made: e from its bits, that of m from 1 to 2 by atanh's series. The
    root's whole power of two goes into its bits again. No instruction turns integers of 64 bits into numbers and back,
    several at a time; the bits of a number of known magnitude do.
    """
    bits, numbers = np.empty(len(x), np.int64), np.empty(len(x), np.int64)
    source, whole, fraction = x.view(np.int64), bits.view(np.float64), numbers.view(np.float64)
    for k in range(len(x)):
        bits[k] = (source[k] >> _FRACTION_BITS) | _WHOLE_BITS
        numbers[k] = (source[k] & _FRACTION) | _ONE_BITS
    share = 1.0 / degree
    for k in range(len(x)):
        u = (fraction[k] - _SQRT_2) / (fraction[k] + _SQRT_2)
        v = u * u
        log = 2.0 * u * (1.0 + v * (1 / 3 + v * (1 / 5 + v * (1 / 7 + v * (1 / 9 + v * (1 / 11))))))
        log_2 = (whole[k] - _WHOLE + (0.5 + log * _PER_LOG_2)) * share
        whole[k] = log_2 + _ROUNDS
        out[k] = exponential((log_2 - (whole[k] - _ROUNDS)) * _LOG_2)
    result = out.view(np.int64)
    for k in range(len(x)):
        result[k] += bits[k] << _FRACTION_BITS
    for k in range(len(x)):
        if x[k] < _LEAST_NORMAL:
            out[k] = x[k] ** (1.0 / degree)
