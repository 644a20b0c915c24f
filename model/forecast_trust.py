"""Whether a workload's forecasts deserve trust: conformal widening first, then demotion, and promotion on trial.

Every published forecast of demand leaves an outlook, the ends of its 90 % interval and its median a few steps ahead; it
is scored when that step is observed. Intervals that miss too often are widened. A forecaster that misses on, or whose
median is worse than the last value, is demoted: network, then baselines, then none (the reactive rule). After a pause
the one above is tried again; every failed trial doubles the pause. Pure: slots are the time.
Source: I. Gibbs, E. Candes, "Adaptive conformal inference under distribution shift", NeurIPS 2021, for the widening.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, isfinite
from typing import Any, Final

NETWORK, BASELINES, REACTIVE = 0, 1, 2
TIERS: Final = ("network", "baselines", "reactive")
_TOLERATED: Final = 0.15  # share of values outside a 90 % interval that widens nothing
_RATE: Final = 0.05  # of the logarithm of the widening, per miss
_MOST: Final = 1.4  # logarithm: about four times as wide
_FADE: Final = 0.98  # per score: about the last 50 count
_ENOUGH: Final = 30.0  # faded scores before a forecaster is judged
_MISSES: Final = (0.4, 0.5)  # share of misses beyond which the network and the baselines are demoted
_WORSE: Final = (1.5, 2.5)  # error of the median over that of the last value, likewise
_PAUSE_SLOTS: Final = 480
_LONGEST_PAUSE_SLOTS: Final = 16 * _PAUSE_SLOTS


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a forecast says of demand at slot `due`: interval, median, and the last value it started from."""

    due: int
    low: float
    mid: float
    high: float
    last: float


@dataclass(slots=True)
class ForecastTrust:
    """One workload's record; every number of it stands in the commit record.

    Attributes:
        tier: who forecasts: 0 network, 1 baselines, 2 nobody (the reactive rule).
        widening: logarithm of the factor on the distance of paths from their median, 0 or above.
        count, misses, error, naive_error: faded sums of scores since the last change of tier.
        changed: slot of that change.
        pause: slots until the tier above is tried again.
        waiting: outlooks not yet due.
    """

    tier: int = NETWORK
    widening: float = 0.0
    count: float = 0.0
    misses: float = 0.0
    error: float = 0.0
    naive_error: float = 0.0
    changed: int = 0
    pause: int = _PAUSE_SLOTS
    waiting: list[Outlook] = field(default_factory=list)

    @property
    def factor(self) -> float:
        """On the distance of every path from the median."""
        return exp(self.widening)

    def expect(self, outlook: Outlook) -> None:
        """Keep what a forecast said until its slot is observed."""
        if all(isfinite(v) for v in (outlook.low, outlook.mid, outlook.high, outlook.last)):
            self.waiting.append(outlook)

    def observe(self, slot: int, value: float | None) -> int | None:
        """Score what was said of `slot`, unless it was not observed; returns the new tier where it changes."""
        due = [outlook for outlook in self.waiting if outlook.due == slot]
        self.waiting = [outlook for outlook in self.waiting if outlook.due > slot]
        if value is not None:
            for outlook in due:
                self._score(outlook, value)
        return self._judge(slot)

    def _score(self, outlook: Outlook, value: float) -> None:
        missed = not outlook.low <= value <= outlook.high
        self.widening = min(_MOST, max(0.0, self.widening + _RATE * (float(missed) - _TOLERATED)))
        self.count = _FADE * self.count + 1.0
        self.misses = _FADE * self.misses + float(missed)
        self.error = _FADE * self.error + abs(value - outlook.mid)
        self.naive_error = _FADE * self.naive_error + abs(value - outlook.last)

    def _judge(self, slot: int) -> int | None:
        if self.tier < REACTIVE and self.count >= _ENOUGH:
            failing = self.misses > _MISSES[self.tier] * self.count
            failing |= self.error > _WORSE[self.tier] * self.naive_error and self.error > 0
            if failing:
                return self._move(self.tier + 1, slot)
        if self.tier > NETWORK and slot - self.changed >= self.pause:
            self.pause = min(_LONGEST_PAUSE_SLOTS, 2 * self.pause)
            return self._move(self.tier - 1, slot)
        if self.tier == NETWORK and slot - self.changed >= 2 * self.pause:
            self.pause = _PAUSE_SLOTS  # the trial has been stood for as long as it was earned
        return None

    def _move(self, tier: int, slot: int) -> int:
        self.tier, self.changed = tier, slot
        self.count = self.misses = self.error = self.naive_error = self.widening = 0.0
        self.waiting = []
        return tier

    def snapshot(self) -> dict[str, Any]:
        """Every number, for the commit record."""
        # `asdict` copies in depth, at a hundred times the cost.
        return _plain(self) | {"waiting": [_plain(outlook) for outlook in self.waiting]}

    @staticmethod
    def restore(snapshot: dict[str, Any]) -> ForecastTrust:
        """The record of a commit; a fresh one from a commit that holds none."""
        waiting = [Outlook(**outlook) for outlook in snapshot.get("waiting", [])]
        return ForecastTrust(**{**snapshot, "waiting": waiting})


def _plain(record: ForecastTrust | Outlook) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
