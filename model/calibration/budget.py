"""The error budget of a workload: how much of it is left, and the price of a missed request that follows from it.

The objective allows a share of the requests to miss. A plan weighs replicas against expected misses, at a price. The
price starts where an uncertain forecast asks for about half of the misses allowed. From then on it follows two times:

* Tens of minutes. Its logarithm moves with the misses less a goal within the allowed ones: as many are missed as the
  goal says, as far as the load permits, and what was missed in a surge is paid back.
* A day. What rare surprises missed is forgotten within the hour by the first rule, and is still part of the promise.
  So the price rises with a power of the share of the day's budget that is spent.

Misses are counted with exponential decay. Of a day that is not yet observed, half the budget is taken to be used: one
bad minute is not a bad day.

The functions are pure: float64 arithmetic, no clock.
Source: B. Beyer et al., "The site reliability workbook", chapter 5, for budgets of errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

# Half-life of the counts.
_HALF_LIFE_MS: Final = 24 * 3_600_000
# Replicas that a replica's worth of missed requests costs at first, times the share of misses that is allowed.
_START: Final = 1.2
# Time in which as many misses more or less as are allowed change the price by a factor of e.
_INTEGRAL_S: Final = 1_200.0
# Largest rise of the logarithm for the misses of one slot.
_MAX_RISE: Final = 0.35
# Range of the factor on the first price.
_MIN_FACTOR, _MAX_FACTOR = 0.5, 4.0
# Share of the day's budget from which on its use raises the price, and the power of that rise.
_SPENT_GOAL, _SPENT_POWER = 0.6, 4.0
# Largest factor for what is spent of the day.
_MAX_SPENT_FACTOR: Final = 16.0
# Observed time before which the rest of it is taken to use half of the budget.
_LEAST_OBSERVED_S: Final = 12 * 3_600.0
# Time constant over which requests are averaged.
_AVERAGED_S: Final = 750.0
# Longest time that one slot stands for.
_MAX_GAP_S: Final = 60.0


class ErrorBudget:
    """Decayed counts of requests and misses of one workload, and the price of a miss."""

    __slots__ = ("_last_ts_ms", "_log_factor", "_misses", "_observed_s", "_rate", "_requests")

    def __init__(self) -> None:
        self._requests = self._misses = 0.0
        self._log_factor = 0.0
        self._rate = 0.0
        self._observed_s = 0.0
        self._last_ts_ms: int | None = None

    def observe(
        self, end_ts_ms: int, requests: float | None, miss_ratio: float | None, objective: float, goal_ratio: float
    ) -> None:
        """Count one closed slot; an unobserved one, or one not newer than the last, only lets time pass.

        Args:
            goal_ratio: share of the allowed misses that is aimed at.
        """
        elapsed_s = None
        if self._last_ts_ms is not None:
            if end_ts_ms <= self._last_ts_ms:
                return
            keep = 0.5 ** ((end_ts_ms - self._last_ts_ms) / _HALF_LIFE_MS)
            self._requests *= keep
            self._misses *= keep
            self._observed_s *= keep
            elapsed_s = min((end_ts_ms - self._last_ts_ms) / 1000.0, _MAX_GAP_S)
        self._last_ts_ms = end_ts_ms
        if requests is None or miss_ratio is None or not (0.0 <= requests < math.inf and math.isfinite(miss_ratio)):
            return
        self._observed_s += elapsed_s or 0.0
        if requests > 0:
            misses = requests * min(max(miss_ratio, 0.0), 1.0)
            self._requests += requests
            self._misses += misses
            if elapsed_s is not None:  # how long the first slot is, is not known
                self._move_price(requests, misses, elapsed_s, _allowed(objective), goal_ratio)

    def left_ratio(self, objective: float) -> float:
        """Share of the day's budget that is left; 1 untouched, below 0 overspent."""
        return 1.0 - self._spent_ratio(_allowed(objective))

    def miss_price(self, objective: float) -> float:
        """Replicas that a replica's worth of missed requests costs."""
        allowed = _allowed(objective)
        spent = max(self._spent_ratio(allowed) / _SPENT_GOAL, 1.0)
        day_factor = min(math.pow(spent, _SPENT_POWER), _MAX_SPENT_FACTOR)
        return _START / allowed * math.exp(self._log_factor) * day_factor

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` returns the same bits."""
        return {
            "v": 3,
            "requests": self._requests,
            "misses": self._misses,
            "log_factor": self._log_factor,
            "rate": self._rate,
            "observed_s": self._observed_s,
            "last_ts_ms": self._last_ts_ms,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> ErrorBudget:
        """The budget that a snapshot was taken of; an empty one (from before budgets were kept) starts anew.

        Raises:
            ValueError: the snapshot is of another version.
        """
        budget = cls()
        if not state:
            return budget
        version = state.get("v")
        if version not in (1, 2, 3):
            raise ValueError(f"error budget snapshot has version {version!r}, this program reads 1 to 3")
        # Version 2 counted over two half-lives, the longer one first.
        counts = state["requests"], state["misses"]
        budget._requests, budget._misses = (each[0] for each in counts) if version == 2 else counts
        budget._log_factor, budget._rate = state.get("log_factor", 0.0), state.get("rate", 0.0)
        budget._observed_s = state.get("observed_s", 0.0)
        budget._last_ts_ms = state["last_ts_ms"]
        return budget

    def _spent_ratio(self, allowed: float) -> float:
        """Share of the day's budget that is spent; time that was not observed uses half of it."""
        if not self._requests or not self._observed_s:
            return 0.5
        unobserved = self._requests * max(_LEAST_OBSERVED_S / self._observed_s - 1.0, 0.0)
        return (self._misses / allowed + 0.5 * unobserved) / (self._requests + unobserved)

    def _move_price(self, requests: float, misses: float, elapsed_s: float, allowed: float, goal_ratio: float) -> None:
        rate = requests / elapsed_s
        self._rate = self._rate + (rate - self._rate) * -math.expm1(-elapsed_s / _AVERAGED_S) if self._rate else rate
        change = (misses - goal_ratio * allowed * requests) / (allowed * self._rate * _INTEGRAL_S)
        log_factor = self._log_factor + min(change, _MAX_RISE)
        self._log_factor = min(max(log_factor, math.log(_MIN_FACTOR)), math.log(_MAX_FACTOR))


def _allowed(objective: float) -> float:
    return max(1.0 - objective, 1e-4)
