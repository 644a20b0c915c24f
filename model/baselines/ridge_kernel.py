"""The ridge of one column, compiled: changes over h steps on the changes that led to them, all horizons at once.

The same as `model.baselines.ridge.fit_ridge` says for batches of tensors. Sums over windows are taken in double
precision, window after window; what is done to every window is in single precision, with the windows innermost.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.baselines.context_kernel import (
    RowContext,
    Rows,
    fill,
    load,
    row_context,
    valid_windows,
    weigh_windows,
    window_draws,
    write_paths,
)
from model.compiled import compiled

Float = NDArray[np.float64]
Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

_TOGETHER = 4  # windows or changes that one pass of an inner loop takes


class Column(NamedTuple):
    """Room for the fit of a column: p changes, P of them with those that are 0 to make whole passes, J = p + 1 + H.

    Attributes:
        around: [W + 3, J], values of the windows fitted on, less the one at the origin.
        moments: [p, J], sums over these windows of a change times every value.
        mean: [J], of the values over these windows.
        root: [p, p], the penalised Gram matrix is the inverse of root' root.
        half: [p, H].
        left, probes, weights: [P, P], [P, K] and [P, H]: factors of the changes.
        changes: [P, W], of every window.
        seen: [W], 1 where it is fitted on.
        line, squares: [W].
        free, tried: [W], 1 - leverage under the penalty chosen and the one tried.
        residuals: [H, W], first the changes ahead, then what the ridge leaves of them.
        drift: [H], mean of the residuals over the windows fitted on.
        point: [H], forecast.
    """

    around: Float
    moments: Float
    mean: Float
    root: Float
    half: Float
    left: Single
    probes: Single
    weights: Single
    changes: Single
    seen: Single
    line: Single
    squares: Single
    free: Single
    tried: Single
    residuals: Single
    drift: Float
    point: Float


def room(order: int, horizon: int, num_windows: int, num_probes: int) -> Column:
    """Room for one column."""
    padded = -(-order // _TOGETHER) * _TOGETHER
    width = order + 1 + horizon
    return Column(
        np.zeros((num_windows + _TOGETHER - 1, width)),
        np.zeros((order, width)),
        np.zeros(width),
        np.zeros((order, order)),
        np.zeros((order, horizon)),
        np.zeros((padded, padded), np.float32),
        np.zeros((padded, num_probes), np.float32),
        np.zeros((padded, horizon), np.float32),
        np.zeros((padded, num_windows), np.float32),
        np.zeros(num_windows, np.float32),
        np.zeros(num_windows, np.float32),
        np.zeros(num_windows, np.float32),
        np.zeros(num_windows, np.float32),
        np.zeros(num_windows, np.float32),
        np.zeros((horizon, num_windows), np.float32),
        np.zeros(horizon),
        np.zeros(horizon),
    )


@compiled
def fit(z: Float, known: Mask, penalties: Float, min_windows: int, probe_steps: Whole, column: Column) -> None:
    """Fit a column, the penalty chosen by leave-one-out error.

    With fewer than `min_windows` windows to fit on it gets no change as forecast, plain differences as residuals.

    Args:
        z: [L], the column less its newest value.
        known: [W], windows to fit on.
        penalties: candidates, as shares of the number of these windows.
        probe_steps: [K], steps whose errors stand for all.
    """
    order = column.root.shape[0]
    count = _sum_up(z, known, column)
    _spread_out(z, known, column)
    for i in range(order):
        for h in range(len(column.point)):
            column.weights[i, h] = np.float32(0.0)
    for w in range(len(known)):
        column.free[w] = np.float32(1.0)
    if count >= min_windows:
        least = 0.0
        for k in range(len(penalties)):
            _factorise(penalties[k] * count, column)
            _leave_out(column)
            loss = _loss(probe_steps, column)
            if k == 0 or loss < least:
                least = loss
                for w in range(len(known)):
                    column.free[w] = column.tried[w]
                _solve(column)
    for h in range(len(column.point)):
        column.point[h] = 0.0
        column.drift[h] = column.mean[order + 1 + h]
        for i in range(order):
            weight = column.weights[i, h]
            column.point[h] += (z[len(z) - 1 - order + i] - z[len(z) - 1]) * weight
            column.drift[h] -= column.mean[i] * weight
        _subtract(column.changes, column.weights, h, column.residuals[h])


@compiled
def _sum_up(z: Float, known: Mask, column: Column) -> int:
    """Moments and means over the windows fitted on; how many these are."""
    order, width = column.moments.shape
    around, mean = column.around, column.mean
    count = 0
    for w in range(len(known)):
        if known[w]:
            here, values, origin = around[count], z[w : w + width], z[w + order]
            for j in range(width):
                here[j] = values[j] - origin
            count += 1
    for j in range(width):
        mean[j] = 0.0
        for more in range(_TOGETHER - 1):
            around[count + more, j] = 0.0
        for i in range(order):
            column.moments[i, j] = 0.0
    for w in range(0, count, _TOGETHER):
        first, second, third, fourth = around[w], around[w + 1], around[w + 2], around[w + 3]
        for j in range(width):
            mean[j] = mean[j] + first[j] + second[j] + third[j] + fourth[j]
        for i in range(order):
            sums = column.moments[i]
            a, b, c, d = first[i], second[i], third[i], fourth[i]
            for j in range(width):
                sums[j] = sums[j] + a * first[j] + b * second[j] + c * third[j] + d * fourth[j]
    for j in range(width):
        mean[j] /= max(count, 1)
    return count


@compiled
def _spread_out(z: Float, known: Mask, column: Column) -> None:
    """Changes and changes ahead of every window."""
    order, num = column.root.shape[0], len(known)
    origins = z[order : order + num]
    for i in range(order):
        values, changes = z[i : i + num], column.changes[i]
        for w in range(num):
            changes[w] = values[w] - origins[w]
    for h in range(len(column.point)):
        values, ahead = z[order + 1 + h : order + 1 + h + num], column.residuals[h]
        for w in range(num):
            ahead[w] = values[w] - origins[w]
    for w in range(num):
        column.seen[w] = known[w]


@compiled
def _factorise(penalty: float, column: Column) -> None:
    """The inverse of the Cholesky factor; a strictly positive penalty keeps the matrix positive definite."""
    root = column.root
    order = root.shape[0]
    for i in range(order):
        for j in range(i + 1):
            rest = column.moments[i, j] + (penalty if i == j else 0.0)
            for k in range(j):
                rest -= root[i, k] * root[j, k]
            root[i, j] = math.sqrt(rest) if i == j else rest / root[j, j]
    for j in range(order):
        root[j, j] = 1.0 / root[j, j]
        for i in range(j + 1, order):
            rest = 0.0
            for k in range(j, i):
                rest -= root[i, k] * root[k, j]
            root[i, j] = rest / root[i, i]
    for i in range(order):
        for j in range(i + 1):
            column.left[j, i] = root[i, j]


@compiled
def _leave_out(column: Column) -> None:
    """1 - leverage of every window, 1 for those not fitted on."""
    num = len(column.seen)
    seen, line, squares, free = column.seen, column.line, column.squares, column.tried
    one, none = np.float32(1.0), np.float32(0.0)
    for w in range(num):
        squares[w] = none
    for i in range(column.root.shape[0]):
        for w in range(num):
            line[w] = none
        _subtract(column.changes, column.left, i, line)
        for w in range(num):
            squares[w] += line[w] * line[w]
    for w in range(num):
        free[w] = one - squares[w] * seen[w]


@compiled
def _loss(probe_steps: Whole, column: Column) -> float:
    """Squared error of the windows fitted on, each forecast without itself, summed over the probe steps."""
    order, num = column.root.shape[0], len(column.seen)
    seen, line, squares, free = column.seen, column.line, column.squares, column.tried
    for w in range(num):
        squares[w] = np.float32(0.0)
    for k in range(len(probe_steps)):
        for i in range(order):
            column.half[i, k] = 0.0
            for j in range(i + 1):
                column.half[i, k] += column.root[i, j] * column.moments[j, order + 1 + probe_steps[k]]
        for i in range(order):
            weight = 0.0
            for j in range(i, order):
                weight += column.root[j, i] * column.half[j, k]
            column.probes[i, k] = weight
        ahead = column.residuals[probe_steps[k]]
        for w in range(num):
            line[w] = ahead[w]
        _subtract(column.changes, column.probes, k, line)
        for w in range(num):
            squares[w] += line[w] * line[w]
    for w in range(num):
        squares[w] = squares[w] * seen[w] / (free[w] * free[w])
    loss = 0.0
    for w in range(num):
        loss += squares[w]
    return loss


@compiled
def _solve(column: Column) -> None:
    """The weights of all horizons under the factorised penalty."""
    order, horizon = column.half.shape
    for i in range(order):
        half = column.half[i]
        for h in range(horizon):
            half[h] = 0.0
        for j in range(i + 1):
            factor, sums = column.root[i, j], column.moments[j, order + 1 :]
            for h in range(horizon):
                half[h] += factor * sums[h]
    for i in range(order):
        half, weights = column.half[i], column.weights[i]
        for h in range(horizon):
            half[h] *= column.root[i, i]
        for j in range(i + 1, order):
            factor, other = column.root[j, i], column.half[j]
            for h in range(horizon):
                half[h] += factor * other[h]
        for h in range(horizon):
            weights[h] = half[h]


@compiled
def _subtract(changes: Single, factors: Single, k: int, line: Single) -> None:
    """Subtract the changes times column k of their factors from a line [W]."""
    for i in range(0, changes.shape[0], _TOGETHER):
        a, b, c, d = factors[i, k], factors[i + 1, k], factors[i + 2, k], factors[i + 3, k]
        first, second, third, fourth = changes[i], changes[i + 1], changes[i + 2], changes[i + 3]
        for w in range(len(line)):
            line[w] = line[w] - a * first[w] - b * second[w] - c * third[w] - d * fourth[w]


# What becomes of the residual windows of one column, compiled: their drift doubted, their spread widened.
#
# The same as `model.baselines.ridge.drift_doubted` and `model.baselines.ridge` say for batches of tensors. Comparisons
# are written out in the loops: one machine instruction, where `max` asks for signs and numbers that are none.


FREEDOM: Final = 1.0  # degrees of freedom per independent window
LEAST_FREEDOM: Final = 2.0
WIDEST: Final = 4.0
NARROWEST: Final = 0.5
LEAST_CHI2: Final = 0.05
_TINY: Final = 2.2250738585072014e-308


class WindowTables(NamedTuple):
    """What windows share whatever stands in them.

    Attributes:
        back: [W], parts of the drift that a window is taken back by.
        scores: [W], normal quantiles, evenly spread, neighbours far apart.
    """

    back: Single
    scores: Float


@compiled
def doubt_drift(residuals: Single, drift: Float, back: Single) -> None:
    """Take the windows [H, W] that went the drift's way back by parts of it, no further than to where they began."""
    none = np.float32(0.0)
    for h in range(residuals.shape[0]):
        mean, line = np.float32(drift[h]), residuals[h]
        if mean > none:
            for w in range(len(line)):
                gone, part = line[w] if line[w] > none else none, mean * back[w]  # noqa: FURB136
                line[w] -= gone if gone < part else part  # noqa: FURB136
        else:
            for w in range(len(line)):
                gone, part = line[w] if line[w] < none else none, mean * back[w]  # noqa: FURB136
                line[w] -= gone if gone > part else part  # noqa: FURB136


