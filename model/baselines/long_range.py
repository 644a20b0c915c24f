"""Forecasts of up to 1,000 steps: weighted members of level and daily season, each with its own past errors.

A member is a season (none, yesterday, a mean of days, with the same weekday) plus a level that decays towards it. Each
forecasts from many origins of the context. Its errors there choose the level, weigh the member against the others, and
are what paths add to its forecast: a path is one member's forecast plus the errors that followed one past origin. So
bands are as wide as the member was wrong so many steps ahead, and the paths keep the shape of real errors.

Letters of shapes: J past origins, H horizon, L context, N columns, S paths.
Source of the residual windows: R. Hyndman, G. Athanasopoulos, "Forecasting: Principles and Practice", 3rd edition,
chapter 5.5 (bootstrapped residuals); of the weights: J. Bates, C. Granger, "The combination of forecasts", 1969.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from model.baselines.context import check_request, empty_paths, row_uniforms
from model.contract import ContextBatch, ForecastBatch, Forecaster

Float = NDArray[np.float64]
Ints = NDArray[np.int64]
Season = Literal["none", "yesterday", "week_mean", "recent_days", "weekday"]

MAX_LONG_HORIZON: Final = 1_000
MEMBERS: Final[tuple[Season, ...]] = ("none", "yesterday", "week_mean", "recent_days", "weekday")
# Rows of the context that are read: four weeks of minutes.
MAX_LONG_ROWS: Final = 40_320
_VERSION: Final = 1
_DAY_MS: Final = 86_400_000
_WEEK_DAYS: Final = 7
_MEAN_DAYS: Final = {"week_mean": 7, "recent_days": 14}
# Weight of a day by that of the day after it.
_RECENT_DECAY: Final = 0.7
# Past origins whose errors are looked at.
_ORIGINS: Final = 64
# The level: rows that it averages, and days after which it has decayed to a third; None = it stays.
_LEVELS: Final[tuple[tuple[int, float | None], ...]] = ((1, 0.0), (12, 0.25), (36, 1.0), (12, None), (144, None))
# An average of n rows reads so many times n rows.
_AVERAGE_REACH: Final = 4
# Weights are the inverse of the mean absolute error to this power (chosen on NAB, Bitbrains and ServeGen small).
_WEIGHT_POWER: Final = 6
_MIN_ERRORS: Final = 8


class Member(NamedTuple):
    """A member's forecast of one column.

    Attributes:
        forecast: [H].
        errors: [J, H] of its forecasts from past origins; NaN where nothing was observed.
        error: mean absolute one.
    """

    forecast: Float
    errors: Float
    error: float


class LongRangeForecaster:
    """Forecasts that use weeks of daily season. A row's draws depend on item id, origin and seed alone.

    Args:
        members: seasons that take part; those that the context is too short for do not, but "none" always may.
        seed: of the draws.
        source: name of the forecaster in its forecasts.

    Raises:
        ValueError: no member.
    """

    def __init__(self, members: Sequence[Season] = MEMBERS, seed: int = 0, source: str = "long_range") -> None:
        if not members:
            raise ValueError("a long-range forecaster needs members")
        self._members, self._seed, self._source = tuple(members), seed, source
        body = f"{source}/{_VERSION}/{seed}/{self._members}"
        self._fingerprint = f"{source}-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return MAX_LONG_HORIZON

    @property
    def min_context(self) -> int:
        return _MIN_ERRORS

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says; only the fine rows are read, as many as there are.

        Raises:
            ValueError: horizon above `max_horizon`, or inconsistent shapes.
        """
        check_request(batch, horizon, num_paths, self.max_horizon)
        b, _, n = batch.values.shape
        out = empty_paths(b, num_paths, horizon, n, batch.values.device)
        values = batch.values.cpu().double().masked_fill(~batch.observed.cpu(), torch.nan).numpy()
        uniforms = row_uniforms(batch.item_ids, batch.origin_ts_ms, self._seed, 2 * num_paths)
        for row in range(b):
            # One draw of member and origin for all columns keeps them joint.
            draws = uniforms[row].reshape(2, num_paths)
            for column in range(n):
                paths = self._column_paths(values[row, -MAX_LONG_ROWS:, column], batch.step_ms, horizon, draws)
                out[row, :, :, column] = torch.from_numpy(paths.astype(np.float32))
        lower, upper = batch.lower.to(out.device), batch.upper.to(out.device)
        return ForecastBatch(out.clamp_(lower, upper), (self._source,) * b, self._fingerprint)

    def _column_paths(self, x: Float, step_ms: int, horizon: int, draws: Float) -> Float:
        """Paths [S, H] of a column [L], NaN where not observed."""
        present = np.isfinite(x)
        if not present.any():
            return np.zeros((draws.shape[1], horizon))
        x = x[int(np.argmax(present)) :]  # rows before the first observation say nothing
        origins = _past_origins(len(x), horizon)
        found = [m for kind in self._members if (m := _member(x, step_ms, origins, horizon, kind)) is not None]
        if not found:
            found = [m for m in (_member(x, step_ms, origins, horizon, "none"),) if m is not None]
        if not found:
            return np.full((draws.shape[1], horizon), np.nanmean(x))
        errors = np.array([member.error for member in found])
        weights = ((errors.min() + 1e-30) / (errors + 1e-30)) ** _WEIGHT_POWER
        chosen = np.searchsorted(np.cumsum(weights / weights.sum()), draws[0]).clip(max=len(found) - 1)
        window = (draws[1] * len(origins)).astype(np.int64)
        return np.stack([found[m].forecast + found[m].errors[j] for m, j in zip(chosen, window, strict=True)])


