"""What operators declare: workloads, objectives, bounds, calendars and the limits of the guards; its fingerprint.

Field names of these classes are part of the fingerprint, so they stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from importlib import resources
from typing import Annotated, Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

import orjson
from msgspec import Meta

from streams.catalogue import ARRIVAL_RATE
from streams.log import OtherSettings
from streams.records.limits import MAX_REPLICAS

# --- Bounds by the calendar and for known events: what is in force now, and what must be ready by its begin.
#
# A schedule only narrows a workload's own bounds. Of several floors in force the highest counts, of several ceilings
# the lowest, and a floor wins over a ceiling. Times of day are local, so they follow daylight saving time. A window
# that begins or ends in the hour that a clock leaves out or repeats is taken as long as it can be.

MINUTES: Final = 1440  # Minutes of a day.
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CalendarRule:
    """Bounds between two times of day, on some days of the week.

    Attributes:
        days: 0 = Monday to 6 = Sunday, those on which it begins.
        start_minute, end_minute: after local midnight; an end not after the start is on the next day.
    """

    name: Annotated[str, Meta(description="Name of it in decisions.", pattern=r"^[^\x00-\x1f<>]{1,60}$")]
    days: Annotated[
        tuple[int, ...], Meta(description="On which it begins: daily, weekdays, weekends, or a list of days.")
    ]
    start_minute: Annotated[int, Meta(description="Time of day at which it begins.", extra={"key": "from"})]
    end_minute: Annotated[
        int,
        Meta(description="Time of day at which it ends; not after `from` = on the next day.", extra={"key": "until"}),
    ]
    min_replicas: Annotated[int | None, Meta(description="At least so many replicas.", ge=0, extra={"key": "min"})] = (
        None
    )
    max_replicas: Annotated[int | None, Meta(description="At most so many replicas.", ge=0, extra={"key": "max"})] = (
        None
    )


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """Something that will happen: at least so many replicas, or so many times the load just before it."""

    name: Annotated[str, Meta(description="Name of it in decisions.", pattern=r"^[^\x00-\x1f<>]{1,60}$")]
    start_ts_ms: Annotated[int, Meta(description="When it begins.", extra={"key": "from"})]
    end_ts_ms: Annotated[int, Meta(description="When it is over.", extra={"key": "until"})]
    min_replicas: Annotated[int | None, Meta(description="At least so many replicas.", ge=0, extra={"key": "min"})] = (
        None
    )
    load_factor: Annotated[
        float | None, Meta(description="Expected load, as a multiple of the load just before.", gt=0, le=1000)
    ] = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """`time_zone` is a name of the IANA database."""

    time_zone: Annotated[str, Meta(description="Of all its times; a name such as Europe/Berlin.")] = "UTC"
    calendar: Annotated[tuple[CalendarRule, ...], Meta(description="Rules for some days of every week.")] = ()
    events: Annotated[tuple[KnownEvent, ...], Meta(description="Loads expected once, at a known time.")] = ()

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
    bounds = [
        InForce(rule.min_replicas, rule.name, start, end)
        for rule in schedule.calendar
        if rule.min_replicas is not None
        for start, end in windows(rule, schedule.time_zone, origin_ts_ms, until_ts_ms)
    ]
    for event in schedule.events:
        needs = (event.min_replicas, (expected or {}).get(event.name))
        floors = [n for n in needs if n is not None]
        if floors and event.start_ts_ms <= until_ts_ms and event.end_ts_ms > origin_ts_ms:
            bounds.append(InForce(max(floors), event.name, event.start_ts_ms, event.end_ts_ms))
    return max(bounds, key=lambda f: (f.replicas, -f.start_ts_ms, f.end_ts_ms, f.name), default=None)


def ceiling_at(schedule: Schedule, ts_ms: int) -> InForce | None:
    """The lowest ceiling in force."""
    bounds = [
        InForce(rule.max_replicas, rule.name, start, end)
        for rule in schedule.calendar
        if rule.max_replicas is not None
        for start, end in windows(rule, schedule.time_zone, ts_ms, ts_ms)
    ]
    return min(bounds, key=lambda f: (f.replicas, f.start_ts_ms, -f.end_ts_ms, f.name), default=None)


def windows(rule: CalendarRule, time_zone: str, from_ts_ms: int, until_ts_ms: int) -> Iterator[tuple[int, int]]:
    """Windows [start, end) of a rule, UTC milliseconds, that hold at some instant of [from, until]; in order."""
    zone = zone_of(time_zone)
    # The one that began a day before may still hold, and a clock put forward may have left a whole date out.
    day = _local(from_ts_ms, zone).date() - 2 * _DAY
    last = _local(until_ts_ms, zone).date()
    while day <= last:
        if day.weekday() in rule.days:
            past_midnight = rule.end_minute <= rule.start_minute
            start = _instant(day, rule.start_minute, zone, fold=0)
            end = _instant(day + _DAY if past_midnight else day, rule.end_minute, zone, fold=1)
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


Mode = Literal["observe", "act"]
Role = Literal["both", "prefill", "decode"]
# What the demand of a workload is counted in: prefill pools read prompt tokens, decode pools generate output tokens.
Unit = Literal["requests", "prompt_tokens", "output_tokens"]
INDICATOR_OF: Final[dict[Unit, str]] = {
    "requests": ARRIVAL_RATE,
    "prompt_tokens": "request.prompt_token_rate",
    "output_tokens": "request.output_token_rate",
}
UNIT_OF: Final[dict[Role, Unit]] = {"both": "requests", "prefill": "prompt_tokens", "decode": "output_tokens"}


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The Kubernetes-style object whose replicas a command sets."""

    api_version: Annotated[
        str, Meta(description="API group and version of the object.", extra={"key": "apiVersion"})
    ] = "apps/v1"
    kind: Annotated[str, Meta(description="Kind of the object whose replicas a command sets.")] = "Deployment"
    namespace: Annotated[str, Meta(description="Its namespace.")] = "default"
    name: Annotated[str, Meta(description="Its name.")] = ""


