"""Simple rivals with joint paths: a path takes one residual window for all its steps and indicators.

Each answers a `Round` with paths [O, S, H, N]; what they read ends at the origin.
"""

from __future__ import annotations

import numpy as np

from model.evaluation.dataset import Floats
from model.evaluation.rolling import Paths, Round, Rows

_EWMA_WEIGHTS = np.array([0.03, 0.1, 0.25, 0.5, 0.8, 1.0])
_MAX_SEASONS = 14


def last_value(asked: Round) -> Paths:
    """Last value + changes over H steps seen in the context."""
    x, h = asked.filled, asked.horizon
    out = empty(asked)
    for k, origin in enumerate(asked.origins):
        starts = _drawn(asked, origin, asked.context_start(origin), origin - h)
        out[k] = x[origin] + blocks(x, starts + 1, h) - x[starts][:, None]
    return out


def seasonal_naive(asked: Round) -> Paths:
    """The value one season before + seasonal residual windows of the context; without a season the last value."""
    x, h, m = asked.filled, asked.horizon, asked.season
    if m == 1:
        return last_value(asked)
    change = np.zeros_like(x)
    change[m:] = x[m:] - x[:-m]
    steps = np.arange(1, h + 1)
    out = empty(asked)
    for k, origin in enumerate(asked.origins):
        point = x[origin + steps - m * -(-steps // m)]
        starts = _drawn(asked, origin, max(m, asked.context_start(origin)), origin + 1 - h)
        out[k] = point + blocks(change, starts, h)
    return out


def climatology(asked: Round) -> Paths:
    """H-row blocks of the context."""
    return _past_blocks(asked, asked.task.context_length)


def recent_climatology(asked: Round) -> Paths:
    """H-row blocks of the last max(36, 4H) rows."""
    return _past_blocks(asked, max(36, 4 * asked.horizon))


def seasonal_climatology(asked: Round) -> Paths:
    """Blocks at the same phase of up to 14 earlier seasons, shifted by up to m/48 rows; `clim` without a season."""
    x, h, m = asked.filled, asked.horizon, asked.season
    if m == 1:
        return climatology(asked)
    shifts = np.arange(-(m // 48), m // 48 + 1)
    back = m * np.arange(1, _MAX_SEASONS + 1)
    out = empty(asked)
    for k, origin in enumerate(asked.origins):
        starts = (origin + 1 - back[:, None] + shifts).ravel()
        starts = starts[(starts >= 0) & (starts + h - 1 <= origin)]
        out[k] = blocks(x, asked.draws(origin).choice(starts, asked.num_paths), h)
    return out


def ewma(asked: Round) -> Paths:
    """Exponential smoothing, its weight per indicator by the context's error; residual windows by local spread."""
    out = empty(asked)
    h = asked.horizon
    for k, origin in enumerate(asked.origins):
        x = asked.filled[asked.context_start(origin) : origin + 1]  # [L, N]
        level = smoothed(x, _EWMA_WEIGHTS)  # [L, A, N]
        num = len(x) - h
        error = sum(np.abs(level[:num] - x[step : step + num, None]).mean(0) for step in range(1, h + 1))  # [A, N]
        best = np.argmin(error, axis=0)
        chosen = np.take_along_axis(level, best[None, None], axis=1)[:, 0]  # [L, N]
        spread = rolling_std(x, max(24, h))
        spread = np.maximum(spread, 0.2 * x.std(0))
        spread = np.where(spread > 0, spread, 1.0)
        starts = asked.draws(origin).integers(0, num, asked.num_paths)
        residual = (blocks(x, starts + 1, h) - chosen[starts][:, None]) / spread[starts][:, None]
        out[k] = chosen[-1] + residual * spread[-1]
    return out


def empty(asked: Round) -> Paths:
    """Room for the answer, [O, S, H, N]."""
    shape = (len(asked.origins), asked.num_paths, asked.horizon, asked.filled.shape[1])
    return np.empty(shape, dtype=np.float32)


def blocks(x: Floats, starts: Rows, horizon: int) -> Floats:
    """Rows start .. start+H-1 of each start, [S, H, N]."""
    taken: Floats = x[starts[:, None] + np.arange(horizon)]
    return taken


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


def _past_blocks(asked: Round, rows: int) -> Paths:
    out = empty(asked)
    for k, origin in enumerate(asked.origins):
        first = max(asked.context_start(origin), origin + 1 - rows)
        out[k] = blocks(asked.filled, _drawn(asked, origin, first, origin + 1 - asked.horizon), asked.horizon)
    return out


def _drawn(asked: Round, origin: int, first: int, last: int) -> Rows:
    """Rows drawn evenly from first..last, one per path."""
    return asked.draws(origin).integers(first, last, asked.num_paths, endpoint=True)
