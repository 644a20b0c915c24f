"""Draws from what is known of a workload's capacity and lead time, spread evenly over both.

Both posteriors are cut into as many equally likely strata as there are draws, and a stratum stands for its median.
Each path gets one stratum of every V/S of them, in a fixed shuffled order, so that the draws of one path are spread as
evenly as those of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.capacity.lead_time import LeadTimePosterior, student_table
from model.capacity.posterior import SPACING, CapacityPosterior
from model.compiled import compiled

Float = NDArray[np.float64]
Whole = NDArray[np.int64]


@lru_cache(maxsize=16)
def strata_order(draws: int, paths: int) -> tuple[Whole, Whole]:
    """Strata [V] of the capacities and of the lead times, future by future; the same in every process."""
    rng = np.random.Generator(np.random.PCG64(20240801))
    repeats = draws // paths
    first = np.stack([k * paths + rng.permutation(paths) for k in range(repeats)])  # [V / S, S]
    second = rng.permuted(np.stack([k * paths + rng.permutation(paths) for k in range(repeats)]), axis=0)
    return first.reshape(-1).astype(np.int64), second.reshape(-1).astype(np.int64)


@compiled
def capacity_at(level: float, log_first: float, spacing: float, cumulative: Float) -> float:
    """Quantile of a capacity whose logarithm is spread evenly within cells `spacing` apart.

    Args:
        log_first: logarithm at the lower end of the first cell.
        cumulative: probabilities up to each cell's ends, ascending from 0 to 1.
    """
    high = int(np.searchsorted(cumulative, level, side="right"))
    high = min(max(high, 1), len(cumulative) - 1)
    mass = cumulative[high] - cumulative[high - 1]
    inside = (level - cumulative[high - 1]) / mass if mass > 0 else 0.0
    return math.exp(log_first + (high - 1 + min(max(inside, 0.0), 1.0)) * spacing)


@compiled
def capacity_quantiles(levels: Float, log_first: Float, spacing: float, cumulative: Float) -> Float:
    """Quantiles [B, Q] of B capacities, aligned with `levels` [Q]."""
    quantiles = np.empty((len(log_first), len(levels)))
    for b in range(len(log_first)):
        for q in range(len(levels)):
            quantiles[b, q] = capacity_at(levels[q], log_first[b], spacing, cumulative[b])
    return quantiles


@compiled
def capacity_strata(num: int, log_first: float, spacing: float, cumulative: Float) -> Float:
    """Medians [num] of equally likely strata, ascending."""
    strata = np.empty(num)
    cell, capacity, growth = 0, 0.0, 1.0
    for k in range(num):
        level = (k + 0.5) / num
        capacity *= growth
        if cell == 0 or (cumulative[cell] <= level and cell < len(cumulative) - 1):
            cell = max(cell, 1)
            while cumulative[cell] <= level and cell < len(cumulative) - 1:
                cell += 1
            # Within a cell the strata grow by a constant factor.
            mass = max(cumulative[cell] - cumulative[cell - 1], 1e-300)
            inside = min((level - cumulative[cell - 1]) / mass, 1.0)
            capacity = math.exp(log_first + (cell - 1 + inside) * spacing)
            growth = math.exp(spacing / (mass * num))
        strata[k] = capacity
    return strata


@compiled
def student_below(value: float, values: Float, probabilities: Float) -> float:
    """Cumulative probability of a Student t, read from a table."""
    if value <= values[0]:
        return 0.0
    if value >= values[-1]:
        return 1.0
    high = int(np.searchsorted(values, value, side="right"))
    low = high - 1
    share = (value - values[low]) / (values[high] - values[low])
    return float(probabilities[low] + share * (probabilities[high] - probabilities[low]))


@compiled
def lead_strata(
    num: int,
    location: float,
    scale: float,
    values: Float,
    probabilities: Float,
    delay_s: float,
    step_s: float,
    most: int,
) -> Whole:
    """Whole steps [num] until a replica commanded now serves, one for each of equally likely strata, at most `most`.

    The logarithm of the lead time is a Student t with this location and scale.
    """
    strata = np.empty(num, np.int64)
    k = 0
    for steps in range(most + 1):
        below = 1.0
        if steps < most:
            # A lead time of whole steps serves from that step on, whatever the rounding of its length.
            left_s = (steps + 1e-9) * step_s - delay_s
            below = student_below((math.log(left_s) - location) / scale, values, probabilities) if left_s > 0 else 0.0
        while k < num and (steps == most or (k + 0.5) / num <= below):
            strata[k] = steps
            k += 1
    return strata


# What is known of capacity and lead time of many workloads at once, as arrays.


# Largest absolute logarithm of a lead time in seconds.
_MAX_LOG_SECONDS: Final = 20.0


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
        has_data = [p.known for p in posteriors]
        cells = [p.cumulative() if k else (0.0, None) for p, k in zip(posteriors, has_data, strict=True)]
        width = next((len(c) for _, c in cells if c is not None), 2)
        nothing = np.linspace(0.0, 1.0, width)
        return CapacityTable(
            has_data,
            np.array([first for first, _ in cells]),
            np.array([nothing if c is None else c for _, c in cells]),
            np.array([p.steepness if k else 1 for p, k in zip(posteriors, has_data, strict=True)]),
        )

    def quantiles(self, levels: Sequence[float]) -> list[tuple[float, ...]]:
        """B rows aligned with `levels`."""
        quantiles = capacity_quantiles(np.asarray(levels, np.float64), self.log_first, SPACING, self.cumulative)
        return [tuple(row) for row in quantiles.tolist()]


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
        return [tuple(row) for row in np.exp(np.clip(log_s, -_MAX_LOG_SECONDS, _MAX_LOG_SECONDS)).tolist()]
