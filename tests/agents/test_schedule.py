"""Schedules: windows by local time, floors that are ready when they begin, and how they reach a decision."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decide.guards.chain import run_guards
from agents.decide.guards.limits import schedule as schedule_guard
from agents.forecast.commit import restore_state, snapshot_state
from agents.planning.limits import counts_of, limits_of
from agents.policy import (
    CalendarRule,
    KnownEvent,
    Policy,
    Schedule,
    WorkloadSpec,
    ceiling_at,
    floor_within,
    windows,
    zone_of,
)
from agents.records import Limit
from agents.workload.state import LearnedState, loads_before_events, new_law
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from streams.catalogue import DEFAULT_CATALOGUE
from streams.windows.table import RecentFacts, Window
from tests.agents.planning.plan_samples import situation, spec

HOUR = 3_600_000
STEP_MS = 15_000
WEEKDAYS = (0, 1, 2, 3, 4)
OFFICE = CalendarRule("office", WEEKDAYS, 8 * 60, 20 * 60, min_replicas=4)
NIGHT = CalendarRule("night", tuple(range(7)), 22 * 60, 6 * 60, max_replicas=2)


def at(text: str) -> int:
    """UTC milliseconds of an ISO instant."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def berlin(*calendar: CalendarRule, events: tuple[KnownEvent, ...] = ()) -> Schedule:
    return Schedule("Europe/Berlin", calendar, events)


@pytest.mark.parametrize(
    ("instant", "floor", "ceiling"),
    [
        ("2026-03-02T07:59:59+01:00", None, None),  # Monday
        ("2026-03-02T08:00:00+01:00", 4, None),
        ("2026-03-02T19:59:59+01:00", 4, None),
        ("2026-03-02T20:00:00+01:00", None, None),
        ("2026-03-07T12:00:00+01:00", None, None),  # Saturday
        ("2026-03-07T23:00:00+01:00", None, 2),
        ("2026-03-08T05:59:59+01:00", None, 2),
        ("2026-03-08T06:00:00+01:00", None, None),
        ("2026-07-06T07:59:59+02:00", None, None),  # summer: the same hours by the clock on the wall
        ("2026-07-06T08:00:00+02:00", 4, None),
    ],
)
def test_windows_follow_the_clock_on_the_wall(instant: str, floor: int | None, ceiling: int | None) -> None:
    schedule = berlin(OFFICE, NIGHT)
    low, high = floor_within(schedule, at(instant), 0), ceiling_at(schedule, at(instant))
    assert (low and low.replicas, high and high.replicas) == (floor, ceiling)


def test_a_rise_is_ordered_so_early_that_it_is_ready_when_it_begins() -> None:
    begin = at("2026-03-02T08:00:00+01:00")
    schedule = berlin(OFFICE)
    assert floor_within(schedule, begin - 180_001, 180_000) is None
    found = floor_within(schedule, begin - 180_000, 180_000)
    assert found == (4, "office", begin, begin + 12 * HOUR)


def test_of_several_floors_the_highest_counts_and_of_several_ceilings_the_lowest() -> None:
    more = CalendarRule("lunch", WEEKDAYS, 12 * 60, 14 * 60, min_replicas=7, max_replicas=9)
    less = CalendarRule("tight", WEEKDAYS, 11 * 60, 13 * 60, min_replicas=1, max_replicas=8)
    noon = at("2026-03-02T12:30:00+01:00")
    low, high = floor_within(berlin(OFFICE, more, less), noon, 0), ceiling_at(berlin(OFFICE, more, less), noon)
    assert low is not None
    assert high is not None
    assert (low.name, low.replicas, high.name, high.replicas) == ("lunch", 7, "tight", 8)


