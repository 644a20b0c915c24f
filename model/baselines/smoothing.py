"""Simple exponential smoothing around a daily season, and its special case, the seasonal naive forecast.

The season of a column is its coarse ring one day before each step: 10-minute means, interpolated between their centres.
The context less its season is smoothed by exponential averages, at a rate that is chosen in the context. A path is the
season at the newest level, plus one residual window of the context, the same window for all steps and indicators. The
forecaster answers every row, whatever is observed of it. Its loops are compiled and write into the caller's tensor.

Source: R. G. Brown, "Statistical forecasting for inventory control", 1959; the bias correction of young averages is
that of D. P. Kingma, J. Ba, "Adam", ICLR 2015.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import (
    as_array,
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
)
from model.compiled import compiled
from model.contract import COARSE_STEP_MS, ContextBatch, ForecastBatch

# The season of one row.

# Ten-minute means of one day.
DAY_ROWS: Final = 144
# Means of the newest day that must be observed before a column has a season.
MIN_DAY_OBSERVED: Final = DAY_ROWS // 2


class CoarseRing(NamedTuple):
    """The coarse rows of a batch.

    Attributes:
        values, observed: [B, R, C].
        into_row: [B], share of a coarse row that has passed at the origin.
        step_rows: length of a step in coarse rows.
    """

    values: Single
    observed: Mask
    into_row: Float
    step_rows: float


class Season(NamedTuple):
    """Room for the season of one row, L steps of context and H ahead.

    Attributes:
        below: [L + H], ring row at or before each step one day earlier; -1 before the ring.
        share: [L + H], how far the step lies towards the next ring row.
        shape: [N, L + H], the season, 0 where there is none.
        reached: [N, L + H], where the ring says something of it.
        readable: [N, L + H], where the column may be read.
    """

    below: Ints
    share: Float
    shape: Float
    reached: Mask
    readable: Mask


def season_scratch(steps: int, num_indicators: int) -> Season:
    """Room for one row."""
    shape = (num_indicators, steps)
    return Season(
        np.zeros(steps, np.int64), np.zeros(steps), np.zeros(shape), np.zeros(shape, np.bool_), np.ones(shape, np.bool_)
    )


@compiled
def compute_season(observed: Mask, ring: CoarseRing, b: int, length: int, season: Season) -> None:
    """The coarse ring one day before every step, where it holds half of a day and reaches the whole horizon."""
    num, columns = ring.values.shape[1:]
    if num < DAY_ROWS + 2 or columns == 0:
        return
    steps = len(season.below)
    for t in range(steps):
        # Centre of the step in coarse rows, from the centre of the newest row; the ring ends at the last full row.
        ahead = ring.into_row[b] + (t - length + 0.5) * ring.step_rows + 0.5
        position = ahead - max(math.ceil(ahead / DAY_ROWS), 1) * DAY_ROWS + (num - 1)
        low = math.floor(position)
        season.below[t] = int(low) if low >= 0 else -1
        season.share[t] = position - low
    values, ring_observed = ring.values[b], ring.observed[b]
    for k in range(columns):
        shape, reached, readable = season.shape[k], season.reached[k], season.readable[k]
        compared = _interpolate(values[:, k], ring_observed[:, k], season, k)
        usable = False
        for t in range(length):
            usable |= compared and reached[t] and observed[t, k]
        for t in range(length, steps):
            usable &= reached[t]
        for t in range(steps):
            shape[t] = shape[t] if usable and reached[t] else 0.0
            readable[t] = reached[t] or not usable


@compiled
def _interpolate(values: Single, observed: Mask, season: Season, k: int) -> bool:
    """Shape of one column and where it is reached; whether half of the newest day is observed."""
    newest = len(values) - 1
    for t in range(len(season.below)):
        low = season.below[t]
        above = min(low + 1, newest)
        has_below = low >= 0 and observed[low] and np.isfinite(values[low])
        has_above = low >= 0 and observed[above] and np.isfinite(values[above])
        share = season.share[t] if has_below and has_above else (1.0 if has_above else 0.0)
        before = np.float64(values[low]) if has_below else 0.0
        after = np.float64(values[above]) if has_above else 0.0
        season.shape[k, t] = before * (1.0 - share) + after * share
        season.reached[k, t] = has_below or has_above
    count = 0
    for row in range(newest + 1 - DAY_ROWS, newest + 1):
        count += observed[row] and np.isfinite(values[row])
    return count >= MIN_DAY_OBSERVED


# The level of a column.
#
# Counted loads are noisy: one short step carries little information about the level. An average over the last steps
# carries more, as long as the level is constant. The context decides between the two: each rate is judged by the
# squared error of the level at the start of each window against the steps of that window.

# Largest error of a chosen rate, relative to the best rate; the fastest such rate is chosen. Long windows are few in
# one context, and a level that lags costs more than a level with some noise (docs/adr/0019).
RATE_TOLERANCE: Final = 1.3


@compiled
def levels_at(x: Float, present: Mask, rate: float, levels: Float) -> None:
    """Level after each step: the average of what is known, each step weighing 1 - rate of the one after it.

    Args:
        x: [L], with gaps filled: the level before anything is known.
        levels: [L]; of rate 1 the filled values themselves.
    """
    total, weight = 0.0, 0.0
    for t in range(len(x)):
        if present[t]:
            total = (1.0 - rate) * total + rate * x[t]
            weight = (1.0 - rate) * weight + rate
        levels[t] = total / weight if weight > 0 else x[t]


@compiled
def choose_levels(x: Float, present: Mask, valid: Mask, block: int, rates: Float, levels: Float) -> None:
    """Levels of the fastest rate that missed the windows about as little as the best one.

    Args:
        x, present: [L].
        valid: [W], windows of `block` steps; window w begins after step w.
        rates: from the fastest to the slowest.
        levels: [L], gets the levels.
    """
    missed = np.zeros(len(rates))
    if len(rates) > 1:
        for k in range(len(rates)):
            levels_at(x, present, rates[k], levels)
            for w in range(len(valid)):
                if valid[w]:
                    missed[k] += _squared_errors(x, levels[w], w + 1, block)
    least = missed.min()
    for k in range(len(rates)):
        if missed[k] <= RATE_TOLERANCE * least:
            levels_at(x, present, rates[k], levels)
            return


@compiled
def _squared_errors(x: Float, level: float, first: int, block: int) -> float:
    """Squared distance of a level from the first, the last and two steps between them."""
    missed = 0.0
    for quarter in (0, block // 4, block // 2, block - 1):
        error = x[first + quarter] - level
        missed += error * error
    return missed


Float = NDArray[np.float64]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class SmoothingScratch(NamedTuple):
    """Room for one row.

    Attributes:
        context, season: for its parts.
        levels, ahead: [L] and [H], of one column: what it is taken to be about beside its season, and ahead where no
            window adds to it.
    """

    context: RowContext
    season: Season
    levels: Float
    ahead: Single


def smoothing_paths(rows: BatchRows, ring: CoarseRing, horizon: int, rates: Float, places: Ints, out: Single) -> None:
    """Write paths.

    Args:
        rates: of the levels that each column may have, from the fastest to the slowest.
        places: where among the paths of `out` each of them goes.
        out: [B, S, H * N].
    """
    length, n = rows.values.shape[1:]
    work = SmoothingScratch(
        row_context(length, n),
        season_scratch(length + horizon, n),
        np.empty(length),
        np.empty(horizon, np.float32),
    )
    _write_rows(rows, ring, rates, places, out, work)


@compiled
def _write_rows(
    rows: BatchRows, ring: CoarseRing, rates: Float, places: Ints, out: Single, work: SmoothingScratch
) -> None:
    length, n = rows.values.shape[1:]
    context, season, horizon = work.context, work.season, len(work.ahead)
    for b in range(rows.values.shape[0]):
        load(rows.values[b], rows.observed[b], context)
        block = min(horizon, _observed_span(context.present) // 2)
        compute_season(rows.observed[b], ring, b, length, season)
        for k in range(n):
            x, present = context.filled[k], context.present[k]
            for t in range(length):
                present[t] = present[t] and season.readable[k, t]
                x[t] = x[t] - season.shape[k, t] if present[t] else 0.0
        fill(context)
        if block == 0:  # at most one step is known, and nothing moves
            for k in range(n):
                _extend_season(work, k, context.filled[k, -1])
                _write_constant_column(work, k, places, rows.lower[k], rows.upper[k], out[b])
            continue
        valid = np.ones((n, length - block), np.bool_)
        valid_windows(context, 1, block, valid)
        weights = np.empty(length - block, np.int64)
        weigh_windows(valid, context.spread, weights)
        draws = np.empty(((horizon + block - 1) // block, len(places)), np.int64)
        for part in range(len(draws)):
            window_draws(rows.keys[b], part * (len(places) + 1), weights, draws[part])
        for k in range(n):
            choose_levels(context.filled[k], context.present[k], valid[k], block, rates, work.levels)
            _extend_season(work, k, work.levels[-1])
            _write_column(work, k, block, draws, places, rows.lower[k], rows.upper[k], out[b])


@compiled
def _observed_span(present: Mask) -> int:
    """Steps since the first at which any column is known."""
    n, length = present.shape
    for t in range(length):
        for k in range(n):
            if present[k, t]:
                return int(length - t)
    return 0


@compiled
def _extend_season(work: SmoothingScratch, k: int, level: float) -> None:
    """What a column is ahead where no window adds to it: the season at its level."""
    length = work.context.filled.shape[1]
    for h in range(len(work.ahead)):
        work.ahead[h] = work.season.shape[k, length + h] + level


@compiled
def _write_constant_column(
    work: SmoothingScratch, k: int, places: Ints, lower: np.float32, upper: np.float32, out: Single
) -> None:
    """Paths of one column to which nothing adds."""
    n = len(work.context.filled)
    for s in range(len(places)):
        for h in range(len(work.ahead)):
            out[places[s], k + h * n] = _clip(work.ahead[h], lower, upper)


@compiled
def _write_column(
    work: SmoothingScratch,
    k: int,
    block: int,
    draws: Ints,
    places: Ints,
    lower: np.float32,
    upper: np.float32,
    out: Single,
) -> None:
    """Paths of one column: windows beside their levels one after the other, on what it is where none adds."""
    n = len(work.context.filled)
    x, levels, ahead = work.context.filled[k], work.levels, work.ahead
    for s in range(len(places)):
        path = out[places[s], k:]
        level = np.float32(0.0)
        for part in range(len(draws)):
            first, window = part * block, draws[part, s]
            for j in range(first, min(first + block, len(ahead))):
                difference = np.float32(x[window + 1 + j - first] - levels[window])
                path[j * n] = _clip((level + difference) + ahead[j], lower, upper)
            level += np.float32(levels[window + block] - levels[window])


@compiled
def _clip(value: np.float32, lower: np.float32, upper: np.float32) -> np.float32:
    value = lower if value < lower else value  # noqa: FURB136
    return upper if value > upper else value  # noqa: FURB136


# The forecasters.

# Version of the method; a change of it changes the fingerprint.
_VERSION: Final = 1
# Candidate rates of the exponential averages, per step, from the fastest to the slowest.
RATES: Final = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)
# Rate at which the level is the newest value.
NEWEST_VALUE: Final = 1.0


class SmoothingForecaster:
    """Season and smoothed level of each row and column. A row's draws depend on item id, origin and seed alone.

    Args:
        seed: of the draws.
        rates: candidates per step, from the fastest to the slowest; rate 1 is the newest value.
        source: name of the forecaster in its forecasts.

    Raises:
        ValueError: no rate, or one outside (0, 1].
    """

    def __init__(self, seed: int = 0, rates: Sequence[float] = RATES, source: str = "smoothing") -> None:
        if not rates or not all(0 < rate <= 1 for rate in rates):
            raise ValueError(f"rates must be above 0 and at most 1, got {tuple(rates)}")
        self._seed, self._rates, self._source = seed, np.array(rates, dtype=np.float64), source
        body = f"{source}/{_VERSION}/{seed}/{tuple(rates)}"
        self._fingerprint = f"{source}-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return 64

    @property
    def min_context(self) -> int:
        return 1

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Return paths as the contract says; horizons beyond half of the known context chain several windows.

        Raises:
            ValueError: horizon above `max_horizon`, or inconsistent shapes.
        """
        return forecast_by(self, batch, horizon, num_paths, self._source)

    def write_paths(self, batch: ContextBatch, horizon: int, places: NDArray[np.int64], out: Tensor) -> None:
        """Write paths as `PathWriter` says; by compiled loops on the host.

        Raises:
            ValueError: as `forecast`.
        """
        check_request(batch, horizon, len(places), self.max_horizon)
        if out.device.type != "cpu":
            write_from_host(self, batch, horizon, places, out)
            return
        ring = CoarseRing(
            as_array(batch.coarse, torch.float32),
            as_array(batch.coarse_observed, torch.bool),
            as_array(batch.origin_ts_ms % COARSE_STEP_MS, torch.float64) / COARSE_STEP_MS,
            batch.step_ms / COARSE_STEP_MS,
        )
        smoothing_paths(compiled_rows(batch, self._seed), ring, horizon, self._rates, places, flat_paths(out))


class SeasonalNaiveForecaster(SmoothingForecaster):
    """Yesterday's shape at the newest value, or the last value where no day is known, with residual windows.

    It is smoothing at rate 1, and the reference that other forecasters are compared with.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, (NEWEST_VALUE,), "seasonal_naive")
