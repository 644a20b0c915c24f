"""Surges that come again: what is remembered of a load, when a period is believed, and how rarely chance makes one."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.bursts.kernel import period_chains, usual_level
from model.bursts.recurring import PERIODS_MS, RecurringSurges, Surge, find_recurrences

STEP_MS, LENGTH, MINUTE_MS, HOUR_MS = 15_000, 128, 60_000, 3_600_000
START_MS = 1_763_636_400_000  # on the hour


class Service:
    """A load, step by step, and what is remembered of it."""

    def __init__(self, seed: int = 1) -> None:
        self.surges = RecurringSurges()
        self.values = np.zeros((LENGTH, 2), np.float32)
        self.observed = np.zeros((LENGTH, 2), np.bool_)
        self.now_ms = START_MS
        self._rng = np.random.default_rng(seed)

    def step(self, rate: float, *, seen: bool = True) -> None:
        self.values[:-1], self.observed[:-1] = self.values[1:].copy(), self.observed[1:].copy()
        count = self._rng.poisson(rate * STEP_MS / 1000) / (STEP_MS / 1000)
        self.values[-1] = (count, 100 * count) if seen else (0.0, 0.0)
        self.observed[-1] = seen
        self.now_ms += STEP_MS
        self.surges.observe(self.values, self.observed, (0, 1), self.now_ms, STEP_MS)

    def run(self, until_ms: int, period_ms: int, length_ms: int = 300_000, times: float = 4.0) -> None:
        """3 requests/s, and at every period so many times as many."""
        while self.now_ms < until_ms:
            self.step(3.0 * (times if (self.now_ms - START_MS) % period_ms < length_ms else 1.0))

    def next(self, within_ms: int) -> list[tuple[int, bool]]:
        expected = self.surges.expected(self.now_ms, self.now_ms + within_ms, STEP_MS)
        return sorted((one.start_ms - START_MS, one.begun) for one in expected)


def after(hours: float, period_ms: int = HOUR_MS) -> Service:
    service = Service()
    service.run(START_MS + round(hours * HOUR_MS), period_ms)
    return service


def test_the_second_surge_of_an_hour_is_a_period_that_is_doubted_the_third_one_that_is_not() -> None:
    # The very first has no window before it that it could stand out of.
    assert after(1.9).surges.recurrences(STEP_MS) == ()
    doubted = after(2.5)
    (ahead,) = doubted.surges.expected(doubted.now_ms, doubted.now_ms + HOUR_MS, STEP_MS)
    assert (ahead.start_ms, ahead.recurrence.period_ms) == (START_MS + 3 * HOUR_MS, HOUR_MS)
    assert ahead.chance == pytest.approx(0.7 * 2 / 3)
    doubted.run(START_MS + 3 * HOUR_MS + HOUR_MS // 2, 1_000 * HOUR_MS)
    assert doubted.next(HOUR_MS) == []  # it did not come
    service = after(3.5)
    (known,) = service.surges.recurrences(STEP_MS)
    assert (known.period_ms, len(known.surges), known.due) == (HOUR_MS, 3, 2)
    assert service.next(HOUR_MS) == [(4 * HOUR_MS, False)]
    surge = known.surges[-1]
    assert abs(surge.length_ms - 300_000) <= STEP_MS
    assert surge.extra == pytest.approx((9.0, 900.0), rel=0.15)


def test_one_that_goes_on_is_under_way_until_it_is_over() -> None:
    service = after(5 + 2 / 60)
    assert service.next(MINUTE_MS) == [(5 * HOUR_MS, True)]
    assert service.surges.explained(service.now_ms, service.now_ms - 10 * MINUTE_MS, STEP_MS) == [
        (START_MS + 5 * HOUR_MS, service.now_ms)
    ]
    service.run(START_MS + 5 * HOUR_MS + 10 * MINUTE_MS, HOUR_MS)
    assert service.next(HOUR_MS) == [(6 * HOUR_MS, False)]
    ((start_ms, end_ms),) = service.surges.explained(service.now_ms, service.now_ms - 30 * MINUTE_MS, STEP_MS)
    assert (start_ms - START_MS, end_ms - start_ms) == (5 * HOUR_MS, 300_000)


@pytest.mark.parametrize(("length_ms", "times"), [(900_000, 4.0), (300_000, 12.0)])
def test_what_lasts_longer_or_is_higher_than_ever_is_something_else(length_ms: int, times: float) -> None:
    service = after(5 - 1 / 60)
    service.run(START_MS + 5 * HOUR_MS + (length_ms if times == 4.0 else 120_000), HOUR_MS, length_ms, times)
    assert [begun for _, begun in service.next(MINUTE_MS)] in ([], [False])
    newest = service.surges.explained(service.now_ms, service.now_ms - 20 * MINUTE_MS, STEP_MS)
    assert newest == []


def test_a_surge_that_stays_away_is_doubted_then_forgotten() -> None:
    service, chances = after(7.5), []
    for hour in range(8, 12):
        service.run(START_MS + hour * HOUR_MS + HOUR_MS // 2, 1_000 * HOUR_MS)
        chances += [max((e.chance for e in service.surges.expected(service.now_ms, service.now_ms + HOUR_MS, STEP_MS)),
                        default=0.0)]  # fmt: skip
    assert chances[0] == pytest.approx(7 / 9, abs=0.01)
    assert chances[1:] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("minutes", [30, 60, 120, 240])
def test_periods_of_clocks_are_known(minutes: int) -> None:
    service = after(5.2 * minutes / 60, minutes * MINUTE_MS)
    assert [r.period_ms for r in service.surges.recurrences(STEP_MS)] == [minutes * MINUTE_MS]


def test_a_load_without_surges_is_remembered_as_none() -> None:
    service = Service()
    while service.now_ms < START_MS + 12 * HOUR_MS:
        service.step(3.0 + 2.0 * math.sin((service.now_ms - START_MS) / HOUR_MS))
    assert service.surges.snapshot() == []


def test_chance_makes_hardly_a_period() -> None:
    chains = pairs = 0
    for seed in range(300):
        rng, at, rows = random.Random(seed), START_MS, []
        for _ in range(24):
            at += max(round(rng.expovariate(1 / (2 * HOUR_MS)) / STEP_MS), 30) * STEP_MS
            rows.append([float(at), float(at + 300_000), 0.1, 9.0, 900.0])
        found = RecurringSurges.restore([[], *rows]).recurrences(STEP_MS)
        chains += any(len(one.surges) > 2 for one in found)
        pairs += any(len(one.surges) == 2 for one in found)
    assert chains <= 12  # of 300; one in fifty is allowed
    assert pairs <= 30  # one in ten


def test_work_that_does_not_always_start_at_once_is_known_a_little_later() -> None:
    rng = random.Random(1)
    late_ms = [rng.choice((0, 15_000, 30_000, 45_000, 60_000)) for _ in range(8)]
    rows = [[float(at := START_MS + k * HOUR_MS + late), at + 3e5, 0.1, 9.0, 900.0] for k, late in enumerate(late_ms)]
    surges = RecurringSurges.restore([[], *rows])
    (known,) = surges.recurrences(STEP_MS)
    assert (known.period_ms, known.tolerance_ms, len(known.surges)) == (HOUR_MS, 60_000, 8)
    assert [at + phase for at, phase in zip([known.surges[-1].start_ms] * 8, known.phases_ms, strict=True)] == [
        START_MS + 7 * HOUR_MS + late for late in late_ms
    ]


def test_work_of_workdays_survives_weekends() -> None:
    days = [day for day in range(19) if day % 7 < 5]  # the last is a Friday
    rows = [[float(at := START_MS + 24 * HOUR_MS * day), at + 6e5, 0.1, 9.0, 900.0] for day in days]
    surges = RecurringSurges.restore([[], *rows])
    monday_ms = START_MS + 24 * HOUR_MS * 21
    (ahead,) = surges.expected(monday_ms - HOUR_MS, monday_ms + HOUR_MS, STEP_MS)
    assert (ahead.start_ms, ahead.recurrence.period_ms) == (monday_ms, 24 * HOUR_MS)
    assert 0.6 < ahead.chance < 0.8


def test_missing_slots_are_no_end_of_a_surge() -> None:
    service = after(3.5)
    service.run(START_MS + 4 * HOUR_MS + 60_000, HOUR_MS)
    for _ in range(4):
        service.step(0.0, seen=False)
    service.run(START_MS + 4 * HOUR_MS + 600_000, HOUR_MS)
    surge = service.surges.recurrences(STEP_MS)[0].surges[-1]
    assert (surge.start_ms - START_MS, surge.length_ms) == (4 * HOUR_MS, 300_000)
    assert surge.extra[0] == pytest.approx(9.0, rel=0.15)


def test_a_step_alone_is_not_remembered() -> None:
    service = after(1.5, 1_000 * HOUR_MS)
    service.step(40.0)
    service.run(service.now_ms + 10 * MINUTE_MS, 1_000 * HOUR_MS)
    assert service.surges.snapshot() == []


def test_what_is_stored_comes_back() -> None:
    service = after(5 + 2 / 60)
    again = RecurringSurges.restore(service.surges.snapshot())
    assert again.snapshot() == service.surges.snapshot()
    assert again.recurrences(STEP_MS) == service.surges.recurrences(STEP_MS)
    until_ms = service.now_ms + HOUR_MS
    assert again.expected(service.now_ms, until_ms, STEP_MS) == service.surges.expected(
        service.now_ms, until_ms, STEP_MS
    )
    assert RecurringSurges.restore([]).snapshot() == []
    for damaged in ([[1.0]], [[], [1.0, 2.0]]):
        with pytest.raises(ValueError, match="not stored as"):
            RecurringSurges.restore(damaged)


starts = st.lists(st.integers(0, 3_000), min_size=1, max_size=12, unique=True).map(sorted)


@given(
    starts, st.lists(st.integers(20, 900), min_size=1, max_size=3, unique=True), st.integers(0, 8), st.integers(1, 3)
)
def test_chains_are_what_the_definition_says(at: list[int], periods: list[int], tolerance: int, patience: int) -> None:
    shape = len(at), len(periods)
    hits, due = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    phases, linked = np.zeros((*shape, len(at)), np.int64), np.zeros((*shape, len(at)), np.int64)
    tolerances, patiences = np.full(len(periods), tolerance), np.full(len(periods), patience)
    period_chains(np.array(at), np.array(periods), tolerances, patiences, hits, due, phases, linked)
    for last in range(len(at)):
        for p, period in enumerate(periods):
            members, steps, away, missed = [(last, 0)], 0, 0, 0
            while missed < patience:
                away += 1
                # Where the last one that came says: as many periods before it as have been missed since, and one.
                expected = at[members[-1][0]] - (missed + 1) * period
                if expected < at[0] - tolerance:
                    break
                near = [k for k in range(members[-1][0]) if abs(at[k] - expected) <= tolerance]
                if near:
                    steps, missed = steps + 1 + missed, 0
                    members.append((near[-1], at[near[-1]] - (at[last] - away * period)))
                else:
                    missed += 1
            assert (hits[last, p], due[last, p]) == (len(members) - 1, steps)
            assert np.flatnonzero(linked[last, p]).tolist() == sorted(k for k, _ in members)
            assert all(phases[last, p, k] == phase for k, phase in members)


cells = st.sampled_from((0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0, 20.0, 1e4))


@given(st.lists(st.tuples(cells, st.booleans()), min_size=30, max_size=60), cells, st.booleans())
def test_what_stands_out_is_what_the_definition_says(
    rows: list[tuple[float, bool]], newest: float, going_on: bool
) -> None:
    values = np.array([[v] for v, _ in rows] + [[newest]], np.float32)
    observed = np.array([[seen] for _, seen in rows] + [[True]])
    level = usual_level(values, observed, 0, 15.0, going_on)
    known = sorted(np.append(values[:-1, 0][observed[:-1, 0]], np.float32(newest)).tolist())
    if len(known) < 32:
        assert math.isnan(level)
        return
    middle, sixth, part = known[len(known) // 2], known[len(known) // 6], 0.5 if going_on else 1.0
    beyond = max(0.6 * middle, 5 * (middle - sixth), 4 * math.sqrt(middle / 15.0), 10 / 15.0)
    stands_out = newest - middle > part * beyond
    assert (level == middle) if stands_out else math.isnan(level)


def test_periods_are_those_of_clocks() -> None:
    assert all((7 * 24 * HOUR_MS) % period == 0 for period in PERIODS_MS)
    assert list(PERIODS_MS) == sorted(set(PERIODS_MS))


def surge_at(start_ms: float) -> Surge:
    start_ms = int(start_ms) // STEP_MS * STEP_MS
    return Surge(start_ms, start_ms + 540_000, 0.1, (8.0, 800.0))


# Hours of a day whose load surges at :02 or :32, at a quarter of the half hours and in no other order.
AT_MARKS = (2, 3.5, 6, 7, 9.5, 11, 13.5, 14, 17.5, 19.5, 20.5)


def test_surges_that_begin_at_some_half_hours_are_expected_at_each_as_often_as_they_came() -> None:
    surges = [surge_at(START_MS + (hour * 60 + 2) * MINUTE_MS) for hour in AT_MARKS]
    recurrences = find_recurrences(surges, STEP_MS)
    (marks,) = [found for found in recurrences if found.at_marks]
    assert (marks.period_ms, len(marks.surges)) == (30 * MINUTE_MS, len(AT_MARKS))
    newest_ms = surges[-1].start_ms
    came = len(AT_MARKS) / (1 + 2 * (AT_MARKS[-1] - AT_MARKS[0]))
    assert marks.chance(newest_ms + 20 * MINUTE_MS) == pytest.approx(came, rel=0.15)
    assert marks.chance(newest_ms + 10 * HOUR_MS) < marks.chance(newest_ms + HOUR_MS)
    assert marks.chance(newest_ms + 14 * 24 * HOUR_MS) == 0.0


def test_a_surge_that_a_chain_expects_is_not_expected_a_second_time_at_a_mark() -> None:
    hours = (0.5, 3, 4, 5, 6, 7, 7.5)
    surges = [surge_at(START_MS + hour * HOUR_MS) for hour in hours]
    remembered = RecurringSurges.restore([[], *([s.start_ms, s.end_ms, s.spread, *s.extra] for s in surges)])
    assert {found.at_marks for found in remembered.recurrences(STEP_MS)} == {False, True}
    now_ms = START_MS + round(7.8 * HOUR_MS)
    expected = sorted(one.start_ms for one in remembered.expected(now_ms, now_ms + HOUR_MS, STEP_MS))
    assert len(expected) == len(set(expected))


@pytest.mark.parametrize("number", [4, 8, 16])
def test_surges_at_any_time_hardly_ever_begin_at_marks(number: int) -> None:
    rng, found = random.Random(7), 0
    for _ in range(300):
        starts = sorted(START_MS + rng.uniform(0, 24 * HOUR_MS) for _ in range(number))
        found += any(one.at_marks for one in find_recurrences([surge_at(start) for start in starts], STEP_MS))
    assert found <= 0.03 * 300