@dataclass(frozen=True, slots=True)
class SloClass:
    """What some of the requests are promised; `epsilon` in place of the policy's."""

    name: Annotated[str, Meta(description="Name in records of kind slo.", pattern=r"^[A-Za-z0-9_.-]{1,60}$")]
    ttft_s: Annotated[float, Meta(description="A good request of it has its first token within this time.", gt=0)] = 2.0
    tpot_s: Annotated[float, Meta(description="... and each further token within this time on average.", gt=0)] = 0.2
    objective: Annotated[float, Meta(description="Wanted share of good requests.", gt=0, lt=1)] = 0.99
    epsilon: Annotated[
        float | None,
        Meta(description="Accepted probability that replicas fall behind; empty = as for all.", gt=0, lt=1),
    ] = None


def strictest(classes: Sequence[SloClass]) -> SloClass:
    """One class that asks for all that any of these does; its name is theirs."""
    return SloClass(
        "+".join(c.name for c in classes),
        min(c.ttft_s for c in classes),
        min(c.tpot_s for c in classes),
        max(c.objective for c in classes),
        min((c.epsilon for c in classes if c.epsilon is not None), default=None),
    )


@dataclass(frozen=True, slots=True)
class Slo:
    """A request is good when TTFT <= ttft_s and TPOT <= tpot_s; `objective` is the wanted share of good requests.

    Where there are `classes`, these are the strictest of theirs; else `epsilon` may stand in place of the policy's.
    """

    ttft_s: Annotated[float, Meta(description="A good request has its first token within this time.", gt=0)] = 2.0
    tpot_s: Annotated[float, Meta(description="... and each further token within this time on average.", gt=0)] = 0.2
    objective: Annotated[float, Meta(description="Wanted share of good requests.", gt=0, lt=1)] = 0.99
    classes: Annotated[
        tuple[SloClass, ...], Meta(description="In place of these: several promises.", max_length=16)
    ] = ()
    epsilon: Annotated[
        float | None,
        Meta(description="Accepted probability that replicas fall behind; empty = the fleet's.", gt=0, lt=1),
    ] = None


@dataclass(frozen=True, slots=True)
class WorkloadGuards:
    """How far and how fast one workload may move, in place of what `GuardLimits` says of all; None = as it says."""

    stabilization_up_s: float | None = None
    stabilization_down_s: float | None = None
    up_ratio: float | None = None
    up_replicas: int | None = None
    up_period_s: float | None = None
    down_ratio: float | None = None
    down_replicas: int | None = None
    down_period_s: float | None = None
    tolerance_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class IdleRule:
    """When the last replica of a workload with `min_replicas` 0 may go: idle for so long, and hardly needed soon.

    `risk` is the accepted probability that it is needed before it could come back.
    """

    idle_s: Annotated[float, Meta(description="The last replica goes after so long without any request.", ge=0)] = 600.0
    risk: Annotated[
        float, Meta(description="... and when it is needed before it could come back at most so likely.", ge=0, lt=1)
    ] = 0.05


