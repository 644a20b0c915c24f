"""Compiled numerics of several packages: powers and roots, exponential averages, rounding, and widening of paths.

`exponential` and `roots_of` are written out with a series and the bits of the exponent, for two reasons. The loops
become vector instructions, while a call of the C library does not. And the same operations run on every machine, so
that a plan has the same bits wherever it is made; the C library's last bit differs between versions. No function of
numpy or scipy offers both inside a compiled loop.
"""

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
_EXPONENT_BITS: Final = (1023 + _FRACTION_BITS) << _FRACTION_BITS  # with a whole number in the fraction: 2^52 and that
_EXPONENT_OFFSET: Final = 2.0**_FRACTION_BITS + 1023.0
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

    The logarithm of 2^e m is e, from the bits, plus that of m in [1, 2], from the series of atanh. The whole power of
    two of the root is written to its bits again. Integers of 64 bits are converted by adding them to a number of known
    magnitude, because AVX2 has no vector instruction for that conversion.

    Source: J.-M. Muller, "Elementary functions: algorithms and implementation", for the reduction of the argument.
    """
    bits, numbers = np.empty(len(x), np.int64), np.empty(len(x), np.int64)
    source, exponents, fraction = x.view(np.int64), bits.view(np.float64), numbers.view(np.float64)
    for k in range(len(x)):
        bits[k] = (source[k] >> _FRACTION_BITS) | _EXPONENT_BITS
        numbers[k] = (source[k] & _FRACTION) | _ONE_BITS
    share = 1.0 / degree
    for k in range(len(x)):
        u = (fraction[k] - _SQRT_2) / (fraction[k] + _SQRT_2)
        v = u * u
        log = 2.0 * u * (1.0 + v * (1 / 3 + v * (1 / 5 + v * (1 / 7 + v * (1 / 9 + v * (1 / 11))))))
        log_2 = (exponents[k] - _EXPONENT_OFFSET + (0.5 + log * _PER_LOG_2)) * share
        exponents[k] = log_2 + _ROUNDS
        out[k] = exponential((log_2 - (exponents[k] - _ROUNDS)) * _LOG_2)
    result = out.view(np.int64)
    for k in range(len(x)):
        result[k] += bits[k] << _FRACTION_BITS
    for k in range(len(x)):
        if x[k] < _LEAST_NORMAL:
            out[k] = x[k] ** (1.0 / degree)


# Exponential averages of paths.


Single = NDArray[np.float32]
Mask = NDArray[np.bool_]


@compiled
def exponential_averages(paths: Single, keep: Single, start: Single, out: Single) -> None:
    """Average every path from a row's start on: a step leaves the share `keep` of the distance to its value.

    Args:
        paths: [B, H, S]; all paths take a step together, which processors do several at a time.
        keep, start: [B].
        out: [B, H, S].
    """
    rows, steps, paths_per_row = paths.shape
    average = np.empty(paths_per_row, np.float32)
    for b in range(rows):
        average[:] = start[b]
        for h in range(steps):
            for s in range(paths_per_row):
                here = paths[b, h, s]
                average[s] = here + (average[s] - here) * keep[b]
            out[b, h] = average


@compiled
def decayed_mean(values: Single, observed: Mask, column: int, rate: float) -> tuple[bool, float]:
    """The average of one column, whose rows weigh less the older they are.

    Args:
        values, observed: [L, N], oldest first.
        rate: of the weights' exponential decay, per row; from the newest row observed, so that not all of them vanish.

    Returns:
        Whether any row was observed, and the average of those.
    """
    newest, total, weights = -1, 0.0, 0.0
    for row in range(len(values) - 1, -1, -1):
        if observed[row, column]:
            newest = row if newest < 0 else newest
            weight = math.exp(-rate * (newest - row))
            total += weight * np.float64(values[row, column])
            weights += weight
    return newest >= 0, total / weights if newest >= 0 else 0.0


# Rounding to six significant digits, for the hundreds of numbers that are published of each workload in every slot.


_DIGITS: Final = 6
_MIN_EXPONENT, _MAX_EXPONENT = -324, 308  # exponents of a float64
with np.errstate(over="ignore"):
    _SCALES: Final = np.power(10.0, _DIGITS - 1 - np.arange(_MIN_EXPONENT, _MAX_EXPONENT + 1, dtype=np.float64))


def six_digits(values: Float) -> Float:
    """The values rounded to six significant digits, which halves their text; NaN where a value is not finite."""
    rounded = np.empty(values.shape)
    _round(np.ascontiguousarray(values).reshape(-1), rounded.reshape(-1))
    return rounded


@compiled
def _round(values: Float, rounded: Float) -> None:
    for k in range(len(values)):
        size = abs(values[k])
        if not size <= _MAX_FLOAT:
            rounded[k] = np.nan
            continue
        magnitude = math.floor(math.log10(size)) if size > 0 else 0
        scale = _SCALES[magnitude - _MIN_EXPONENT]
        rounded[k] = np.rint(values[k] * scale) / scale


_MAX_FLOAT: Final = float(np.finfo(np.float64).max)


def warm_up_digits() -> None:
    """Compile or load `six_digits`."""
    six_digits(np.ones(1))


# Widening of paths around the median of their step.


@compiled
def widen(values: Single, middle: Single, factors: Single, reach: Single, lower: np.float32, upper: np.float32) -> None:
    """Multiply distances from the middle by each row's factor, in place, within the bounds and no further than `reach`.

    Rows with factor 1 keep their bits, and so does a value that lies beyond the reach as it is.

    Args:
        values: [B, H, S].
        middle: [B, H].
        factors: [B].
        reach: [B], the largest distance from the middle that widening may bring about.
    """
    for b in range(values.shape[0]):
        factor = factors[b]
        if factor == np.float32(1.0):
            continue
        for h in range(values.shape[1]):
            line, at = values[b, h], middle[b, h]
            for s in range(len(line)):
                apart = line[s] - at
                most = max(abs(apart), reach[b])
                value = min(max(apart * factor, -most), most) + at
                value = lower if value < lower else value  # noqa: FURB136
                line[s] = upper if value > upper else value  # noqa: FURB136


def warm_up_widening() -> None:
    """Compile or load `six_digits`."""
    values, row = np.ones((1, 2, 3), np.float32), np.ones(1, np.float32)
    widen(values, np.ones((1, 2), np.float32), row, row, np.float32(0.0), np.float32(1.0))
