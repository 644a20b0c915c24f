"""Surges that come again: what a service has seen stand out of its load, and what of that keeps a period.

Work that is started by the clock (every hour, every day at nine) makes the load of minutes a multiple of what it was,
faster than any replica starts, and no context of half an hour holds the one before. So surges are remembered longer
than windows are: when each began and ended, and by how much it stood above the median of its window. A surge is
expected again where those before it kept one of the periods of clocks and calendars more often than chance would have
it.
Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from model.bursts.kernel import usual_level
from model.recurrences import Recurrence, Surge, find_recurrences

_MOST: Final = 24  # surges remembered
_FORGOTTEN_MS: Final = 29 * 86_400_000  # four weeks, so that what comes once a week can be known
_PART_OF_WINDOW: Final = 2  # what lasts longer than half of a window is its level
_MIN_STEPS: Final = 2  # a single step is over before anything could be done, and may be a counter that jumped
_TOO_HIGH: Final = 1.5  # times what was ever seen of it: something else, or more than it


class ExpectedSurge(NamedTuple):
    """One occurrence.

    Attributes:
        start_ms: when it is expected; of one under way, when it began.
        chance: that it comes; 1 of one under way.
        begun: whether it is under way.
    """

    start_ms: int
    chance: float
    recurrence: Recurrence
    begun: bool


class RecurringSurges:
    """What is remembered of one workload's surges."""

    __slots__ = ("_above", "_began_ms", "_found", "_surges")

    def __init__(self) -> None:
        self._surges: tuple[Surge, ...] = ()
        self._began_ms: int | None = None  # of the one under way
        self._above = 0.0  # requests/s of its newest step above the median
        self._found: tuple[Recurrence, ...] | None = None  # what the surges say, once it was asked for

    def observe(
        self,
        values: NDArray[np.float32],
        observed: NDArray[np.bool_],
        columns: Sequence[int],
        end_ms: int,
        step_ms: int,
    ) -> None:
        """Fold the newest slot, which ends at `end_ms`; one without requests known changes nothing.

        Args:
            values, observed: [L, N], the window, oldest first.
            columns: of the demand that is remembered, requests first; those that are not in the window are -1.
        """
        by = columns[0]
        if by < 0 or not observed.item(-1, by):
            return
        level = usual_level(values, observed, by, step_ms / 1000, self._began_ms is not None)
        if not math.isnan(level):
            self._above = values.item(-1, by) - level
            if self._began_ms is None:
                self._began_ms = end_ms - step_ms
            return
        if self._began_ms is None:
            return
        began_ms, self._began_ms = self._began_ms, None
        steps = (end_ms - step_ms - began_ms) // step_ms
        if _MIN_STEPS <= steps <= len(values) // _PART_OF_WINDOW:
            found = _surge(values, observed, columns, began_ms, end_ms - step_ms, steps)
            if found is not None:
                kept = [s for s in self._surges if s.end_ms > end_ms - _FORGOTTEN_MS]
                self._surges = (*kept, found)[-_MOST:]
                self._found = None

    def recurrences(self, step_ms: int) -> tuple[Recurrence, ...]:
        """Those that the surges seen so far keep, the surest first."""
        if self._found is None:
            self._found = find_recurrences(self._surges, step_ms)
        return self._found

    def expected(self, now_ms: int, until_ms: int, step_ms: int) -> list[ExpectedSurge]:
        """Surges under way, or expected to begin before `until_ms`."""
        found = []
        for recurrence, chance in self._standing(now_ms, step_ms):
            period_ms, newest_ms = recurrence.period_ms, recurrence.surges[-1].start_ms
            begun = self._place_of_begun(recurrence, now_ms, step_ms)
            if begun is not None and self._began_ms is not None:
                found.append(ExpectedSurge(self._began_ms, 1.0, recurrence, begun=True))
                place = begun + 1
            else:  # one that is late by no more than is usual may still come
                place = recurrence.places_over(now_ms) + 1
            while newest_ms + place * period_ms < until_ms:
                found.append(ExpectedSurge(newest_ms + place * period_ms, chance, recurrence, begun=False))
                place += 1
        return found

    def explained(self, now_ms: int, from_ms: int, step_ms: int) -> list[tuple[int, int]]:
        """Times since `from_ms` in which the load held a surge that comes again, one under way among them."""
        times = []
        for recurrence, _ in self._standing(now_ms, step_ms):
            times += [(s.start_ms, s.end_ms) for s in recurrence.surges if s.end_ms > from_ms]
            if self._began_ms is not None and self._place_of_begun(recurrence, now_ms, step_ms) is not None:
                times.append((self._began_ms, now_ms))
        return times

    def _standing(self, now_ms: int, step_ms: int) -> list[tuple[Recurrence, float]]:
        """Recurrences that are not over, and the chance that the next one comes."""
        by_ms = now_ms if self._began_ms is None else self._began_ms
        known = [(r, r.chance(by_ms)) for r in self.recurrences(step_ms)]
        return [(recurrence, chance) for recurrence, chance in known if chance > 0.0]

    def _place_of_begun(self, recurrence: Recurrence, now_ms: int, step_ms: int) -> int | None:
        """How many periods after the newest the surge under way began, if it is one of them."""
        if self._began_ms is None:
            return None
        since_ms = self._began_ms - recurrence.surges[-1].start_ms
        place = round(since_ms / recurrence.period_ms)
        late_ms = since_ms - place * recurrence.period_ms
        if place < 1 or min(abs(late_ms - phase) for phase in recurrence.phases_ms) > recurrence.tolerance_ms:
            return None
        longest_ms = max(surge.length_ms for surge in recurrence.surges)
        highest = max(surge.extra[0] * (1.0 + 2.0 * surge.spread) for surge in recurrence.surges)
        alike = now_ms - self._began_ms < longest_ms + step_ms and self._above <= _TOO_HIGH * highest
        return place if alike else None

    def snapshot(self) -> list[list[float]]:
        """Plain values; `restore` gives back the same bits. Empty where nothing stood out yet."""
        if self._began_ms is None and not self._surges:
            return []
        begun = [] if self._began_ms is None else [float(self._began_ms), self._above]
        return [begun, *([float(s.start_ms), float(s.end_ms), s.spread, *s.extra] for s in self._surges)]

    @classmethod
    def restore(cls, state: Sequence[Sequence[float]]) -> Self:
        """What a snapshot was taken of.

        Raises:
            ValueError: the snapshot is of another version or damaged.
        """
        surges = cls()
        if not state:
            return surges
        begun, *rows = state
        if len(begun) not in (0, 2) or any(len(row) < 4 for row in rows):
            raise ValueError("surges are not stored as a start each, an end, a spread and what they added")
        if begun:
            surges._began_ms, surges._above = int(begun[0]), float(begun[1])
        surges._surges = tuple(Surge(int(row[0]), int(row[1]), float(row[2]), tuple(row[3:])) for row in rows)
        return surges


