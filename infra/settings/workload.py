"""What `harmony.yaml` may say of one workload: its target, bounds, promises and pace."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from agents.policy import (
    MINUTES,
    BatchRule,
    CalendarRule,
    IdleRule,
    KnownEvent,
    NightlyBatch,
    Schedule,
    Slo,
    TargetRef,
    WorkloadSpec,
    zone_of,
)
from infra.settings.schema import Section, check_unique, key
from infra.settings.schema import key as _key
from streams.records.limits import MAX_REPLICAS

# What `schedule` and `batch` of a workload may say, and what the core makes of it.
#
# Times of day are `"08:00"` to `"24:00"`; instants are ISO 8601, local to the schedule's time zone where they name
# none.


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


Mode = Literal["observe", "act"]
ClassName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,60}$")]
GpuType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{0,60}$")]
WorkloadId = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f]{1,200}$")]

_WORKLOAD = WorkloadSpec("")
_SLO = Slo()
_TARGET = TargetRef()
_ZERO = IdleRule()


class TargetSection(Section):
    api_version: str = _key(_TARGET.api_version, "API group and version of the object.", alias="apiVersion")
    kind: str = _key(_TARGET.kind, "Kind of the object whose replicas a command sets.")
    namespace: str = _key(_TARGET.namespace, "Its namespace.")
    name: str = _key(_TARGET.name, "Its name.")


class ReplicasSection(Section):
    min: int = _key(_WORKLOAD.min_replicas, "Never fewer.", ge=0, le=MAX_REPLICAS)
    max: int = _key(_WORKLOAD.max_replicas, "Never more.", ge=1, le=MAX_REPLICAS)

    @model_validator(mode="after")
    def _ordered(self) -> ReplicasSection:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


class SloClassSection(Section):
    name: ClassName = Field(description="Name in records of kind slo.")
    ttft_s: float = _key(_SLO.ttft_s, "A good request of it has its first token within this time.", gt=0)
    tpot_s: float = _key(_SLO.tpot_s, "... and each further token within this time on average.", gt=0)
    objective: float = _key(_SLO.objective, "Wanted share of good requests.", gt=0, lt=1)
    epsilon: float | None = _key(None, "Accepted probability of missing it; empty = as for all.", gt=0, lt=1)


class SloSection(Section):
    ttft_s: float = _key(_SLO.ttft_s, "A good request has its first token within this time.", gt=0)
    tpot_s: float = _key(_SLO.tpot_s, "... and each further token within this time on average.", gt=0)
    objective: float = _key(_SLO.objective, "Wanted share of good requests.", gt=0, lt=1)
    epsilon: float | None = _key(None, "Accepted probability of missing it; empty = the fleet's.", gt=0, lt=1)
    classes: tuple[SloClassSection, ...] = _key((), "In place of these: several promises.", max_length=16)

    @model_validator(mode="after")
    def _one_or_several(self) -> SloSection:
        names = [slo_class.name for slo_class in self.classes]
        check_unique(names, "class ")
        own = self.model_fields_set & {"ttft_s", "tpot_s", "objective", "epsilon"}
        if names and own:
            raise ValueError(f"give {' and '.join(sorted(own))} to each of the classes, not beside them")
        return self


class WorkloadGuardsSection(Section):
    stabilization_up_s: float | None = _key(None, "Lowest proposal of this window goes up.", ge=0)
    stabilization_down_s: float | None = _key(None, "Highest proposal of it goes down.", ge=0)
    up_ratio: float | None = _key(None, "Most growth per period, as a share.", ge=0)
    up_replicas: int | None = _key(None, "... or as replicas, whichever is more.", ge=0)
    up_period_s: float | None = _key(None, "That period.", gt=0)
    down_ratio: float | None = _key(None, "Most shrinkage per period, as a share.", ge=0, le=1)
    down_replicas: int | None = _key(None, "... or as replicas, whichever is more.", ge=0)
    down_period_s: float | None = _key(None, "That period.", gt=0)
    release_ratio: float | None = _key(None, "Give up at this share of the risk allowed.", gt=0, le=1)
    tolerance_ratio: float | None = _key(None, "Ignore relative changes up to this.", ge=0, lt=1)


class ZeroSection(Section):
    idle_s: float = _key(_ZERO.idle_s, "The last replica goes after so long without any request.", ge=0)
    risk: float = _key(_ZERO.risk, "... and when it is needed before it could come back at most so likely.", ge=0, lt=1)


class WorkloadSection(Section):
    id: WorkloadId = Field(description="Name in the telemetry and Kafka key; 1 to 200 characters, no spaces.")
    target: TargetSection | None = _key(None, "What a command scales.")
    replicas: ReplicasSection | None = _key(None, "Bounds.")
    gpus_per_replica: int = _key(_WORKLOAD.gpus_per_replica, "GPUs that one replica holds.", ge=1)
    gpu_type: GpuType = _key(_WORKLOAD.gpu_type, "Name of the GPU they are; what a replica does is learned for each.")
    price_per_gpu_hour: float = _key(_WORKLOAD.price_per_gpu_hour, "In any currency; only ratios matter.", ge=0)
    slo: SloSection | None = _key(None, "What its users are promised.")
    mode: Mode = _key(_WORKLOAD.mode, "observe = decide and record only; act = publish commands.")
    match: dict[str, str] = Field(default_factory=dict, description="Labels that name it in third-party telemetry.")
    capacity_rps: float | None = _key(None, "Requests/s one replica carries within the SLO, if known.", gt=0)
    role: Literal["both", "prefill", "decode"] = _key(_WORKLOAD.role, "Half of the work that its replicas do.")
    capacity_tokens_per_s: float | None = _key(None, "In place of capacity_rps for prefill and decode.", gt=0)
    capacity_off_by: float | None = _key(
        None, "Factor that it may be off by, two times of three; empty: as a load test is, 1.28.", ge=1.01, le=2.5
    )
    lead_time_s: float = _key(_WORKLOAD.lead_time_s, "From command to serving replica, first guess.", gt=0)
    priority: int = _key(_WORKLOAD.priority, "Larger is served first when the fleet's GPUs run short.")
    power_w_per_replica: float | None = _key(None, "Drawn by one replica; counts unless more is measured.", gt=0)
    schedule: ScheduleSection | None = _key(None, "Narrower bounds by the calendar and for known events.")
    batch: BatchSection = Field(default_factory=BatchSection, description="Work with deadlines.")
    zero: ZeroSection = Field(default_factory=ZeroSection, description="Where replicas.min is 0: how it gets there.")
    guards: WorkloadGuardsSection = Field(
        default_factory=WorkloadGuardsSection, description="Its own pace; empty = as advanced.guards says of all."
    )

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
    def _fits_its_role(self) -> WorkloadSection:
        whole = self.role == "both"
        wrong = "capacity_tokens_per_s" if whole else "capacity_rps"
        if getattr(self, wrong) is not None:
            right = "capacity_rps" if whole else "capacity_tokens_per_s"
            raise ValueError(f"role {self.role} is measured by {right}, not by {wrong}")
        if self.capacity_off_by is not None and self.capacity_rps is None and self.capacity_tokens_per_s is None:
            raise ValueError("capacity_off_by says how far a capacity may be off, and none is declared")
        if not whole and self.slo is not None and self.slo.classes:
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
