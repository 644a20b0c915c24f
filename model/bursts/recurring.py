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
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from model.baselines.context import row_seed
from model.baselines.context_kernel import uniforms
from model.bursts.kernel import period_chains, usual_level

# Periods that surges keep: chains of them that chance would hardly make, and the chance that the next one comes.


MINUTE_MS: Final = 60_000
PERIODS_MS: Final = tuple(MINUTE_MS * n for n in (10, 15, 20, 30, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 10_080))
# Largest probability that so many surges keep one of the periods by chance.
_MAX_CHANCE_PROBABILITY: Final = 0.02
# The same for the newest two surges, because work that is started by clocks is not rare.
_MAX_PAIR_CHANCE_PROBABILITY: Final = 0.1
# Probability that the distance of two surges is a period.
_PAIR_PROBABILITY: Final = 0.7
# Smallest share of the due surges that came.
_MIN_KEPT_RATIO: Final = 0.6
# Steps from the expected start within which a surge is on time.
_ON_TIME_STEPS: Final = 1.5
# Part of the period by which a surge may be late, because scheduled work may start late.
_LATE_PERIOD_DIVISOR: Final = 60
# Most time by which a surge may be late.
_MAX_LATE_MS: Final = 180_000
# Periods whose marks surges may keep to though most marks stay without one, as work that starts by the half hour does.
_MARK_PERIODS_MS: Final = tuple(MINUTE_MS * n for n in (10, 15, 20, 30, 60))
# Time about a mark within which a surge begins at it; at least so many steps as one that is on time.
_MARK_TOLERANCE_MS: Final = 30_000
# Fewest surges at the marks of a period.
_MIN_AT_MARKS: Final = 3
# Smallest chance of a surge at a mark that is expected.
_MIN_MARK_CHANCE: Final = 0.05
# Missing surges in a row that end a recurrence.
_MAX_MISSED: Final = 2
# The same for a period of a day, because of weekends.
_MAX_MISSED_DAILY: Final = 3


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
        at_marks: whether they begin at marks of the period of which most may stay without one.
    """

    period_ms: int
    tolerance_ms: int
    surges: tuple[Surge, ...]
    phases_ms: tuple[int, ...]
    due: int
    at_marks: bool = False

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
        if self.at_marks:
            chance = (came + 1) / (due + 2)
            return chance if chance >= _MIN_MARK_CHANCE else 0.0
        if missed >= _patience(self.period_ms) or came < _MIN_KEPT_RATIO * due:
            return 0.0
        return (came + 1) / (due + 2) * (_PAIR_PROBABILITY if came == 1 else 1.0)


def find_recurrences(surges: Sequence[Surge], step_ms: int) -> tuple[Recurrence, ...]:
    """Chains of surges that chance would hardly make, each surge in one of them at most.

    The newest two alone are one where they began on time; one that stays away then ends it.
    """
    if len(surges) < 2:
        return ()
    starts = np.array([surge.start_ms for surge in surges], np.int64)
    punctual_ms = round(_ON_TIME_STEPS * step_ms)
    kinds = [(period, punctual_ms) for period in PERIODS_MS]
    kinds += [(p, late) for p in PERIODS_MS if (late := min(p // _LATE_PERIOD_DIVISOR, _MAX_LATE_MS)) > punctual_ms]
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
        came, num_due = int(hits[last, k]), int(due[last, k])
        luck = hits.size * _at_least(came, num_due, near[k])
        if came >= _MIN_KEPT_RATIO * num_due and luck <= _MAX_CHANCE_PROBABILITY:
            candidates.append((luck, kinds[k], last, k))
    pair_luck = _of_a_pair(int(starts[-1] - starts[-2]), step_ms * int(places[0]))
    if pair_luck <= _MAX_PAIR_CHANCE_PROBABILITY:
        newest = slice(0, len(PERIODS_MS))  # those that began on time
        pairs = (hits[-1, newest] == 1) & (due[-1, newest] == 1) & (linked[-1, newest, -2] == 1)
        candidates += [
            (1.0 + pair_luck, kinds[k], number - 1, k) for k in np.flatnonzero(pairs).tolist()
        ]  # after chains
    used: set[int] = set()
    recurrences = []
    for _, (period_ms, tolerance_ms), last, kind in sorted(candidates):
        members = np.flatnonzero(linked[last, kind]).tolist()
        if used.isdisjoint(members):
            used.update(members)
            own_surges, late_by = tuple(surges[m] for m in members), tuple(int(phases[last, kind, m]) for m in members)
            recurrences.append(Recurrence(period_ms, tolerance_ms, own_surges, late_by, int(due[last, kind])))
    marks = _at_marks(surges, used, step_ms)
    return tuple(recurrences) if marks is None else (*recurrences, marks)


def _at_marks(surges: Sequence[Surge], chained: set[int], step_ms: int) -> Recurrence | None:
    """Surges that begin at marks of one period, by less chance than of any other; None where chance would do as much.

    None, too, where all of them are in chains, which say more of when the next one is due.

    With the phases of N surges anywhere in the period, K of them lie as near to one of them with a probability of at
    most N C(N - 1, K - 1) q^(K - 1), q being the part of the period that is as near.
    """
    starts = np.array([surge.start_ms for surge in surges], np.int64)
    tolerance_ms = max(_MARK_TOLERANCE_MS, round(_ON_TIME_STEPS * step_ms))
    number = len(surges)
    found: list[tuple[float, int, list[int]]] = []
    for period_ms in _MARK_PERIODS_MS:
        apart = (starts[:, None] - starts[None, :] + period_ms // 2) % period_ms - period_ms // 2
        near = np.abs(apart) <= tolerance_ms
        members = np.flatnonzero(near[int(near.sum(axis=1).argmax())])
        many, part = len(members), min((2 * tolerance_ms + step_ms) / period_ms, 1.0)
        luck = len(_MARK_PERIODS_MS) * number * math.comb(number - 1, many - 1) * part ** (many - 1)
        if many >= _MIN_AT_MARKS and luck <= _MAX_CHANCE_PROBABILITY and not chained.issuperset(members.tolist()):
            found.append((luck, period_ms, members.tolist()))
    if not found:
        return None
    _, period_ms, chosen = min(found)
    own = tuple(surges[m] for m in chosen)
    newest_ms = own[-1].start_ms
    phases = tuple((surge.start_ms - newest_ms + period_ms // 2) % period_ms - period_ms // 2 for surge in own)
    due = round((newest_ms - own[0].start_ms) / period_ms)
    return Recurrence(period_ms, tolerance_ms, own, phases, due, at_marks=True)


def _of_a_pair(gap_ms: int, near_ms: int) -> float:
    """That a gap at random, exponential with this one as its mean, comes so near to any of the periods."""
    return math.fsum(near_ms / gap_ms * math.exp(-period_ms / gap_ms) for period_ms in PERIODS_MS)


def _at_least(came: int, num_due: int, probability: float) -> float:
    """That of so many which come with a probability each at least so many come."""
    return math.fsum(
        math.comb(num_due, k) * probability**k * (1.0 - probability) ** (num_due - k) for k in range(came, num_due + 1)
    )


def _patience(period_ms: int) -> int:
    return _MAX_MISSED if period_ms < 86_400_000 else _MAX_MISSED_DAILY


# Most surges that are stored.
_MAX_SURGES: Final = 24
# Age at which a surge is dropped: four weeks, so that weekly surges are found.
_MAX_AGE_MS: Final = 29 * 86_400_000
# Part of a window beyond which a surge is a level.
_WINDOW_DIVISOR: Final = 2
# Fewest steps of a surge; a single step may be a counter that jumped.
_MIN_SURGE_STEPS: Final = 2
# Largest excess of a surge, relative to the earlier ones of the recurrence.
_MAX_EXCESS_RATIO: Final = 1.5


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
        if _MIN_SURGE_STEPS <= steps <= len(values) // _WINDOW_DIVISOR:
            surge = _surge(values, observed, columns, began_ms, end_ms - step_ms, steps)
            if surge is not None:
                recent = [s for s in self._surges if s.end_ms > end_ms - _MAX_AGE_MS]
                self._surges = (*recent, surge)[-_MAX_SURGES:]
                self._found = None

    def recurrences(self, step_ms: int) -> tuple[Recurrence, ...]:
        """Those that the surges seen so far keep, the surest first."""
        if self._found is None:
            self._found = find_recurrences(self._surges, step_ms)
        return self._found

    def expected(self, now_ms: int, until_ms: int, step_ms: int) -> list[ExpectedSurge]:
        """Surges under way, or expected to begin before `until_ms`."""
        result = []
        for recurrence, chance in self._standing(now_ms, step_ms):
            period_ms, newest_ms = recurrence.period_ms, recurrence.surges[-1].start_ms
            begun = self._place_of_begun(recurrence, now_ms, step_ms)
            if begun is not None and self._began_ms is not None:
                result.append(ExpectedSurge(self._began_ms, 1.0, recurrence, begun=True))
                place = begun + 1
            else:  # one that is late by no more than is usual may still come
                place = recurrence.places_over(now_ms) + 1
            while newest_ms + place * period_ms < until_ms:
                result.append(ExpectedSurge(newest_ms + place * period_ms, chance, recurrence, begun=False))
                place += 1
        return _told_once(result)

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
        pairs = [(r, r.chance(by_ms)) for r in self.recurrences(step_ms)]
        return [(recurrence, chance) for recurrence, chance in pairs if chance > 0.0]

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
        alike = now_ms - self._began_ms < longest_ms + step_ms and self._above <= _MAX_EXCESS_RATIO * highest
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
    span = slice(len(values) - 1 - steps, len(values) - 1)
    above = [_above_median(values[:, column], observed[:, column], span) if column >= 0 else None for column in columns]
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
        extra_values = [] if one is None else one[full & np.isfinite(one)].tolist()
        extra.append(max(sum(extra_values) / len(extra_values), 0.0) if extra_values else 0.0)
    return Surge(start_ms, end_ms, min(spread, 1.0), tuple(extra))


def _above_median(values: NDArray[np.float32], observed: NDArray[np.bool_], span: slice) -> NDArray[np.float64]:
    """By how much some steps stand above the median of the others; NaN where not observed."""
    mask = observed.copy()
    mask[span] = False
    level = float(np.median(values[mask])) if mask.any() else 0.0
    above: NDArray[np.float64] = np.where(observed[span], values[span].astype(np.float64) - level, np.nan)
    return above


def _told_once(expected: Sequence[ExpectedSurge]) -> list[ExpectedSurge]:
    """Without those of marks at which a chain of surges, which is surer, has one."""
    chains = [one for one in expected if not one.recurrence.at_marks]
    return chains + [
        one
        for one in expected
        if one.recurrence.at_marks
        and all(abs(one.start_ms - other.start_ms) > one.recurrence.tolerance_ms for other in chains)
    ]


# What surges that are expected to come again, or to go on, add to sample paths.


# Seed of the draws of surges.
_SEED: Final = 2
# Width of a uniform draw in its standard deviations.
_UNIFORM_SIGMAS: Final = math.sqrt(12.0)


def surge_paths(
    expected: Sequence[ExpectedSurge],
    item_id: str,
    origin_ts_ms: int,
    step_ms: int,
    columns: Sequence[int],
    shape: tuple[int, int, int],
) -> NDArray[np.float32]:
    """What expected surges add to one workload's paths, each to so many of them as its chance says.

    A path takes one of the surges that were there before as it was: how early or late, how long, how high, and by how
    much its steps differ. What one that is under way has already lasted leaves the longer ones.

    Args:
        item_id: with the origin it fixes the draws, whatever else is forecast.
        columns: of the paths, in the order of what surges add; -1 for those that are not in them.
        shape: S, H, N.

    Returns:
        float32 [S, H, N], per second.
    """
    num_paths, horizon, _ = shape
    added = np.zeros(shape)
    begins = origin_ts_ms + step_ms * np.arange(horizon)  # [H]
    key, width = np.uint64(row_seed(item_id, origin_ts_ms, _SEED)), horizon + 2
    numbers = np.empty(num_paths * width)
    for number, one in enumerate(expected):
        uniforms(key, number * len(numbers), numbers)
        comes, which, differs = np.split(numbers.reshape(num_paths, width), [1, 2], axis=1)
        lasted_ms = origin_ts_ms - one.start_ms if one.begun else 0
        pairs = list(zip(one.recurrence.surges, one.recurrence.phases_ms, strict=True))
        fit = [(surge, phase) for surge, phase in pairs if surge.length_ms > lasted_ms] or pairs[-1:]
        picks = (which[:, 0] * len(fit)).astype(np.int64)  # [S]

        def pick(values: Sequence[float], rows: NDArray[np.int64] = picks) -> NDArray[np.float64]:
            return np.array(values, np.float64)[rows][:, None]

        if one.begun:
            starts = np.full((num_paths, 1), float(one.start_ms))
        else:
            starts = np.maximum(one.start_ms + pick([phase for _, phase in fit]), origin_ts_ms)
        ends = starts + pick([surge.length_ms for surge, _ in fit])
        cover = np.clip(np.minimum(ends, begins + step_ms) - np.maximum(starts, begins), 0, step_ms) / step_ms  # [S, H]
        cover *= comes < one.chance
        cover *= np.maximum(1.0 + pick([surge.spread for surge, _ in fit]) * _UNIFORM_SIGMAS * (differs - 0.5), 0.0)
        for place, column in enumerate(columns):
            if column >= 0:
                added[..., column] += cover * pick([surge.extra[place] for surge, _ in fit])
    return added.astype(np.float32)
