"""What operators declare: workloads, objectives, bounds, and the limits of the guards; and its fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

import orjson

from streams.log import OtherSettings

# Bounds by the calendar and for known events: what is in force now, and what must be ready by the time it begins.
#
# A schedule only narrows a workload's own bounds. Of several floors in force the highest counts, of several ceilings
# the lowest, and a floor wins over a ceiling. Times of day are local, so they follow daylight saving time: a window
# that begins or ends in the hour that a clock leaves out or repeats is taken as long as it can be. Pure.


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


Mode = Literal["observe", "act"]
Role = Literal["both", "prefill", "decode"]

_DOUBT_PER_RISK: Final = 4.0  # who accepts little risk does not want what may be doubted tried, either


@dataclass(frozen=True, slots=True)
class TargetRef:
    """The Kubernetes-style object whose replicas a command sets."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    namespace: str = "default"
    name: str = ""


@dataclass(frozen=True, slots=True)
class SloClass:
    """What some of the requests are promised; `epsilon` in place of the policy's."""

    name: str
    ttft_s: float
    tpot_s: float
    objective: float
    epsilon: float | None = None


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

    ttft_s: float = 2.0
    tpot_s: float = 0.2
    objective: float = 0.99
    classes: tuple[SloClass, ...] = ()
    epsilon: float | None = None


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
    release_ratio: float | None = None
    tolerance_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class IdleRule:
    """When the last replica of a workload with `min_replicas` 0 may go: idle for so long, and hardly needed soon.

    `risk` is the accepted probability that it is needed before it could come back.
    """

    idle_s: float = 600.0
    risk: float = 0.05


@dataclass(frozen=True, slots=True)
class NightlyBatch:
    """Work of every such day that may begin at one time of day and must be done by another.

    Attributes:
        name: also that of the source that may tell how much is left.
        days, start_minute, end_minute: as of a `CalendarRule`, in the schedule's time zone.
        tokens: to be generated.
    """

    name: str
    tokens: float
    days: tuple[int, ...]
    start_minute: int
    end_minute: int


