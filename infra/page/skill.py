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
    seen = ~np.isnan(loads) & ~np.isnan(quantiles).any(axis=1)
    seen[:steps_ahead] = False
    seen[steps_ahead:] &= ~np.isnan(loads[:-steps_ahead])  # the yardstick must know the load at the origin
    at = np.flatnonzero(seen)
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