@dataclass(frozen=True, slots=True)
class NightlyBatch:
    """Work of every such day that may begin at one time of day and must be done by another.

    Attributes:
        name: also that of the source that may tell how much is left.
        days, start_minute, end_minute: as of a `CalendarRule`, in the schedule's time zone.
        tokens: to be generated.
    """

    name: Annotated[
        str,
        Meta(
            description="Name of it in decisions; a source of this name may report what is left.",
            pattern=r"^[^\x00-\x1f<>]{1,60}$",
        ),
    ]
    tokens: Annotated[float, Meta(description="To be generated.", gt=0, le=1e15)]
    days: Annotated[
        tuple[int, ...], Meta(description="On which it may begin: daily, weekdays, weekends, or a list of days.")
    ]
    start_minute: Annotated[int, Meta(description="Time of day from which it may be worked on.", extra={"key": "from"})]
    end_minute: Annotated[
        int,
        Meta(
            description="Time of day by which it must be done; not after `from` = on the next day.",
            extra={"key": "until"},
        ),
    ]


@dataclass(frozen=True, slots=True)
class BatchRule:
    """Work with deadlines. `tokens_per_s`: what one replica generates of it; None = as it does of online requests."""

    tokens_per_s: Annotated[
        float | None, Meta(description="What one replica generates of it; empty = as of online requests.", gt=0)
    ] = None
    jobs: Annotated[tuple[NightlyBatch, ...], Meta(description="Work of every day, in the schedule's time zone.")] = ()


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One declared workload. Only a declared one with target, bounds and SLO may be `act`.

    Attributes:
        capacity_rps: declared requests/s one replica carries within the SLO, the prior of what is learned; None = none.
        capacity_off_by: factor that the declared capacity may be off by, two times of three; None = as a load test is.
        lead_time_s: declared command -> ready time: the prior of the lead-time posterior.
        price_per_gpu_hour: in any currency; only ratios matter.
        priority: larger is served first when the fleet budget binds.
        power_w_per_replica: declared draw of one replica, counted against the fleet's ceiling unless more is measured;
            None = what is measured.
        schedule: narrower bounds by the calendar and for known events.
        zero: how it goes to zero replicas; counts where `min_replicas` is 0.
        batch: work with deadlines, beside what sources say is queued.
        role: which half of the work its replicas do; one of a half is planned by its tokens.
        capacity_tokens_per_s: in place of `capacity_rps` for such a one.
        guards: limits of its own.
        gpu_type: what its replicas run on, by a name of the operator's; what a replica carries and draws, and how long
            it takes to start, is learned for each apart. Empty = not told.
    """

    id: Annotated[
        str,
        Meta(
            description="Name in the telemetry and Kafka key; 1 to 200 characters, no spaces.",
            pattern=r"^[^\s\x00-\x1f]{1,200}$",
        ),
    ]
    target: Annotated[TargetRef, Meta(description="The object that a command scales.", extra={"optional": True})] = (
        field(default_factory=TargetRef)
    )
    min_replicas: Annotated[
        int, Meta(description="Never fewer.", ge=0, le=MAX_REPLICAS, extra={"key": "replicas.min"})
    ] = 1
    max_replicas: Annotated[
        int, Meta(description="Never more.", ge=1, le=MAX_REPLICAS, extra={"key": "replicas.max"})
    ] = 1024
    gpus_per_replica: Annotated[int, Meta(description="GPUs that one replica holds.", ge=1)] = 1
    gpu_type: Annotated[
        str,
        Meta(
            description="Name of the GPU they are; what a replica does is learned for each.",
            pattern=r"^[A-Za-z0-9_.-]{0,60}$",
        ),
    ] = ""
    price_per_gpu_hour: Annotated[float, Meta(description="In any currency; only ratios matter.", ge=0)] = 1.0
    slo: Annotated[Slo, Meta(description="The promise to its users.", extra={"optional": True})] = field(
        default_factory=Slo
    )
    mode: Annotated[Mode, Meta(description="observe = decide and record only; act = publish commands.")] = "observe"
    capacity_rps: Annotated[
        float | None, Meta(description="Requests/s one replica carries within the SLO, if known.", gt=0)
    ] = None
    role: Annotated[Role, Meta(description="Half of the work that its replicas do.")] = "both"
    capacity_tokens_per_s: Annotated[
        float | None, Meta(description="In place of capacity_rps for prefill and decode.", gt=0)
    ] = None
    capacity_off_by: Annotated[
        float | None,
        Meta(
            description="Factor that it may be off by, two times of three; empty: as a load test is, 1.28.",
            ge=1.01,
            le=2.5,
        ),
    ] = None
    lead_time_s: Annotated[float, Meta(description="From command to serving replica, first guess.", gt=0)] = 120.0
    priority: Annotated[int, Meta(description="Larger is served first when the fleet's GPUs run short.")] = 0
    power_w_per_replica: Annotated[
        float | None, Meta(description="Drawn by one replica; counts unless more is measured.", gt=0)
    ] = None
    schedule: Annotated[
        Schedule, Meta(description="Narrower bounds by the calendar and for known events.", extra={"optional": True})
    ] = field(default_factory=Schedule)
    batch: Annotated[BatchRule, Meta(description="Work with deadlines.")] = field(default_factory=BatchRule)
    zero: Annotated[IdleRule, Meta(description="Where replicas.min is 0: how it gets there.")] = field(
        default_factory=IdleRule
    )
    guards: Annotated[WorkloadGuards, Meta(description="Its own pace; empty = that of advanced.guards.")] = field(
        default_factory=WorkloadGuards
    )


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Limits of the guards (defaults: the design's). Times in seconds of event time.

    `fleet_reclaim`: lower priorities give up replicas for workloads that lack GPUs, down to their `min_replicas`.
    """

    warm_up_steps: Annotated[int, Meta(description="Observed steps before the first command.", ge=0)] = 128
    max_age_s: Annotated[float, Meta(description="Hold when a source is older.", gt=0)] = 60.0
    min_coverage_ratio: Annotated[float, Meta(description="Hold when fewer sources report.", ge=0, le=1)] = 0.6
    cliff_ratio: Annotated[float, Meta(description="No scale-down on a fall by more within a step.", gt=0, le=1)] = 0.5
    stabilization_up_s: Annotated[float, Meta(description="Lowest proposal of this window goes up.", ge=0)] = 0.0
    stabilization_down_s: Annotated[float, Meta(description="Highest proposal of it goes down.", ge=0)] = 120.0
    up_ratio: Annotated[float, Meta(description="Most growth per period, as a share.", ge=0)] = 1.0
    up_replicas: Annotated[int, Meta(description="... or as replicas, whichever is more.", ge=0)] = 4
    up_period_s: Annotated[float, Meta(description="That period.", gt=0)] = 15.0
    down_ratio: Annotated[float, Meta(description="Most shrinkage per period, as a share.", ge=0, le=1)] = 0.25
    down_replicas: Annotated[int, Meta(description="... or as replicas, whichever is more.", ge=0)] = 1
    down_period_s: Annotated[float, Meta(description="That period.", gt=0)] = 60.0
    tolerance_ratio: Annotated[float, Meta(description="Ignore relative changes up to this.", ge=0, lt=1)] = 0.0
    fleet_max_gpus: Annotated[
        int | None, Meta(description="GPUs of the whole fleet; empty = no limit.", ge=0, extra={"key": "top.max_gpus"})
    ] = None
    fleet_reclaim: Annotated[
        bool, Meta(description="At max_gpus, lower priorities release replicas for higher ones, down to their min.")
    ] = False
    fleet_max_power_w: Annotated[
        float | None, Meta(description="Drawn by all replicas together; empty = no limit.", ge=0)
    ] = None
    fleet_min_replicas: Annotated[int, Meta(description="Of all workloads together, never fewer.", ge=0)] = 0
    fleet_removals_per_minute: Annotated[
        int | None, Meta(description="Of all workloads together, never more; empty = no limit.", ge=0)
    ] = None
    lease_steps: Annotated[int, Meta(description="A command is valid this many steps.", ge=1)] = 4


