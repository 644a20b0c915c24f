"""Whether a workload's forecasts deserve trust: conformal widening first, then demotion, and promotion on trial.

Every published forecast of demand leaves an outlook, the ends of its 90 % interval and its median a few steps ahead; it
is scored when that step is observed, on the record of whoever made it. Intervals that miss too often are widened. A
forecaster that misses on, or whose median is worse than the last value, is demoted: the baselines answer in place of
the network, the reactive rule in place of the baselines. After a pause it is tried again; every failed trial doubles
its pause. Pure: slots are the time.
Source: I. Gibbs, E. Candes, "Adaptive conformal inference under distribution shift", NeurIPS 2021, for the widening.
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
STEPS_AHEAD: Final = 4  # whose demand an outlook is of
SAID: Final = (0.05, 0.5, 0.95)  # levels of its low, mid and high
# What the baselines call themselves; any other source is the network's, or a forecaster of somebody's own.
_BASELINE_SOURCES: Final = frozenset(("pool", "ridge", "seasonal_naive"))
_TOLERATED: Final = 0.15  # share of values outside a 90 % interval that widens nothing
_RATE: Final = 0.05  # of the logarithm of the widening, per miss
_MOST: Final = 1.4  # logarithm: about four times as wide
_FADE: Final = 0.98  # per score: about the last 50 count
_ENOUGH: Final = 30.0  # faded scores before a forecaster is judged
_MISSES: Final = (0.4, 0.5)  # share of misses beyond which the network and the baselines are demoted
_WORSE: Final = (1.5, 2.5)  # error of the median over that of the last value, likewise
_PAUSE_SLOTS: Final = 480
_LONGEST_PAUSE_SLOTS: Final = 16 * _PAUSE_SLOTS
_NUMBERS: Final = 5  # of an outlook, beside its source


@lru_cache(256)
def _shared(sources: tuple[str, ...]) -> tuple[str, ...]:
    """The same for all workloads that are forecast alike."""
    return sources


def tier_of(source: str) -> int:
    """Whether a forecast is the network's or the baselines'."""
    return BASELINES if source in _BASELINE_SOURCES else NETWORK


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a forecast says of demand at slot `due`: interval, median, and the last value it started from.

    `source` is who made it.
    """

    due: int
    low: float
    mid: float
    high: float
    last: float
    source: str = ""


