"""How long a replica takes from command to serving, learned from outcomes.

Log lead time is normal with unknown mean and variance under a normal-inverse-gamma prior, so the predictive
distribution of the next replica is a Student t in log time. The functions are pure: float64 arithmetic, no clock.

Source: A. Gelman et al., "Bayesian data analysis", chapter 3, for the normal-inverse-gamma predictive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

_PRIOR_COUNT: Final = 4.0  # replicas' worth of trust in the declared figure
_PRIOR_SHAPE: Final = 3.0
_PRIOR_SIGMA: Final = 0.2  # of log lead time
_MAX_COUNT: Final = 64.0  # older outcomes fade so that no more than this many count
_MAX_LOG_JUMP: Final = 2.5  # an outcome further off than this factor (12) is taken as this far: one stuck pod is no law
_SHORTEST_S: Final = 1e-3


@lru_cache(maxsize=256)
def student_table(freedom: float) -> tuple[Float, Float]:
    """Cumulative probabilities and values of a Student t.

    The table is integrated here, because `scipy.special.stdtrit` would add a dependency of 100 MB to the worker, a
    slower start, and other bits of every plan, while the error of this table is below 1e-4 at the levels in use.

    With t = sqrt(v) tan(a) the density in the angle a is proportional to cos(a) ** (v - 1), smooth on a bounded range.
    """
    angle = np.linspace(-0.5 * math.pi, 0.5 * math.pi, 4097)
    density = np.abs(np.cos(angle)) ** (freedom - 1.0)
    cumulative = np.concatenate(([0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))))
    inner = slice(1, -1)
    return cumulative[inner] / cumulative[-1], math.sqrt(freedom) * np.tan(angle[inner])


class LeadTimePosterior:
    """Posterior of the lead time of the next replica, for one workload.

    Args:
        declared_s: the operator's figure, centre of the prior.

    Raises:
        ValueError: it is not a positive number.
    """

    __slots__ = ("_count", "_declared_s", "_mean", "_num_outcomes", "_scale", "_shape")

    def __init__(self, declared_s: float) -> None:
        if not (math.isfinite(declared_s) and declared_s > 0):
            raise ValueError(f"declared_s must be a positive number, got {declared_s}")
        self._declared_s: float | None = declared_s
        self._mean = _log(declared_s)
        self._count = _PRIOR_COUNT
        self._shape = _PRIOR_SHAPE
        self._scale = (_PRIOR_SHAPE - 1.0) * _PRIOR_SIGMA**2
        self._num_outcomes = 0

    @property
    def num_outcomes(self) -> int:
        """Outcomes folded so far."""
        return self._num_outcomes

    def update(self, lead_time_s: float) -> bool:
        """Fold one outcome; False when the figure is not a positive number and was ignored."""
        if not (math.isfinite(lead_time_s) and lead_time_s > 0):
            return False
        gap = _log(lead_time_s) - self._mean
        gap = min(max(gap, -_MAX_LOG_JUMP), _MAX_LOG_JUMP)
        if self._count + 1.0 > _MAX_COUNT:
            keep = (_MAX_COUNT - 1.0) / self._count
            self._count *= keep
            self._shape *= keep
            self._scale *= keep
        self._scale += 0.5 * self._count / (self._count + 1.0) * gap * gap
        self._mean += gap / (self._count + 1.0)
        self._count += 1.0
        self._shape += 0.5
        self._num_outcomes += 1
        return True

    def quantile(self, level: float) -> float:
        """Quantile of the next replica's lead time, in seconds."""
        return _quantile(*self.student(), level)

    def quantiles(self, levels: Sequence[float] | Float) -> Float:
        """Quantiles of the next replica's lead time in seconds, aligned with `levels`."""
        return _quantiles(*self.student(), levels)

    def student(self) -> tuple[float, float, float]:
        """Location, scale and degrees of freedom of the Student t that the log of the next lead time follows."""
        scale = math.sqrt(self._scale * (self._count + 1.0) / (self._shape * self._count))
        return self._mean, scale, 2.0 * self._shape

    def draws(self, num: int, seed: int) -> Float:
        """Stratified draws [num] in random order, seconds; the same seed gives the same draws."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return self.quantiles((rng.permutation(num) + rng.random(num)) / num)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` gives back the same bits."""
        return {
            "v": 1,
            "declared_s": self._declared_s,
            "mean": self._mean,
            "count": self._count,
            "shape": self._shape,
            "scale": self._scale,
            "num_outcomes": self._num_outcomes,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], declared_s: float) -> LeadTimePosterior:
        """The posterior that a snapshot was taken of, under the prior declared now.

        Where another figure was declared then, the outcomes are kept and the prior changes beneath them. Snapshots from
        before the figure was kept have none: there outcomes stand as they are, and without any the prior is all.

        Raises:
            ValueError: the snapshot is of another version.
        """
        if state.get("v") != 1:
            raise ValueError(f"lead time snapshot has version {state.get('v')!r}, this program reads 1")
        posterior = cls(1.0)
        posterior._declared_s = state.get("declared_s")
        posterior._mean = state["mean"]
        posterior._count = state["count"]
        posterior._shape = state["shape"]
        posterior._scale = state["scale"]
        posterior._num_outcomes = state["num_outcomes"]
        posterior._declare(declared_s)
        return posterior

    def _declare(self, declared_s: float) -> None:
        """Put another prior beneath the outcomes, as if it had been there from the beginning."""
        before, self._declared_s = self._declared_s, declared_s
        if before == declared_s:
            return
        if self._num_outcomes == 0:
            self._mean = _log(declared_s)
        if before is None or self._num_outcomes == 0:
            return
        # Outcomes beyond the most that count have faded the prior, one by one.
        faded = max(self._num_outcomes - round(_MAX_COUNT - _PRIOR_COUNT), 0)
        prior = _PRIOR_COUNT * ((_MAX_COUNT - 1.0) / _MAX_COUNT) ** faded
        num_outcomes = self._count - prior
        old, new = _log(before), _log(declared_s)
        outcome_mean = (self._count * self._mean - prior * old) / num_outcomes  # mean of the outcomes' logs
        between = 0.5 * prior * num_outcomes / self._count
        least = (_PRIOR_SHAPE - 1.0) * _PRIOR_SIGMA**2 * prior / _PRIOR_COUNT  # what the prior alone holds
        spread = max(self._scale - between * (outcome_mean - old) ** 2, least)
        self._scale = spread + between * (outcome_mean - new) ** 2
        self._mean = (prior * new + num_outcomes * outcome_mean) / self._count


@lru_cache(1 << 14)
def _quantile(location: float, scale: float, freedom: float, level: float) -> float:
    """Asked for in every slot, of workloads of which most have the same lead time."""
    return float(_quantiles(location, scale, freedom, (level,))[0])


def _quantiles(location: float, scale: float, freedom: float, levels: Sequence[float] | Float) -> Float:
    probability, value = student_table(freedom)
    t = np.interp(np.asarray(levels, dtype=np.float64), probability, value)
    return np.exp(np.clip(location + scale * t, -20.0, 20.0))


def _log(seconds: float) -> float:
    return math.log(max(seconds, _SHORTEST_S))
