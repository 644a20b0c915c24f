"""From points to readings: what one source says at one instant, in the fields of a telemetry record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.policy import Slo
from infra.collect.mapping.choices import Group, Memory, histogram_of, slo_counters, value_of
from infra.collect.mapping.owners import OWNER_SERIES
from infra.collect.mapping.schema import ExporterProfile, Kind
from infra.collect.mapping.workloads import Identities, Identity, NoIdentity
from infra.collect.points import Point, is_measured
from streams.catalogue import DEFAULT_CATALOGUE
from streams.records.facts import HistogramState
from streams.records.limits import MAX_REPLICAS, Bounds, bounds_of, number_within
from streams.records.schema import FleetName
from streams.records.strict_json import MalformedError

_BOUNDS = bounds_of(DEFAULT_CATALOGUE)
_REPLICAS = Bounds(0.0, MAX_REPLICAS, 0.0)
_PARTS = tuple(i.fields for i in DEFAULT_CATALOGUE if i.rule == "ratio")
_RATIOS = frozenset(f for i in DEFAULT_CATALOGUE if i.over_sources == "mean" and i.rule != "ratio" for f in i.fields)
_HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")
_REQUIRED_COUNTS: tuple[FleetName, ...] = ("replicas_ready", "replicas_pending", "replicas_draining")
_MOST_REASONS = 1_000
_TTFT = "ttft_s"
# How a pod itself is named, beside what is measured in it.
_PODS = ExporterProfile.model_validate(
    {"name": "pods", "kind": "fleet", "replica": "{pod}", "fields": {"replicas_ready": "kube_pod_created"}}
)
_STARTED, _FINISHED = "requests_started_total", "requests_finished_total"


class GroupKey(NamedTuple):
    """Points that belong to one reading."""

    profile: str
    identity: Identity
    ts_ms: int


@dataclass(frozen=True, slots=True)
class SourceReading:
    """One source at one instant; fields it did not measure are absent."""

    kind: Kind
    workload: str
    replica: str
    source: str
    ts_ms: int
    values: Mapping[str, float]
    hists: Mapping[str, HistogramState] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """What became of what was read.

    Attributes:
        points: that some profile knows.
        readings: by profile.
        unplaced: points without workload or source, by profile and reason.
        refused: values that no record may hold, by field and reason.
        blank: values that stand for nothing measured, by profile.
        lacking: readings without a count of arrivals, by profile and metrics that it would need.
    """

    points: int = 0
    readings: Counter[str] = field(default_factory=Counter)
    unplaced: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    blank: Counter[str] = field(default_factory=Counter)
    lacking: Counter[tuple[str, str]] = field(default_factory=Counter)


class Reader:
    """Puts points together by profiles.

    Args:
        profiles: whose metrics to take; other points are passed over.
        identities: names workloads and sources.
        slo_of: promise of a workload whose good requests are to be counted from its histogram; None = of none.
        note: takes a sentence for people about what is left out or stands in for something better, once each.
    """

    def __init__(
        self,
        profiles: Sequence[ExporterProfile],
        identities: Identities,
        slo_of: Callable[[str], Slo | None] | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._profiles = {profile.name: profile for profile in profiles}
        self._identities = identities
        self._slo_of, self._note = slo_of, note
        self._memory = Memory()
        # Of each process that was read: the one workload that its series name; None = they name several.
        self._workload_of: dict[tuple[str, str], str | None] = {}
        self._by_metric: dict[str, list[ExporterProfile]] = {}
        for profile in profiles:
            for name in metric_names(profile):
                self._by_metric.setdefault(name, []).append(profile)
        self.tally = Tally()

    @property
    def names(self) -> tuple[str, ...]:
        """Every series that some profile reads or that names owners, in alphabetical order."""
        return tuple(sorted({*self._by_metric, *OWNER_SERIES}))

    def reads(self, name: str) -> bool:
        """True for a series that some profile reads or that names owners."""
        return self._known_name(name) is not None

    def read(self, points: Iterable[Point]) -> list[SourceReading]:
        """All readings of points that came together, ordered by time."""
        known = [point for p in points if (point := self._known(p)) is not None]
        for point in known:
            self._identities.learn(point)
        groups: dict[GroupKey, Group] = {}
        unnamed = []
        for point in known:
            for profile, key in self._keys(point):
                if isinstance(key, NoIdentity):
                    unnamed.append((profile, key, point))
                else:
                    self._group(groups, key).add(point)
        # A series whose labels name no workload may belong to a process of which others do.
        for profile, missing, point in unnamed:
            adopted = self._adopted(profile, missing, point)
            if adopted is not None:
                self._group(groups, adopted).add(point)
        return self.assemble(groups)

    def place(self, point: Point) -> Iterator[tuple[GroupKey, Point]]:
        """The readings that the point belongs to, and the point by the name that they know; none for an unknown one."""
        known = self._known(point)
        if known is None:
            return
        self._identities.learn(known)
        for profile, key in self._keys(known):
            adopted = self._adopted(profile, key, known) if isinstance(key, NoIdentity) else key
            if adopted is not None:
                yield adopted, known

    def workload_of_pod(self, namespace: str, pod: str) -> str | None:
        """The workload that a pod belongs to by rules, owner references and names; None for none."""
        identity = self._identities.of(_PODS, {"namespace": namespace, "pod": pod})
        return None if isinstance(identity, NoIdentity) else identity.workload

    def new_group(self, key: GroupKey) -> Group:
        """An empty reading of a source."""
        return Group(self._profiles[key.profile])

    def _group(self, groups: dict[GroupKey, Group], key: GroupKey) -> Group:
        group = groups.get(key)
        if group is None:
            group = groups[key] = self.new_group(key)
        return group

    def _known(self, point: Point) -> Point | None:
        """The point by the name that profiles have; None where none has it."""
        name = self._known_name(point.name)
        return point if name == point.name else None if name is None else point._replace(name=name)

    def _known_name(self, name: str) -> str | None:
        """The name as profiles have it: a counter may come without the suffix that Prometheus asks for."""
        if name in self._by_metric or name in OWNER_SERIES:
            return name
        total = name + "_total"
        return total if total in self._by_metric else None

    def _keys(self, point: Point) -> Iterator[tuple[ExporterProfile, GroupKey | NoIdentity]]:
        if point.name not in self._by_metric:
            return
        self.tally.points += 1
        for profile in self._by_metric[point.name]:
            if not is_measured(point.value) or point.value in profile.blanks:
                self.tally.blank[profile.name] += 1
                continue
            identity = self._identities.of(profile, point.labels)
            if isinstance(identity, NoIdentity):
                yield profile, identity
                continue
            process = profile.name, identity.replica
            if self._workload_of.setdefault(process, identity.workload) != identity.workload:
                self._workload_of[process] = None
            yield profile, GroupKey(profile.name, identity, point.ts_ms)

    def _adopted(self, profile: ExporterProfile, missing: NoIdentity, point: Point) -> GroupKey | None:
        """The reading of the process whose other series name a workload; where there is none, the reason is counted."""
        workload = self._workload_of.get((profile.name, missing.replica)) if profile.kind == "requests" else None
        if workload is not None:
            identity = Identity(workload, missing.replica, missing.replica)
            return GroupKey(profile.name, identity, point.ts_ms)
        reason = profile.name, missing.reason
        if reason not in self.tally.unplaced:
            if len(self.tally.unplaced) >= _MOST_REASONS:
                return None
            self._note(f"Some series of profile {profile.name} are left out: {missing.reason}.")
        self.tally.unplaced[reason] += 1
        return None

    def _report_completions(self, profile: ExporterProfile, group: Group) -> None:
        """Say once that completions stand in for arrivals, and for want of which metrics."""
        choice = profile.fields[_STARTED][0]
        needed = (*choice.metric, *(choice.plus.metric if choice.plus else ()))
        missing = sorted({name for name in needed if not group.has(name)})
        reason = profile.name, ", ".join(missing)
        if reason not in self.tally.lacking:
            self._note(
                f"{_STARTED} of profile {profile.name} cannot be made without {reason[1]}: completions stand in for "
                "arrivals, and lag behind a queue."
            )
        self.tally.lacking[reason] += 1

    def assemble(self, groups: Mapping[GroupKey, Group]) -> list[SourceReading]:
        """The readings of complete groups, ordered by time; nothing for a group without any field."""
        readings = []
        for key in sorted(groups, key=lambda k: k.ts_ms):
            reading = self._reading(self._profiles[key.profile], key, groups[key])
            if reading is not None:
                self.tally.readings[key.profile] += 1
                readings.append(reading)
        return readings

    def _reading(self, profile: ExporterProfile, key: GroupKey, group: Group) -> SourceReading | None:
        values: dict[str, float] = {}
        for name, choices in profile.fields.items():
            source = profile.name, key.identity, name
            value = value_of(choices, group, self._memory, source, key.ts_ms, is_ratio=name in _RATIOS)
            if value is not None:
                self._keep(values, profile.kind, name, value)
        if _FINISHED in values and _STARTED in profile.fields and _STARTED not in values:
            self._report_completions(profile, group)
        hists: dict[str, HistogramState] = {}
        for name, ways in profile.histograms.items():
            for way in ways:
                try:
                    state = histogram_of(way, group)
                except MalformedError as error:
                    self.tally.refused[name, error.code] += 1
                    break
                if state is not None:
                    hists[name] = state
                    break
        if self._slo_of is not None and _TTFT in hists and "slo_total" not in values:
            slo = self._slo_of(key.identity.workload)
            if slo is not None:
                values |= slo_counters(slo, hists[_TTFT])
        for part, total in _PARTS:
            if values.get(part, 0.0) > values.get(total, float("inf")):
                self.tally.refused[part, "range"] += 1
                del values[part]
        complete = profile.kind != "fleet" or all(name in values for name in _REQUIRED_COUNTS)
        if not complete or not (values or hists):
            return None
        return SourceReading(profile.kind, *key.identity, key.ts_ms, values, hists)

    def _keep(self, values: dict[str, float], kind: Kind, name: str, value: float) -> None:
        try:
            checked = number_within(name, value, _REPLICAS if kind == "fleet" else _BOUNDS[name])
        except MalformedError:
            self.tally.refused[name, "range"] += 1
            return
        if checked is not None:
            values[name] = checked


def metric_names(profile: ExporterProfile) -> frozenset[str]:
    """Every series that the profile reads."""
    names = {name for choices in profile.fields.values() for choice in choices for name in choice.names()}
    for ways in profile.histograms.values():
        names |= {way.metric + suffix for way in ways for suffix in _HISTOGRAM_SUFFIXES}
    return frozenset(names)


# Readings whose points come in pieces: held until the last piece must have come.


# Beyond so many, the oldest readings go out as they are.
_MOST_OPEN = 200_000


class _OpenReading(NamedTuple):
    group: Group
    since_s: float
    places: dict[Hashable, int]


class Assembler:
    """Puts readings together from points that arrive over some time, in any order.

    Args:
        hold_s: how long after its first piece a reading waits for more.
    """

    def __init__(self, reader: Reader, hold_s: float) -> None:
        self._reader = reader
        self._hold_s = hold_s
        # In the order in which they were opened.
        self._open: dict[GroupKey, _OpenReading] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, point: Point, now_s: float, log: Hashable = None, offset: int = 0) -> None:
        """Take a piece.

        Args:
            log, offset: where it was read, for `first_offsets`.
        """
        for key, known in self._reader.place(point):
            opened = self._open.get(key)
            if opened is None:
                opened = self._open[key] = _OpenReading(self._reader.new_group(key), now_s, {})
            opened.group.add(known)
            if opened.places.get(log, offset) >= offset:
                opened.places[log] = offset

    def due(self, now_s: float) -> list[SourceReading]:
        """The readings that have waited long enough."""
        surplus = len(self._open) - _MOST_OPEN
        keys = []
        for n, (key, opened) in enumerate(self._open.items()):
            if n >= surplus and opened.since_s + self._hold_s > now_s:
                break
            keys.append(key)
        return self._take(keys)

    def everything(self) -> list[SourceReading]:
        """All readings, complete or not: for the end."""
        return self._take(list(self._open))

    def forget(self, log: Hashable) -> None:
        """Drop the readings that have pieces of this log."""
        self._open = {key: opened for key, opened in self._open.items() if log not in opened.places}

    def first_offsets(self) -> Mapping[Hashable, int]:
        """Per log, the first offset that a waiting reading needs; what lies before it may be forgotten."""
        first: dict[Hashable, int] = {}
        for opened in self._open.values():
            for log, offset in opened.places.items():
                if first.get(log, offset) >= offset:
                    first[log] = offset
        return first

    def _take(self, keys: list[GroupKey]) -> list[SourceReading]:
        return self._reader.assemble({key: self._open.pop(key).group for key in keys})
