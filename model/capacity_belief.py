"""What is believed of a capacity, read from the evidence held: its distribution, and the misses it lets expect.

Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.capacity.attribution import Promise, counts_by_promise
from model.capacity.evidence import LoadEvidence
from model.capacity.grid import GRID, SPACING, GridPosterior, grid_posterior, missed_share
from model.capacity_prior import LOWEST, prior_of
from model.evidence_curves import curves_of
from model.miss_curve import LEAST_ALLOWED, MOST_ALLOWED

Float = NDArray[np.float64]

_KEPT: Final = 1024  # grids, 5 KiB each: of a larger fleet they are computed again in the next slot


class PromiseBelief(NamedTuple):
    """What is believed of the load at which one promise of the SLO alone is missed by the share allowed; an estimate.

    Attributes:
        allowed: share that the objective allows.
    """

    posterior: GridPosterior
    allowed: float

    def quantiles(self, levels: Sequence[float] | Float) -> Float:
        """Quantiles of that load in requests/s per replica, aligned with `levels`."""
        return _quantiles(_log_first(self.posterior), self.posterior.cumulative, levels)

    def miss_share(self, load_rps: float) -> float:
        """Expected share of requests that misses this promise at a load; never falls as the load rises."""
        return _miss_share(self.posterior, self.allowed, load_rps)


class CapacityBelief:
    """Evidence of the requests/s that one ready replica carries within the SLO, under a prior.

    Args:
        declared_rps, off_by: of the prior.
        objective: share of requests that must be good.

    Raises:
        ValueError: a declared figure that is not a positive number, or a factor that is not above 1.
    """

    __slots__ = ("_allowed", "_declared_rps", "_evidence", "_off_by")

    def __init__(self, declared_rps: float | None, off_by: float | None, objective: float) -> None:
        if off_by is not None and not (math.isfinite(off_by) and off_by > 1):
            raise ValueError(f"off_by must be a factor above 1, got {off_by}")
        if declared_rps is not None and not (math.isfinite(declared_rps) and declared_rps > 0):
            raise ValueError(f"declared_rps must be a positive number, got {declared_rps}")
        self._declared_rps = declared_rps
        self._off_by = off_by
        self._allowed = min(max(1.0 - objective, LEAST_ALLOWED), MOST_ALLOWED)
        self._evidence = LoadEvidence()

    def quantiles(self, levels: Sequence[float] | Float) -> Float:
        """Quantiles of the capacity in requests/s per replica, aligned with `levels`.

        Raises:
            ValueError: nothing is declared and no load has been seen yet.
        """
        return _quantiles(*self.cumulative(), levels)

    def cumulative(self) -> tuple[float, Float]:
        """Log capacity at the lower end of the grid, and the probability up to each cell's end, `SPACING` apart."""
        posterior = self._posterior()
        return _log_first(posterior), posterior.cumulative

    def draws(self, num: int, seed: int) -> Float:
        """Stratified draws [num] in random order, 1/s per replica; the same seed gives the same draws."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return self.quantiles((rng.permutation(num) + rng.random(num)) / num)

    def miss_share(self, load_rps: float) -> float:
        """Expected share of requests that misses at this load per replica; never falls as the load rises."""
        return _miss_share(self._posterior(), self._allowed, load_rps)

    def promises(self) -> dict[Promise, PromiseBelief]:
        """Of each promise that some are known to have missed, what is believed of it alone; computed when asked.

        The prior and the curves are those of both together; what missed only the other promise counts as good.
        """
        joint = self._evidence.cells
        return {
            promise: PromiseBelief(
                # Mostly it is one promise that gives way, and both are kept while that one is.
                self._posterior() if np.array_equal(counts, joint) else self._posterior_of(counts),
                self._allowed,
            )
            for promise, counts in counts_by_promise(self._evidence.cells_by_promise)
        }

    @property
    def steepness(self) -> int:
        """Of the curve of misses over load, its power: the whole number nearest to the geometric mean."""
        return round(self._posterior().steepness)

    def _posterior(self) -> GridPosterior:
        posterior = _posteriors.get(self)
        if posterior is None:
            posterior = _posteriors[self] = self._posterior_of(self._evidence.cells)
            if len(_posteriors) > _KEPT:
                _posteriors.popitem(last=False)
        return posterior

    def _posterior_of(self, counts: NDArray[np.float32]) -> GridPosterior:
        prior = prior_of(self._declared_rps, self._evidence, self._off_by)
        return grid_posterior(counts, LOWEST, curves_of(self._allowed).log_evidence, prior)

    def _evidence_changed(self) -> None:
        _posteriors.pop(self, None)


def _log_first(posterior: GridPosterior) -> float:
    """Log capacity at the lower end of the grid."""
    return (posterior.first - 0.5) * SPACING


def _quantiles(log_first: float, cumulative: Float, levels: Sequence[float] | Float) -> Float:
    edges = log_first + np.arange(GRID + 1) * SPACING
    return np.asarray(np.exp(np.interp(np.asarray(levels, dtype=np.float64), cumulative, edges)))


def _miss_share(posterior: GridPosterior, allowed: float, load_rps: float) -> float:
    at = math.log(max(load_rps, 1e-300)) / SPACING
    return missed_share(posterior, curves_of(allowed).missed_at, at)


_posteriors: OrderedDict[CapacityBelief, GridPosterior] = OrderedDict()  # oldest first
