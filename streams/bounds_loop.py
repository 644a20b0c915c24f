"""Holding samples against their bounds, compiled: one look at each value."""

from __future__ import annotations

import numpy as np

from streams.compiled import compiled
from streams.records.samples import Bools, Floats, Ints


@compiled
def within(
    values: Floats, least: Floats, greatest: Floats, lower: Floats, upper: Floats, parts: Ints, tolerance: float,
    good: Bools,
) -> bool:  # fmt: skip
    """Whether all samples are good.

    Args:
        values: [n, F], NaN where missing; those that overshoot their bound by rounding become the bound, in place.
        least, greatest: [F] what is still taken; `lower`, `upper` [F] the bounds.
        parts: [ratios, 2] fields of which the first must not exceed the second times 1 + `tolerance`.
        good: [n] out: the samples whose values all lie in their bounds.
    """
    every = True
    for i in range(len(values)):
        fine = True
        for p in range(len(parts)):
            # A comparison with NaN is false: what is missing lies in every bound.
            if values[i, parts[p, 0]] > values[i, parts[p, 1]] * (1 + tolerance):
                fine = False
        for f in range(values.shape[1]):
            value = values[i, f]
            if value < least[f] or value > greatest[f]:
                fine = False
            elif not np.isnan(value):
                # Adding 0 turns -0 into 0.
                values[i, f] = min(max(value, lower[f]), upper[f]) + 0.0
        good[i] = fine
        every &= fine
    return every