def _surge(
    values: NDArray[np.float32],
    observed: NDArray[np.bool_],
    columns: Sequence[int],
    start_ms: int,
    end_ms: int,
    steps: int,
) -> Surge | None:
    """The surge of the `steps` steps before the newest; its first and last one may hold a part of it only."""
    its = slice(len(values) - 1 - steps, len(values) - 1)
    above = [_above_median(values[:, column], observed[:, column], its) if column >= 0 else None for column in columns]
    requests = above[0]
    if requests is None or not np.isfinite(requests).any():
        return None
    full = requests >= 0.5 * float(np.nanmax(requests))
    mean = float(requests[full].mean())
    if not mean > 0.0:
        return None
    spread = float(requests[full].std()) / mean
    extra = []
    for one in above:
        known = [] if one is None else one[full & np.isfinite(one)].tolist()
        extra.append(max(sum(known) / len(known), 0.0) if known else 0.0)
    return Surge(start_ms, end_ms, min(spread, 1.0), tuple(extra))


def _above_median(values: NDArray[np.float32], observed: NDArray[np.bool_], its: slice) -> NDArray[np.float64]:
    """By how much some steps stand above the median of the others; NaN where not observed."""
    seen = observed.copy()
    seen[its] = False
    level = float(np.median(values[seen])) if seen.any() else 0.0
    above: NDArray[np.float64] = np.where(observed[its], values[its].astype(np.float64) - level, np.nan)
    return above