def test_an_hour_that_the_clock_leaves_out_or_repeats_makes_a_window_as_long_as_it_can_be() -> None:
    early = CalendarRule("early", tuple(range(7)), 2 * 60 + 30, 5 * 60, min_replicas=1)
    late = CalendarRule("late", tuple(range(7)), 60, 2 * 60 + 30, min_replicas=1)

    def first(rule: CalendarRule, day: str) -> tuple[int, int]:
        (window,) = (w for w in windows(rule, "Europe/Berlin", at(day), at(day) + 8 * HOUR) if w[0] >= at(day))
        return window

    spring, autumn = "2026-03-29T00:00:00+01:00", "2026-10-25T00:00:00+02:00"
    assert first(early, spring) == (at("2026-03-29T02:30:00+02:00"), at("2026-03-29T05:00:00+02:00"))
    assert first(late, spring) == (at("2026-03-29T01:00:00+01:00"), at("2026-03-29T02:30:00+01:00"))
    assert first(early, autumn) == (at("2026-10-25T02:30:00+02:00"), at("2026-10-25T05:00:00+01:00"))
    assert first(late, autumn) == (at("2026-10-25T01:00:00+02:00"), at("2026-10-25T02:30:00+01:00"))


ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Pacific/Auckland", "Pacific/Chatham")
# Not in the hours that clocks leave out or repeat; those are in the test above.
minutes = st.integers(5 * 60, 23 * 60)
rules = st.builds(
    CalendarRule,
    name=st.sampled_from("abc"),
    days=st.sets(st.integers(0, 6), min_size=1).map(lambda d: tuple(sorted(d))),
    start_minute=minutes,
    end_minute=minutes | st.just(1440),
    min_replicas=st.none() | st.integers(0, 9),
    max_replicas=st.none() | st.integers(0, 9),
)
instants = st.integers(at("2026-01-01T00:00:00Z") // 60_000, at("2026-12-31T00:00:00Z") // 60_000).map(
    lambda m: m * 60_000
)


def holds(rule: CalendarRule, zone: str, ts_ms: int) -> bool:
    """Told again by the clock on the wall."""
    wall = datetime.fromtimestamp(ts_ms / 1000, UTC).astimezone(ZoneInfo(zone))
    minute = wall.hour * 60 + wall.minute
    today, yesterday = wall.weekday() in rule.days, (wall - timedelta(days=1)).weekday() in rule.days
    if rule.end_minute > rule.start_minute:
        return today and rule.start_minute <= minute < rule.end_minute
    return (today and minute >= rule.start_minute) or (yesterday and minute < rule.end_minute)


@settings(max_examples=60, deadline=None)
@given(st.lists(rules, max_size=4), st.sampled_from(ZONES), instants, st.integers(0, 300))
def test_floors_and_ceilings_are_those_of_every_minute_looked_at(
    calendar: list[CalendarRule], zone: str, origin: int, reach_minutes: int
) -> None:
    schedule = Schedule(zone, tuple(calendar))
    within = [origin + k * 60_000 for k in range(reach_minutes + 1)]
    floors = [r.min_replicas for r in calendar if r.min_replicas is not None and any(holds(r, zone, t) for t in within)]
    ceilings = [r.max_replicas for r in calendar if r.max_replicas is not None and holds(r, zone, origin)]
    low, high = floor_within(schedule, origin, reach_minutes * 60_000), ceiling_at(schedule, origin)
    assert (low.replicas if low else None) == max(floors, default=None)
    assert (high.replicas if high else None) == min(ceilings, default=None)


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../../etc/passwd", "Europe", "europe/.", "zone.tab"])
def test_what_is_no_time_zone_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="is no time zone: give a name such as Europe/Berlin"):
        zone_of(name)


def state_of(**changes: Any) -> LearnedState:
    declared = WorkloadSpec("w", min_replicas=1, max_replicas=20, capacity_rps=2.0, lead_time_s=60.0, **changes)
    capacity, lead = CapacityPosterior(2.0), LeadTimePosterior(60.0)
    return LearnedState(declared, declared=True, since_slot=0, capacity=capacity, lead=lead, law=new_law(declared))


def test_limits_name_the_entry_and_reach_as_far_as_the_lead_time() -> None:
    state = state_of(schedule=berlin(OFFICE, NIGHT))
    begin = at("2026-03-02T08:00:00+01:00")
    reach = round(state.lead.quantile(0.95) * 1000) + 2 * STEP_MS
    assert limits_of(state, window_of([1.0]), None, begin - reach - STEP_MS, STEP_MS) == ()
    (ahead,) = limits_of(state, window_of([1.0]), None, begin - reach, STEP_MS)
    assert (ahead.guard, ahead.low, ahead.high) == ("schedule", 4, None)
    assert ahead.reason == ("office asks for at least 4 from Mon 2026-03-02 08:00 CET, within reach of the lead time")
    (now,) = limits_of(state, window_of([1.0]), None, begin, STEP_MS)
    assert now.reason == "office asks for at least 4 until Mon 2026-03-02 20:00 CET"
    (cap,) = limits_of(state, window_of([1.0]), None, at("2026-03-02T23:00:00+01:00"), STEP_MS)
    assert (cap.low, cap.high) == (None, 2)
    assert counts_of((now, cap), spec(max_replicas=3)) == (2, 3)
    state.declared = False
    assert limits_of(state, window_of([1.0]), None, begin, STEP_MS) == ()


