"""Contestants of the rolling protocol: simple forecasts with joint paths, a direct ridge, and their averages.

The ridge is fitted on the rows of an item.

Per indicator a linear map from the newest lags (and the H rows one season before the targets) to all H steps. The first
75 % of the rows before the first target fit it; the last 25 % choose penalty, centring and scaling by absolute error,
then the scale of the residuals by Laplace likelihood, and give the joint residual paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from model.evaluation.rolling import Floats, Paths, RollingCase, Rows

# Simple contestants: a path takes one residual window for all its steps and indicators.
#
# Each takes a `RollingCase` and returns paths [O, S, H, N]; it reads no row behind the origin.


_EWMA_WEIGHTS = np.array([0.03, 0.1, 0.25, 0.5, 0.8, 1.0])
_MAX_SEASONS = 14


def last_value(case: RollingCase) -> Paths:
    """Last value + changes over H steps seen in the context."""
    x, h = case.filled, case.horizon
    out = empty_paths(case)
    for k, origin in enumerate(case.origins):
        starts = _draw_rows(case, origin, case.context_start(origin), origin - h)
        out[k] = x[origin] + blocks(x, starts + 1, h) - x[starts][:, None]
    return out


def seasonal_naive(case: RollingCase) -> Paths:
    """The value one season before + seasonal residual windows of the context; without a season the last value."""
    x, h, m = case.filled, case.horizon, case.season
    if m == 1:
        return last_value(case)
    change = np.zeros_like(x)
    change[m:] = x[m:] - x[:-m]
    steps = np.arange(1, h + 1)
    out = empty_paths(case)
    for k, origin in enumerate(case.origins):
        point = x[origin + steps - m * -(-steps // m)]
        starts = _draw_rows(case, origin, max(m, case.context_start(origin)), origin + 1 - h)
        out[k] = point + blocks(change, starts, h)
    return out


def climatology(case: RollingCase) -> Paths:
    """H-row blocks of the context."""
    return _past_blocks(case, case.task.context_length)


def recent_climatology(case: RollingCase) -> Paths:
    """H-row blocks of the last max(36, 4H) rows."""
    return _past_blocks(case, max(36, 4 * case.horizon))


def seasonal_climatology(case: RollingCase) -> Paths:
    """Blocks at the same phase of up to 14 earlier seasons, shifted by up to m/48 rows; `clim` without a season."""
    x, h, m = case.filled, case.horizon, case.season
    if m == 1:
        return climatology(case)
    shifts = np.arange(-(m // 48), m // 48 + 1)
    back = m * np.arange(1, _MAX_SEASONS + 1)
    out = empty_paths(case)
    for k, origin in enumerate(case.origins):
        starts = (origin + 1 - back[:, None] + shifts).ravel()
        starts = starts[(starts >= 0) & (starts + h - 1 <= origin)]
        out[k] = blocks(x, case.draws(origin).choice(starts, case.num_paths), h)
    return out


def ewma(case: RollingCase) -> Paths:
    """Exponential smoothing, its weight per indicator by the context's error; residual windows by local spread."""
    out = empty_paths(case)
    h = case.horizon
    for k, origin in enumerate(case.origins):
        x = case.filled[case.context_start(origin) : origin + 1]  # [L, N]
        level = smoothed(x, _EWMA_WEIGHTS)  # [L, A, N]
        num = len(x) - h
        error = sum(np.abs(level[:num] - x[step : step + num, None]).mean(0) for step in range(1, h + 1))  # [A, N]
        best = np.argmin(error, axis=0)
        chosen = np.take_along_axis(level, best[None, None], axis=1)[:, 0]  # [L, N]
        spread = rolling_std(x, max(24, h))
        spread = np.maximum(spread, 0.2 * x.std(0))
        spread = np.where(spread > 0, spread, 1.0)
        starts = case.draws(origin).integers(0, num, case.num_paths)
        residual = (blocks(x, starts + 1, h) - chosen[starts][:, None]) / spread[starts][:, None]
        out[k] = chosen[-1] + residual * spread[-1]
    return out


def empty_paths(case: RollingCase) -> Paths:
    """Uninitialised paths [O, S, H, N]."""
    shape = (len(case.origins), case.num_paths, case.horizon, case.filled.shape[1])
    return np.empty(shape, dtype=np.float32)


def blocks(x: Floats, starts: Rows, horizon: int) -> Floats:
    """Rows start .. start+H-1 of each start, [S, H, N]."""
    windows: Floats = x[starts[:, None] + np.arange(horizon)]
    return windows


