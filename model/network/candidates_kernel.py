"""Autoregressions of one token, compiled: what `model.network.autoregression` says for batches of tensors."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Mask = NDArray[np.bool_]

ROWS: Final = 384  # least squares
ORDER: Final = 24
PENALTIES: Final = (0.003, 0.1)
CHANGE_ORDER: Final = 8
CHANGE_PENALTY: Final = 0.1
MIN_ROWS: Final = 40
LONG_ROWS: Final = 1024  # Yule-Walker
LONG_ORDER: Final = 64
LONG_PENALTY: Final = 0.003
NUM_FITS: Final = 4  # least squares with either penalty, Yule-Walker, of changes


class Fits(NamedTuple):
    """Room for the autoregressions of one token.

    Attributes:
        coefficients: [4, 64], newest lag first, 0 beyond the order.
        orders: int64 [4].
        means: [4], taken off first.
        bounds: [4, 2] of what is fed back.
        enough: bool [4], rows enough to fit on; the others are not fitted.
        gram, cross: [24, 24] and [24], of the normal equations.
        factor: [24, 24].
        past: [64 + 64], what is fed back, oldest first.
    """

    coefficients: Float
    orders: NDArray[np.int64]
    means: Float
    bounds: Float
    enough: Mask
    gram: Float
    cross: Float
    factor: Float
    past: Float


def room(horizon: int) -> Fits:
    """Room for tokens whose forecasts reach `horizon` steps."""
    return Fits(
        np.zeros((NUM_FITS, LONG_ORDER)),
        np.zeros(NUM_FITS, np.int64),
        np.zeros(NUM_FITS),
        np.zeros((NUM_FITS, 2)),
        np.zeros(NUM_FITS, np.bool_),
        np.empty((ORDER, ORDER)),
        np.empty(ORDER),
        np.empty((ORDER, ORDER)),
        np.empty(LONG_ORDER + horizon),
    )


@compiled
def fit(z: Single, known: Mask, fits: Fits) -> float:
    """Fit all four on the newest rows.

    Args:
        z, known: [L], gaps filled.

    Returns:
        One-step residual deviation of the least squares with the smaller penalty.
    """
    first = max(0, len(z) - ROWS)
    x, seen = np.empty(len(z) - first), known[first:]
    mean = _mean(z[first:], seen)
    for t in range(len(x)):
        x[t] = z[first + t] - mean
    order = min(ORDER, max(2, len(x) // 6))
    counted = np.empty(len(x), np.bool_)
    windows = _complete(seen, order, counted)
    _normal_equations(x, counted, order, fits)
    for k in range(len(PENALTIES)):
        _solve(fits, order, PENALTIES[k], fits.coefficients[k])
        fits.orders[k], fits.means[k] = order, mean
        _bound(x, 0.5, fits.bounds[k])
        fits.enough[k] = windows >= MIN_ROWS
    residual = _residual(x, counted, order, fits.coefficients[0])
    _yule_walker(z, known, fits)
    for t in range(len(x) - 1):
        x[t] = np.float64(z[first + t + 1]) - z[first + t]
    both = seen[1:] & seen[:-1]
    change = x[: len(x) - 1]
    windows = _complete(both, CHANGE_ORDER, counted)
    _normal_equations(change, counted, CHANGE_ORDER, fits)
    _solve(fits, CHANGE_ORDER, CHANGE_PENALTY, fits.coefficients[3])
    fits.orders[3], fits.means[3] = CHANGE_ORDER, 0.0
    _bound(change, 0.0, fits.bounds[3])
    fits.enough[3] = windows >= MIN_ROWS
    return residual


@compiled
def iterate(fits: Fits, k: int, z: Single, end: int, out: Single) -> None:
    """Forecast from the rows before `end`, each step fed back.

    Args:
        k: which of the fits; the last one speaks of changes.
        z: [L].
        out: [H].
    """
    order, coefficients, past = fits.orders[k], fits.coefficients[k], fits.past
    low, high = fits.bounds[k, 0], fits.bounds[k, 1]
    for lag in range(order):
        t = end - 1 - lag
        value = 0.0
        if k == NUM_FITS - 1:
            value = np.float64(z[t]) - z[t - 1] if t >= 1 else 0.0
        elif t >= 0:
            value = z[t] - fits.means[k]
        past[order - 1 - lag] = value
    level = np.float64(z[end - 1])
    for h in range(len(out)):
        total = 0.0
        for lag in range(order):
            total += coefficients[lag] * past[order + h - 1 - lag]
        step = min(max(total, low), high)
        past[order + h] = step
        level += step
        out[h] = level if k == NUM_FITS - 1 else step + fits.means[k]


@compiled
def _mean(z: Single, known: Mask) -> float:
    total, count = 0.0, 0
    for t in range(len(z)):
        if known[t]:
            total += z[t]
            count += 1
    return total / max(count, 1)


@compiled
def _bound(x: Float, slack: float, out: Float) -> None:
    low, high = x[0], x[0]
    for t in range(1, len(x)):
        low, high = min(low, x[t]), max(high, x[t])
    out[0], out[1] = low - slack * (high - low), high + slack * (high - low)


@compiled
def _complete(known: Mask, order: int, out: Mask) -> int:
    """Which rows are known and have more than four fifths of the `order` rows before them; returns how many."""
    before, count = 0, 0
    for t in range(len(known)):
        out[t] = t >= order and known[t] and before > 0.8 * order
        count += out[t]
        before += known[t]
        if t >= order:
            before -= known[t - order]
    return count


@compiled
def _normal_equations(x: Float, counted: Mask, order: int, fits: Fits) -> None:
    """Gram matrix (lower triangle) of the lags and products with the target, over the rows that count."""
    gram, cross = fits.gram, fits.cross
    gram[:order, :order] = 0.0
    cross[:order] = 0.0
    backwards = x[::-1].copy()  # so that the lags of a row stand newest first
    for t in range(order, len(x)):
        if not counted[t]:
            continue
        lags = backwards[len(x) - t : len(x) - t + order]
        for i in range(order):
            row = gram[i]
            for j in range(i + 1):
                row[j] += lags[i] * lags[j]
        for i in range(order):
            cross[i] += x[t] * lags[i]


@compiled
def _solve(fits: Fits, order: int, penalty: float, out: Float) -> None:
    """Ridge by Cholesky; the penalty is a share of the mean power of a lag."""
    gram, cross, factor = fits.gram, fits.cross, fits.factor
    power = 0.0
    for i in range(order):
        power += gram[i, i]
    power = power / order + 1e-6
    out[:] = 0.0
    for i in range(order):
        for j in range(i + 1):
            total = gram[i, j]
            if i == j:
                total += penalty * power
            for m in range(j):
                total -= factor[i, m] * factor[j, m]
            factor[i, j] = np.sqrt(total) if i == j else total / factor[j, j]
    for i in range(order):
        total = cross[i]
        for m in range(i):
            total -= factor[i, m] * out[m]
        out[i] = total / factor[i, i]
    for i in range(order - 1, -1, -1):
        total = out[i]
        for m in range(i + 1, order):
            total -= factor[m, i] * out[m]
        out[i] = total / factor[i, i]


@compiled
def _residual(x: Float, counted: Mask, order: int, coefficients: Float) -> float:
    total, windows = 0.0, 0
    for t in range(order, len(x)):
        if counted[t]:
            gap = x[t]
            for lag in range(order):
                gap -= coefficients[lag] * x[t - 1 - lag]
            total += gap * gap
            windows += 1
    return math.sqrt(total / max(windows, 1))


@compiled
def _yule_walker(z: Single, known: Mask, fits: Fits) -> None:
    """Autocovariances of the newest rows, and the Toeplitz system in them by Levinson's recursion."""
    first = max(0, len(z) - LONG_ROWS)
    seen, count = known[first:], 0
    for t in range(len(seen)):
        count += seen[t]
    fits.enough[2] = count >= 3 * LONG_ORDER
    fits.orders[2] = LONG_ORDER
    if not fits.enough[2]:
        return
    mean = _mean(z[first:], seen)
    x = np.empty(len(seen))
    for t in range(len(seen)):
        x[t] = z[first + t] - mean
    fits.means[2] = mean
    _bound(x, 0.3, fits.bounds[2])
    for t in range(len(x)):
        x[t] = x[t] if seen[t] else 0.0
    covariance, backwards = np.zeros(LONG_ORDER + 1), x[::-1].copy()
    for t in range(len(x)):
        lags = backwards[len(x) - 1 - t : len(x) + LONG_ORDER - t]
        for lag in range(len(lags)):
            covariance[lag] += x[t] * lags[lag]
    _levinson(covariance, (1 + LONG_PENALTY) * covariance[0] + LONG_PENALTY * 1e-6, fits.coefficients[2])


@compiled
def _levinson(covariance: Float, diagonal: float, out: Float) -> None:
    """Solve toeplitz(diagonal, covariance[1:p]) a = covariance[1:p + 1].

    Source: N. Levinson, "The Wiener RMS error criterion in filter design and prediction", 1946 (Durbin's form).
    """
    order = len(out)
    out[:] = 0.0
    if diagonal <= 0:
        return
    error = diagonal
    before = np.empty(order)
    for k in range(order):
        total = covariance[k + 1]
        for j in range(k):
            total -= out[j] * covariance[k - j]
        reflection = total / error
        before[:k] = out[:k]
        for j in range(k):
            out[j] = before[j] - reflection * before[k - 1 - j]
        out[k] = reflection
        error *= 1 - reflection * reflection