@dataclass(frozen=True, slots=True)
class BatchRule:
    """Work with deadlines. `tokens_per_s`: what one replica generates of it; None = as it does of online requests."""

    tokens_per_s: float | None = None
    jobs: tuple[NightlyBatch, ...] = ()


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

    id: str
    target: TargetRef = field(default_factory=TargetRef)
    min_replicas: int = 1
    max_replicas: int = 1024
    gpus_per_replica: int = 1
    price_per_gpu_hour: float = 1.0
    slo: Slo = field(default_factory=Slo)
    mode: Mode = "observe"
    capacity_rps: float | None = None
    lead_time_s: float = 120.0
    priority: int = 0
    power_w_per_replica: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    zero: IdleRule = field(default_factory=IdleRule)
    batch: BatchRule = field(default_factory=BatchRule)
    role: Role = "both"
    capacity_tokens_per_s: float | None = None
    capacity_off_by: float | None = None
    guards: WorkloadGuards = field(default_factory=WorkloadGuards)
    gpu_type: str = ""


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Limits of the guards (defaults: the design's). Times in seconds of event time.

    `release_ratio`: replicas are given up at so much of the risk that is allowed for keeping them.
    `fleet_reclaim`: lower priorities give up replicas for workloads that lack GPUs, down to their `min_replicas`.
    """

    warm_up_steps: int = 128
    max_age_s: float = 60.0
    min_coverage_ratio: float = 0.6
    cliff_ratio: float = 0.5
    stabilization_up_s: float = 0.0
    stabilization_down_s: float = 120.0
    up_ratio: float = 1.0
    up_replicas: int = 4
    up_period_s: float = 15.0
    down_ratio: float = 0.25
    down_replicas: int = 1
    down_period_s: float = 60.0
    release_ratio: float = 0.6
    tolerance_ratio: float = 0.0
    fleet_max_gpus: int | None = None
    fleet_reclaim: bool = False
    fleet_max_power_w: float | None = None
    fleet_min_replicas: int = 0
    fleet_removals_per_minute: int | None = None
    lease_steps: int = 4


@dataclass(frozen=True)  # without slots, for what is worked out of ten thousand declarations is worked out once
class Policy:
    """Everything that decides, as declared. `epoch` is raised only by `harmony state reset`.

    `epsilon`: accepted probability that attainment falls below the objective in the window a plan answers for.
    `bearable_ratio`: of the misses that the objective allows, so many may be expected; the rest is for what is not.
    `doubt_ratio`: while budget is to spare, fewer replicas are tried where they would do if each carries no less than
    this quantile of what is believed possible, or one of four times the risk accepted where that is lower; 0 = never.
    `recurring_surges`: surges that have kept a period are expected again.
    `jumps`: jumps that no forecast had in it are expected as often as they came.
    `proposer` names the policy of somebody's own (name, package, version, options) that may propose other counts.
    """

    fleet: str = "default"
    epoch: int = 1
    epsilon: float = 0.15
    bearable_ratio: float = 0.5
    doubt_ratio: float = 0.5
    recurring_surges: bool = True
    jumps: bool = True
    commit_s: float = 60.0
    plan_every: int = 1
    max_horizon: int = 64
    paths_screen: int = 256
    paths_verify: int = 4096
    seed: int = 0
    proposer: str = ""
    workloads: tuple[WorkloadSpec, ...] = ()
    guards: GuardLimits = field(default_factory=GuardLimits)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workloads", _told_once(self.workloads))

    def spec(self, workload: str) -> WorkloadSpec | None:
        """The declaration of a workload, or None: it is then forecast and decided in `observe`."""
        return self._specs.get(workload)

    def limits(self, workload: str) -> GuardLimits:
        """The guards' limits that hold for a workload."""
        return self._limits.get(workload, self.guards)

    def epsilon_of(self, slo: Slo) -> float:
        """The risk accepted of missing an objective that has no classes."""
        return self.epsilon if slo.epsilon is None else slo.epsilon

    def bearable_share(self, objective: float) -> float:
        """Share of the requests that a plan may expect to miss while the budget is used as it should be."""
        return self.bearable_ratio * (1.0 - objective)

    def doubt(self, epsilon: float) -> float:
        """Part of the capacities believed possible that a trial leaves out where so much risk is accepted."""
        return min(self.doubt_ratio, _DOUBT_PER_RISK * epsilon)

    def fingerprint(self) -> str:
        """Sixteen hex digits over every field that can change a decision."""
        return self._fingerprint

    @cached_property
    def _specs(self) -> dict[str, WorkloadSpec]:
        return {w.id: w for w in reversed(self.workloads)}  # of two declarations the first holds

    @cached_property
    def _limits(self) -> dict[str, GuardLimits]:
        silent = WorkloadGuards()
        told = {w: asdict(s.guards) for w, s in self._specs.items() if s.guards != silent}
        return {w: replace(self.guards, **{k: v for k, v in own.items() if v is not None}) for w, own in told.items()}

    @cached_property
    def _fingerprint(self) -> str:
        # Each object asked for its own fields alone: of ten thousand workloads a copy in depth takes ten times as long.
        body = orjson.dumps(self, _own_fields, orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
        return hashlib.blake2b(body, digest_size=8).hexdigest()


def _own_fields(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def _told_once(workloads: Sequence[WorkloadSpec]) -> tuple[WorkloadSpec, ...]:
    """The same, with one object for what many say alike: most of ten thousand differ in their names only."""
    known: dict[Any, Any] = {}

    def once(part: Any) -> Any:
        return known.setdefault(part, part)

    return tuple(
        replace(
            spec,
            slo=once(spec.slo),
            schedule=once(spec.schedule),
            zero=once(spec.zero),
            batch=once(spec.batch),
            guards=once(spec.guards),
        )
        for spec in workloads
    )


# State belongs to one fleet: whoever finds another's under its topic prefix must not go on from it.


def check_fleet(stored: str, fleet: str, topic: str) -> None:
    """See that a commit record on this topic is of the fleet that the settings name.

    Raises:
        OtherSettings: it is another's; names the remedy.
    """
    if stored != fleet:
        raise OtherSettings(
            f"{topic} holds the state of fleet {stored!r}, the settings name {fleet!r}: give each fleet a topic prefix "
            "of its own, restore the name, or accept a new start with `harmony state reset`"
        )
