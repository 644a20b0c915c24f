"""A forecasting task of the rolling protocol: items on one regular grid, indicators, splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Track = Literal["local", "zeroshot"]


@dataclass(frozen=True, slots=True)
class Indicator:
    """One column of a task.

    Attributes:
        level: 1 demand, 2 engine, 3 device.
        lower, upper: physical bounds, infinite where there are none.
    """

    name: str
    unit: str = ""
    level: int = 1
    lower: float = -np.inf
    upper: float = np.inf


@dataclass(frozen=True, slots=True)
class SeriesItem:
    """The rows of one workload and their split.

    Attributes:
        start_ts_ms: time of row 0.
        values: float64 [T, N], NaN where missing.
        train_end, test_start, zero_start: row numbers (see `model.evaluation.rolling.split_rows`).
    """

    item_id: str
    start_ts_ms: int
    values: Floats
    train_end: int
    test_start: int
    zero_start: int

    @property
    def num_rows(self) -> int:
        return int(self.values.shape[0])

    def first_target(self, track: Track) -> int:
        return self.test_start if track == "local" else min(self.zero_start, self.test_start)


@dataclass(frozen=True, slots=True)
class Task:
    """Items that share indicators and step.

    Attributes:
        context_length: L, most rows a forecaster may read before an origin.
        season_lengths: candidate seasons in rows, shortest first.
        max_origins: most origins per item.
        mixed_units: the items' units differ, so that sums over items need a common scale.
    """

    name: str
    step_s: float
    indicators: tuple[Indicator, ...]
    prediction_lengths: tuple[int, ...]
    context_length: int
    season_lengths: tuple[int, ...]
    max_origins: int
    mixed_units: bool
    items: tuple[SeriesItem, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(indicator.name for indicator in self.indicators)

    @property
    def lower(self) -> Floats:
        return np.array([indicator.lower for indicator in self.indicators])

    @property
    def upper(self) -> Floats:
        return np.array([indicator.upper for indicator in self.indicators])


def fill_forward(values: Floats) -> Floats:
    """Values [T, N] without gaps: each takes the last observed value, leading gaps the first, empty columns 0.

    >>> fill_forward(np.array([[np.nan], [1.0], [np.nan]])).ravel().tolist()
    [1.0, 1.0, 1.0]
    """
    known = np.isfinite(values)
    rows = np.arange(values.shape[0])[:, None]
    newest = np.maximum.accumulate(np.where(known, rows, -1), axis=0)
    first = np.argmax(known, axis=0)
    filled = np.take_along_axis(values, np.where(newest < 0, first, newest), axis=0)
    return np.where(known.any(axis=0), filled, 0.0)


def without_test_rows(task: Task) -> Task:
    """The task without its test rows: the validation rows are scored, and the train rows may be fitted on."""
    items = tuple(
        replace(
            item,
            values=item.values[: item.test_start],
            test_start=item.train_end,
            train_end=round(0.75 * item.train_end),
            zero_start=min(item.zero_start, item.train_end),
        )
        for item in task.items
    )
    return replace(task, items=items)


class NotRunnable(Exception):
    """A contestant cannot run here; the message says what is missing, and the table shows it."""