def smoothed(x: Floats, weights: Floats) -> Floats:
    """Exponential averages of every prefix, [L, A, N], one per weight, started at the first row."""
    level = np.empty((len(x), len(weights), x.shape[1]))
    level[0] = x[0]
    share = weights[:, None]
    for t in range(1, len(x)):
        level[t] = level[t - 1] + share * (x[t] - level[t - 1])
    return level


def rolling_std(x: Floats, window: int) -> Floats:
    """Population std of the last `window` rows (fewer at the start) at every row, [L, N]."""
    centred = x - x[0]  # a look ahead, such as at the mean, would change past figures by rounding
    sums = np.concatenate((np.zeros((1, x.shape[1])), centred.cumsum(0)))
    squares = np.concatenate((np.zeros((1, x.shape[1])), (centred**2).cumsum(0)))
    stop = np.arange(1, len(x) + 1)
    start = np.maximum(0, stop - window)
    count = (stop - start)[:, None]
    variance = (squares[stop] - squares[start]) / count - ((sums[stop] - sums[start]) / count) ** 2
    std: Floats = np.sqrt(np.maximum(variance, 0.0))
    return std


def _past_blocks(case: RollingCase, rows: int) -> Paths:
    out = empty_paths(case)
    for k, origin in enumerate(case.origins):
        first = max(case.context_start(origin), origin + 1 - rows)
        out[k] = blocks(case.filled, _draw_rows(case, origin, first, origin + 1 - case.horizon), case.horizon)
    return out


def _draw_rows(case: RollingCase, origin: int, first: int, last: int) -> Rows:
    """Rows drawn evenly from first..last, one per path."""
    return case.draws(origin).integers(first, last, case.num_paths, endpoint=True)


_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # as shares of the features' mean energy
_REFITS = 4  # of the zero-shot track


@dataclass(frozen=True, slots=True)
class _Windows:
    """Rows of one indicator around origins: x [R, P] lags (newest last), s [R, H or 0] a season back."""

    lags: Floats
    season: Floats
    newest_is_centre: bool
    scaled: bool
    floor: float

    def centre(self) -> Floats:
        return self.lags[:, -1:] if self.newest_is_centre else self.lags.mean(1, keepdims=True)

    def scale(self) -> Floats:
        if not self.scaled:
            return np.ones((len(self.lags), 1))
        std = self.lags.std(1, keepdims=True)
        return np.asarray(np.maximum(std, self.floor))

    def features(self) -> Floats:
        return (np.concatenate((self.lags, self.season), axis=1) - self.centre()) / self.scale()


def ridge(case: RollingCase) -> Paths:
    """Joint paths of the ridge; on the zero-shot track it is refitted at four points of the rows already seen."""
    out = empty_paths(case)
    points = [case.first_target]
    if case.track == "zeroshot":
        points = np.linspace(case.first_target, case.item.num_rows, _REFITS, endpoint=False).astype(int).tolist()
    for k, point in enumerate(points):
        after = points[k + 1] if k + 1 < len(points) else case.item.num_rows
        rows = np.flatnonzero((case.origins + 1 >= point) & (case.origins + 1 < after))
        if len(rows):
            out[rows] = _fit_and_forecast(case, point, case.origins[rows])
    return out


