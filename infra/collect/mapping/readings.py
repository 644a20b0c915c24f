"""From points to readings: what one source says at one instant, in the fields of a telemetry record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.policy import Slo
from infra.collect.mapping.choices import Group, Memory, histogram_of, slo_counters, value_of
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
_HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")
_REQUIRED_COUNTS: tuple[FleetName, ...] = ("replicas_ready", "replicas_pending", "replicas_draining")
_MOST_REASONS = 1_000
_TTFT = "ttft_s"


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
    """

    points: int = 0
    readings: Counter[str] = field(default_factory=Counter)
    unplaced: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)


class Reader:
    """Puts points together by profiles.

    Args:
        profiles: whose metrics to take; other points are passed over.
        identities: names workloads and sources.
        slo_of: promise of a workload whose good requests are to be counted from its histogram; None = of none.
    """

    def __init__(
        self,
        profiles: Sequence[ExporterProfile],
        identities: Identities,
        slo_of: Callable[[str], Slo | None] | None = None,
    ) -> None:
        self._profiles = {profile.name: profile for profile in profiles}
        self._identities = identities
        self._slo_of = slo_of
        self._memory = Memory()
        self._by_metric: dict[str, list[ExporterProfile]] = {}
        for profile in profiles:
            for name in metric_names(profile):
                self._by_metric.setdefault(name, []).append(profile)
        self.tally = Tally()

    @property
    def names(self) -> tuple[str, ...]:
        """Every series that some profile reads, in alphabetical order."""
        return tuple(sorted(self._by_metric))

    def reads(self, name: str) -> bool:
        """True for a series that some profile reads."""
        return name in self._by_metric

    def known(self, point: Point) -> Point:
        """The point under the name that some profile reads; OTLP's counters lack the `_total` of Prometheus' names."""
        total = f"{point.name}_total"
        return point._replace(name=total) if point.name not in self._by_metric and total in self._by_metric else point

    def read(self, points: Iterable[Point]) -> list[SourceReading]:
        """All readings of points that came together, ordered by time."""
        groups: dict[GroupKey, Group] = {}
        for point in map(self.known, points):
            for key in self.place(point):
                groups.setdefault(key, Group()).add(point)
        return self.assemble(groups)

    def place(self, point: Point) -> list[GroupKey]:
        """The readings that the point belongs to; none when nothing is known of it."""
        profiles = self._by_metric.get(point.name)
        if profiles is None:
            return []
        self.tally.points += 1
        keys = []
        for profile in profiles:
            if not is_measured(point.value) or point.value in profile.blanks:
                continue
            identity = self._identities.of(profile, point.labels)
            if isinstance(identity, NoIdentity):
                if len(self.tally.unplaced) < _MOST_REASONS:
                    self.tally.unplaced[profile.name, identity.reason] += 1
            else:
                keys.append(GroupKey(profile.name, identity, point.ts_ms))
        return keys

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
            for n, choice in enumerate(choices):
                value = value_of(choice, group, self._memory, (profile.name, key.identity, name, n), key.ts_ms)
                if value is not None:
                    self._keep(values, profile.kind, name, value)
                    break
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
        point = self._reader.known(point)
        for key in self._reader.place(point):
            opened = self._open.get(key)
            if opened is None:
                opened = self._open[key] = _OpenReading(Group(), now_s, {})
            opened.group.add(point)
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
