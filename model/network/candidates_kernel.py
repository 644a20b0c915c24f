"""Compiled loops for the candidates without a season, token by token: the same as `model.network.candidates`."""

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
    """Work arrays for the autoregressions of one token.

    Attributes:
        coefficients: [4, 64], newest lag first, 0 beyond the order.
        orders: int64 [4].
        means: [4], subtracted first.
        bounds: [4, 2] of the forecasts that are fed back.
        enough: bool [4], whether there are enough rows; without them a model is not fitted.
        gram, cross: [24, 24] and [24], of the normal equations.
        factor: [24, 24].
        past: [64 + 64], lags and forecasts, oldest first.
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
    """Work arrays for forecasts of `horizon` steps."""
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
def fit(z: Single, observed: Mask, fits: Fits) -> float:
    """Fit all four on the newest rows.

    Args:
        z, observed: [L], gaps filled.

    Returns:
        One-step residual deviation of the least squares with the smaller penalty.
    """
    first = max(0, len(z) - ROWS)
    x, present = np.empty(len(z) - first), observed[first:]
    mean = _mean(z[first:], present)
    for t in range(len(x)):
        x[t] = z[first + t] - mean
    order = min(ORDER, max(2, len(x) // 6))
    usable = np.empty(len(x), np.bool_)
    windows = _complete(present, order, usable)
    _normal_equations(x, usable, order, fits)
    for k in range(len(PENALTIES)):
        _solve(fits, order, PENALTIES[k], fits.coefficients[k])
        fits.orders[k], fits.means[k] = order, mean
        _bound(x, 0.5, fits.bounds[k])
        fits.enough[k] = windows >= MIN_ROWS
    residual = _residual(x, usable, order, fits.coefficients[0])
    _yule_walker(z, observed, fits)
    for t in range(len(x) - 1):
        x[t] = np.float64(z[first + t + 1]) - z[first + t]
    both = present[1:] & present[:-1]
    change = x[: len(x) - 1]
    windows = _complete(both, CHANGE_ORDER, usable)
    _normal_equations(change, usable, CHANGE_ORDER, fits)
    _solve(fits, CHANGE_ORDER, CHANGE_PENALTY, fits.coefficients[3])
    fits.orders[3], fits.means[3] = CHANGE_ORDER, 0.0
    _bound(change, 0.0, fits.bounds[3])
    fits.enough[3] = windows >= MIN_ROWS
    return residual


@compiled
def iterate(fits: Fits, k: int, z: Single, end: int, out: Single) -> None:
    """Forecast from the rows before `end`, each step fed back.

    Args:
        k: index of the fit; the last one regresses changes.
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
def _mean(z: Single, observed: Mask) -> float:
    total, count = 0.0, 0
    for t in range(len(z)):
        if observed[t]:
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
def _complete(observed: Mask, order: int, out: Mask) -> int:
    """Which rows are known and have more than four fifths of the `order` rows before them; returns how many."""
    before, count = 0, 0
    for t in range(len(observed)):
        out[t] = t >= order and observed[t] and before > 0.8 * order
        count += out[t]
        before += observed[t]
        if t >= order:
            before -= observed[t - order]
    return count


@compiled
def _normal_equations(x: Float, usable: Mask, order: int, fits: Fits) -> None:
    """Gram matrix (lower triangle) of the lags and products with the target, over the rows that count."""
    gram, cross = fits.gram, fits.cross
    gram[:order, :order] = 0.0
    cross[:order] = 0.0
    backwards = x[::-1].copy()  # so that the lags of a row stand newest first
    for t in range(order, len(x)):
        if not usable[t]:
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
def _residual(x: Float, usable: Mask, order: int, coefficients: Float) -> float:
    total, windows = 0.0, 0
    for t in range(order, len(x)):
        if usable[t]:
            gap = x[t]
            for lag in range(order):
                gap -= coefficients[lag] * x[t - 1 - lag]
            total += gap * gap
            windows += 1
    return math.sqrt(total / max(windows, 1))