def _fit_and_forecast(case: RollingCase, fit_end: int, origins: Rows) -> Paths:
    """Paths [O, S, H, N] at `origins` of a ridge fitted on the rows before `fit_end`."""
    h, n = case.horizon, case.filled.shape[1]
    order = min(96 if fit_end > 3000 else 48, max(4, (fit_end - h) // 4))
    season = case.season if case.season > 1 and fit_end >= 2 * case.season + h else 1
    first = max(order - 1, season - 1 if season > 1 else 0)
    split = round(0.75 * fit_end)
    fit = np.arange(first, split - h)
    holdout = np.arange(max(first, split - 1), fit_end - h)
    if len(holdout) > 3000:
        holdout = holdout[np.linspace(0, len(holdout) - 1, 3000).astype(int)]
    points, residuals, units = [], [], []
    for j in range(n):
        x = case.filled[:, j]
        holdout_point, point = _best_fit(x, fit, holdout, origins, order, season, h)
        residual = x[holdout[:, None] + np.arange(1, h + 1)] - holdout_point  # [R, H]
        holdout_unit, unit = _best_unit(x, residual, holdout, origins, order)
        points.append(point)
        residuals.append(residual / holdout_unit[:, None])
        units.append(unit)
    point, residual, unit = np.stack(points, -1), np.stack(residuals, -1), np.stack(units, -1)
    observed = np.isfinite(case.item.values)
    is_complete = observed[holdout[:, None] + np.arange(1, h + 1)].all((1, 2))
    usable = np.flatnonzero(is_complete) if is_complete.sum() >= 24 else np.arange(len(holdout))
    paths = np.empty((len(origins), case.num_paths, h, n), dtype=np.float32)
    for k, origin in enumerate(origins):
        picks = usable[case.draws(int(origin)).integers(0, len(usable), case.num_paths)]
        paths[k] = point[k] + residual[picks] * unit[k]
    return paths


def _best_fit(
    x: Floats, fit: Rows, holdout: Rows, origins: Rows, order: int, season: int, horizon: int
) -> tuple[Floats, Floats]:
    """Point forecasts [R, H] at the held-out origins and at `origins`, by the best of the variants."""
    steps = np.arange(1, horizon + 1)
    best: tuple[float, Floats, Floats] | None = None
    truth = x[holdout[:, None] + steps]
    std = float(x[: int(holdout[-1]) + 1].std())
    floor = 0.2 * std if std > 0 else 1.0
    for newest_is_centre in (False, True):
        for scaled in (False, True):
            fit_windows, holdout_windows, query = (
                _Windows(
                    x[rows[:, None] + np.arange(1 - order, 1)],
                    x[rows[:, None] + steps - season * -(-horizon // season)]
                    if season > 1
                    else x[rows[:, None]][:, :0],
                    newest_is_centre,
                    scaled,
                    floor,
                )
                for rows in (fit, holdout, origins)
            )
            features = fit_windows.features()
            ahead = (x[fit[:, None] + steps] - fit_windows.centre()) / fit_windows.scale()
            gram = features.T @ features
            cross = features.T @ ahead
            unit = np.trace(gram) / len(gram)
            if not unit > 0:
                unit = 1.0
            for penalty in _PENALTIES:
                coefficients = np.linalg.solve(gram + penalty * unit * np.eye(len(gram)), cross)
                guess = holdout_windows.centre() + (holdout_windows.features() @ coefficients) * holdout_windows.scale()
                error = float(np.abs(guess - truth).mean())
                if best is None or error < best[0]:
                    forecast = query.centre() + (query.features() @ coefficients) * query.scale()
                    best = error, guess, forecast
    assert best is not None
    return best[1], best[2]


def _best_unit(x: Floats, residual: Floats, holdout: Rows, origins: Rows, order: int) -> tuple[Floats, Floats]:
    """Scales of the residuals at the held-out origins and at `origins`: the most likely under a Laplace law."""
    column = x[:, None]
    move = np.abs(np.diff(x, prepend=x[0]))[:, None]
    sums = np.concatenate(([0.0], move[:, 0].cumsum()))

    def mean_move(window: int) -> Floats:
        stop = np.arange(1, len(x) + 1)
        start = np.maximum(0, stop - window)
        averages: Floats = (sums[stop] - sums[start]) / (stop - start)
        return averages

    size = np.abs(residual)
    best: tuple[float, Floats, Floats] | None = None
    for unit in (
        np.ones(len(x)),
        rolling_std(column, order)[:, 0],
        rolling_std(column, 24)[:, 0],
        mean_move(12),
        mean_move(48),
    ):
        floor = 0.1 * unit[holdout].mean()
        at_holdout, at_origins = np.maximum(unit[holdout], floor), np.maximum(unit[origins], floor)
        if not floor > 0:
            continue
        ratio = size / at_holdout[:, None]
        spread = np.maximum(ratio.mean(0), 1e-300)  # per step
        loss = float(np.log(spread).mean() + np.log(at_holdout).mean())
        if best is None or loss < best[0]:
            best = loss, at_holdout, at_origins
    assert best is not None  # the constant scale always serves
    return best[1], best[2]


# Averages of contestants, quantile by quantile, ordered like the ridge's paths so that they stay joint.


Contestant = Callable[[RollingCase], Paths]


def quantile_average(members: Sequence[str], seasonal: str | None = None, order_of: str = "ridge") -> Contestant:
    """The mean of the members' sorted paths.

    Args:
        seasonal: one more member where there is a season and H is at least a sixth of it.
        order_of: the contestant whose ranks order the sample of every step and indicator.
    """

    def forecast(case: RollingCase) -> Paths:
        names = list(members)
        if seasonal is not None and case.season > 1 and 6 * case.horizon >= case.season:
            names.append(seasonal)
        mean = np.mean([np.sort(case.forecast_of(name), axis=1) for name in names], axis=0)
        return reorder(mean, case.forecast_of(order_of))

    return forecast


def reorder(ordered: Paths, like: Paths) -> Paths:
    """Sorted samples [O, S, H, N] put in the order of the paths `like` (Schaake shuffle).

    Source: M. Clark et al., "The Schaake shuffle", Journal of Hydrometeorology 2004.
    """
    ranks = np.argsort(np.argsort(like, axis=1, kind="stable"), axis=1, kind="stable")
    return np.take_along_axis(ordered, ranks, axis=1)