@compiled
def independent_windows(last: Single, seen: Single, horizon: int, sums: Float) -> float:
    """How many independent values the residuals of overlapping windows are worth.

    Args:
        last: [W], residuals of the last step.
        seen: [W], 1 for the windows fitted on.
        sums: [W + 1], scratch.
    """
    num = len(last)
    span = min(horizon, num)
    sums[0], squares, count = 0.0, 0.0, 0.0
    for w in range(num):
        value = np.float64(last[w] * seen[w])
        sums[w + 1] = sums[w] + value
        squares += value * value
        count += seen[w]
    moving = 0.0
    for w in range(num - span + 1):
        mean = (sums[w + span] - sums[w]) / span
        moving += mean * mean
    share = moving / (num - span + 1) / max(squares / num, _TINY)
    return count / min(max(share * span, 1.0), float(span))


@compiled
def widen(freedom: float, scores: Float, factors: Single) -> None:
    """Factors sqrt(nu / chi^2_nu) at evenly spread probabilities."""
    tail = 2.0 / (9.0 * max(FREEDOM * freedom, LEAST_FREEDOM))
    spread = math.sqrt(tail)
    for w in range(len(factors)):
        root = 1.0 - tail + scores[w] * spread
        chi2 = root if root > LEAST_CHI2 else LEAST_CHI2  # noqa: FURB136
        factor = 1.0 / math.sqrt(chi2 * chi2 * chi2)
        factor = factor if factor > NARROWEST else NARROWEST  # noqa: FURB136
        factors[w] = factor if factor < WIDEST else WIDEST  # noqa: FURB136


