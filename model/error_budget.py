"""How much of a workload's error budget is left, and the risk that a plan may take on it.

The objective allows a share of the requests to miss. Misses are counted with forgetting; their share has a Beta
posterior whose prior says that half the budget is being used. A plan's risk is the declared one while half is left,
grows as less is used, and shrinks as more is. Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

_HALF_LIFE_MS: Final = 6 * 3_600_000
_PRIOR_MISSES: Final = 5.0  # half the misses allowed in as many requests as the prior counts for
_UP: Final = 3.0  # an untouched budget multiplies the risk by this: a quiet hour says little of the next
_DOWN: Final = 10.0  # an exhausted one divides it by this
_MOST: Final = 0.1  # an untouched budget alone raises the risk no further than this
_LEAST_FACTOR: Final = 0.02


class ErrorBudget:
    """Decayed counts of requests and misses of one workload."""

    def __init__(self) -> None:
        self._requests = 0.0
        self._misses = 0.0
        self._last_ts_ms: int | None = None

    def observe(self, end_ts_ms: int, requests: float | None, miss_ratio: float | None) -> None:
        """Count one closed slot; an unobserved one, or one not newer than the last, only lets time pass."""
        if self._last_ts_ms is not None:
            if end_ts_ms <= self._last_ts_ms:
                return
            keep = 0.5 ** ((end_ts_ms - self._last_ts_ms) / _HALF_LIFE_MS)
            self._requests *= keep
            self._misses *= keep
        self._last_ts_ms = end_ts_ms
        if requests is None or miss_ratio is None or not (math.isfinite(requests) and math.isfinite(miss_ratio)):
            return
        if requests > 0:
            self._requests += requests
            self._misses += requests * min(max(miss_ratio, 0.0), 1.0)

    def left_ratio(self, objective: float) -> float:
        """Share of the budget that is left, by the posterior mean; 1 untouched, below 0 overspent."""
        allowed = max(1.0 - objective, 1e-9)
        prior_requests = 2.0 * _PRIOR_MISSES / allowed
        missed = (self._misses + _PRIOR_MISSES) / (self._requests + prior_requests)
        return 1.0 - missed / allowed

    def epsilon(self, declared: float, objective: float) -> float:
        """The risk a plan may take; never falls as more budget is left."""
        spare = max(2.0 * self.left_ratio(objective) - 1.0, -9.0)
        factor = math.exp(math.log(_UP if spare > 0 else _DOWN) * spare)
        most = max(declared, min(_MOST, declared * _UP))
        return min(most, declared * max(factor, _LEAST_FACTOR))

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` gives back the same bits."""
        return {"v": 1, "requests": self._requests, "misses": self._misses, "last_ts_ms": self._last_ts_ms}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> ErrorBudget:
        """The budget that a snapshot was taken of; an empty one (from before budgets were kept) starts anew.

        Raises:
            ValueError: the snapshot is of another version.
        """
        budget = cls()
        if not state:
            return budget
        if state.get("v") != 1:
            raise ValueError(f"error budget snapshot has version {state.get('v')!r}, this program reads 1")
        budget._requests = state["requests"]
        budget._misses = state["misses"]
        budget._last_ts_ms = state["last_ts_ms"]
        return budget
