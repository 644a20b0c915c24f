"""Rivals of the Fisher protocol: points fitted on the train rows, laws from held-out residuals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model.evaluation.baselines import rolling_std, smoothed
from model.evaluation.dataset import Floats
from model.evaluation.fisher import NUM_SAMPLES, Answer, Asked
from model.evaluation.rolling import Rows

Point = Callable[[Asked, Rows], Floats]
Unit = Callable[[Asked, Rows], Floats]
_PENALTIES = (0.01, 1.0, 10.0, 100.0, 1e3, 1e4)
_EWMA_WEIGHTS = np.linspace(0.05, 1.0, 20)
_DAY_ROWS = 144
LEVELS = (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES  # the middle of each of 100 equal slices of probability


def last_point(asked: Asked, targets: Rows) -> Floats:
    """The newest value, [T, N]."""
    return np.asarray(asked.scaled[targets - 1])


def daily_point(asked: Asked, targets: Rows) -> Floats:
    """The value one day before."""
    return np.asarray(asked.scaled[targets - _DAY_ROWS])


def ewma_point(asked: Asked, targets: Rows) -> Floats:
    """Exponential smoothing, its weight per indicator by the squared error on the train rows."""
    level = smoothed(asked.scaled, _EWMA_WEIGHTS)  # [T, A, N]
    train = asked.train
    error = ((level[train - 1] - asked.scaled[train][:, None]) ** 2).mean(0)  # [A, N]
    best = np.argmin(error, axis=0)
    return np.asarray(np.take_along_axis(level[targets - 1], best[None, None], axis=1)[:, 0])


def ridge_point(asked: Asked, targets: Rows) -> Floats:
    """Per indicator a ridge on the L values of the window less their mean; the penalty by validation error."""
    return np.stack([_ridge_column(asked, targets, j) for j in range(asked.scaled.shape[1])], axis=-1)


def _ridge_column(asked: Asked, targets: Rows, j: int) -> Floats:
    x = asked.scaled[:, j]

    def centred(rows: Rows) -> tuple[Floats, Floats]:
        window = x[rows[:, None] + np.arange(-asked.length, 0)]
        mean = window.mean(1, keepdims=True)
        return window - mean, mean[:, 0]

    known, mean = centred(asked.train)
    gram, cross = known.T @ known, known.T @ (x[asked.train] - mean)
    # One decomposition serves all penalties.
    energy, directions = np.linalg.eigh(gram)
    seen, seen_mean = centred(asked.validation)
    query, query_mean = centred(targets)
    best: tuple[float, Floats] | None = None
    for penalty in _PENALTIES:
        weights = directions @ ((directions.T @ cross) / (np.maximum(energy, 0) + penalty))
        error = float(np.square(seen @ weights + seen_mean - x[asked.validation]).mean())
        if best is None or error < best[0]:
            best = error, query @ weights + query_mean
    assert best is not None
    return best[1]


def window_unit(asked: Asked, targets: Rows) -> Floats:
    """Std of each input window, sqrt(variance + 1e-5), [T, N]."""
    spread = rolling_std(asked.scaled, asked.length)[targets - 1]
    return np.asarray(np.sqrt(spread**2 + 1e-5))


def recent_unit(asked: Asked, targets: Rows) -> Floats:
    """Std of the last 36 rows, [T, N]."""
    spread = rolling_std(asked.scaled, 36)[targets - 1]
    return np.asarray(np.sqrt(spread**2 + 1e-5))


def residual_ensemble(point: Point, unit: Unit | None = None) -> Callable[[Asked], Answer]:
    """Point + quantiles of the validation residuals, divided and multiplied by a unit where one is given."""

    def answer(asked: Asked) -> Answer:
        held = asked.validation
        residual = asked.scaled[held] - point(asked, held)
        centre = point(asked, asked.test)
        if unit is None:
            samples = centre[:, None] + residual_quantiles(residual)[None]
        else:
            ratio = residual_quantiles(residual / unit(asked, held))
            samples = centre[:, None] + ratio[None] * unit(asked, asked.test)[:, None]
        return Answer(centre, joint(asked, samples))

    return answer


def climatology(asked: Asked) -> Answer:
    """The L values of the window as the law, their mean as the point."""
    window = asked.windows(asked.test)  # [T, L, N]
    samples = np.quantile(window, LEVELS, axis=1).transpose(1, 0, 2)
    return Answer(window.mean(1), joint(asked, samples))


def point_only(point: Point) -> Callable[[Asked], Answer]:
    """A law that is the point: its CRPS is the absolute error."""

    def answer(asked: Asked) -> Answer:
        centre = point(asked, asked.test)
        return Answer(centre, np.repeat(centre[:, None], NUM_SAMPLES, axis=1))

    return answer


def residual_quantiles(residual: Floats) -> Floats:
    """Mid-quantiles per indicator, [S, N]."""
    return np.asarray(np.quantile(residual, LEVELS, axis=0))


def joint(asked: Asked, samples: Floats) -> Floats:
    """Samples [T, S, N] sorted, then put in the order in which the changes of the validation rows went together."""
    held = asked.validation
    rows = held[np.linspace(0, len(held) - 1, samples.shape[1]).astype(int)]
    change = asked.scaled[rows] - asked.scaled[rows - 1]  # [S, N]
    ranks = np.argsort(np.argsort(change, axis=0, kind="stable"), axis=0)
    return np.asarray(np.take_along_axis(np.sort(samples, axis=1), ranks[None], axis=1))
