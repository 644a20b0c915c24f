"""Bounds by the calendar and for known events: what is in force now, and what must be ready by the time it begins.

A schedule only narrows a workload's own bounds. Of several floors in force the highest counts, of several ceilings the
lowest, and a floor wins over a ceiling. Times of day are local, so they follow daylight saving time: a window that
begins or ends in the hour that a clock leaves out or repeats is taken as long as it can be. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

MINUTES: Final = 1440
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CalendarRule:
    """Bounds between two times of day, on some days of the week.

    Attributes:
        days: 0 = Monday to 6 = Sunday, those on which it begins.
        start_minute, end_minute: after local midnight; an end not after the start is on the next day.
    """

    name: str
    days: tuple[int, ...]
    start_minute: int
    end_minute: int
    min_replicas: int | None = None
    max_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """Something that will happen: at least so many replicas, or so many times the load just before it."""

    name: str
    start_ts_ms: int
    end_ts_ms: int
    min_replicas: int | None = None
    load_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """`time_zone` is a name of the IANA database."""

    time_zone: str = "UTC"
    calendar: tuple[CalendarRule, ...] = ()
    events: tuple[KnownEvent, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.calendar or self.events)


class InForce(NamedTuple):
    """A bound and the window [start, end) in which it holds."""

    replicas: int
    name: str
    start_ts_ms: int
    end_ts_ms: int


def floor_within(
    schedule: Schedule, origin_ts_ms: int, reach_ms: int, expected: Mapping[str, int] | None = None
) -> InForce | None:
    """The highest floor in force now or within the reach: what takes that long to get ready must be ordered now.

    Args:
        expected: replicas for the load that an event's factor says, by the event's name.
    """
    until_ts_ms = origin_ts_ms + reach_ms
    found = [
        InForce(rule.min_replicas, rule.name, start, end)
        for rule in schedule.calendar
        if rule.min_replicas is not None
        for start, end in windows(rule, schedule.time_zone, origin_ts_ms, until_ts_ms)
    ]
    for event in schedule.events:
        needs = (event.min_replicas, (expected or {}).get(event.name))
        known = [n for n in needs if n is not None]
        if known and event.start_ts_ms <= until_ts_ms and event.end_ts_ms > origin_ts_ms:
            found.append(InForce(max(known), event.name, event.start_ts_ms, event.end_ts_ms))
    return max(found, key=lambda f: (f.replicas, -f.start_ts_ms, f.end_ts_ms, f.name), default=None)


def ceiling_at(schedule: Schedule, ts_ms: int) -> InForce | None:
    """The lowest ceiling in force."""
    found = [
        InForce(rule.max_replicas, rule.name, start, end)
        for rule in schedule.calendar
        if rule.max_replicas is not None
        for start, end in windows(rule, schedule.time_zone, ts_ms, ts_ms)
    ]
    return min(found, key=lambda f: (f.replicas, f.start_ts_ms, -f.end_ts_ms, f.name), default=None)


def windows(rule: CalendarRule, time_zone: str, from_ts_ms: int, until_ts_ms: int) -> Iterator[tuple[int, int]]:
    """Windows [start, end) of a rule, UTC milliseconds, that hold at some instant of [from, until]; in order."""
    zone = zone_of(time_zone)
    # The one that began a day before may still hold, and a clock put forward may have left a whole date out.
    day = _local(from_ts_ms, zone).date() - 2 * _DAY
    last = _local(until_ts_ms, zone).date()
    while day <= last:
        if day.weekday() in rule.days:
            over = rule.end_minute <= rule.start_minute
            start = _instant(day, rule.start_minute, zone, fold=0)
            end = _instant(day + _DAY if over else day, rule.end_minute, zone, fold=1)
            if start <= until_ts_ms and from_ts_ms < end:
                yield start, end
        day += _DAY


def local_text(ts_ms: int, time_zone: str) -> str:
    """An instant for people: `Mon 2026-03-02 08:00 CET`."""
    return _local(ts_ms, zone_of(time_zone)).strftime("%a %Y-%m-%d %H:%M %Z")


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """The time zone, by the rules of the pinned `tzdata`: those of the machine may be older, and decisions differ.

    Raises:
        ValueError: there is none of this name.
    """
    parts = name.split("/")
    if not all(part.replace("_", "").replace("-", "").replace("+", "").isalnum() for part in parts):
        raise ValueError(f"{name!r} is no time zone: give a name such as Europe/Berlin or UTC")
    try:
        with resources.files("tzdata.zoneinfo").joinpath(*parts).open("rb") as rules:
            return ZoneInfo.from_file(rules, key=name)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} is no time zone: give a name such as Europe/Berlin or UTC") from error


def _local(ts_ms: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).astimezone(zone)


def _instant(day: date, minute: int, zone: ZoneInfo, fold: int) -> int:
    wall = datetime.combine(day, datetime.min.time()) + timedelta(minutes=minute)
    stamps = [round(wall.replace(tzinfo=zone, fold=f).timestamp() * 1000) for f in (0, 1)]
    return max(stamps) if fold else min(stamps)
