"""Surges under way: steps beyond everything that the context before them holds, which a context cannot foretell.

A regression that knows the context takes the first steps of a surge for noise and reverts to what it knows; so it goes
often enough, but requests may as well go on coming faster. So a part of the paths of a surging row leaves from the
newest value and goes on as it went in its last steps, some of the way.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.contract import ContextBatch, ForecastBatch, Forecaster
from model.draws import row_uniforms
from model.paths import as_array
from model.rows import take_rows
from model.surge_steps import MOST_STEPS, surge_steps
from model.wrapped import WrappedForecaster

_EVERY: Final = 3  # of so many paths in a row one goes on
_SEED: Final = 1


class SurgeForecaster(WrappedForecaster):
    """A forecaster some of whose paths go on where the newest steps surge.

    Args:
        inner: makes the paths; rows without a surge keep every bit of them.
        level: takes the newest value for the level; to its paths the growth is added.
    """

    def __init__(self, inner: Forecaster, level: Forecaster) -> None:
        super().__init__(inner, "surge", f"surge/1/{level.fingerprint}/")
        self._level = level

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: what the inner forecaster refuses.
        """
        made = self._inner.forecast(batch, horizon, num_paths)
        places = torch.arange(_EVERY - 1, num_paths, _EVERY)
        steps, rises = _surges(batch)
        rows = np.flatnonzero(steps.any(axis=1)).tolist()
        if rows and len(places):
            surging = take_rows(batch, rows)
            going_on = self._level.forecast(surging, horizon, len(places)).paths
            grown = going_on + _growth(surging, steps[rows], rises[rows], horizon, len(places)).to(going_on)
            for k, row in enumerate(rows):
                made.paths[row, places] = grown[k].clamp(batch.lower, batch.upper)
        return ForecastBatch(made.paths, made.sources, self._fingerprint)


def _surges(batch: ContextBatch) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps that each surge has lasted [B, N], 0 = none, and by how much its last 1, 2, ... steps rose [B, N, 8]."""
    b, _, n = batch.values.shape
    steps, rises = np.zeros((b, n), np.int64), np.zeros((b, n, MOST_STEPS))
    surge_steps(as_array(batch.values.cpu(), torch.float32), as_array(batch.observed.cpu(), torch.bool), steps, rises)
    return steps, rises


def _growth(
    batch: ContextBatch, steps: NDArray[np.int64], rises: NDArray[np.float64], horizon: int, num_paths: int
) -> Tensor:
    """What every path rises by beyond the newest value, float32 [B, S, H, N].

    A path goes on as in the last 1 to m of the m steps of the surge, evenly drawn, and a share of the way, evenly
    drawn: as fast, over as many steps, and is then at its level. All columns of a path draw alike.
    """
    drawn = row_uniforms(batch.item_ids, batch.origin_ts_ms, _SEED, 2 * num_paths).reshape(len(batch), num_paths, 2)
    back = np.floor(drawn[..., :1] * steps[:, None]).astype(np.int64)  # [B, S, N], steps - 1
    rise = np.take_along_axis(rises[:, None], back[..., None], axis=3)[..., 0] * drawn[..., 1:]  # [B, S, N]
    passed = np.minimum(np.arange(1, horizon + 1)[:, None] / (back[:, :, None] + 1), 1.0)  # [B, S, H, N]
    return torch.from_numpy((rise[:, :, None] * passed).astype(np.float32))
