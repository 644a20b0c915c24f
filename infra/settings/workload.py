"""The sections of one workload in `harmony.yaml`: target, bounds, objectives, schedule, batch work and guards.

Times of day are `"08:00"` to `"24:00"`. Instants are ISO 8601; without a time zone they are local to the schedule's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agents.policy import (
    MINUTES,
    BatchRule,
    CalendarRule,
    GuardLimits,
    IdleRule,
    KnownEvent,
    NightlyBatch,
    Schedule,
    Slo,
    SloClass,
    TargetRef,
    WorkloadGuards,
    WorkloadSpec,
    strictest,
    zone_of,
)
from infra.settings.schema import Record, RecordSection, check_unique, key

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_GROUPS = {"daily": range(7), "weekdays": range(5), "weekends": range(5, 7)}
_TIME = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)")

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Group = Literal["daily", "weekdays", "weekends"]


def _minute_of(value: Any) -> int:
    """Minutes after midnight. YAML reads an unquoted 20:00 as 20 * 60, which is just that."""
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        if match is not None:
            value = int(match[1]) * 60 + int(match[2])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MINUTES:
        raise ValueError('write a time of day from "00:00" to "24:00"')
    return value


def _numbers_of(days: str | tuple[str, ...]) -> tuple[int, ...]:
    """0 = Monday."""
    return tuple(_GROUPS[days]) if isinstance(days, str) else tuple(sorted({DAYS.index(day) for day in days}))


Minute = Annotated[int, BeforeValidator(_minute_of)]
Days = Annotated[Group | tuple[Day, ...], AfterValidator(_numbers_of)]


def _check_days(days: Sequence[Any], start: int, until: int) -> None:
    if not days:
        raise ValueError("name at least one day")
    if start == MINUTES or until == 0:
        raise ValueError('a day begins at "00:00" and ends at "24:00"')


class CalendarSection(RecordSection, record=CalendarRule):
    """Bounds on some days of every week."""

    days: Days = "daily"
    start_minute: Minute
    until: Minute

    @model_validator(mode="after")
    def _check_keys(self) -> CalendarSection:
        if self.min is None and self.max is None:
            raise ValueError("give min or max, or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        _check_days(self.days, self.start_minute, self.until)
        return self

    @classmethod
    def content(cls, record: Any) -> dict[str, Any]:
        return super().content(record) | {"days": [DAYS[day] for day in record.days]}


class EventSection(RecordSection, record=KnownEvent):
    """Bounds, or an expected load, for a time that is known."""

    start_ts_ms: datetime
    until: datetime

    @model_validator(mode="after")
    def _check_keys(self) -> EventSection:
        if self.min is None and self.load_factor is None:
            raise ValueError("give min or load_factor, or both")
        if (self.start_ts_ms.tzinfo is None) != (self.until.tzinfo is None):
            raise ValueError("give both from and until a time zone, or neither")
        if self.start_ts_ms >= self.until:
            raise ValueError("from is not before until")
        return self

    @classmethod
    def content(cls, record: Any) -> dict[str, Any]:
        instants = {"from": _iso(record.start_ts_ms), "until": _iso(record.end_ts_ms)}
        return super().content(record) | instants


class ScheduleSection(RecordSection, record=Schedule):
    """Narrower bounds at certain times."""

    @property
    def entries(self) -> tuple[CalendarSection | EventSection, ...]:
        return *self.calendar, *self.events

    @model_validator(mode="after")
    def _consistent(self) -> ScheduleSection:
        zone_of(self.time_zone)
        check_unique(entry.name for entry in self.entries)
        return self

    def build(self, record: type[Record], **given: Any) -> Record:
        """The record; instants of the events without a time zone are local."""
        events = [
            event.build(
                KnownEvent,
                start_ts_ms=_ts_ms(event.start_ts_ms, self.time_zone),
                end_ts_ms=_ts_ms(event.until, self.time_zone),
            )
            for event in self.events
        ]
        return super().build(record, events=tuple(events), **given)

    def check_within(self, low: int, high: int) -> None:
        """Raises ValueError when an entry asks for more or fewer replicas than the workload's own bounds allow."""
        for entry in self.entries:
            for bound in ("min", "max"):
                count = getattr(entry, bound, None)
                if count is not None and not low <= count <= high:
                    text = f"schedule {entry.name!r}: {bound} ({count})"
                    raise ValueError(f"{text} is not within replicas.min and replicas.max ({low} to {high})")


