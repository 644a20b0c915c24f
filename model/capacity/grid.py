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

from model.capacity.evidence import CLUMP, LoadEvidence
from model.compiled import compiled

Float = NDArray[np.float64]
Cells = NDArray[np.float32]

SPACING: Final = 0.03  # of the lattice of loads and capacities, in their logarithm: 3 %
GRID: Final = 128  # capacities under consideration at once: a factor of 47 from the lowest to the highest
STEEPNESS: Final = (5, 10, 20, 40)
_LOG_STEEPNESS_PRIOR: Final = np.log(np.asarray((0.2, 0.35, 0.3, 0.15)))
_LOG_STEEPNESS: Final = np.log(np.asarray(STEEPNESS, np.float64))
# Cells from the end of the grid within which the median moves the grid.
_EDGE_CELLS: Final = 24
# Most moves of the grid.
_MAX_MOVES: Final = 16


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
    for move in range(_MAX_MOVES + 1):
        median, steepness = _fill(cells, lowest - first, log_evidence, _prior_at(first, prior), weights, cumulative)
        # some grids would move to and fro for ever
        if _EDGE_CELLS <= median < GRID - _EDGE_CELLS or move == _MAX_MOVES:
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
                log_likelihoods = log_evidence[label * GRID + min(max(start + int(cells[0, k]), 0), GRID - 1)]
                for c in range(len(log_weights)):
                    log_weights[c] += count * log_likelihoods[c]


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
    here_sums, above_sums = np.zeros(8), np.zeros(8)
    for c in range(0, len(weights), 8):
        for k in range(8):
            here_sums[k] += weights[c + k] * here[c + k]
            above_sums[k] += weights[c + k] * above[c + k]
    first = here_sums.sum()
    return float(first + (above_sums.sum() - first) * part)


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


# The curves of misses over load that evidence of capacity is held against, on a lattice of log loads.


# Factor on the allowed share beyond which shares of misses count alike.
_MAX_DISTINCT_RATIO: Final = 10.0


class Curves:
    """The share that misses on the lattice, capacity and load in one window.

    `missed_at` is [load, steepness x capacity], and `log_evidence`, the logarithms of what is good and of what misses,
    [2 x load, steepness x capacity]: what is read of one load lies together.

    Told apart are only shares around the one allowed, from `least` to `most`: how many miss in an overload depends on
    how long it lasts, and some miss at any load.
    """

    def __init__(self, allowed: float) -> None:
        lattice = np.arange(GRID) * SPACING
        gap = np.asarray(STEEPNESS)[:, None, None] * (lattice[None, :] - lattice[:, None])
        self.least, self.most = allowed / _MAX_DISTINCT_RATIO, min(allowed * _MAX_DISTINCT_RATIO, (1.0 + allowed) / 2.0)
        missed = 1.0 / (1.0 + (1.0 / allowed - 1.0) * np.exp(-np.clip(gap, -60.0, 60.0)))
        probabilities = np.clip(missed, self.least, self.most)
        self.missed_at: Float = np.ascontiguousarray(missed.reshape(-1, GRID).T)
        log_parts = np.concatenate((np.log1p(-probabilities), np.log(probabilities)), axis=2)
        self.log_evidence: Float = np.ascontiguousarray(log_parts.reshape(-1, 2 * GRID).T)

    def told(self, share: float) -> float:
        """The share as it counts."""
        return min(max(share, self.least), self.most)


@lru_cache(maxsize=8)
def curves_of(allowed: float) -> Curves:
    """Of an objective that allows this share of misses."""
    return Curves(allowed)


# What share of requests misses at a load: little below capacity, more and more above, all in the end.
#
# A replica that is offered x times its capacity misses the share g(x) = 1 / (1 + (1/a - 1) x^-p) of its requests. `a`
# is the share that the objective allows, so that capacity is the load at which just that many miss, and `p`, the
# steepness, says how fast misses grow: by a power p of the load at first. At x = (1/a - 1)^(1/p), the *headroom*, half
# of all miss; what is offered beyond that is no longer served as fast as it comes, and queues.
#
# On a stretch of steps with demands d the share that misses when rate r can be served within the SLO is the mean of
# g(d / r) weighted by d. The rate at which it is just `a` is what the stretch needs (`load_rates`); served by another
# rate its share is taken to be g(needed / rate), which is exact for a steady demand.


LEAST_ALLOWED: Final = 1e-4  # an objective of all requests cannot be told from one of nearly all by what is seen
MOST_ALLOWED: Final = 0.5


@compiled
def odds_against(allowed: float) -> float:
    """1/a - 1, of a share of misses allowed."""
    return 1.0 / min(max(allowed, LEAST_ALLOWED), MOST_ALLOWED) - 1.0


@compiled
def headroom(allowed: float, steepness: int) -> float:
    """How many times its capacity a replica can be offered before it falls behind; at least 1."""
    return float(odds_against(allowed) ** (1.0 / steepness))


@compiled
def share_missed(needed: float, served: float, odds: float) -> float:
    """Share of requests that miss where `needed` would have to be served and `served` is; 0 without demand.

    Args:
        needed, served: requests/s, or replicas, to the power of the steepness.
        odds: `odds_against` of the share of misses allowed.
    """
    return needed / (needed + odds * served) if needed > 0.0 else 0.0


# Where a capacity is believed to lie beside what its evidence says load by load.


LOWEST: Final = -310  # lattice index of 9e-5 requests/s; the last one is at 1.2e5
_DECLARED_SIGMA: Final = 0.25  # of log capacity around a declared one, where nobody says how far it may be off
LOAD_TEST_OFF_BY: Final = math.exp(_DECLARED_SIGMA)
_LEARNED_SIGMA: Final = 1.0  # of log capacity around the loads seen, and around a declared one that is wrong
# Probability that a declared capacity is far off.
_WRONG_PROBABILITY: Final = 0.02
_LEARNED_SHIFT: Final = 0.4  # ... a little above them: they were carried


def prior_of(declared_rps: float | None, evidence: LoadEvidence, off_by: float | None = None) -> Prior:
    """Around the declared figure, or around the loads seen.

    Args:
        off_by: factor that the declared figure may be off by, either way, two times of three.

    Raises:
        ValueError: nothing is declared and no load has been seen yet.
    """
    if declared_rps is not None:
        sigma = _DECLARED_SIGMA if off_by is None else math.log(off_by)
        return Prior(math.log(declared_rps), sigma, max(_LEARNED_SIGMA, sigma), _WRONG_PROBABILITY)
    carried = evidence.highest_good(CLUMP)  # one good slot's worth was seen there or above
    if carried is not None:
        return Prior((carried + LOWEST) * SPACING + _LEARNED_SHIFT, _LEARNED_SIGMA, _LEARNED_SIGMA, _WRONG_PROBABILITY)
    mean = evidence.mean()
    if mean is None:
        raise ValueError("capacity is unknown: none is declared and no load has been seen")
    return Prior((mean + LOWEST) * SPACING, _LEARNED_SIGMA, _LEARNED_SIGMA, _WRONG_PROBABILITY)
