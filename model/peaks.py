"""The largest demand of a span of steps, path by path, and its quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Whole = NDArray[np.int64]


def peak_quantiles(
    paths: NDArray[np.float32], rows: Whole, indicator: int, first: Whole, end: Whole, levels: Sequence[float]
) -> Float:
    """Quantiles [B, Q] of the peak of one indicator of paths [R, S, H, N], R type 6 and never negative.

    Args:
        rows: int64 [B], which of the R.
        first, end: int64 [B], span of steps of each.
    """
    ordered = np.sort(_peaks(paths, rows, indicator, first, end), axis=1)  # [B, S]
    most = ordered.shape[1] - 1
    place = np.clip(np.asarray(levels) * (most + 2) - 1.0, 0.0, most)
    low = place.astype(np.int64)
    below = ordered[:, low].astype(np.float64)
    quantiles: Float = below + (place - low) * (ordered[:, np.minimum(low + 1, most)] - below)
    return quantiles


@compiled
def finite_rows(paths: NDArray[np.float32], indicator: int) -> NDArray[np.bool_]:
    """bool [R]: whether all numbers of one indicator of paths [R, S, H, N] are finite."""
    rows = np.ones(paths.shape[0], np.bool_)
    for b in range(paths.shape[0]):
        for s in range(paths.shape[1]):
            for t in range(paths.shape[2]):
                rows[b] &= np.isfinite(paths[b, s, t, indicator])
    return rows


@compiled
def _peaks(paths: NDArray[np.float32], rows: Whole, indicator: int, first: Whole, end: Whole) -> NDArray[np.float32]:
    peaks = np.zeros((len(rows), paths.shape[1]), np.float32)
    for b in range(len(rows)):
        for s in range(paths.shape[1]):
            for t in range(first[b], end[b]):
                rate = paths[rows[b], s, t, indicator]
                peaks[b, s] = rate if rate > peaks[b, s] else peaks[b, s]  # noqa: FURB136
    return peaks