class JobSection(RecordSection, record=NightlyBatch):
    """Work of every day."""

    days: Days = "daily"
    start_minute: Minute
    until: Minute

    @model_validator(mode="after")
    def _check_keys(self) -> JobSection:
        _check_days(self.days, self.start_minute, self.until)
        return self

    @classmethod
    def content(cls, record: Any) -> dict[str, Any]:
        return super().content(record) | {"days": [DAYS[day] for day in record.days]}


class BatchSection(RecordSection, record=BatchRule):
    """Work with deadlines."""

    @model_validator(mode="after")
    def _consistent(self) -> BatchSection:
        check_unique(job.name for job in self.jobs)
        return self


def _ts_ms(instant: datetime, time_zone: str) -> int:
    zoned = instant if instant.tzinfo is not None else instant.replace(tzinfo=zone_of(time_zone))
    return round(zoned.timestamp() * 1000)


def _iso(ts_ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ts_ms)).isoformat()


class TargetSection(RecordSection, record=TargetRef):
    """The object that a command scales."""


class ReplicasSection(RecordSection, record=WorkloadSpec, group="replicas"):
    """Bounds of a workload."""

    @model_validator(mode="after")
    def _ordered(self) -> ReplicasSection:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


class SloClassSection(RecordSection, record=SloClass):
    """What some of the requests are promised."""


class SloSection(RecordSection, record=Slo, after={"classes": "epsilon"}):
    """What the users of a workload are promised."""

    @model_validator(mode="after")
    def _one_or_several(self) -> SloSection:
        names = [slo_class.name for slo_class in self.classes]
        check_unique(names, "class ")
        own = self.model_fields_set & {"ttft_s", "tpot_s", "objective", "epsilon"}
        if names and own:
            raise ValueError(f"give {' and '.join(sorted(own))} to each of the classes, not beside them")
        return self

    def build(self, record: type[Record], **given: Any) -> Record:
        """The record; of several classes the strictest figures stand in front."""
        if self.classes:
            most = strictest([section.build(SloClass) for section in self.classes])
            given |= {"ttft_s": most.ttft_s, "tpot_s": most.tpot_s, "objective": most.objective}
        return super().build(record, **given)

    @classmethod
    def content(cls, record: Any) -> dict[str, Any]:
        content = super().content(record)
        return {"classes": content["classes"]} if record.classes else content


class WorkloadGuardsSection(RecordSection, record=WorkloadGuards, like=GuardLimits):
    """Limits of one workload; a key left out is as `advanced.guards` says."""


class ZeroSection(RecordSection, record=IdleRule):
    """How the last replica goes."""


class WorkloadSection(RecordSection, record=WorkloadSpec, after={"replicas": "target", "match": "mode"}):
    """One declared workload."""

    replicas: ReplicasSection | None = key(None, "Bounds.")
    match: dict[str, str] = Field(default_factory=dict, description="Labels that name it in third-party telemetry.")

    @model_validator(mode="after")
    def _act_is_declared(self) -> WorkloadSection:
        if self.mode == "act":
            bounds = {"min", "max"} - (self.replicas.model_fields_set if self.replicas else set())
            missing = [f"replicas.{name}" for name in ("min", "max") if name in bounds]
            missing += ["slo"] if self.slo is None else []
            missing += ["target.name"] if self.target is None or not self.target.name else []
            if missing:
                raise ValueError(f"mode act needs {', '.join(missing)}; without, only observe is safe")
        return self

    @model_validator(mode="after")
    def _check_role(self) -> WorkloadSection:
        is_both = self.role == "both"
        wrong = "capacity_tokens_per_s" if is_both else "capacity_rps"
        if getattr(self, wrong) is not None:
            right = "capacity_rps" if is_both else "capacity_tokens_per_s"
            raise ValueError(f"role {self.role} is measured by {right}, not by {wrong}")
        if self.capacity_off_by is not None and self.capacity_rps is None and self.capacity_tokens_per_s is None:
            raise ValueError("capacity_off_by says how far a capacity may be off, and none is declared")
        if not is_both and self.slo is not None and self.slo.classes:
            raise ValueError(f"role {self.role} takes no slo.classes: only role both does")
        if self.role == "prefill" and self.batch.jobs:
            raise ValueError("role prefill generates nothing: declare batch.jobs at its decode pool")
        return self

    @model_validator(mode="after")
    def _schedule_within_bounds(self) -> WorkloadSection:
        if self.schedule is not None:
            own = self.replicas or ReplicasSection()
            self.schedule.check_within(own.min, own.max)
        return self