@compiled
def _yule_walker(z: Single, observed: Mask, fits: Fits) -> None:
    """Autocovariances of the newest rows, and the Toeplitz system in them by Levinson's recursion."""
    first = max(0, len(z) - LONG_ROWS)
    present, count = observed[first:], 0
    for t in range(len(present)):
        count += present[t]
    fits.enough[2] = count >= 3 * LONG_ORDER
    fits.orders[2] = LONG_ORDER
    if not fits.enough[2]:
        return
    mean = _mean(z[first:], present)
    x = np.empty(len(present))
    for t in range(len(present)):
        x[t] = z[first + t] - mean
    fits.means[2] = mean
    _bound(x, 0.3, fits.bounds[2])
    for t in range(len(x)):
        x[t] = x[t] if present[t] else 0.0
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


# The simple forecasts of every token that need no season, and their errors in context, compiled.
#
# What `candidates`, `backtest` and `analogs` of this package say for batches of tensors, one token after the other.


Ints = NDArray[np.int64]

ORIGINS: Final = (4, 8, 14, 22, 32)  # rows before the newest at which forecasts are judged
STEPS: Final = 12
SHORT: Final = 2
ANALOG_ROWS: Final = 1024
JUDGED_ROWS: Final = 512  # of analogs
STRETCH: Final = 24
NEAREST: Final = 6
MIN_FOLLOW: Final = 16


class TokenForecasts(NamedTuple):
    """Of M tokens, over H steps; D moving averages.

    Attributes:
        levels: [M, 1 + D], the last value and the moving averages.
        linear: [M, 4, H], of the autoregressions.
        enough: [M, 4], where there are rows enough to fit them.
        residual: [M], one-step deviation of the least squares.
        alike: [M, 2, H], what followed the nearest stretches: at its own level, and shifted.
        reached: [M, H], where any of those stretches reaches.
        errors: [M, 1 + D + 4 + 2, 2], mean absolute error in context over the short and the whole band; NaN where
            nothing can be scored.
    """

    levels: Single
    linear: Single
    enough: Mask
    residual: Single
    alike: Single
    reached: Mask
    errors: Single


class _Analogs(NamedTuple):
    """Room for the nearest stretches of one token.

    Attributes:
        distance: [L].
        starts, near: [6].
        paths: [2, H], continuations.
        reached: [H].
    """

    distance: Single
    starts: Ints
    near: Float
    paths: Float
    reached: Mask


def token_forecasts(z: Single, observed: Mask, weights: Single, horizon: int) -> TokenForecasts:
    """Forecast.

    Args:
        z, observed: [M, L], gaps filled.
        weights: [D, R], of the newest R <= L rows in each moving average.
        horizon: H.
    """
    m, kinds = len(z), 1 + len(weights)
    out = TokenForecasts(
        np.empty((m, kinds), np.float32),
        np.zeros((m, NUM_FITS, horizon), np.float32),
        np.zeros((m, NUM_FITS), np.bool_),
        np.empty(m, np.float32),
        np.zeros((m, 2, horizon), np.float32),
        np.zeros((m, horizon), np.bool_),
        np.full((m, kinds + NUM_FITS + 2, 2), np.nan, np.float32),
    )
    reach = max(horizon, STEPS)
    work = _Analogs(
        np.empty(z.shape[1], np.float32),
        np.empty(NEAREST, np.int64),
        np.empty(NEAREST),
        np.empty((2, reach)),
        np.empty(reach, np.bool_),
    )
    _all_tokens(np.ascontiguousarray(z), np.ascontiguousarray(observed), weights, out, room(reach), work)
    return out


@compiled
def _all_tokens(z: Single, observed: Mask, weights: Single, out: TokenForecasts, fits: Fits, work: _Analogs) -> None:
    length, horizon = z.shape[1], out.linear.shape[2]
    for m in range(len(z)):
        x, present = z[m], observed[m]
        _levels(x, present, length, weights, out.levels[m])
        out.residual[m] = fit(x, present, fits)
        for k in range(NUM_FITS):
            out.enough[m, k] = fits.enough[k]
            if fits.enough[k]:
                iterate(fits, k, x, length, out.linear[m, k])
        first = max(0, length - ANALOG_ROWS)
        _analogs(x[first:], present[first:], horizon, work)
        for h in range(horizon):
            out.reached[m, h] = work.reached[h]
            out.alike[m, 0, h], out.alike[m, 1, h] = work.paths[0, h], work.paths[1, h]
        _judge(x, present, weights, fits, work, out.errors[m])


