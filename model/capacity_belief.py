"""What is believed of a capacity, read from the evidence held: its distribution, and the misses it lets expect.

Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.capacity_grid import GRID, SPACING, GridPosterior, grid_posterior, missed_share
from model.capacity_prior import LOWEST, prior_of
from model.evidence_curves import curves_of
from model.load_evidence import LoadEvidence
from model.miss_curve import LEAST_ALLOWED, MOST_ALLOWED

Float = NDArray[np.float64]

_KEPT: Final = 1024  # grids, 5 KiB each: of a larger fleet they are computed again in the next slot


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
        log_first, cells = self.cumulative()
        edges = log_first + np.arange(GRID + 1) * SPACING
        return np.asarray(np.exp(np.interp(np.asarray(levels, dtype=np.float64), cells, edges)))

    def cumulative(self) -> tuple[float, Float]:
        """Log capacity at the lower end of the grid, and the probability up to each cell's end, `SPACING` apart."""
        posterior = self._posterior()
        return (posterior.first - 0.5) * SPACING, posterior.cumulative

    def draws(self, num: int, seed: int) -> Float:
        """Stratified draws [num] in random order, 1/s per replica; the same seed gives the same draws."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return self.quantiles((rng.permutation(num) + rng.random(num)) / num)

    def miss_share(self, load_rps: float) -> float:
        """Expected share of requests that misses at this load per replica; never falls as the load rises."""
        at = math.log(max(load_rps, 1e-300)) / SPACING
        return missed_share(self._posterior(), curves_of(self._allowed).missed_at, at)

    @property
    def steepness(self) -> int:
        """Of the curve of misses over load, its power: the whole number nearest to the geometric mean."""
        return round(self._posterior().steepness)

    def _posterior(self) -> GridPosterior:
        posterior = _posteriors.get(self)
        if posterior is None:
            prior = prior_of(self._declared_rps, self._evidence, self._off_by)
            log_evidence = curves_of(self._allowed).log_evidence
            posterior = _posteriors[self] = grid_posterior(self._evidence.cells, LOWEST, log_evidence, prior)
            if len(_posteriors) > _KEPT:
                _posteriors.popitem(last=False)
        return posterior

    def _evidence_changed(self) -> None:
        _posteriors.pop(self, None)


_posteriors: OrderedDict[CapacityBelief, GridPosterior] = OrderedDict()  # oldest first
