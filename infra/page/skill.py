"""How good the published forecasts of one workload have been, from what the page keeps: exact over its own window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# What is kept of each forecast row.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
# Fewer scores than this say too little to show.
LEAST_SCORES = 20
# Forecasts carry six significant digits and rings single precision.
_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class Skill:
    """Scores of the forecasts one horizon ahead; None where too little is known.

    Attributes:
        scores: forecasts that were held against an observed load.
        mae: mean absolute error of the median, 1/s.
        last_value_mae: the same of "the load stays as it is", on the same slots.
        pinball: mean quantile loss over `LEVELS`.
        coverage_50, coverage_90: share of loads within the central bands.
    """

    steps_ahead: int
    scores: int
    mae: float | None = None
    last_value_mae: float | None = None
    pinball: float | None = None
    coverage_50: float | None = None
    coverage_90: float | None = None


def skill(loads: Floats, quantiles: Floats, steps_ahead: int) -> Skill:
    """Scores of one horizon.

    Args:
        loads: [T], observed load by slot, NaN where not observed.
        quantiles: [T, 5], what was forecast for the slot `steps_ahead` slots earlier, NaN where nothing was.
        steps_ahead: the horizon.
    """
    mask = ~np.isnan(loads) & ~np.isnan(quantiles).any(axis=1)
    mask[:steps_ahead] = False
    mask[steps_ahead:] &= ~np.isnan(loads[:-steps_ahead])  # the yardstick must know the load at the origin
    at = np.flatnonzero(mask)
    if len(at) < LEAST_SCORES:
        return Skill(steps_ahead, len(at))
    load, forecast = loads[at], quantiles[at]
    slack = _ROUNDING * np.abs(load)
    error = load[:, None] - forecast  # [n, 5]
    tau = np.asarray(LEVELS)

    def within(low: int, high: int) -> float:
        return float(((forecast[:, low] - slack <= load) & (load <= forecast[:, high] + slack)).mean())

    return Skill(
        steps_ahead,
        len(at),
        mae=float(np.abs(error[:, 2]).mean()),
        last_value_mae=float(np.abs(load - loads[at - steps_ahead]).mean()),
        pinball=float(np.maximum(tau * error, (tau - 1) * error).mean()),
        coverage_50=within(1, 3),
        coverage_90=within(0, 4),
    )


# What the kept steps say of two questions: what would HARMONY have held in their place, and what was needed after all?
#
# Pure. In `observe` a plan starts anew from what somebody else holds, so its final count is a step from there, not what
# would have been held: that is taken to be the largest proposal of the stabilization window.


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
    mask = ~(np.isnan(current) | np.isnan(ours) | np.isnan(needed))
    steps = int(mask.sum())
    if steps == 0:
        return None
    surplus = current[mask] - needed[mask]
    hours = step_ms / _MS_PER_HOUR
    return Adoption(
        steps=steps,
        held=float(current[mask].mean()),
        ours=float(ours[mask].mean()),
        p_held=_mean(p_current[mask]),
        p_ours=_mean(p_ours[mask]),
        above_h=float(np.maximum(surplus, 0.0).sum()) * hours,
        below_h=float(np.maximum(-surplus, 0.0).sum()) * hours,
    )


def _mean(values: Floats) -> float | None:
    finite_values = values[~np.isnan(values)]
    return float(finite_values.mean()) if len(finite_values) else None
