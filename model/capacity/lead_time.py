"""How long a replica takes from command to serving, learned from starts.

The next start is one of those that were seen, or a new one: the predictive of a Dirichlet process (T. Ferguson, "A
Bayesian analysis of some nonparametric problems", Annals of Statistics 1, 1973). So cold and warm starts stay two
kinds, whether or not anybody tells them apart. A plan reads a Student t in log time: the one with the median and the
95th percentile of that predictive, because what waits for a replica waits for the slow ones.

A new start is log-normal with unknown mean and variance under a normal-inverse-gamma prior, which is a Student t in log
time. The prior is the operator's figure. Its weight halves with every two starts, because a wrong figure would widen
the distribution for a hundred of them (a discounted prior: J. Ibrahim and M. Chen, "Power prior distributions",
Statistical Science 15, 2000). The prior of the spread counts for longer, so that one slow start is no law. The
functions are pure: float64 arithmetic, no clock.

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
_CONCENTRATION: Final = 12.0  # starts' worth of weight of a new kind: one slow start of twenty is no law, two are
_MAX_SEEN: Final = 60  # starts that are remembered one by one
# Where a predictive is evaluated: around each start, in widths of its kernel, and over the whole log-normal.
_AROUND: Final = np.array([-4.0, -1.0, 0.0, 1.0, 4.0])
_LEVELS_OF_NEW: Final = np.concatenate((np.arange(0.02, 0.98, 0.02), [0.985, 0.99, 0.995, 0.999]))
_MEDIAN, _HIGH = 0.5, 0.95
_LOGISTIC_SCALE: Final = math.sqrt(3.0) / math.pi  # of a logistic with a standard deviation of one


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

    __slots__ = ("_count", "_declared_log", "_mean", "_num_starts", "_seen", "_squares", "_student")

    def __init__(self, declared_s: float) -> None:
        if not (math.isfinite(declared_s) and declared_s > 0):
            raise ValueError(f"declared_s must be a positive number, got {declared_s}")
        self._declared_log = _log(declared_s)
        # Of the starts' logs: how many count, their mean, their sum of squared deviations from it.
        self._count = self._mean = self._squares = 0.0
        self._num_starts = 0
        self._seen: list[float] = []  # logs of the newest starts
        self._student: tuple[float, float, float] | None = None  # None = to be calculated

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
        self._seen = [*self._seen, log][-_MAX_SEEN:]
        self._student = None
        return True

    def quantile(self, level: float) -> float:
        """Quantile of the next replica's lead time, in seconds."""
        return _quantile(*self.student(), level)

    def quantiles(self, levels: Sequence[float] | Float) -> Float:
        """Quantiles of the next replica's lead time in seconds, aligned with `levels`."""
        return _quantiles(*self.student(), levels)

    def student(self) -> tuple[float, float, float]:
        """Location, scale and degrees of freedom of the Student t by which the log of the next lead time is planned.

        Its median and 95th percentile are those of the starts that were seen and of the log-normal beside them.
        """
        if self._student is None:
            width = max(_PRIOR_SIGMA * math.exp2(-self._num_starts / _SPREAD_HALF_LIFE), _MIN_SIGMA)
            self._student = _matched(*self.log_normal(), tuple(self._seen), width)
        return self._student

    def log_normal(self) -> tuple[float, float, float]:
        """The Student t of a log-normal lead time: location, scale and degrees of freedom of its log."""
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
            "v": 3,
            "count": self._count,
            "mean": self._mean,
            "squares": self._squares,
            "num_starts": self._num_starts,
            "seen": list(self._seen),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], declared_s: float) -> LeadTimePosterior:
        """The starts of a snapshot, over the prior that is declared now.

        Raises:
            ValueError: the snapshot is of another version.
        """
        version = state.get("v")
        if version not in (1, 2, 3):
            raise ValueError(f"lead time snapshot has version {version!r}, this program reads 3")
        if version == 1:
            state = _starts_of_version_1(state)
        posterior = cls(declared_s)
        posterior._count = state["count"]
        posterior._mean = state["mean"]
        posterior._squares = state["squares"]
        posterior._num_starts = state["num_starts"]
        # Older versions have the sums of their starts alone.
        posterior._seen = list(state.get("seen", ()))
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


@lru_cache(256)
def _matched(
    location: float, scale: float, freedom: float, seen: tuple[float, ...], width: float
) -> tuple[float, float, float]:
    """The Student t with the median and the 95th percentile of a mixture.

    Args:
        location, scale, freedom: of the Student t of a new start, which weighs `_CONCENTRATION` starts.
        seen: logs of starts, each with the weight of one.
        width: standard deviation of the kernel around each of them.
    """
    if not seen:
        return location, scale, freedom
    probability, value = student_table(freedom)
    starts = np.array(seen)
    of_new = location + scale * np.interp(_LEVELS_OF_NEW, probability, value)
    logs = np.unique(np.concatenate((of_new, (starts[:, None] + width * _AROUND).ravel())))
    far = np.clip((logs[:, None] - starts) / (width * _LOGISTIC_SCALE), -40.0, 40.0)
    of_seen = (1.0 / (1.0 + np.exp(-far))).sum(axis=1)
    below = _CONCENTRATION * np.interp((logs - location) / scale, value, probability) + of_seen
    median, high = np.interp((_MEDIAN, _HIGH), below / (_CONCENTRATION + len(seen)), logs)
    return float(median), float((high - median) / np.interp(_HIGH, probability, value)), freedom


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
