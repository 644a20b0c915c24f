"""Periods that surges keep: chains of them that chance would hardly make, and the chance that the next one comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from model.bursts.kernel import period_chains

MINUTE_MS: Final = 60_000
PERIODS_MS: Final = tuple(MINUTE_MS * n for n in (10, 15, 20, 30, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 10_080))
_BY_CHANCE: Final = 0.02  # at most, that so many keep one of the periods by chance
_PAIR_BY_CHANCE: Final = 0.1  # of the newest two, a mere distance; that clocks start work is not rare,
_PAIR_BELIEF: Final = 0.7  # so that a distance like theirs is more often a period than not
_KEPT: Final = 0.6  # of those that were due came
_ON_TIME_STEPS: Final = 1.5  # near enough to where it is expected; also tried is
_LATE_PART: Final = 60  # this part of the period, for what clocks start does not always start at once,
_LATE_MS: Final = 180_000  # but no more
_PATIENCE: Final = 2  # so many in a row that did not come end it,
_DAILY_PATIENCE: Final = 3  # of a day's one more: there are weekends


class Surge(NamedTuple):
    """Steps that stood out.

    Attributes:
        start_ms, end_ms: of the first step and of the last one.
        spread: standard deviation of its steps, of the mean.
        extra: per demand column, by how much its steps stood above the median on average, per second.
    """

    start_ms: int
    end_ms: int
    spread: float
    extra: tuple[float, ...]

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Surges that keep a period.

    Attributes:
        surges: oldest first.
        phases_ms: by how much each of them began later than the newest one and the period say.
        due: how many were due until the newest, which does not count itself.
        tolerance_ms: how far from where it is expected a surge may begin.
    """

    period_ms: int
    tolerance_ms: int
    surges: tuple[Surge, ...]
    phases_ms: tuple[int, ...]
    due: int

    def places_over(self, now_ms: int) -> int:
        """How many since the newest were due and have not come."""
        latest_ms = self.tolerance_ms + max(self.phases_ms)
        return max(now_ms - latest_ms - self.surges[-1].start_ms, 0) // self.period_ms

    def chance(self, now_ms: int) -> float:
        """That the next one comes: of one more than came in two more than were due; 0 where it is over.

        Two alone keep a period with a probability of their own.
        """
        missed = self.places_over(now_ms)
        due, came = self.due + missed, len(self.surges) - 1
        if missed >= _patience(self.period_ms) or came < _KEPT * due:
            return 0.0
        return (came + 1) / (due + 2) * (_PAIR_BELIEF if came == 1 else 1.0)


def find_recurrences(surges: Sequence[Surge], step_ms: int) -> tuple[Recurrence, ...]:
    """Chains of surges that chance would hardly make, each surge in one of them at most.

    The newest two alone are one where they began on time; one that stays away then ends it.
    """
    if len(surges) < 2:
        return ()
    starts = np.array([surge.start_ms for surge in surges], np.int64)
    punctual_ms = round(_ON_TIME_STEPS * step_ms)
    kinds = [(period, punctual_ms) for period in PERIODS_MS]
    kinds += [(p, late) for p in PERIODS_MS if (late := min(p // _LATE_PART, _LATE_MS)) > punctual_ms]
    periods, tolerances = (np.array(column, np.int64) for column in zip(*kinds, strict=True))
    patience = np.array([_patience(period) for period, _ in kinds], np.int64)
    number = len(surges)
    hits, due = (np.zeros((number, len(kinds)), np.int64) for _ in range(2))
    linked, phases = (np.zeros((number, len(kinds), number), np.int64) for _ in range(2))
    period_chains(starts, periods, tolerances, patience, hits, due, phases, linked)
    # Surges as often as these, at any time, would be found where one is expected with this probability.
    span_ms = max(int(starts[-1] - starts[0]), step_ms)
    places = 2 * (tolerances // step_ms) + 1  # steps that are near enough
    near = np.minimum((number - 1) * places * step_ms / span_ms, 1.0).tolist()
    candidates = []
    for last, k in np.argwhere(hits >= 2).tolist():
        came, asked = int(hits[last, k]), int(due[last, k])
        luck = hits.size * _at_least(came, asked, near[k])
        if came >= _KEPT * asked and luck <= _BY_CHANCE:
            candidates.append((luck, kinds[k], last, k))
    pair_luck = _of_a_pair(int(starts[-1] - starts[-2]), step_ms * int(places[0]))
    if pair_luck <= _PAIR_BY_CHANCE:
        newest = slice(0, len(PERIODS_MS))  # those that began on time
        pairs = (hits[-1, newest] == 1) & (due[-1, newest] == 1) & (linked[-1, newest, -2] == 1)
        candidates += [
            (1.0 + pair_luck, kinds[k], number - 1, k) for k in np.flatnonzero(pairs).tolist()
        ]  # after chains
    taken: set[int] = set()
    found = []
    for _, (period_ms, tolerance_ms), last, kind in sorted(candidates):
        members = np.flatnonzero(linked[last, kind]).tolist()
        if taken.isdisjoint(members):
            taken.update(members)
            its, late_by = tuple(surges[m] for m in members), tuple(int(phases[last, kind, m]) for m in members)
            found.append(Recurrence(period_ms, tolerance_ms, its, late_by, int(due[last, kind])))
    return tuple(found)


def _of_a_pair(gap_ms: int, near_ms: int) -> float:
    """That a gap at random, exponential with this one as its mean, comes so near to any of the periods."""
    return math.fsum(near_ms / gap_ms * math.exp(-period_ms / gap_ms) for period_ms in PERIODS_MS)


def _at_least(came: int, asked: int, probability: float) -> float:
    """That of so many which come with a probability each at least so many come."""
    return math.fsum(
        math.comb(asked, k) * probability**k * (1.0 - probability) ** (asked - k) for k in range(came, asked + 1)
    )


def _patience(period_ms: int) -> int:
    return _PATIENCE if period_ms < 86_400_000 else _DAILY_PATIENCE
