"""How much of a workload's error budget is left, and what a plan may dare on it.

The objective allows a share of the requests to miss. Misses are counted with forgetting over a long and a short time;
in both their share has a Beta posterior whose prior says that half the budget is being used. A plan may dare more
while less than half is used over the long time, as far as no fresh misses burn in the short one, and less while more
than half is used in both: as with burn-rate alerts, what burnt long ago and no longer burns does not keep the fleet
large.
Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

_HALF_LIVES_MS: Final = (24 * 3_600_000, 600_000)
_LONG, _SHORT, _TIMES = 0, 1, 2
# Half the misses allowed in as many requests as the prior counts for: a quiet minute says little of the next, and it
# takes more of them to dare more than to dare less.
_PRIOR_MISSES: Final = 50.0
_PRIOR_MISSES_TO_DARE: Final = 400.0
_BURNING: Final = 0.4  # left of the short time at which nothing more is dared; from a half down to it less and less
# What an untouched budget multiplies what a plan may dare by; few windows come near such a chance or share.
_MORE: Final = 8.0
# What an exhausted one divides it by. Replicas ordered for misses that were seen come a lead time later: a stronger
# hand orders too late what is then not needed, and flaps.
_LESS: Final = 2.0
_TO_TRY: Final = 0.25  # of what an untouched budget has to spare, from which on doubts may be tried
_MOST: Final = 0.9  # an untouched budget alone raises a probability no further than this


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
                self._counts[_TIMES + k] *= keep
        self._last_ts_ms = end_ts_ms
        if requests is None or miss_ratio is None or not (math.isfinite(requests) and math.isfinite(miss_ratio)):
            return
        if requests > 0:
            for k in range(_TIMES):
                self._counts[k] += requests
                self._counts[_TIMES + k] += requests * min(max(miss_ratio, 0.0), 1.0)

    def left_ratio(self, objective: float) -> float:
        """Share of the budget left over the long time, by the posterior mean; 1 untouched, below 0 overspent."""
        return _left(self._counts, _LONG, objective)

    def dared(self, declared: float, objective: float) -> float:
        """What a plan may dare where this probability, or share, is declared; never falls as more budget is left."""
        more, less, _ = _daring(*self._counts, objective)
        return min(max(declared, _MOST), declared * more * less)

    def tried(self, declared: float, objective: float) -> float:
        """How much doubt a trial may leave out where this much is declared: none until budget is to spare."""
        _, _, spare = _daring(*self._counts, objective)
        return declared if spare >= _TO_TRY else 0.0

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain values; `restore` gives back the same bits."""
        return {
            "v": 2,
            "requests": list(self._counts[:_TIMES]),
            "misses": list(self._counts[_TIMES:]),
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
def _daring(
    requests_long: float, requests_short: float, misses_long: float, misses_short: float, objective: float
) -> tuple[float, float, float]:
    """What calm and what spending multiply whatever is declared by, and how much there is to spare, 0 to 1."""
    counts = requests_long, requests_short, misses_long, misses_short
    long, short = _left(counts, _LONG, objective), _left(counts, _SHORT, objective)
    calm = min(max((short - _BURNING) / (0.5 - _BURNING), 0.0), 1.0)
    spare = max(2.0 * _left(counts, _LONG, objective, _PRIOR_MISSES_TO_DARE) - 1.0, 0.0) * calm
    spent = min(max(1.0 - 2.0 * max(long, short), 0.0), 1.0)  # of the second half, by the word of both
    return math.pow(_MORE, spare), math.pow(_LESS, -spent), spare


def _left(counts: Sequence[float], time: int, objective: float, prior_misses: float = _PRIOR_MISSES) -> float:
    allowed = max(1.0 - objective, 1e-9)
    requests, misses = counts[time], counts[_TIMES + time]
    return 1.0 - (misses + prior_misses) / (requests + 2.0 * prior_misses / allowed) / allowed
