"""How long a launch takes, from command to ready."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class LeadTime(Protocol):
    """Command -> ready time of the next launch, one draw per launch."""

    def next_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ConstantLeadTime:
    """Every launch takes `mean_s`."""

    mean_s: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean_s) or self.mean_s < 0:
            raise ValueError(f"lead time must be a finite number of seconds >= 0, got {self.mean_s}")

    def next_s(self) -> float:
        return self.mean_s


class LognormalLeadTime:
    """Launches of mean `mean_s`; `sigma_log` is the standard deviation of the logarithm."""

    def __init__(self, mean_s: float, sigma_log: float, seed: int) -> None:
        if not (math.isfinite(mean_s) and mean_s > 0 and math.isfinite(sigma_log) and sigma_log >= 0):
            raise ValueError(f"lead time needs mean > 0 and sigma >= 0, got {mean_s} and {sigma_log}")
        self._mu = math.log(mean_s) - sigma_log * sigma_log / 2
        self._sigma = sigma_log
        self._draws = np.random.default_rng(seed)

    def next_s(self) -> float:
        return float(math.exp(self._mu + self._sigma * self._draws.standard_normal()))


@dataclass(frozen=True, slots=True)
class MixedStarts:
    """Warm and cold launches: `slow_share` of them take `slow_s`, the others `quick_s`, a few percent more or less."""

    quick_s: float
    slow_s: float
    slow_share: float

    @property
    def mean_s(self) -> float:
        return self.quick_s + self.slow_share * (self.slow_s - self.quick_s)


class MixedLeadTime:
    """Launches of two kinds, each by itself of either."""

    _SIGMA_LOG = 0.05

    def __init__(self, kinds: MixedStarts, seed: int) -> None:
        values = (kinds.quick_s, kinds.slow_s, kinds.slow_share)
        if not (all(map(math.isfinite, values)) and 0 < kinds.quick_s <= kinds.slow_s and 0 <= kinds.slow_share <= 1):
            raise ValueError(f"kinds of starts need 0 < quick <= slow and a share within 0..1, got {kinds}")
        self._kinds = kinds
        self._draws = np.random.default_rng(seed)

    def next_s(self) -> float:
        slow = self._draws.random() < self._kinds.slow_share
        wobble = math.exp(self._SIGMA_LOG * self._draws.standard_normal())
        return (self._kinds.slow_s if slow else self._kinds.quick_s) * wobble