@dataclass(frozen=True)  # without slots, for what is worked out of ten thousand declarations is worked out once
class Policy:
    """Everything that decides, as declared. `epoch` is raised only by `harmony state reset`.

    `epsilon`: accepted probability that replicas fall behind in the window that a plan answers for.
    `bearable_ratio`: of the misses that the objective allows, so many are aimed at; the rest is for surprises.
    `recurring_surges`: surges that have kept a period are expected again.
    `jumps`: jumps that no forecast had in it are expected as often as they came.
    `proposer` names the policy of somebody's own (name, package, version, options) that may propose other counts.
    """

    fleet: Annotated[
        str,
        Meta(description="Name of this fleet; part of every decision's id.", min_length=1, extra={"key": "top.fleet"}),
    ] = "default"
    epoch: Annotated[int, Meta(description="Raised only by `harmony state reset`.", ge=1)] = 1
    epsilon: Annotated[
        float,
        Meta(description="Accepted probability that replicas fall behind.", gt=0, lt=1, extra={"key": "top.epsilon"}),
    ] = 0.15
    commit_s: Annotated[float, Meta(description="How long a decision must stay right.", gt=0)] = 60.0
    bearable_ratio: Annotated[float, Meta(description="Share of the misses allowed that is aimed at.", gt=0, le=1)] = (
        0.5
    )
    recurring_surges: Annotated[
        bool, Meta(description="Expect surges again that have kept a period, such as an hour or a day.")
    ] = True
    jumps: Annotated[bool, Meta(description="Expect jumps that no forecast had in it, as often as they came.")] = True
    plan_every: Annotated[int, Meta(description="Forecast and plan every so many steps.", ge=1)] = 1
    max_horizon: Annotated[int, Meta(description="Longest forecast in steps; what lies beyond is not seen.", ge=1)] = 64
    paths_screen: Annotated[int, Meta(description="Sample paths of a forecast.", ge=16)] = 256
    seed: Annotated[int, Meta(description="Of every random draw.", ge=0)] = 0
    proposer: str = ""
    workloads: tuple[WorkloadSpec, ...] = ()
    guards: GuardLimits = field(default_factory=GuardLimits)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workloads", _with_shared_parts(self.workloads))

    def spec(self, workload: str) -> WorkloadSpec | None:
        """The declaration of a workload, or None: it is then forecast and decided in `observe`."""
        return self._specs.get(workload)

    def limits(self, workload: str) -> GuardLimits:
        """The guards' limits that hold for a workload."""
        return self._limits.get(workload, self.guards)

    def epsilon_of(self, slo: Slo) -> float:
        """The accepted probability that replicas fall behind, of an objective that has no classes."""
        return self.epsilon if slo.epsilon is None else slo.epsilon

    def fingerprint(self) -> str:
        """Sixteen hex digits over every field that can change a decision."""
        return self._fingerprint

    @cached_property
    def _specs(self) -> dict[str, WorkloadSpec]:
        return {w.id: w for w in reversed(self.workloads)}  # of two declarations the first holds

    @cached_property
    def _limits(self) -> dict[str, GuardLimits]:
        unset = WorkloadGuards()
        declared = {w: asdict(s.guards) for w, s in self._specs.items() if s.guards != unset}
        return {
            w: replace(self.guards, **{k: v for k, v in own.items() if v is not None}) for w, own in declared.items()
        }

    @cached_property
    def _fingerprint(self) -> str:
        # Each object gives its own fields alone: for ten thousand workloads a deep copy takes ten times as long.
        body = orjson.dumps(self, _own_fields, orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
        return hashlib.blake2b(body, digest_size=8).hexdigest()


def _own_fields(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def _with_shared_parts(workloads: Sequence[WorkloadSpec]) -> tuple[WorkloadSpec, ...]:
    """The declarations with one object for equal parts: most of ten thousand differ in their names only."""
    parts: dict[Any, Any] = {}

    def shared(part: Any) -> Any:
        return parts.setdefault(part, part)

    return tuple(
        replace(
            spec,
            slo=shared(spec.slo),
            schedule=shared(spec.schedule),
            zero=shared(spec.zero),
            batch=shared(spec.batch),
            guards=shared(spec.guards),
        )
        for spec in workloads
    )


def check_fleet(stored: str, fleet: str, topic: str) -> None:
    """Refuse a commit record of another fleet than the one that the settings name: state belongs to one fleet.

    Raises:
        OtherSettings: the record is of another fleet; names the remedy.
    """
    if stored != fleet:
        raise OtherSettings(
            f"{topic} holds the state of fleet {stored!r}, the settings name {fleet!r}: give each fleet a topic prefix "
            "of its own, restore the name, or accept a new start with `harmony state reset`"
        )