@compiled
def leave_out_neighbours(free: Single, seen: Single, freedom: float, most_repeated: float, factors: Single) -> None:
    """Raise the factors: windows that overlap share their targets, so that one left out leaves them with the others."""
    count = 0.0
    for w in range(len(seen)):
        count += seen[w]
    repeats = count / max(freedom, 1.0)
    for w in range(len(factors)):
        repeated = (1.0 - free[w]) * repeats
        factors[w] /= 1.0 - (repeated if repeated < most_repeated else most_repeated)  # noqa: FURB136


# Paths of the ridge, compiled: row after row from the context into the caller's tensor, nothing kept in between.


class Settings(NamedTuple):
    """Of the ridge.

    Attributes:
        order: changes to regress on.
        horizon: in steps.
        penalties: candidates, as shares of the number of windows fitted on.
        probe_steps: steps whose errors choose among them.
        min_windows: fewest valid windows for a fit.
        most_repeated: largest share of a window that is taken for repeated.
    """

    order: int
    horizon: int
    penalties: Float
    probe_steps: Whole
    min_windows: int
    most_repeated: float


class _Room(NamedTuple):
    """Room for one row.

    Attributes:
        context, column: for its parts.
        z: [L], a column less its newest value, in units of its spread.
        sums: [W + 1].
        valid, weights: [N, W] and [W], of the windows.
        futures: [W, H * N], one per window.
        draws: [S].
    """

    context: RowContext
    column: Column
    z: Float
    sums: Float
    valid: Mask
    weights: Whole
    futures: Single
    draws: Whole