@compiled
def _levels(x: Single, observed: Mask, end: int, weights: Single, out: Single) -> None:
    """Last value and moving averages of the rows before `end`; rows before the first repeat it."""
    out[0] = x[end - 1]
    for k in range(len(weights)):
        total, mass = 0.0, 0.0
        for r in range(weights.shape[1]):
            t = max(end - weights.shape[1] + r, 0)
            if observed[t]:
                total += weights[k, r] * x[t]
                mass += weights[k, r]
        out[1 + k] = total / max(mass, 1e-6)


@compiled
def _judge(x: Single, observed: Mask, weights: Single, fits: Fits, work: _Analogs, errors: Single) -> None:
    """Mean absolute errors of all forecasts from a few origins inside the context."""
    length, kinds = len(x), 1 + len(weights)
    rows = kinds + NUM_FITS + 2
    total, count = np.zeros((rows, 2)), np.zeros((rows, 2))
    levels, steps = np.empty(kinds, np.float32), np.empty(STEPS, np.float32)
    for back in ORIGINS:
        end = length - back
        scored = min(STEPS, back)
        truth, present = x[end : end + scored], observed[end : end + scored]
        _levels(x, observed, end, weights, levels)
        for k in range(kinds):
            steps[:] = levels[k]
            _score(steps, truth, present, total[k], count[k])
        for k in range(NUM_FITS):
            if fits.enough[k]:
                iterate(fits, k, x, end, steps)
                _score(steps, truth, present, total[kinds + k], count[kinds + k])
        first = max(0, end - JUDGED_ROWS)
        _analogs(x[first:end], observed[first:end], STEPS, work)
        for k in range(2):
            for h in range(STEPS):
                steps[h] = work.paths[k, h]
            place = kinds + NUM_FITS + k
            _score(steps, truth, present & work.reached[:scored], total[place], count[place])
    for k in range(rows):
        for band in range(2):
            errors[k, band] = total[k, band] / count[k, band] if count[k, band] > 0 else np.nan


@compiled
def _score(forecast: Single, truth: Single, observed: Mask, total: Float, count: Float) -> None:
    for h in range(len(truth)):
        if observed[h]:
            error = abs(forecast[h] - truth[h])
            total[1] += error
            count[1] += 1
            if h < SHORT:
                total[0] += error
                count[0] += 1


@compiled
def _analogs(x: Single, observed: Mask, horizon: int, work: _Analogs) -> None:
    """Weighted mean of what followed the six stretches nearest to the newest, into `paths` and `reached`."""
    paths, reached, distance = work.paths, work.reached, work.distance
    paths[:, :horizon] = 0.0
    reached[:horizon] = False
    length = len(x)
    num = length - STRETCH - min(MIN_FOLLOW, horizon) + 1
    if num < NEAREST:
        return
    distance[:num] = 0.0
    for k in range(STRETCH):  # one lag at a time: stretches lie side by side
        newest = x[length - STRETCH + k]
        for t in range(num):
            gap = x[t + k] - newest
            distance[t] += gap * gap
    present = 0
    for t in range(STRETCH):
        present += observed[t]
    for t in range(num):
        if present <= 0.8 * STRETCH:
            distance[t] = np.inf
        present += int(observed[t + STRETCH]) - int(observed[t])
    _nearest(distance[:num], work)
    weight = np.zeros(NEAREST)
    for j in range(NEAREST):
        if np.isfinite(work.near[j]):
            weight[j] = np.exp(-work.near[j] / (2 * work.near[0] + 1e-3))
    for h in range(horizon):
        own, shifted, mass = 0.0, 0.0, 0.0
        for j in range(NEAREST):
            at = work.starts[j] + STRETCH + h
            if at < length and weight[j] > 0:
                own += weight[j] * x[at]
                shifted += weight[j] * (np.float64(x[at]) - x[work.starts[j] + STRETCH - 1])
                mass += weight[j]
        reached[h] = mass > 1e-6
        paths[0, h] = own / max(mass, 1e-9)
        paths[1, h] = shifted / max(mass, 1e-9) + x[length - 1]


@compiled
def _nearest(distance: Single, work: _Analogs) -> None:
    """The six smallest mean squares, nearest first, the earlier of two alike."""
    starts, near = work.starts, work.near
    near[:] = np.inf
    starts[:] = 0
    for t in range(len(distance)):
        mean = distance[t] / STRETCH
        if mean < near[NEAREST - 1]:
            place = NEAREST - 1
            while place > 0 and near[place - 1] > mean:
                near[place], starts[place] = near[place - 1], starts[place - 1]
                place -= 1
            near[place], starts[place] = mean, t