class SplicedForecaster:
    """One forecaster for the steps that it reaches, and another for those beyond.

    A path of the first goes on as the path of the second that has the same rank at the seam, so every step keeps the
    distribution of its forecaster.

    Args:
        near: forecasts the first steps, from the newest rows.
        far: forecasts beyond.
        near_rows: rows of the context that the first reads.
    """

    def __init__(self, near: Forecaster, far: Forecaster, near_rows: int) -> None:
        self._near, self._far, self._near_rows = near, far, near_rows
        body = f"spliced/{_VERSION}/{near.fingerprint}/{far.fingerprint}/{near_rows}"
        self._fingerprint = "spliced-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return self._far.max_horizon

    @property
    def min_context(self) -> int:
        return max(self._near.min_context, self._far.min_context)

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: horizon above `max_horizon`, or what a forecaster refuses.
        """
        newest = replace(
            batch, values=batch.values[:, -self._near_rows :], observed=batch.observed[:, -self._near_rows :]
        )
        reach = min(horizon, self._near.max_horizon)
        near = self._near.forecast(newest, reach, num_paths)
        if reach == horizon:
            return replace(near, fingerprint=self._fingerprint)
        far = self._far.forecast(batch, horizon, num_paths)
        seam = slice(max(0, reach - _SEAM_STEPS), reach)
        paths = far.paths
        for row in range(len(batch)):
            rank = near.paths[row, :, seam, 0].mean(1).argsort(stable=True)
            order = far.paths[row, :, seam, 0].mean(1).argsort(stable=True)
            joined = far.paths[row].clone()
            joined[rank] = far.paths[row, order]
            joined[:, :reach] = near.paths[row]
            paths[row] = joined
        sources = tuple(f"{a}+{b}" for a, b in zip(near.sources, far.sources, strict=True))
        return ForecastBatch(paths, sources, self._fingerprint)


# Steps before the seam by whose mean paths are ranked.
_SEAM_STEPS: Final = 8


def _past_origins(length: int, horizon: int) -> Ints:
    """Rows from which members forecast in the past, at most 64, evenly spread over the newer three quarters.

    The newest of them have a whole horizon after them, unless the context is shorter than three horizons.
    """
    last = length - 1 - min(horizon, length // 3)
    return np.unique(np.linspace(min(length // 4, last), max(last, 0), _ORIGINS).astype(np.int64))


def _member(x: Float, step_ms: int, origins: Ints, horizon: int, kind: Season) -> Member | None:
    """A member's forecast of a column [L] with the level that had the least error; None where the context is short."""
    num = len(x)
    days = num * step_ms / _DAY_MS
    needed = {"none": 0.0, "weekday": 8.0 + horizon * step_ms / _DAY_MS}.get(kind, 2.0)
    if days < needed or (kind != "none" and step_ms * 2 > _DAY_MS):
        return None
    at = np.append(origins, num - 1)
    steps = np.arange(1, horizon + 1)
    future = origins[:, None] + steps
    truth = np.where(future < num, x[np.minimum(future, num - 1)], np.nan)
    season = _season(x, at, steps, step_ms, kind)  # [J + 1, H]
    rests = (
        None if kind == "none" else x - _season(x, np.arange(-1, num - 1), np.ones(1, np.int64), step_ms, kind)[:, 0]
    )
    best: Member | None = None
    for average, decay_days in _LEVELS:
        if kind == "none" and decay_days is not None:
            continue  # without a season the level stays
        if decay_days == 0:
            forecast = season
        else:
            level = _average(x if rests is None else rests, at, average)
            share = 1.0 if decay_days is None else np.exp(-steps * step_ms / (decay_days * _DAY_MS))
            forecast = season + level[:, None] * share
        errors = truth - forecast[:-1]
        known = np.isfinite(errors)
        if known.sum() < _MIN_ERRORS:
            continue
        error = float(np.abs(errors[known]).mean())
        if best is None or error < best.error:
            best = Member(_bridged(forecast[-1], x), errors, error)
    return None if best is None else best._replace(errors=_completed(best.errors))