@dataclass(slots=True)
class Standing:
    """One forecaster's record with one workload.

    Attributes:
        source: its name.
        trusted: whether plans may rest on it.
        widening: logarithm of the factor on the distance of paths from their median, 0 or above.
        count, misses, error, naive_error: faded sums of scores since it was last demoted or tried again.
        changed: slot of that.
        pause: slots until it is tried again once it is demoted.
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

    def score(self, outlook: Outlook, value: float) -> None:
        """Hold what was said of a value against it."""
        missed = not outlook.low <= value <= outlook.high
        self.widening = min(_MOST, max(0.0, self.widening + _RATE * (float(missed) - _TOLERATED)))
        self.count = _FADE * self.count + 1.0
        self.misses = _FADE * self.misses + float(missed)
        self.error = _FADE * self.error + abs(value - outlook.mid)
        self.naive_error = _FADE * self.naive_error + abs(value - outlook.last)

    def judge(self, slot: int, most_misses: float, worst_error: float) -> bool:
        """Demote it or try it again where it is time; returns whether that happened."""
        if self.trusted and self.count >= _ENOUGH:
            failing = self.misses > most_misses * self.count
            failing |= self.error > worst_error * self.naive_error and self.error > 0
            if failing:
                self._begin(slot, trusted=False)
                return True
        if not self.trusted and slot - self.changed >= self.pause:
            self.pause = min(_LONGEST_PAUSE_SLOTS, 2 * self.pause)
            self._begin(slot, trusted=True)
            return True
        if self.trusted and slot - self.changed >= 2 * self.pause:
            self.pause = _PAUSE_SLOTS  # the trial has been stood for as long as it was earned
        return False

    def _begin(self, slot: int, trusted: bool) -> None:
        self.trusted, self.changed = trusted, slot
        self.widening = self.count = self.misses = self.error = self.naive_error = 0.0


@dataclass(slots=True)
class ForecastTrust:
    """One workload's record; every number of it stands in the commit record.

    Every workload holds some outlooks, so they are bare numbers: as objects they take five times the room.

    Attributes:
        standings: of each forecaster that was heard; hardly ever more than two.
    """

    standings: tuple[Standing, ...] = ()
    _numbers: array[float] = field(default_factory=lambda: array("d"))  # due, low, mid, high, last, due, low, ...
    _sources: tuple[str, ...] = ()

    @property
    def waiting(self) -> list[Outlook]:
        """Outlooks not yet due, oldest first."""
        return [self._outlook(k) for k in range(len(self._sources))]

    @property
    def asks_network(self) -> bool:
        """Whether the network, or a forecaster of somebody's own, is asked at all."""
        return all(known.trusted for known in self.standings if tier_of(known.source) == NETWORK)

    def factor(self, source: str) -> float:
        """On the distance of every path from the median."""
        known = self._standing(source)
        return 1.0 if known is None else exp(known.widening)

    def trusts(self, source: str) -> bool:
        """Whether plans may rest on a forecast of this source; the reactive rule answers where they may not."""
        known = self._standing(source)
        return known is None or known.trusted

    def expect(self, outlook: Outlook) -> None:
        """Keep what a forecast said until its slot is observed."""
        if isfinite(outlook.low) and isfinite(outlook.mid) and isfinite(outlook.high) and isfinite(outlook.last):
            self._numbers.extend((outlook.due, outlook.low, outlook.mid, outlook.high, outlook.last))
            self._sources = _shared((*self._sources, outlook.source))

    def said_of(self, slot: int) -> Outlook | None:
        """What was said last of a slot, until it is observed."""
        last = len(self._sources) - 1
        return next((self._outlook(last - k) for k, due in enumerate(reversed(self._dues())) if due == slot), None)

    def observe(self, slot: int, value: float | None) -> list[int]:
        """Score what was said of `slot`, unless it was not observed.

        Returns:
            For each forecaster that is demoted or tried again: the tier that answers from now on.
        """
        past = [k for k, due in enumerate(self._dues()) if due <= slot]
        due = [outlook for outlook in map(self._outlook, past) if outlook.due == slot]
        self._forget(past)
        if value is not None:
            for outlook in due:
                standing = self._standing(outlook.source)
                if standing is None:
                    standing = Standing(outlook.source)
                    self.standings += (standing,)
                standing.score(outlook, value)
        changed = []
        for standing in self.standings:
            tier = tier_of(standing.source)
            if standing.judge(slot, _MISSES[tier], _WORSE[tier]):
                self._forget([k for k, of in enumerate(self._sources) if of == standing.source])
                changed.append(tier if standing.trusted else tier + 1)
        return changed

    def snapshot(self) -> dict[str, Any]:
        """Every number, for the commit record."""
        # Field by field: in every slot of every workload, and asking the classes for their fields takes six times as
        # long (`asdict`, which copies in depth, a hundred times).
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
        """The record of a commit; a fresh one from a commit that holds none.

        Version 1, without a number, kept one record for whoever answered; it is left behind.

        Raises:
            ValueError: the snapshot is of another version.
        """
        if not snapshot or "tier" in snapshot:
            return ForecastTrust()
        if snapshot.get("v") != 2:
            raise ValueError(f"forecast trust snapshot has version {snapshot.get('v')!r}, this program reads 2")
        trust = ForecastTrust(tuple(Standing(source, **numbers) for source, numbers in snapshot["standings"].items()))
        for outlook in snapshot["waiting"]:
            trust.expect(Outlook(**outlook))
        return trust

    def _standing(self, source: str) -> Standing | None:
        return next((known for known in self.standings if known.source == source), None)

    def _dues(self) -> array[float]:
        return self._numbers[::_NUMBERS]

    def _outlook(self, k: int) -> Outlook:
        due, low, mid, high, last = self._numbers[_NUMBERS * k : _NUMBERS * (k + 1)]
        return Outlook(int(due), low, mid, high, last, self._sources[k])

    def _forget(self, which: Sequence[int]) -> None:
        for k in reversed(which):
            del self._numbers[_NUMBERS * k : _NUMBERS * (k + 1)]
        self._sources = _shared(tuple(source for k, source in enumerate(self._sources) if k not in which))
