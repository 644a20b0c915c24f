"""Last value, or the shape of one day ago where a day is known, with residual windows: it always answers.

Season: the coarse ring (10-minute means, 144 to the day) one day before each step, interpolated between the rows'
centres and shifted to the present level, which is the newest value: smoothing that forgets everything before it.
Columns without a season are read as they are. The yardstick of every other forecaster.
"""

from __future__ import annotations

from model.baselines.smoothing import SmoothingForecaster

NEWEST_VALUE = 1.0


class SeasonalNaiveForecaster(SmoothingForecaster):
    """Seasonal naive, or last value, per row and column. A row's draws are fixed by (item id, origin, seed)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, (NEWEST_VALUE,), "seasonal_naive")