def _season(x: Float, at: Ints, steps: Ints, step_ms: int, kind: Season) -> Float:
    """The season [K, H] of the steps after each origin [K], from rows up to it only; NaN where none is known."""
    if kind == "none":
        return np.zeros((len(at), len(steps)))
    if kind == "yesterday":
        return _days_before(x, at, steps, step_ms, 0)
    if kind == "weekday":
        weeks = -(-steps * step_ms // (_WEEK_DAYS * _DAY_MS))
        rows = at[:, None] + steps - np.rint(weeks * _WEEK_DAYS * _DAY_MS / step_ms).astype(np.int64)
        week_ago, mean = _rows(x, rows), _season(x, at, steps, step_ms, "week_mean")
        return np.where(np.isfinite(week_ago), 0.5 * (week_ago + mean), mean)
    total, weights = np.zeros((len(at), len(steps))), np.zeros((len(at), len(steps)))
    for day in range(_MEAN_DAYS[kind]):
        weight = _RECENT_DECAY**day if kind == "recent_days" else 1.0
        value = _days_before(x, at, steps, step_ms, day)
        known = np.isfinite(value)
        total += np.where(known, weight * value, 0.0)
        weights += weight * known
    return np.where(weights > 0, total / np.where(weights > 0, weights, 1.0), np.nan)


def _days_before(x: Float, at: Ints, steps: Ints, step_ms: int, more: int) -> Float:
    """The rows at the same time of the newest day that is known at each origin, or of so many days before it."""
    days = -(-steps * step_ms // _DAY_MS) + more
    return _rows(x, at[:, None] + steps - np.rint(days * _DAY_MS / step_ms).astype(np.int64))


def _rows(x: Float, rows: Ints) -> Float:
    return np.where(rows >= 0, x[np.clip(rows, 0, len(x) - 1)], np.nan)


def _average(x: Float, at: Ints, average: int) -> Float:
    """The exponential average [K] up to each origin; 0 where nothing is known."""
    back = np.arange(_AVERAGE_REACH * average if average > 1 else 1)
    values = _rows(x, at[:, None] - back)
    weights = (1 - 1 / average) ** back if average > 1 else np.ones(1)
    known = np.isfinite(values)
    weight = (known * weights).sum(1)
    mean = (np.where(known, values, 0.0) * weights).sum(1) / np.where(weight > 0, weight, 1.0)
    return np.where(weight > 0, mean, 0.0)


def _bridged(forecast: Float, x: Float) -> Float:
    """Steps without a season get the mean of the column."""
    return np.where(np.isfinite(forecast), forecast, np.nanmean(x))


def _completed(errors: Float) -> Float:
    """Errors that nobody knows become those of another origin at the same step, in turn; else the nearest step's."""
    known = np.isfinite(errors)
    if known.all():
        return errors
    filled = errors.copy()
    for h in range(errors.shape[1]):
        rows = np.flatnonzero(known[:, h])
        absent = np.flatnonzero(~known[:, h])
        if len(rows) and len(absent):
            filled[absent, h] = errors[rows[np.arange(len(absent)) % len(rows)], h]
    empty = ~np.isfinite(filled).any(0)
    if empty.any():
        steps = np.flatnonzero(~empty)
        nearest = steps[np.abs(np.flatnonzero(empty)[:, None] - steps).argmin(1)]
        filled[:, empty] = filled[:, nearest]
    return filled
