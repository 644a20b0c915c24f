"""The largest demand of a span of steps, path by path, and its quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Whole = NDArray[np.int64]


def peak_quantiles(
    demand: NDArray[np.float32], rows: Whole, first: Whole, end: Whole, levels: Sequence[float]
) -> Float:
    """Quantiles [B, Q] of the peak of paths [R, H, S], R type 6 and never negative.

    Args:
        rows: int64 [B], which of the R.
        first, end: int64 [B], span of steps of each.
    """
    ordered = np.sort(_peaks(demand, rows, first, end), axis=1)  # [B, S]
    most = ordered.shape[1] - 1
    place = np.clip(np.asarray(levels) * (most + 2) - 1.0, 0.0, most)
    low = place.astype(np.int64)
    below = ordered[:, low].astype(np.float64)
    quantiles: Float = below + (place - low) * (ordered[:, np.minimum(low + 1, most)] - below)
    return quantiles


@compiled
def finite_rows(demand: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool [R]: whether all numbers of paths [R, H, S] are finite."""
    rows = np.ones(demand.shape[0], np.bool_)
    for b in range(demand.shape[0]):
        strange, most = np.int32(0), np.float32(np.inf)
        for number in demand[b].reshape(-1):
            strange = np.int32(strange + (not abs(number) < most))
        rows[b] = strange == 0
    return rows


@compiled
def _peaks(demand: NDArray[np.float32], rows: Whole, first: Whole, end: Whole) -> NDArray[np.float32]:
    peaks = np.zeros((len(rows), demand.shape[2]), np.float32)
    for b in range(len(rows)):
        for t in range(first[b], end[b]):
            for s in range(demand.shape[2]):
                rate = demand[rows[b], t, s]
                peaks[b, s] = rate if rate > peaks[b, s] else peaks[b, s]  # noqa: FURB136
    return peaks