def window_of(rates: list[float | None]) -> Window:
    values = np.zeros((len(rates), len(DEFAULT_CATALOGUE)), np.float32)
    observed = np.zeros(values.shape, np.bool_)
    for k, rate in enumerate(rates):
        if rate is not None:
            values[k, 0], observed[k, 0] = rate, True
    names = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
    facts = RecentFacts(None, None, {}, {})
    return Window("w", names, values, observed, facts, lambda: (values[:0], observed[:0]))


def test_an_event_is_measured_by_the_load_just_before_it() -> None:
    begin = at("2026-03-02T18:00:00+01:00")
    event = KnownEvent("launch", begin, begin + HOUR, load_factor=3.0)
    schedule = berlin(events=(event,))
    calm, busy = window_of([None, 4.0, 6.0]), window_of([20.0, 20.0])
    assert loads_before_events({}, schedule, calm, begin - 9 * HOUR) == {}
    loads = loads_before_events({}, schedule, calm, begin)
    assert loads == {"launch": 5.0}
    assert loads_before_events(loads, schedule, busy, begin + STEP_MS) == loads
    assert loads_before_events({}, schedule, busy, begin + STEP_MS) == {}
    assert loads_before_events(loads, schedule, window_of([None]), begin - STEP_MS) == loads
    assert loads_before_events(loads, schedule, busy, begin + HOUR) == {}
    state = state_of(schedule=schedule)
    state.event_loads = loads
    (limit,) = limits_of(state, window_of([1.0]), None, begin, STEP_MS)
    carried = float(state.capacity.quantiles((0.1,))[0])
    assert limit.low is not None
    assert (limit.low - 1) * carried < 3.0 * 5.0 <= limit.low * carried
    policy = Policy(workloads=(state.spec,))
    assert restore_state("w", snapshot_state(state), policy).event_loads == loads


def test_the_schedule_has_its_word_after_steps_and_windows_and_says_why() -> None:
    rise = Limit("schedule", 9, None, "launch asks for at least 9")
    slow = situation(proposed=5, standing=(rise,))
    guarded = run_guards(slow)
    assert (guarded.final, guarded.reason, guarded.steps[-1].reason) == (9, "schedule", rise.reason)
    assert run_guards(situation(proposed=12, standing=(rise,))).final == 12
    cap = Limit("schedule", None, 3, "night asks for at most 3")
    assert run_guards(situation(proposed=8, standing=(cap,))).final == 3
    both = situation(proposed=8, standing=(Limit("schedule", 4, None, "day"), cap))
    assert run_guards(both).final == 4


def test_a_floor_asks_for_no_more_than_bounds_and_budgets_allow() -> None:
    rise = Limit("schedule", 50, None, "launch")
    assert run_guards(situation(proposed=5, standing=(rise,), gpus_left=7)).final == 7
    assert run_guards(situation(proposed=5, standing=(rise,), spec=spec(max_replicas=11))).final == 11
    assert run_guards(situation(proposed=5, standing=(rise,), paused="fleet")).final == 5
    assert schedule_guard(situation(standing=(rise,), gpus_left=0), 5) is None


def test_a_schedule_is_part_of_the_fingerprint() -> None:
    plain = Policy(workloads=(spec(),))
    with_rule = Policy(workloads=(spec(schedule=berlin(OFFICE)),))
    other_zone = Policy(workloads=(spec(schedule=Schedule("UTC", (OFFICE,))),))
    with_event = Policy(workloads=(spec(schedule=berlin(events=(KnownEvent("x", 0, 1, 2),))),))
    assert len({p.fingerprint() for p in (plain, with_rule, other_zone, with_event)}) == 4
