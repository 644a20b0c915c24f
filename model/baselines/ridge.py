"""Direct multi-step ridge, fitted in context at each origin: the workhorse baseline.

Per row and indicator one regression serves all horizons: the change from the newest value over h steps, on the changes
that led to it (one Gram matrix, one factorisation). A large penalty thus means the last value, not the context's mean,
to which in-context fits revert too eagerly. Leave-one-out residuals, their mean drift shrunk, are drawn by whole
windows and make the paths coherent over steps and indicators. A forecast is a function of the row alone.

Overlapping windows are fewer than they look: over H steps a context of L holds about L / H independent ones. The scale
of the residuals is therefore uncertain, and each window is widened by a quantile of sqrt(nu / chi-square_nu), so that
the residuals follow Student's law. The chi-square quantile is the approximation of Wilson and Hilferty: nu differs from
column to column, and the loop that needs it is compiled, where no special function of scipy can be called.

Source: A. E. Hoerl, R. W. Kennard, "Ridge regression", Technometrics 1970; E. B. Wilson, M. M. Hilferty, "The
distribution of chi-square", PNAS 1931.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import (
    check_request,
    compiled_rows,
    flat_paths,
    forecast_by,
    write_from_host,
)
from model.baselines.context_kernel import (
    BatchRows,
    RowContext,
    fill,
    load,
    row_context,
    valid_windows,
    weigh_windows,
    window_draws,
    write_paths,
)
from model.compiled import compiled
from model.contract import ContextBatch, ForecastBatch

# The fit of one column, all horizons at once.
#
# Sums over windows are in double precision, window after window. Operations on every window are in single precision,
# with the windows in the innermost loop. Comparisons are spelled out: they are one machine instruction, while `max`
# also handles signs and NaN.


Float = NDArray[np.float64]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Windows or changes that one pass of an inner loop handles.
_UNROLLED: Final = 4


class ColumnFit(NamedTuple):
    """Room for the fit of a column: p changes, P of them with those that are 0 to make whole passes, J = p + 1 + H.

    Attributes:
        around: [W + 3, J], values of the windows fitted on, less the one at the origin.
        moments: [p, J], sums over these windows of a change times every value.
        mean: [J], of the values over these windows.
        root: [p, p], the penalised Gram matrix is the inverse of root' root.
        half: [p, H].
        left, probes, weights: [P, P], [P, K] and [P, H]: factors of the changes.
        changes: [P, W], of every window.
        in_fit: [W], 1 where it is fitted on.
        line, squares: [W].
        free, trial_free: [W], 1 - leverage under the penalty chosen and the one tried.
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
    in_fit: Single
    line: Single
    squares: Single
    free: Single
    trial_free: Single
    residuals: Single
    drift: Float
    point: Float


