"""What is known of capacity and lead time of many workloads at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.capacity.draws import capacity_quantiles
from model.capacity.lead_time import LeadTimePosterior, student_table
from model.capacity.posterior import SPACING, CapacityPosterior

Float = NDArray[np.float64]

_MOST_LOG = 20.0


@dataclass(frozen=True, slots=True)
class CapacityTable:
    """Capacities of B workloads, requests/s per replica.

    Attributes:
        known: B flags; where it is not known the numbers mean nothing.
        log_first: [B], logarithm of the lower end of the first cell; cells are `SPACING` wide.
        cumulative: [B, K], probability up to the ends of the cells.
        steepness: int64 [B], power of the curve of misses over load.
    """

    known: list[bool]
    log_first: Float
    cumulative: Float
    steepness: NDArray[np.int64]

    @staticmethod
    def of(posteriors: Sequence[CapacityPosterior]) -> CapacityTable:
        known = [p.known for p in posteriors]
        cells = [p.cumulative() if k else (0.0, None) for p, k in zip(posteriors, known, strict=True)]
        width = next((len(c) for _, c in cells if c is not None), 2)
        nothing = np.linspace(0.0, 1.0, width)
        return CapacityTable(
            known,
            np.array([first for first, _ in cells]),
            np.array([nothing if c is None else c for _, c in cells]),
            np.array([p.steepness if k else 1 for p, k in zip(posteriors, known, strict=True)]),
        )

    def quantiles(self, levels: Sequence[float]) -> list[tuple[float, ...]]:
        """B rows aligned with `levels`."""
        found = capacity_quantiles(np.asarray(levels, np.float64), self.log_first, SPACING, self.cumulative)
        return [tuple(row) for row in found.tolist()]


@dataclass(frozen=True, slots=True)
class LeadTable:
    """Lead times of B workloads: the log of seconds is a Student t.

    Attributes:
        location, scale: [B].
        student: int64 [B], row of the distribution's table.
        values, probabilities: [F, K], ascending.
    """

    location: Float
    scale: Float
    student: NDArray[np.int64]
    values: Float
    probabilities: Float

    @staticmethod
    def of(posteriors: Sequence[LeadTimePosterior]) -> LeadTable:
        location, scale, freedom = np.array([p.student() for p in posteriors]).T
        distinct, student = np.unique(freedom, return_inverse=True)
        probabilities, values = zip(*(student_table(f) for f in distinct.tolist()), strict=True)
        return LeadTable(location.copy(), scale.copy(), student, np.array(values), np.array(probabilities))

    def quantiles(self, levels: Sequence[float]) -> list[tuple[float, ...]]:
        """Seconds, B rows aligned with `levels`."""
        t = np.array([np.interp(levels, p, v) for p, v in zip(self.probabilities, self.values, strict=True)])
        log_s = self.location[:, None] + self.scale[:, None] * t[self.student]
        return [tuple(row) for row in np.exp(np.clip(log_s, -_MOST_LOG, _MOST_LOG)).tolist()]
