"""How long a replica takes from command to serving, learned from starts.

Log lead time is normal with unknown mean and variance under a normal-inverse-gamma prior, so the predictive
distribution of the next replica is a Student t in log time. The prior is the operator's figure. Its weight halves with
every two starts, because a wrong figure would widen the distribution for a hundred of them (a discounted prior:
J. Ibrahim and M. Chen, "Power prior distributions", Statistical Science 15, 2000). The prior of the spread counts for
longer, so that one slow start is no law. The functions are pure: float64 arithmetic, no clock.

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
_PRIOR_HALF_LIFE: Final = 2.0  # starts after which the declared figure counts half
_SPREAD_HALF_LIFE: Final = 10.0  # starts after which the prior of the spread counts half
_MIN_SIGMA: Final = 0.005  # of a start's log: equal figures are no certainty
_MAX_COUNT: Final = 60.0  # older starts fade so that no more than this many count
# A start further off than a factor of 12 is taken as this far: one stuck pod is no law. The declared figure itself may
# be further off, so the first starts may differ from it by a factor of 55.
_MAX_LOG_JUMP: Final = 2.5
_MAX_FIRST_LOG_JUMP: Final = 4.0
_NUM_FIRST_STARTS: Final = 4
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

    __slots__ = ("_count", "_declared_log", "_mean", "_num_starts", "_squares")

    def __init__(self, declared_s: float) -> None:
        if not (math.isfinite(declared_s) and declared_s > 0):
            raise ValueError(f"declared_s must be a positive number, got {declared_s}")
        self._declared_log = _log(declared_s)
        # Of the starts' logs: how many count, their mean, their sum of squared deviations from it.
        self._count = self._mean = self._squares = 0.0
        self._num_starts = 0

    @property
    def num_starts(self) -> int:
        """Starts folded so far."""
        return self._num_starts

    def update(self, lead_time_s: float) -> bool:
        """Fold one start; False when the figure is not a positive number and was ignored."""
        if not (math.isfinite(lead_time_s) and lead_time_s > 0):
            return False
        centre = self.student()[0]
        jump = _MAX_FIRST_LOG_JUMP if self._num_starts < _NUM_FIRST_STARTS else _MAX_LOG_JUMP
        log = min(max(_log(lead_time_s), centre - jump), centre + jump)
        if self._count + 1.0 > _MAX_COUNT:
            keep = (_MAX_COUNT - 1.0) / self._count
            self._count *= keep
            self._squares *= keep
        gap = log - self._mean
        self._mean += gap / (self._count + 1.0)
        self._squares += self._count / (self._count + 1.0) * gap * gap
        self._count += 1.0
        self._num_starts += 1
        return True

    def quantile(self, level: float) -> float:
        """Quantile of the next replica's lead time, in seconds."""
        return _quantile(*self.student(), level)

    def quantiles(self, levels: Sequence[float] | Float) -> Float:
        """Quantiles of the next replica's lead time in seconds, aligned with `levels`."""
        return _quantiles(*self.student(), levels)

    def student(self) -> tuple[float, float, float]:
        """Location, scale and degrees of freedom of the Student t that the log of the next lead time follows."""
        prior = _PRIOR_COUNT * math.exp2(-self._num_starts / _PRIOR_HALF_LIFE)
        weight, gap = math.exp2(-self._num_starts / _SPREAD_HALF_LIFE), self._mean - self._declared_log
        count = prior + self._count
        shape = _PRIOR_SHAPE * weight + 0.5 * self._count
        scale = (_PRIOR_SHAPE - 1.0) * _PRIOR_SIGMA**2 * weight
        scale += 0.5 * (self._squares + self._count * _MIN_SIGMA**2)
        scale += 0.5 * prior * self._count / count * gap * gap
        location = self._declared_log + self._count / count * gap
        return location, math.sqrt(scale * (count + 1.0) / (shape * count)), 2.0 * shape

    def draws(self, num: int, seed: int) -> Float:
        """Stratified draws [num] in random order, seconds; the same seed gives the same draws."""
        rng = np.random.Generator(np.random.PCG64(seed))
        return self.quantiles((rng.permutation(num) + rng.random(num)) / num)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` gives back the same bits."""
        return {
            "v": 2,
            "count": self._count,
            "mean": self._mean,
            "squares": self._squares,
            "num_starts": self._num_starts,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], declared_s: float) -> LeadTimePosterior:
        """The starts of a snapshot, over the prior that is declared now.

        Raises:
            ValueError: the snapshot is of another version.
        """
        version = state.get("v")
        if version not in (1, 2):
            raise ValueError(f"lead time snapshot has version {version!r}, this program reads 2")
        if version == 1:
            state = _starts_of_version_1(state)
        posterior = cls(declared_s)
        posterior._count = state["count"]
        posterior._mean = state["mean"]
        posterior._squares = state["squares"]
        posterior._num_starts = state["num_starts"]
        return posterior


def _starts_of_version_1(state: Mapping[str, Any]) -> dict[str, Any]:
    """The starts alone, of a snapshot in which a prior worth four starts is part of the numbers."""
    num_starts, count, mean = state["num_outcomes"], state["count"], state["mean"]
    if num_starts == 0:
        return {"count": 0.0, "mean": 0.0, "squares": 0.0, "num_starts": 0}
    # Starts beyond the 64 that counted have faded the prior, one by one.
    prior = 4.0 * (63.0 / 64.0) ** max(num_starts - 60, 0)
    declared = mean if state.get("declared_s") is None else _log(state["declared_s"])
    starts_mean = (count * mean - prior * declared) / (count - prior)
    prior_scale = 2.0 * 0.2**2 * prior / 4.0 + 0.5 * prior * (count - prior) / count * (starts_mean - declared) ** 2
    squares = max(2.0 * (state["scale"] - prior_scale), 0.0)
    return {"count": count - prior, "mean": starts_mean, "squares": squares, "num_starts": num_starts}


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
