"""Simple exponential smoothing around the season, with residual windows: it always answers.

The context less its season (`model.baselines.smoothing`) is smoothed by exponential averages, the rate of each column
chosen in the context (`model.baselines.smoothing_kernel`). A path is the season at the newest level, and what one
window of the context was beside the level at its beginning: one window for all steps and indicators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

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
from model.baselines.smoothing_kernel import Ring, smoothing_paths
from model.contract import COARSE_STEP_MS, ContextBatch, ForecastBatch

# Seasons: what the coarse ring held one day before each step of context and horizon, for batches of tensors.


_VERSION: Final = 1
_CHUNK_ROWS: Final = 16
RATES: Final = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)


class SmoothingForecaster:
    """Season and smoothed level, per row and column. A row's draws are fixed by (item id, origin, seed).

    Args:
        seed: of the draws.
        rates: of the exponential averages that are tried, from the fastest to the slowest; rate 1 is the newest value.
        source: of its forecasts.

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
        """Forecast as the contract says; a horizon beyond half of what is known is reached by several windows in a row.

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
        ring = Ring(
            as_array(batch.coarse, torch.float32),
            as_array(batch.coarse_observed, torch.bool),
            as_array(batch.origin_ts_ms % COARSE_STEP_MS, torch.float64) / COARSE_STEP_MS,
            batch.step_ms / COARSE_STEP_MS,
        )
        smoothing_paths(compiled_rows(batch, self._seed), ring, horizon, self._rates, places, flat_paths(out))


# Last value, or the shape of one day ago where a day is known, with residual windows: it always answers.
#
# Season: the coarse ring (10-minute means, 144 to the day) one day before each step, interpolated between the rows'
# centres and shifted to the present level, which is the newest value: smoothing that forgets everything before it.
# Columns without a season are read as they are. The yardstick of every other forecaster.


NEWEST_VALUE = 1.0


class SeasonalNaiveForecaster(SmoothingForecaster):
    """Seasonal naive, or last value, per row and column. A row's draws are fixed by (item id, origin, seed)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, (NEWEST_VALUE,), "seasonal_naive")
