"""Trust in the forecasts of a workload: conformal widening, demotion, and promotion after a pause.

Every published forecast of demand leaves a pending forecast: the ends of its 90 % interval and its median a few steps
ahead. It is scored when that step is observed, on the record of its forecaster. Intervals that miss too often are
widened. A forecaster that still misses, or whose median is worse than the last value, is demoted. The baselines then
answer in place of the network, and the reactive rule in place of the baselines. After a pause the forecaster is
promoted on trial; every failed trial doubles its pause.

The functions are pure: time is counted in slots.
Source: I. Gibbs, E. Candès, "Adaptive conformal inference under distribution shift", NeurIPS 2021, for the widening.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, isfinite
from typing import Any, Final

NETWORK, BASELINES, REACTIVE = 0, 1, 2
TIERS: Final = ("network", "baselines", "reactive")
# Steps ahead of the origin whose demand is scored.
STEPS_AHEAD: Final = 4
# Quantile levels of the lower end, the median and the upper end of a pending forecast.
INTERVAL_LEVELS: Final = (0.05, 0.5, 0.95)
# Sources of the baselines; every other source is the network or a plug-in forecaster.
_BASELINE_SOURCES: Final = frozenset(("pool", "ridge", "seasonal_naive"))
# Share of values outside a 90 % interval at which the widening stays as it is.
_TARGET_MISS_RATIO: Final = 0.15
# Step of the logarithm of the widening per miss.
_WIDENING_STEP: Final = 0.05
# Largest logarithm of the widening, a factor of about four.
_MAX_LOG_WIDENING: Final = 1.4
# Factor on the sums per score, so that about the last 50 scores count.
_SCORE_DECAY: Final = 0.98
# Decayed number of scores from which on a forecaster is judged.
_MIN_SCORES: Final = 30.0
# Share of misses above which the network and the baselines are demoted.
_MAX_MISS_RATIOS: Final = (0.4, 0.5)
# Error of the median, relative to that of the last value, above which the network and the baselines are demoted.
_MAX_ERROR_RATIOS: Final = (1.5, 2.5)
# First pause of a demoted forecaster, in slots.
_PAUSE_SLOTS: Final = 480
_MAX_PAUSE_SLOTS: Final = 16 * _PAUSE_SLOTS
# Numbers of a pending forecast in the array, beside its source.
_NUMBERS_PER_FORECAST: Final = 5


@lru_cache(256)
def _interned(sources: tuple[str, ...]) -> tuple[str, ...]:
    """One tuple for all workloads with the same sources, which saves memory."""
    return sources


def tier_of(source: str) -> int:
    """The tier of a source: `NETWORK` or `BASELINES`."""
    return BASELINES if source in _BASELINE_SOURCES else NETWORK


@dataclass(frozen=True, slots=True)
class PendingForecast:
    """A forecast of demand at slot `due`: interval, median, last value at its origin, and its forecaster."""

    due: int
    low: float
    mid: float
    high: float
    last: float
    source: str = ""


@dataclass(slots=True)
class ForecasterRecord:
    """The scores of one forecaster with one workload.

    Attributes:
        source: its name.
        trusted: whether plans may rest on it.
        widening: logarithm of the factor on the distance of paths from their median, 0 or above.
        count, misses, error, naive_error: decayed sums of scores since the last demotion or promotion.
        changed: slot of the last demotion or promotion.
        pause: slots from a demotion to the next trial.
    """

    source: str
    trusted: bool = True
    widening: float = 0.0
    count: float = 0.0
    misses: float = 0.0
    error: float = 0.0
    naive_error: float = 0.0
    changed: int = 0
    pause: int = _PAUSE_SLOTS

    def score(self, outlook: PendingForecast, value: float) -> None:
        """Score a pending forecast with the observed value."""
        missed = not outlook.low <= value <= outlook.high
        self.widening = min(
            _MAX_LOG_WIDENING, max(0.0, self.widening + _WIDENING_STEP * (float(missed) - _TARGET_MISS_RATIO))
        )
        self.count = _SCORE_DECAY * self.count + 1.0
        self.misses = _SCORE_DECAY * self.misses + float(missed)
        self.error = _SCORE_DECAY * self.error + abs(value - outlook.mid)
        self.naive_error = _SCORE_DECAY * self.naive_error + abs(value - outlook.last)

    def judge(self, slot: int, most_misses: float, worst_error: float) -> bool:
        """Demote or promote the forecaster where it is due; returns whether its trust changed."""
        if self.trusted and self.count >= _MIN_SCORES:
            failing = self.misses > most_misses * self.count
            failing |= self.error > worst_error * self.naive_error and self.error > 0
            if failing:
                self._begin(slot, trusted=False)
                return True
        if not self.trusted and slot - self.changed >= self.pause:
            self.pause = min(_MAX_PAUSE_SLOTS, 2 * self.pause)
            self._begin(slot, trusted=True)
            return True
        if self.trusted and slot - self.changed >= 2 * self.pause:
            self.pause = _PAUSE_SLOTS  # the trial lasted long enough: the next pause is the first one again
        return False

    def _begin(self, slot: int, trusted: bool) -> None:
        self.trusted, self.changed = trusted, slot
        self.widening = self.count = self.misses = self.error = self.naive_error = 0.0


@dataclass(slots=True)
class ForecastTrust:
    """The forecasters' records of one workload; every number is part of the commit record.

    Pending forecasts are plain numbers in an array, because objects take five times the memory.

    Attributes:
        standings: records of the forecasters, hardly ever more than two.
    """

    standings: tuple[ForecasterRecord, ...] = ()
    _numbers: array[float] = field(default_factory=lambda: array("d"))  # due, low, mid, high, last, due, low, ...
    _sources: tuple[str, ...] = ()

    @property
    def waiting(self) -> list[PendingForecast]:
        """Pending forecasts, oldest first."""
        return [self._outlook(k) for k in range(len(self._sources))]

    @property
    def asks_network(self) -> bool:
        """Whether the network or a plug-in forecaster is trusted."""
        return all(record.trusted for record in self.standings if tier_of(record.source) == NETWORK)

    def factor(self, source: str) -> float:
        """Factor on the distance of every path from the median."""
        record = self._record(source)
        return 1.0 if record is None else exp(record.widening)

    def trusts(self, source: str) -> bool:
        """Whether plans may rest on a forecast of this source; the reactive rule answers where they may not."""
        record = self._record(source)
        return record is None or record.trusted

    def expect(self, outlook: PendingForecast) -> None:
        """Store a pending forecast until its slot is observed."""
        if isfinite(outlook.low) and isfinite(outlook.mid) and isfinite(outlook.high) and isfinite(outlook.last):
            self._numbers.extend((outlook.due, outlook.low, outlook.mid, outlook.high, outlook.last))
            self._sources = _interned((*self._sources, outlook.source))

    def pending_of(self, slot: int) -> PendingForecast | None:
        """The newest pending forecast of a slot; None without one."""
        last = len(self._sources) - 1
        return next((self._outlook(last - k) for k, due in enumerate(reversed(self._dues())) if due == slot), None)

    def observe(self, slot: int, value: float | None) -> list[int]:
        """Score the forecasts of `slot` with its value, and demote or promote forecasters.

        Returns:
            The tier that answers from now on, for each forecaster that is demoted or promoted.
        """
        past = [k for k, due in enumerate(self._dues()) if due <= slot]
        due = [outlook for outlook in map(self._outlook, past) if outlook.due == slot]
        self._forget(past)
        if value is not None:
            for outlook in due:
                standing = self._record(outlook.source)
                if standing is None:
                    standing = ForecasterRecord(outlook.source)
                    self.standings += (standing,)
                standing.score(outlook, value)
        changed = []
        for standing in self.standings:
            tier = tier_of(standing.source)
            if standing.judge(slot, _MAX_MISS_RATIOS[tier], _MAX_ERROR_RATIOS[tier]):
                self._forget([k for k, of in enumerate(self._sources) if of == standing.source])
                changed.append(tier if standing.trusted else tier + 1)
        return changed

    def snapshot(self) -> dict[str, Any]:
        """Every number, for the commit record; `restore` returns the same bits."""
        # Field by field, because this runs in every slot of every workload: reading the fields from the class takes six
        # times as long, `asdict`, which copies in depth, a hundred times. A test compares the keys with the fields.
        standings = {
            s.source: {
                "trusted": s.trusted,
                "widening": s.widening,
                "count": s.count,
                "misses": s.misses,
                "error": s.error,
                "naive_error": s.naive_error,
                "changed": s.changed,
                "pause": s.pause,
            }
            for s in self.standings
        }
        waiting = [
            {"due": o.due, "low": o.low, "mid": o.mid, "high": o.high, "last": o.last, "source": o.source}
            for o in self.waiting
        ]
        return {"v": 2, "standings": standings, "waiting": waiting}

    @staticmethod
    def restore(snapshot: dict[str, Any]) -> ForecastTrust:
        """The trust that a snapshot was taken of; a new one for an empty snapshot.

        Version 1, without a number, kept one record for whoever answered; it is left behind.

        Raises:
            ValueError: the snapshot is of another version.
        """
        if not snapshot or "tier" in snapshot:
            return ForecastTrust()
        if snapshot.get("v") != 2:
            raise ValueError(f"forecast trust snapshot has version {snapshot.get('v')!r}, this program reads 2")
        trust = ForecastTrust(
            tuple(ForecasterRecord(source, **numbers) for source, numbers in snapshot["standings"].items())
        )
        for outlook in snapshot["waiting"]:
            trust.expect(PendingForecast(**outlook))
        return trust

    def _record(self, source: str) -> ForecasterRecord | None:
        return next((record for record in self.standings if record.source == source), None)

    def _dues(self) -> array[float]:
        return self._numbers[::_NUMBERS_PER_FORECAST]

    def _outlook(self, k: int) -> PendingForecast:
        due, low, mid, high, last = self._numbers[_NUMBERS_PER_FORECAST * k : _NUMBERS_PER_FORECAST * (k + 1)]
        return PendingForecast(int(due), low, mid, high, last, self._sources[k])

    def _forget(self, which: Sequence[int]) -> None:
        for k in reversed(which):
            del self._numbers[_NUMBERS_PER_FORECAST * k : _NUMBERS_PER_FORECAST * (k + 1)]
        self._sources = _interned(tuple(source for k, source in enumerate(self._sources) if k not in which))
