"""What the kept steps say of two questions: what would HARMONY have held in their place, and what was needed after all?

Pure. In `observe` a plan starts anew from what somebody else holds, so its final count is a step from there, not what
would have been held: that is taken to be the largest proposal of the stabilization window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infra.page.skill import Floats

_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Adoption:
    """Means over the steps for which all is known, replica-hours over the same.

    Attributes:
        held: replicas in force.
        ours: what HARMONY would have held (observe), or did (act).
        p_held, p_ours: mean stated risk of a miss with each; with ours at most so much. None where not stated.
        above_h, below_h: replica-hours held beyond, and short of, what each step's load turned out to need.
    """

    steps: int
    held: float
    ours: float
    p_held: float | None
    p_ours: float | None
    above_h: float
    below_h: float


def largest_within(values: Floats, window: int) -> Floats:
    """Per step, the largest known value of it and the `window` - 1 before, [T]; NaN where none is known."""
    filled = np.where(np.isnan(values), -np.inf, values)
    padded = np.concatenate([np.full(window - 1, -np.inf), filled])
    largest = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return np.where(np.isneginf(largest), np.nan, largest)


def adoption(
    current: Floats, ours: Floats, needed: Floats, p_current: Floats, p_ours: Floats, step_ms: int
) -> Adoption | None:
    """Of arrays [T]; None where no step tells of all counts."""
    known = ~(np.isnan(current) | np.isnan(ours) | np.isnan(needed))
    steps = int(known.sum())
    if steps == 0:
        return None
    surplus = current[known] - needed[known]
    hours = step_ms / _MS_PER_HOUR
    return Adoption(
        steps=steps,
        held=float(current[known].mean()),
        ours=float(ours[known].mean()),
        p_held=_mean(p_current[known]),
        p_ours=_mean(p_ours[known]),
        above_h=float(np.maximum(surplus, 0.0).sum()) * hours,
        below_h=float(np.maximum(-surplus, 0.0).sum()) * hours,
    )


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
