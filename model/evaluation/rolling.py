"""The rolling-origin protocol: which rows are targets, from which origins, in which units.

Rows count from 0. Origin o is the last row that is read; its targets are rows o+1 .. o+H. Track `local` scores the rows
from `test_start` on and may fit on everything before; track `zeroshot` scores the rows from `zero_start` on with
parameters from other files, though a forecaster may fit in context on rows it may read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
    finite = np.isfinite(values)
    rows = np.arange(values.shape[0])[:, None]
    newest = np.maximum.accumulate(np.where(finite, rows, -1), axis=0)
    first = np.argmax(finite, axis=0)
    filled = np.take_along_axis(values, np.where(newest < 0, first, newest), axis=0)
    return np.where(finite.any(axis=0), filled, 0.0)


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


Rows = NDArray[np.int64]
Paths = NDArray[np.float32]
NUM_PATHS = 200
_CONSTANT_RATIO = 1e-6


def split_rows(num_rows: int, context_length: int, longest: int, test_start: int | None = None) -> tuple[int, int, int]:
    """`train_end`, `test_start` and `zero_start` of an item of `num_rows` rows.

    Args:
        longest: the largest prediction length.
        test_start: given for tasks whose test part is fixed; else 80 % of the rows.
    """
    test = int(0.8 * num_rows) if test_start is None else test_start
    zero = max(min(context_length, num_rows // 4), 4 * longest)
    return round(0.75 * test), test, min(zero, test)


def origin_rows(first_target: int, num_rows: int, horizon: int, cap: int) -> Rows:
    """Origins of an item, half a horizon apart, evenly thinned to at most `cap`.

    >>> origin_rows(10, 20, 4, cap=3).tolist()
    [9, 13, 15]
    """
    return thinned(np.arange(first_target - 1, num_rows - horizon, max(1, horizon // 2), dtype=np.int64), cap)


def thinned(origins: Rows, cap: int) -> Rows:
    """At most `cap` evenly spread origins, with the first and the last."""
    if len(origins) <= cap:
        return origins
    return origins[np.unique(np.round(np.linspace(0, len(origins) - 1, cap)).astype(np.int64))]


def season_in_use(season_lengths: tuple[int, ...], first_target: int, horizon: int) -> int:
    """The first season that fits twice into the rows before the first target; 1 without one."""
    return next((m for m in season_lengths if first_target >= 2 * m + horizon), 1)


def item_scales(values: Floats, season: int) -> tuple[Floats, Floats, Floats]:
    """The scorer's units per indicator, from all observed rows of the item ([N] each).

    Returns:
        Population std (NaN where the indicator is constant: it is not scored), mean |x_t - x_(t-m)|, and mean |x|.
    """
    finite = np.isfinite(values)
    count = np.maximum(finite.sum(0), 1)
    mean = np.where(finite, values, 0).sum(0) / count
    std = np.sqrt((np.where(finite, values - mean, 0) ** 2).sum(0) / count)
    magnitude = np.where(finite, np.abs(values), 0).sum(0) / count
    change = np.abs(values[season:] - values[:-season])
    both = np.isfinite(change)
    difference = np.where(both, change, 0).sum(0) / np.maximum(both.sum(0), 1)
    std = np.where(finite.any(0) & (std > _CONSTANT_RATIO * magnitude), std, np.nan)
    return std, difference, magnitude


@dataclass(eq=False)
class RollingCase:
    """One item and one prediction length: what a contestant reads, and the forecasts made so far.

    Attributes:
        origins: [O] rows.
        first_target: row from which on nothing may be fitted (track local), or at which forecasting starts.
        season: m in use, 1 without one.
        filled: [T, N], gaps filled forward; leaves the leading gaps to the first value.
    """

    task: Task
    item: SeriesItem
    horizon: int
    track: Track
    contestants: dict[str, Callable[[RollingCase], Paths]]
    num_paths: int = NUM_PATHS
    max_origins: int | None = None
    filled: Floats = field(init=False)
    origins: Rows = field(init=False)
    first_target: int = field(init=False)
    season: int = field(init=False)
    _forecasts: dict[str, Paths] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        task, item = self.task, self.item
        cap = task.max_origins if self.max_origins is None else min(self.max_origins, task.max_origins)
        self.first_target = item.first_target(self.track)
        self.origins = origin_rows(self.first_target, item.num_rows, self.horizon, cap)
        self.season = season_in_use(task.season_lengths, self.first_target, self.horizon)
        self.filled = fill_forward(item.values)

    def forecast_of(self, name: str) -> Paths:
        """The joint paths of a contestant, float32 [O, S, H, N], within the bounds; computed once.

        Raises:
            KeyError: there is no contestant of that name.
        """
        if name not in self._forecasts:
            paths = self.contestants[name](self)
            self._forecasts[name] = np.clip(paths, self.task.lower, self.task.upper).astype(np.float32)
        return self._forecasts[name]

    def context_start(self, origin: int) -> int:
        return max(0, origin + 1 - self.task.context_length)

    def targets(self) -> Floats:
        """The true values [O, H, N], NaN where missing."""
        result: Floats = self.item.values[self.origins[:, None] + 1 + np.arange(self.horizon)]
        return result

    def draws(self, origin: int) -> np.random.Generator:
        """Random numbers that depend on task, item, origin and prediction length only."""
        text = f"{self.task.name}\x1f{self.item.item_id}\x1f{origin}\x1f{self.horizon}"
        return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))
