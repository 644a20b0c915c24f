"""Changes of the mix of requests: how much heavier or lighter requests may have become when a new replica serves.

    mixes of the last day ─▶ work per request ─▶ ten minutes that were like the present ─▶ what followed them

The past is known as ten-minute means. A path begins at a random time within ten minutes whose requests were about as
heavy as those of now, and repeats what came after. "No change" counts like a few more of these ten minutes, so a mix
that was never seen before is taken to last (docs/adr/0048).

Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.baselines.context import row_seed
from model.baselines.context_kernel import ascending, uniforms
from model.capacity.law import EngineLaw
from model.compiled import compiled

Float = NDArray[np.float64]

ROWS: Final = 144
"""Ten-minute means that are looked at, a day."""
_ROW_S: Final = 600.0
# Seed of the draws.
_SEED: Final = 5
# Standard deviation of the kernel that weighs the past, in the logarithm of the work of a request.
_BANDWIDTH: Final = 0.25
# Ten minutes without a change that the prior is worth.
_UNCHANGED_ROWS: Final = 2.0
# Requests of ten minutes from which on their mix is known.
_MIN_REQUESTS: Final = 100.0
# Ratio of the heaviest to the lightest mix from which on changes are looked at; the doubt of the capacity covers less.
_MIN_RANGE_RATIO: Final = 1.1


def work_paths(
    law: EngineLaw,
    means: NDArray[np.float32],
    observed: NDArray[np.bool_],
    item_id: str,
    origin_ts_ms: int,
    step_s: float,
    shape: tuple[int, int],
) -> NDArray[np.float32] | None:
    """Work of a request in parts of its present work, float32 [H, S]; None where too little is known, or changes.

    Args:
        means, observed: [R, 3], arrivals, prompt tokens and generated tokens per second of ten minutes each, oldest
            first.
        item_id: with the origin it fixes the draws, whatever else is planned.
        shape: H steps and S paths.
    """
    known = observed.all(axis=1) & (means[:, 0] * _ROW_S >= _MIN_REQUESTS)
    if int(known.sum()) < 2:
        return None
    rate, prompt, output = means[known].astype(np.float64).T
    work = law.relative_work(prompt / rate, output / rate)
    if work is None or work.max() < _MIN_RANGE_RATIO * work.min():
        return None
    rows = np.maximum(np.cumsum(known) - 1, 0)  # of rows that tell nothing the last one before stands
    paths = np.empty(shape, np.float32)
    _follow(work[rows], np.uint64(row_seed(item_id, origin_ts_ms, _SEED)), step_s, paths)
    return paths


@compiled
def _follow(work: Float, key: np.uint64, step_s: float, paths: NDArray[np.float32]) -> None:
    """Fill paths [H, S] from the work [R] of the past, in parts of the present."""
    horizon, num_paths = paths.shape
    paths[:] = 1.0
    ahead = int(np.ceil(horizon * step_s / _ROW_S))
    usable = len(work) - ahead
    if usable < 1:
        return
    cumulative = np.empty(usable)
    total = 0.0
    for k in range(usable):
        z = np.log(work[k]) / _BANDWIDTH
        total += np.exp(-0.5 * z * z)
        cumulative[k] = total
    total += _UNCHANGED_ROWS
    # Stratified: of all the past each path gets another part, in an order of its own.
    numbers, order = np.empty(2 * num_paths), np.empty(num_paths, np.int64)
    uniforms(key, 0, numbers)
    ascending(numbers[:num_paths], order)
    for s in range(num_paths):
        level = (order[s] + numbers[num_paths + s]) / num_paths * total
        if level >= cumulative[-1]:
            continue
        first = np.searchsorted(cumulative, level, side="right")
        # Where within the ten minutes, by what is left of the level.
        below = cumulative[first - 1] if first > 0 else 0.0
        phase = (level - below) / (cumulative[first] - below)
        changed = max(int(np.ceil((1.0 - phase) * _ROW_S / step_s - 0.5)), 0)
        for t in range(changed, horizon):
            row = first + int(phase + (t + 0.5) * step_s / _ROW_S)
            paths[t, s] = work[min(row, len(work) - 1)] / work[first]
