"""What surges that are expected to come again, or to go on, add to sample paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.bursts.recurring import ExpectedSurge
from model.draws import row_seed
from model.row_draws import uniforms

_SEED: Final = 2
_UNIT: Final = math.sqrt(12.0)  # of a uniform draw, its standard deviations


def surge_paths(
    expected: Sequence[ExpectedSurge],
    item_id: str,
    origin_ts_ms: int,
    step_ms: int,
    columns: Sequence[int],
    shape: tuple[int, int, int],
) -> NDArray[np.float32]:
    """What expected surges add to one workload's paths, each to so many of them as its chance says.

    A path takes one of the surges that were there before as it was: how early or late, how long, how high, and by how
    much its steps differ. What one that is under way has already lasted leaves the longer ones.

    Args:
        item_id: with the origin it fixes the draws, whatever else is forecast.
        columns: of the paths, in the order of what surges add; -1 for those that are not in them.
        shape: S, H, N.

    Returns:
        float32 [S, H, N], per second.
    """
    num_paths, horizon, _ = shape
    added = np.zeros(shape)
    begins = origin_ts_ms + step_ms * np.arange(horizon)  # [H]
    key, width = np.uint64(row_seed(item_id, origin_ts_ms, _SEED)), horizon + 2
    drawn = np.empty(num_paths * width)
    for number, one in enumerate(expected):
        uniforms(key, number * len(drawn), drawn)
        comes, which, differs = np.split(drawn.reshape(num_paths, width), [1, 2], axis=1)
        lasted_ms = origin_ts_ms - one.start_ms if one.begun else 0
        known = list(zip(one.recurrence.surges, one.recurrence.phases_ms, strict=True))
        fit = [(surge, phase) for surge, phase in known if surge.length_ms > lasted_ms] or known[-1:]
        taken = (which[:, 0] * len(fit)).astype(np.int64)  # [S]

        def of_taken(values: Sequence[float], taken: NDArray[np.int64] = taken) -> NDArray[np.float64]:
            return np.array(values, np.float64)[taken][:, None]

        if one.begun:
            starts = np.full((num_paths, 1), float(one.start_ms))
        else:
            starts = np.maximum(one.start_ms + of_taken([phase for _, phase in fit]), origin_ts_ms)
        ends = starts + of_taken([surge.length_ms for surge, _ in fit])
        cover = np.clip(np.minimum(ends, begins + step_ms) - np.maximum(starts, begins), 0, step_ms) / step_ms  # [S, H]
        cover *= comes < one.chance
        cover *= np.maximum(1.0 + of_taken([surge.spread for surge, _ in fit]) * _UNIT * (differs - 0.5), 0.0)
        for place, column in enumerate(columns):
            if column >= 0:
                added[..., column] += cover * of_taken([surge.extra[place] for surge, _ in fit])
    return added.astype(np.float32)
