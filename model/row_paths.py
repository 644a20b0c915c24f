"""Rows as the compiled baselines take them, and their paths written in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Single = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Rows(NamedTuple):
    """Rows of a batch, contiguous.

    Attributes:
        keys: uint64 [B], fix the draws of each row.
        values: [B, L, N].
        observed: [B, L, N].
        lower, upper: [N], physical bounds.
    """

    keys: NDArray[np.uint64]
    values: Single
    observed: Mask
    lower: Single
    upper: Single


@compiled
def write_paths(windows: Single, draws: Whole, places: Whole, out: Single) -> None:
    """Path places[s] of one row = window draws[s].

    Args:
        windows: [W, H * N], possible futures.
        draws, places: [S].
        out: [paths, H * N].
    """
    for s in range(len(draws)):
        source, target = windows[draws[s]], out[places[s]]
        for k in range(len(target)):
            target[k] = source[k]
