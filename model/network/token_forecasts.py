"""The simple forecasts of every token that need no season, and their errors in context, compiled.

What `candidates`, `backtest` and `analogs` of this package say for batches of tensors, one token after the other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled
from model.network.candidates_kernel import NUM_FITS, Fits, fit, iterate, room

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

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
    starts: Whole
    near: Float
    paths: Float
    reached: Mask


def token_forecasts(z: Single, known: Mask, weights: Single, horizon: int) -> TokenForecasts:
    """Forecast.

    Args:
        z, known: [M, L], gaps filled.
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
    _all_tokens(np.ascontiguousarray(z), np.ascontiguousarray(known), weights, out, room(reach), work)
    return out


@compiled
def _all_tokens(z: Single, known: Mask, weights: Single, out: TokenForecasts, fits: Fits, work: _Analogs) -> None:
    length, horizon = z.shape[1], out.linear.shape[2]
    for m in range(len(z)):
        x, seen = z[m], known[m]
        _levels(x, seen, length, weights, out.levels[m])
        out.residual[m] = fit(x, seen, fits)
        for k in range(NUM_FITS):
            out.enough[m, k] = fits.enough[k]
            if fits.enough[k]:
                iterate(fits, k, x, length, out.linear[m, k])
        first = max(0, length - ANALOG_ROWS)
        _analogs(x[first:], seen[first:], horizon, work)
        for h in range(horizon):
            out.reached[m, h] = work.reached[h]
            out.alike[m, 0, h], out.alike[m, 1, h] = work.paths[0, h], work.paths[1, h]
        _judge(x, seen, weights, fits, work, out.errors[m])


@compiled
def _levels(x: Single, known: Mask, end: int, weights: Single, out: Single) -> None:
    """Last value and moving averages of the rows before `end`; rows before the first repeat it."""
    out[0] = x[end - 1]
    for k in range(len(weights)):
        total, mass = 0.0, 0.0
        for r in range(weights.shape[1]):
            t = max(end - weights.shape[1] + r, 0)
            if known[t]:
                total += weights[k, r] * x[t]
                mass += weights[k, r]
        out[1 + k] = total / max(mass, 1e-6)


@compiled
def _judge(x: Single, known: Mask, weights: Single, fits: Fits, work: _Analogs, errors: Single) -> None:
    """Mean absolute errors of all forecasts from a few origins inside the context."""
    length, kinds = len(x), 1 + len(weights)
    rows = kinds + NUM_FITS + 2
    total, count = np.zeros((rows, 2)), np.zeros((rows, 2))
    levels, steps = np.empty(kinds, np.float32), np.empty(STEPS, np.float32)
    for back in ORIGINS:
        end = length - back
        scored = min(STEPS, back)
        truth, seen = x[end : end + scored], known[end : end + scored]
        _levels(x, known, end, weights, levels)
        for k in range(kinds):
            steps[:] = levels[k]
            _score(steps, truth, seen, total[k], count[k])
        for k in range(NUM_FITS):
            if fits.enough[k]:
                iterate(fits, k, x, end, steps)
                _score(steps, truth, seen, total[kinds + k], count[kinds + k])
        first = max(0, end - JUDGED_ROWS)
        _analogs(x[first:end], known[first:end], STEPS, work)
        for k in range(2):
            for h in range(STEPS):
                steps[h] = work.paths[k, h]
            place = kinds + NUM_FITS + k
            _score(steps, truth, seen & work.reached[:scored], total[place], count[place])
    for k in range(rows):
        for band in range(2):
            errors[k, band] = total[k, band] / count[k, band] if count[k, band] > 0 else np.nan


@compiled
def _score(forecast: Single, truth: Single, known: Mask, total: Float, count: Float) -> None:
    for h in range(len(truth)):
        if known[h]:
            error = abs(forecast[h] - truth[h])
            total[1] += error
            count[1] += 1
            if h < SHORT:
                total[0] += error
                count[0] += 1


@compiled
def _analogs(x: Single, known: Mask, horizon: int, work: _Analogs) -> None:
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
    seen = 0
    for t in range(STRETCH):
        seen += known[t]
    for t in range(num):
        if seen <= 0.8 * STRETCH:
            distance[t] = np.inf
        seen += int(known[t + STRETCH]) - int(known[t])
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
