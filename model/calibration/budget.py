"""The error budget of a workload: how much of it is left, and how it scales the risk that a plan may take.

The objective allows a share of the requests to miss. Misses are counted with exponential decay over a long and a short
half-life. In both, the share of misses has a Beta posterior whose prior says that half the budget is being used. The
allowed risk rises while less than half is used over the long half-life and no fresh misses burn in the short one. It
falls while more than half is used in both. As with multi-window burn-rate alerts, misses of long ago that have stopped
do not keep the fleet large.

The functions are pure: float64 arithmetic, no clock.
Source: B. Beyer et al., "The site reliability workbook", chapter 5, for multi-window burn rates.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

# Half-lives of the counts, long and short.
_HALF_LIVES_MS: Final = (24 * 3_600_000, 600_000)
# Places of the half-lives, and their number.
_LONG, _SHORT, _NUM_HALF_LIVES = 0, 1, 2
# Misses of the prior, which has half the allowed share of misses; one quiet minute tells little about the next.
_PRIOR_MISSES: Final = 50.0
# Misses of the prior before the risk is raised; it takes more evidence to raise the risk than to lower it.
_PRIOR_MISSES_TO_RELAX: Final = 400.0
# Remaining share of the short budget at which the risk is no longer raised; from one half down to it, by less and less.
_BURN_LIMIT_RATIO: Final = 0.4
# Largest factor on the declared risk, reached with an untouched budget.
_MAX_RELAXATION: Final = 8.0
# Largest divisor of the declared risk, reached with an exhausted budget. Replicas for observed misses come a lead time
# later, so a larger divisor orders replicas that are no longer needed, and the count flaps.
_MAX_TIGHTENING: Final = 2.0
# Smallest spare share of the budget with which fewer replicas are explored.
_MIN_SPARE_TO_EXPLORE: Final = 0.25
# Largest probability that an untouched budget can raise the declared one to.
_MAX_RELAXED_PROBABILITY: Final = 0.9


class ErrorBudget:
    """Decayed counts of requests and misses of one workload."""

    __slots__ = ("_counts", "_last_ts_ms")

    def __init__(self) -> None:
        self._counts = array("d", (0.0, 0.0, 0.0, 0.0))  # requests over the long and the short time, misses likewise
        self._last_ts_ms: int | None = None

    def observe(self, end_ts_ms: int, requests: float | None, miss_ratio: float | None) -> None:
        """Count one closed slot; an unobserved one, or one not newer than the last, only lets time pass."""
        if self._last_ts_ms is not None:
            if end_ts_ms <= self._last_ts_ms:
                return
            for k, half_life_ms in enumerate(_HALF_LIVES_MS):
                keep = 0.5 ** ((end_ts_ms - self._last_ts_ms) / half_life_ms)
                self._counts[k] *= keep
                self._counts[_NUM_HALF_LIVES + k] *= keep
        self._last_ts_ms = end_ts_ms
        if requests is None or miss_ratio is None or not (math.isfinite(requests) and math.isfinite(miss_ratio)):
            return
        if requests > 0:
            for k in range(_NUM_HALF_LIVES):
                self._counts[k] += requests
                self._counts[_NUM_HALF_LIVES + k] += requests * min(max(miss_ratio, 0.0), 1.0)

    def left_ratio(self, objective: float) -> float:
        """Share of the budget left over the long time, by the posterior mean; 1 untouched, below 0 overspent."""
        return _remaining_ratio(self._counts, _LONG, objective)

    def scaled_by_budget(self, declared: float, objective: float) -> float:
        """The declared probability or share, scaled by the budget; it never falls as more budget is left."""
        more, less, _ = _budget_factors(*self._counts, objective)
        return min(max(declared, _MAX_RELAXED_PROBABILITY), declared * more * less)

    def exploration(self, declared: float, objective: float) -> float:
        """The declared share of capacities that a trial may leave out, or 0 until budget is to spare."""
        _, _, spare = _budget_factors(*self._counts, objective)
        return declared if spare >= _MIN_SPARE_TO_EXPLORE else 0.0

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` returns the same bits."""
        return {
            "v": 2,
            "requests": list(self._counts[:_NUM_HALF_LIVES]),
            "misses": list(self._counts[_NUM_HALF_LIVES:]),
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
        if state.get("v") not in (1, 2):
            raise ValueError(f"error budget snapshot has version {state.get('v')!r}, this program reads 1 and 2")
        one = state["v"] == 1  # counted over the long time only
        counts = (state["requests"], 0.0, state["misses"], 0.0) if one else (*state["requests"], *state["misses"])
        budget._counts = array("d", counts)
        budget._last_ts_ms = state["last_ts_ms"]
        return budget


@lru_cache(1024)  # a plan asks several times, of the workloads planned together
def _budget_factors(
    requests_long: float, requests_short: float, misses_long: float, misses_short: float, objective: float
) -> tuple[float, float, float]:
    """The factors for a calm and for a spent budget, and the spare share of the budget, 0 to 1."""
    counts = requests_long, requests_short, misses_long, misses_short
    long, short = _remaining_ratio(counts, _LONG, objective), _remaining_ratio(counts, _SHORT, objective)
    calm = min(max((short - _BURN_LIMIT_RATIO) / (0.5 - _BURN_LIMIT_RATIO), 0.0), 1.0)
    spare = max(2.0 * _remaining_ratio(counts, _LONG, objective, _PRIOR_MISSES_TO_RELAX) - 1.0, 0.0) * calm
    shortage = min(max(1.0 - 2.0 * max(long, short), 0.0), 1.0)  # of the second half, by the word of both
    return math.pow(_MAX_RELAXATION, spare), math.pow(_MAX_TIGHTENING, -shortage), spare


def _remaining_ratio(
    counts: Sequence[float], time: int, objective: float, prior_misses: float = _PRIOR_MISSES
) -> float:
    allowed = max(1.0 - objective, 1e-9)
    requests, misses = counts[time], counts[_NUM_HALF_LIVES + time]
    return 1.0 - (misses + prior_misses) / (requests + 2.0 * prior_misses / allowed) / allowed
