"""The posterior over (steepness, capacity) on a grid, computed from decayed counts of requests; compiled.

Of the lattice of loads a workload has seen a dozen places, so only these are counted in, one after the other: the same
bits in any batch.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Cells = NDArray[np.float32]

SPACING: Final = 0.03  # of the lattice of loads and capacities, in their logarithm: 3 %
GRID: Final = 128  # capacities under consideration at once: a factor of 47 from the lowest to the highest
STEEPNESS: Final = (5, 10, 20, 40)
_LOG_STEEPNESS_PRIOR: Final = np.log(np.asarray((0.2, 0.35, 0.3, 0.15)))
_LOG_STEEPNESS: Final = np.log(np.asarray(STEEPNESS, np.float64))
_EDGE: Final = 24  # the grid moves when the median comes this near to its end
_MOVES: Final = 16  # of the grid, at most


class Prior(NamedTuple):
    """Of the logarithm of capacity: a normal law, and in case that it is wrong a wider one about the same centre.

    Attributes:
        wrong: weight of the wider one.
    """

    centre: float
    sigma: float
    wide_sigma: float
    wrong: float


class GridPosterior(NamedTuple):
    """What is believed of a capacity.

    Attributes:
        first: of the first cell of the grid, in cells of `SPACING` from a capacity of one; the middle of the cell.
        weights: [W, G], of each steepness and capacity; they add up to one.
        cumulative: [G + 1], probability of the capacities up to the ends of the cells, from 0 to 1.
        steepness: geometric mean.
    """

    first: int
    weights: Float
    cumulative: Float
    steepness: float


def grid_posterior(cells: Cells, lowest: int, log_evidence: Float, prior: Prior) -> GridPosterior:
    """The posterior on a grid around its median.

    Args:
        cells: [3, M], places of M loads on a lattice, `SPACING` apart; requests that were good there; that missed.
        lowest: of the lattice's place 0, in cells from a load of one.
        log_evidence: [2 * G, W * G], what a good one, and one that missed, says of each steepness and capacity, load
            by load of the grid.
    """
    weights, cumulative = np.empty((len(STEEPNESS), GRID)), np.empty(GRID + 1)
    first = round(prior.centre / SPACING) - GRID // 2
    for move in range(_MOVES + 1):
        median, steepness = _fill(cells, lowest - first, log_evidence, _prior_at(first, prior), weights, cumulative)
        if _EDGE <= median < GRID - _EDGE or move == _MOVES:  # some grids would move to and fro for ever
            break
        first += median - GRID // 2
    return GridPosterior(first, weights, cumulative, steepness)


def missed_share(posterior: GridPosterior, missed_at: Float, load: float) -> float:
    """Expected share of requests that misses at a load, between the loads of the lattice beside it.

    Args:
        missed_at: [G, W * G], the share at each load of the grid, for each steepness and capacity.
        load: its logarithm, in cells of `SPACING` from a load of one.
    """
    place = min(max(load - posterior.first, 0.0), GRID - 1.0)
    low = min(int(place), GRID - 2)
    return _between(posterior.weights.reshape(-1), missed_at[low], missed_at[low + 1], place - low)


@lru_cache(maxsize=1024)
def _prior_at(first: int, prior: Prior) -> Float:
    """Its logarithm at the capacities [G] of a grid: the same in nearly every slot."""
    cells = np.empty(GRID)
    _fill_prior(first, prior, cells)
    return cells


@compiled
def _fill(
    cells: Cells, start: int, log_evidence: Float, log_prior: Float, weights: Float, cumulative: Float
) -> tuple[int, float]:
    """Weights on one grid, whose first load is `start` before place 0; the median's cell, and steepness."""
    for w in range(len(weights)):
        weights[w] = _LOG_STEEPNESS_PRIOR[w]
    _count_in(cells, start, log_evidence, weights.reshape(-1))
    for w in range(len(weights)):
        weights[w] += log_prior
    median = _normalise(weights, cumulative)
    mean = 0.0
    for w in range(len(weights)):
        mean += weights[w].sum() * _LOG_STEEPNESS[w]
    return median, math.exp(mean)


@compiled
def _count_in(cells: Cells, start: int, log_evidence: Float, log_weights: Float) -> None:
    """Add what the counts say; loads beyond the grid pull the posterior to its end, from where the grid moves on."""
    for label in range(2):
        for k in range(cells.shape[1]):
            count = np.float64(cells[1 + label, k])
            if count != 0.0:
                said = log_evidence[label * GRID + min(max(start + int(cells[0, k]), 0), GRID - 1)]
                for c in range(len(log_weights)):
                    log_weights[c] += count * said[c]


@compiled
def _fill_prior(first: int, prior: Prior, log_prior: Float) -> None:
    wide = math.log(prior.wrong * prior.sigma / prior.wide_sigma)
    for g in range(GRID):
        gap = (first + g) * SPACING - prior.centre
        narrow_part = -0.5 * (gap / prior.sigma) ** 2
        wide_part = wide - 0.5 * (gap / prior.wide_sigma) ** 2
        larger = max(narrow_part, wide_part)
        log_prior[g] = larger + math.log1p(math.exp(min(narrow_part, wide_part) - larger))


@compiled
def _between(weights: Float, here: Float, above: Float, part: float) -> float:
    """Weighted mean of one row, and so large a part of the way to that of another; lengths are multiples of eight."""
    ours, theirs = np.zeros(8), np.zeros(8)
    for c in range(0, len(weights), 8):
        for k in range(8):
            ours[k] += weights[c + k] * here[c + k]
            theirs[k] += weights[c + k] * above[c + k]
    first = ours.sum()
    return float(first + (theirs.sum() - first) * part)


@compiled
def _normalise(weights: Float, cumulative: Float) -> int:
    """Logarithms to weights that add up to one; the first cell up to whose end there is half of them."""
    highest = weights.max()
    cumulative[0] = 0.0
    for g in range(GRID):
        cell = 0.0
        for w in range(len(weights)):
            weights[w, g] = math.exp(weights[w, g] - highest)
            cell += weights[w, g]
        cumulative[g + 1] = cumulative[g] + cell
    total = cumulative[GRID]
    median = GRID
    for g in range(GRID - 1, -1, -1):
        cumulative[g + 1] /= total
        median = g if cumulative[g + 1] >= 0.5 else median
        for w in range(len(weights)):
            weights[w, g] /= total
    return median
