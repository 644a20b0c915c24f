"""The curves of misses over load that evidence of capacity is held against, on a lattice of log loads."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.capacity.grid import GRID, SPACING, STEEPNESS

Float = NDArray[np.float64]

_TOLD_APART: Final = 10.0  # times the share allowed, or a part of it: beyond, shares of misses count alike


class Curves:
    """The share that misses on the lattice, capacity and load in one window.

    `missed_at` is [load, steepness x capacity], and `log_evidence`, the logarithms of what is good and of what misses,
    [2 x load, steepness x capacity]: what is read of one load lies together.

    Told apart are only shares around the one allowed, from `least` to `most`: how many miss in an overload depends on
    how long it lasts, and some miss at any load.
    """

    def __init__(self, allowed: float) -> None:
        lattice = np.arange(GRID) * SPACING
        gap = np.asarray(STEEPNESS)[:, None, None] * (lattice[None, :] - lattice[:, None])
        self.least, self.most = allowed / _TOLD_APART, min(allowed * _TOLD_APART, (1.0 + allowed) / 2.0)
        missed = 1.0 / (1.0 + (1.0 / allowed - 1.0) * np.exp(-np.clip(gap, -60.0, 60.0)))
        told = np.clip(missed, self.least, self.most)
        self.missed_at: Float = np.ascontiguousarray(missed.reshape(-1, GRID).T)
        said = np.concatenate((np.log1p(-told), np.log(told)), axis=2)
        self.log_evidence: Float = np.ascontiguousarray(said.reshape(-1, 2 * GRID).T)

    def told(self, share: float) -> float:
        """The share as it counts."""
        return min(max(share, self.least), self.most)


@lru_cache(maxsize=8)
def curves_of(allowed: float) -> Curves:
    """Of an objective that allows this share of misses."""
    return Curves(allowed)