def ridge_paths(rows: Rows, settings: Settings, tables: WindowTables, places: Whole, out: Single) -> None:
    """Write paths.

    Args:
        rows: at least order + horizon + 1 steps long.
        places: where among the paths of `out` each of them goes.
        out: [B, S, H * N].
    """
    length, n = rows.values.shape[1:]
    num = length - settings.horizon - settings.order
    work = _Room(
        row_context(length, n),
        room(settings.order, settings.horizon, num, len(settings.probe_steps)),
        np.empty(length),
        np.empty(num + 1),
        np.empty((n, num), np.bool_),
        np.empty(num, np.int64),
        np.empty((num, settings.horizon * n), np.float32),
        np.empty(len(places), np.int64),
    )
    _write_rows(rows, settings, tables, places, out, work)


@compiled
def _write_rows(rows: Rows, settings: Settings, tables: WindowTables, places: Whole, out: Single, work: _Room) -> None:
    context, column, n = work.context, work.column, rows.values.shape[2]
    for b in range(rows.values.shape[0]):
        load(rows.values[b], rows.observed[b], context)
        fill(context)
        valid_windows(context, settings.order + 1, settings.horizon, work.valid)
        weigh_windows(work.valid, context.spread, work.weights)
        for k in range(n):
            _fit_column(context, k, work.valid[k], settings, tables, work.z, work.sums, column)
            _write_futures(context, k, n, rows.lower[k], rows.upper[k], column, work.futures)
        window_draws(rows.keys[b], 0, work.weights, work.draws)
        write_paths(work.futures, work.draws, places, out[b])


@compiled
def _fit_column(
    context: RowContext,
    k: int,
    known: Mask,
    settings: Settings,
    tables: WindowTables,
    z: Float,
    sums: Float,
    column: Column,
) -> None:
    """Forecast, residuals and their factors (`column.line`) of one column, in units of its spread."""
    spread, x = context.spread[k], context.filled[k]
    if spread == 0:
        return
    for t in range(len(z)):
        z[t] = (x[t] - x[-1]) / spread
    fit(z, known, settings.penalties, settings.min_windows, settings.probe_steps, column)
    doubt_drift(column.residuals, column.drift, tables.back)
    freedom = independent_windows(column.residuals[settings.horizon - 1], column.seen, settings.horizon, sums)
    widen(freedom, tables.scores, column.line)
    if settings.most_repeated > 0:
        leave_out_neighbours(column.free, column.seen, freedom, settings.most_repeated, column.line)


@compiled
def _write_futures(
    context: RowContext, k: int, n: int, lower: np.float32, upper: np.float32, column: Column, futures: Single
) -> None:
    """One possible future per window within the bounds: forecast and that window's residuals."""
    spread, newest = context.spread[k], np.float32(context.filled[k, -1])
    within = max(newest, lower)
    within = min(within, upper)
    if spread == 0:
        for w in range(futures.shape[0]):
            for h in range(len(column.point)):
                futures[w, h * n + k] = within
        return
    factors, scale = column.line, np.float32(spread)
    for w in range(len(factors)):
        factors[w] *= scale
    for h in range(len(column.point)):
        start, line = np.float32(newest + column.point[h] * spread), column.residuals[h]
        for w in range(len(line)):
            value = start + line[w] * factors[w]
            value = lower if value < lower else value  # noqa: FURB136
            line[w] = upper if value > upper else value  # noqa: FURB136
        for w in range(len(line)):
            futures[w, h * n + k] = line[w]
