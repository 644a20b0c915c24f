"""What `schedule` and `batch` of a workload may say, and what the core makes of it.

Times of day are `"08:00"` to `"24:00"`; instants are ISO 8601, local to the schedule's time zone where they name none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from agents.policy import MINUTES, BatchRule, CalendarRule, KnownEvent, NightlyBatch, Schedule, zone_of
from infra.settings_section import Section, check_unique, key

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_GROUPS = {"daily": range(7), "weekdays": range(5), "weekends": range(5, 7)}
_TIME = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)")

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Group = Literal["daily", "weekdays", "weekends"]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f<>]{1,60}$")]


def _minute_of(value: Any) -> int:
    """Minutes after midnight. YAML reads an unquoted 20:00 as 20 * 60, which is just that."""
    if isinstance(value, str):
        found = _TIME.fullmatch(value)
        if found is not None:
            value = int(found[1]) * 60 + int(found[2])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MINUTES:
        raise ValueError('write a time of day from "00:00" to "24:00"')
    return value


Minute = Annotated[int, BeforeValidator(_minute_of)]


def _check_days(days: str | tuple[str, ...], start: int, until: int) -> None:
    if not days:
        raise ValueError("name at least one day")
    if start == MINUTES or until == 0:
        raise ValueError('a day begins at "00:00" and ends at "24:00"')


class CalendarSection(Section):
    name: Name = Field(description="What decisions call it.")
    days: Group | tuple[Day, ...] = key("daily", "On which it begins: daily, weekdays, weekends, or a list of days.")
    start: Minute = Field(alias="from", description="Time of day at which it begins.")
    until: Minute = Field(description="Time of day at which it ends; not after `from` = on the next day.")
    min: int | None = key(None, "At least so many replicas.", ge=0)
    max: int | None = key(None, "At most so many replicas.", ge=0)

    @model_validator(mode="after")
    def _says_something(self) -> CalendarSection:
        if self.min is None and self.max is None:
            raise ValueError("give min or max, or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        _check_days(self.days, self.start, self.until)
        return self


class EventSection(Section):
    name: Name = Field(description="What decisions call it.")
    start: datetime = Field(alias="from", description="When it begins.")
    until: datetime = Field(description="When it is over.")
    min: int | None = key(None, "At least so many replicas.", ge=0)
    load_factor: float | None = key(None, "Expected load, as a multiple of the load just before.", gt=0, le=1000)

    @model_validator(mode="after")
    def _says_something(self) -> EventSection:
        if self.min is None and self.load_factor is None:
            raise ValueError("give min or load_factor, or both")
        if (self.start.tzinfo is None) != (self.until.tzinfo is None):
            raise ValueError("give both from and until a time zone, or neither")
        if self.start >= self.until:
            raise ValueError("from is not before until")
        return self


class ScheduleSection(Section):
    time_zone: str = key("UTC", "Of all its times; a name such as Europe/Berlin.")
    calendar: tuple[CalendarSection, ...] = key((), "What holds on some days of every week.")
    events: tuple[EventSection, ...] = key((), "What will happen once.")

    @property
    def entries(self) -> tuple[CalendarSection | EventSection, ...]:
        return *self.calendar, *self.events

    @model_validator(mode="after")
    def _consistent(self) -> ScheduleSection:
        zone_of(self.time_zone)
        check_unique(entry.name for entry in self.entries)
        return self

    def check_within(self, low: int, high: int) -> None:
        """Raises ValueError when an entry asks for more or fewer replicas than the workload's own bounds allow."""
        for entry in self.entries:
            for bound in ("min", "max"):
                count = getattr(entry, bound, None)
                if count is not None and not low <= count <= high:
                    told = f"schedule {entry.name!r}: {bound} ({count})"
                    raise ValueError(f"{told} is not within replicas.min and replicas.max ({low} to {high})")


class JobSection(Section):
    name: Name = Field(description="What decisions call it; a source of this name may tell what is left.")
    tokens: float = Field(description="To be generated.", gt=0, le=1e15)
    days: Group | tuple[Day, ...] = key("daily", "On which it may begin: daily, weekdays, weekends, or a list of days.")
    start: Minute = Field(alias="from", description="Time of day from which it may be worked on.")
    until: Minute = Field(description="Time of day by which it must be done; not after `from` = on the next day.")

    @model_validator(mode="after")
    def _says_something(self) -> JobSection:
        _check_days(self.days, self.start, self.until)
        return self


class BatchSection(Section):
    tokens_per_s: float | None = key(None, "What one replica generates of it; empty = as of online requests.", gt=0)
    jobs: tuple[JobSection, ...] = key((), "Work of every day, in the schedule's time zone.")

    @model_validator(mode="after")
    def _consistent(self) -> BatchSection:
        check_unique(job.name for job in self.jobs)
        return self


def batch_of(section: BatchSection) -> BatchRule:
    """The section as the core takes it."""
    jobs = (NightlyBatch(job.name, job.tokens, _days(job.days), job.start, job.until) for job in section.jobs)
    return BatchRule(section.tokens_per_s, tuple(jobs))


def batch_settings(batch: BatchRule) -> dict[str, Any]:
    """A mapping of the file that loads back as this rule."""
    jobs = [
        {
            "name": job.name,
            "tokens": job.tokens,
            "days": [DAYS[day] for day in job.days],
            "from": job.start_minute,
            "until": job.end_minute,
        }
        for job in batch.jobs
    ]
    return {"tokens_per_s": batch.tokens_per_s, "jobs": jobs}


def schedule_of(section: ScheduleSection) -> Schedule:
    """The section as the core takes it."""
    return Schedule(
        time_zone=section.time_zone,
        calendar=tuple(
            CalendarRule(entry.name, _days(entry.days), entry.start, entry.until, entry.min, entry.max)
            for entry in section.calendar
        ),
        events=tuple(
            KnownEvent(
                entry.name,
                _ts_ms(entry.start, section.time_zone),
                _ts_ms(entry.until, section.time_zone),
                entry.min,
                entry.load_factor,
            )
            for entry in section.events
        ),
    )


def schedule_settings(schedule: Schedule) -> dict[str, Any]:
    """A mapping of the file that loads back as this schedule."""
    return {
        "time_zone": schedule.time_zone,
        "calendar": [
            {
                "name": rule.name,
                "days": [DAYS[day] for day in rule.days],
                "from": rule.start_minute,
                "until": rule.end_minute,
                "min": rule.min_replicas,
                "max": rule.max_replicas,
            }
            for rule in schedule.calendar
        ],
        "events": [
            {
                "name": event.name,
                "from": _iso(event.start_ts_ms),
                "until": _iso(event.end_ts_ms),
                "min": event.min_replicas,
                "load_factor": event.load_factor,
            }
            for event in schedule.events
        ],
    }


def _days(days: str | tuple[str, ...]) -> tuple[int, ...]:
    if isinstance(days, str):
        return tuple(_GROUPS[days])
    return tuple(sorted({DAYS.index(day) for day in days}))


def _ts_ms(instant: datetime, time_zone: str) -> int:
    told = instant if instant.tzinfo is not None else instant.replace(tzinfo=zone_of(time_zone))
    return round(told.timestamp() * 1000)


def _iso(ts_ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts_ms)).isoformat()