def column_scratch(order: int, horizon: int, num_windows: int, num_probes: int) -> ColumnFit:
    """Room for one column."""
    padded = -(-order // _UNROLLED) * _UNROLLED
    width = order + 1 + horizon
    return ColumnFit(
        np.zeros((num_windows + _UNROLLED - 1, width)),
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
def fit(z: Float, valid: Mask, penalties: Float, min_windows: int, probe_steps: Ints, column: ColumnFit) -> None:
    """Fit a column, the penalty chosen by leave-one-out error.

    With fewer than `min_windows` windows to fit on it gets no change as forecast, plain differences as residuals.

    Args:
        z: [L], the column less its newest value.
        valid: [W], windows to fit on.
        penalties: candidates, as shares of the number of these windows.
        probe_steps: [K], steps whose errors stand for all.
    """
    order = column.root.shape[0]
    count = _sum_up(z, valid, column)
    _spread_out(z, valid, column)
    for i in range(order):
        for h in range(len(column.point)):
            column.weights[i, h] = np.float32(0.0)
    for w in range(len(valid)):
        column.free[w] = np.float32(1.0)
    if count >= min_windows:
        least = 0.0
        for k in range(len(penalties)):
            _factorise(penalties[k] * count, column)
            _leave_out(column)
            loss = _loss(probe_steps, column)
            if k == 0 or loss < least:
                least = loss
                for w in range(len(valid)):
                    column.free[w] = column.trial_free[w]
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
def _sum_up(z: Float, valid: Mask, column: ColumnFit) -> int:
    """Moments and means over the windows fitted on; how many these are."""
    order, width = column.moments.shape
    around, mean = column.around, column.mean
    count = 0
    for w in range(len(valid)):
        if valid[w]:
            here, values, origin = around[count], z[w : w + width], z[w + order]
            for j in range(width):
                here[j] = values[j] - origin
            count += 1
    for j in range(width):
        mean[j] = 0.0
        for more in range(_UNROLLED - 1):
            around[count + more, j] = 0.0
        for i in range(order):
            column.moments[i, j] = 0.0
    for w in range(0, count, _UNROLLED):
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
def _spread_out(z: Float, valid: Mask, column: ColumnFit) -> None:
    """Changes and changes ahead of every window."""
    order, num = column.root.shape[0], len(valid)
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
        column.in_fit[w] = valid[w]


@compiled
def _factorise(penalty: float, column: ColumnFit) -> None:
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
def _leave_out(column: ColumnFit) -> None:
    """1 - leverage of every window, 1 for those not fitted on."""
    num = len(column.in_fit)
    in_fit, line, squares, free = column.in_fit, column.line, column.squares, column.trial_free
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
        free[w] = one - squares[w] * in_fit[w]


@compiled
def _loss(probe_steps: Ints, column: ColumnFit) -> float:
    """Squared error of the windows fitted on, each forecast without itself, summed over the probe steps."""
    order, num = column.root.shape[0], len(column.in_fit)
    in_fit, line, squares, free = column.in_fit, column.line, column.squares, column.trial_free
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
        squares[w] = squares[w] * in_fit[w] / (free[w] * free[w])
    loss = 0.0
    for w in range(num):
        loss += squares[w]
    return loss


@compiled
def _solve(column: ColumnFit) -> None:
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
    for i in range(0, changes.shape[0], _UNROLLED):
        a, b, c, d = factors[i, k], factors[i + 1, k], factors[i + 2, k], factors[i + 3, k]
        first, second, third, fourth = changes[i], changes[i + 1], changes[i + 2], changes[i + 3]
        for w in range(len(line)):
            line[w] = line[w] - a * first[w] - b * second[w] - c * third[w] - d * fourth[w]


# The residual windows of one column: their drift is shrunk, their spread is widened.

# Degrees of freedom per independent window.
FREEDOM_PER_WINDOW: Final = 1.0
# Fewest degrees of freedom of the scale.
MIN_FREEDOM: Final = 2.0
# Largest factor on a residual window.
MAX_WIDENING: Final = 4.0
# Smallest factor on a residual window.
MIN_WIDENING: Final = 0.5
# Smallest cube root of a chi-square quantile per degree of freedom, below which the approximation is not positive.
MIN_CHI2_ROOT: Final = 0.05
# Smallest normal float64, which keeps a division by a zero variance finite.
_TINY: Final = 2.2250738585072014e-308


class WindowTables(NamedTuple):
    """Numbers of a window's place in the context, the same for every row.

    Attributes:
        back: [W], part of the drift that is subtracted from each window.
        scores: [W], normal quantiles, evenly spread, neighbours far apart.
    """

    back: Single
    scores: Float


@compiled
def shrink_drift(residuals: Single, drift: Float, back: Single) -> None:
    """Subtract parts of the mean drift from the residual windows [H, W] of the same sign, never beyond zero.

    The mean may be a trend or a single draw, so the parts range evenly from nothing to twice the drift.
    """
    none = np.float32(0.0)
    for h in range(residuals.shape[0]):
        mean, line = np.float32(drift[h]), residuals[h]
        if mean > none:
            for w in range(len(line)):
                reach, part = line[w] if line[w] > none else none, mean * back[w]  # noqa: FURB136
                line[w] -= reach if reach < part else part  # noqa: FURB136
        else:
            for w in range(len(line)):
                reach, part = line[w] if line[w] < none else none, mean * back[w]  # noqa: FURB136
                line[w] -= reach if reach > part else part  # noqa: FURB136


@compiled
def independent_windows(last: Single, in_fit: Single, horizon: int, sums: Float) -> float:
    """How many independent values the residuals of overlapping windows are worth.

    Args:
        last: [W], residuals of the last step.
        in_fit: [W], 1 for the windows fitted on.
        sums: [W + 1], scratch.
    """
    num = len(last)
    span = min(horizon, num)
    sums[0], squares, count = 0.0, 0.0, 0.0
    for w in range(num):
        value = np.float64(last[w] * in_fit[w])
        sums[w + 1] = sums[w] + value
        squares += value * value
        count += in_fit[w]
    moving = 0.0
    for w in range(num - span + 1):
        mean = (sums[w + span] - sums[w]) / span
        moving += mean * mean
    share = moving / (num - span + 1) / max(squares / num, _TINY)
    return count / min(max(share * span, 1.0), float(span))


@compiled
def widen(freedom: float, scores: Float, factors: Single) -> None:
    """Factors sqrt(nu / chi^2_nu) at evenly spread probabilities."""
    tail = 2.0 / (9.0 * max(FREEDOM_PER_WINDOW * freedom, MIN_FREEDOM))
    spread = math.sqrt(tail)
    for w in range(len(factors)):
        root = 1.0 - tail + scores[w] * spread
        chi2 = root if root > MIN_CHI2_ROOT else MIN_CHI2_ROOT  # noqa: FURB136
        factor = 1.0 / math.sqrt(chi2 * chi2 * chi2)
        factor = factor if factor > MIN_WIDENING else MIN_WIDENING  # noqa: FURB136
        factors[w] = factor if factor < MAX_WIDENING else MAX_WIDENING  # noqa: FURB136


@compiled
def leave_out_neighbours(free: Single, in_fit: Single, freedom: float, most_repeated: float, factors: Single) -> None:
    """Raise the factors: windows that overlap share their targets, so that one left out leaves them with the others."""
    count = 0.0
    for w in range(len(in_fit)):
        count += in_fit[w]
    repeats = count / max(freedom, 1.0)
    for w in range(len(factors)):
        repeated = (1.0 - free[w]) * repeats
        factors[w] /= 1.0 - (repeated if repeated < most_repeated else most_repeated)  # noqa: FURB136


# Paths, row after row from the context into the caller's tensor.


class RidgeSettings(NamedTuple):
    """Options of one call, as the compiled loops read them.

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
    probe_steps: Ints
    min_windows: int
    most_repeated: float


class RidgeScratch(NamedTuple):
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
    column: ColumnFit
    z: Float
    sums: Float
    valid: Mask
    weights: Ints
    futures: Single
    draws: Ints


def ridge_paths(rows: BatchRows, settings: RidgeSettings, tables: WindowTables, places: Ints, out: Single) -> None:
    """Write paths.

    Args:
        rows: at least order + horizon + 1 steps long.
        places: where among the paths of `out` each of them goes.
        out: [B, S, H * N].
    """
    length, n = rows.values.shape[1:]
    num = length - settings.horizon - settings.order
    work = RidgeScratch(
        row_context(length, n),
        column_scratch(settings.order, settings.horizon, num, len(settings.probe_steps)),
        np.empty(length),
        np.empty(num + 1),
        np.empty((n, num), np.bool_),
        np.empty(num, np.int64),
        np.empty((num, settings.horizon * n), np.float32),
        np.empty(len(places), np.int64),
    )
    _write_rows(rows, settings, tables, places, out, work)


@compiled
def _write_rows(
    rows: BatchRows, settings: RidgeSettings, tables: WindowTables, places: Ints, out: Single, work: RidgeScratch
) -> None:
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
    valid: Mask,
    settings: RidgeSettings,
    tables: WindowTables,
    z: Float,
    sums: Float,
    column: ColumnFit,
) -> None:
    """Forecast, residuals and their factors (`column.line`) of one column, in units of its spread."""
    spread, x = context.spread[k], context.filled[k]
    if spread == 0:
        return
    for t in range(len(z)):
        z[t] = (x[t] - x[-1]) / spread
    fit(z, valid, settings.penalties, settings.min_windows, settings.probe_steps, column)
    shrink_drift(column.residuals, column.drift, tables.back)
    freedom = independent_windows(column.residuals[settings.horizon - 1], column.in_fit, settings.horizon, sums)
    widen(freedom, tables.scores, column.line)
    if settings.most_repeated > 0:
        leave_out_neighbours(column.free, column.in_fit, freedom, settings.most_repeated, column.line)


@compiled
def _write_futures(
    context: RowContext, k: int, n: int, lower: np.float32, upper: np.float32, column: ColumnFit, futures: Single
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


# Tables of the windows, and the forecaster.

# Fractional part of the golden ratio: its multiples modulo 1 are evenly spread, with neighbours far apart.
GOLDEN_RATIO: Final = 0.6180339887498949


def reversal_factors(num_windows: int, device: torch.device) -> Tensor:
    """Parts of the drift that are subtracted from each window, float32 [W], evenly spread from 0 to 2."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float32, device=device)
    return 2.0 * ((steps * GOLDEN_RATIO) % 1.0)


@lru_cache(maxsize=64)
def window_tables(num_windows: int) -> WindowTables:
    """The tables of `num_windows` windows, for the compiled loops."""
    here = torch.device("cpu")
    return WindowTables(reversal_factors(num_windows, here).numpy(), normal_scores(num_windows, here).numpy())


def normal_scores(num_windows: int, device: torch.device) -> Tensor:
    """Normal quantiles, float64 [W], evenly spread, neighbours far apart."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float64, device=device)
    share = (steps * GOLDEN_RATIO) % 1.0
    return 2**0.5 * torch.erfinv((2 * share - 1).clamp(-0.999, 0.999))


# Version of the method; a change of it changes the fingerprint.
_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class RidgeOptions:
    """Options of the ridge.

    Attributes:
        max_order: most changes to regress on; fewer where the context is short.
        penalties: candidates, as shares of the number of windows fitted on, in units of the column's variance.
        min_windows: fewest valid windows for a fit; below, the indicator gets last value + differences.
        most_repeated: largest share of a window that is taken for repeated by the windows which overlap it; 0 leaves
            residuals as they are, for a mixture whose other members widen it.
    """

    max_order: int = 8
    penalties: tuple[float, ...] = (0.01, 0.3, 10.0)
    min_windows: int = 24
    most_repeated: float = 0.2


class RidgeForecaster:
    """In-context ridge of each row and column. A row's draws depend on item id, origin and seed alone."""

    def __init__(self, seed: int = 0, options: RidgeOptions | None = None) -> None:
        self._seed = seed
        self._options = options or RidgeOptions()
        body = f"ridge/{_VERSION}/{seed}/{sorted(asdict(self._options).items())}"
        self._fingerprint = "ridge-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return 64

    @property
    def min_context(self) -> int:
        return 64

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Return paths as the contract says.

        Raises:
            ValueError: horizon above `max_horizon`, inconsistent shapes, or a context too short for the horizon.
        """
        return forecast_by(self, batch, horizon, num_paths, "ridge")

    def write_paths(self, batch: ContextBatch, horizon: int, places: NDArray[np.int64], out: Tensor) -> None:
        """Write paths as `PathWriter` says; by compiled loops on the host.

        Raises:
            ValueError: as `forecast`.
        """
        check_request(batch, horizon, len(places), self.max_horizon)
        length = batch.values.shape[1]
        order = lag_order(length, horizon, self._options)
        if out.device.type != "cpu":
            write_from_host(self, batch, horizon, places, out)
            return
        settings = RidgeSettings(
            order,
            horizon,
            np.array(self._options.penalties, np.float64),
            np.array(probe_steps(horizon)),
            self._options.min_windows,
            self._options.most_repeated,
        )
        tables = window_tables(length - horizon - order)
        ridge_paths(compiled_rows(batch, self._seed), settings, tables, places, flat_paths(out))


def lag_order(context_length: int, horizon: int, options: RidgeOptions) -> int:
    """Number of changes to regress on: a quarter of the steps that may serve as origins, within 4..max_order.

    Raises:
        ValueError: the context is too short for the horizon.
    """
    order = min(options.max_order, max(4, (context_length - horizon) // 4))
    if context_length - horizon - order < options.min_windows:
        needed = horizon + 4 + options.min_windows
        raise ValueError(f"horizon {horizon} needs a context of {needed} steps, this one has {context_length}")
    return order


def probe_steps(horizon: int) -> list[int]:
    """A few steps that stand for all in the choice of the penalty: first, last and two between."""
    return sorted({0, horizon // 4, horizon // 2, horizon - 1})
