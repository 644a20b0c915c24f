"""One field of a reading, from the points that its profile names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from math import fsum, isinf
from typing import NamedTuple, TypeVar

from agents.policy import Slo
from infra.collect.mapping.schema import ExporterProfile, FieldChoice, HistogramChoice, Selection
from infra.collect.mapping.workloads import matches_any
from infra.collect.points import Point, own_labels
from streams.records.facts import HistogramState
from streams.records.limits import histogram
from streams.records.schema import HistogramWire

_FORGOTTEN_AFTER_MS = 3_600_000
_SWEPT_EVERY = 100_000
# A queue that stays short by some requests for so long has lost them: they will not be served.
_ABANDONED_AFTER_MS = 30_000
_Labels = tuple[tuple[str, str], ...]
# Labels of the scraper and its target. An exporter without a list of its own labels is not asked about these.
_SCRAPER_LABELS = frozenset(
    {
        "__replica__",
        "endpoint",
        "instance",
        "job",
        "prometheus",
        "prometheus_replica",
        "receive",
        "replica",
        "scrape_job",
    }
    | {"service", "tenant_id", "thanos_replica"}
)


class Group:
    """The points of one reading; what was read twice counts once.

    The same series at the same instant keeps its later value. Series that differ only in labels that say nothing of
    the exporter are copies: of a pair of Prometheus servers, of two scrape jobs, of one device for each pod that shares
    it. Of copies the largest value counts. A label is the scraper's when the profile does not list it and every metric
    of the reading carries it; a label that only some metrics carry says what they measure.
    """

    __slots__ = ("_copied", "_profile", "_series")

    def __init__(self, profile: ExporterProfile) -> None:
        self._profile = profile
        self._series: dict[str, dict[_Labels, Point]] = {}
        self._copied: frozenset[str] | None = None

    def add(self, point: Point) -> None:
        own = own_labels(point.labels)
        own_point = point if own is point.labels else point._replace(labels=own)
        self._series.setdefault(point.name, {})[tuple(sorted(own.items()))] = own_point
        self._copied = None

    def has(self, name: str) -> bool:
        """True when some series of the metric was read."""
        return name in self._series

    def of(self, name: str, choice: Selection | HistogramChoice) -> dict[_Labels, list[Point]]:
        """The points of a metric that the choice takes, one of each series, by engine of the process."""
        points = list(self._series.get(name, {}).values())
        if choice.or_without is not None:
            divided = {self._part(p) for p in self._series.get(choice.or_without, {}).values()}
            points = [
                p for p in points if (divided and self._part(p) not in divided) or matches_any(p.labels, choice.where)
            ]
        elif choice.where:
            points = [p for p in points if matches_any(p.labels, choice.where)]
        if len(points) > 1:
            points = self._distinct(points)
        parts: dict[_Labels, list[Point]] = {}
        for point in points:
            parts.setdefault(self._part(point), []).append(point)
        return parts

    def _part(self, point: Point) -> _Labels:
        return tuple([(name, point.labels[name]) for name in self._profile.parts if name in point.labels])

    def _distinct(self, points: Sequence[Point]) -> list[Point]:
        copied = self._scraper_labels()
        distinct: dict[_Labels, Point] = {}
        for point in points:
            key = tuple(sorted([item for item in point.labels.items() if item[0] not in copied]))
            other = distinct.get(key)
            if other is None or other.value < point.value:
                distinct[key] = point
        return list(distinct.values())

    def _scraper_labels(self) -> frozenset[str]:
        if self._profile.labels is None:
            return _SCRAPER_LABELS
        if self._copied is None:
            carried = [{name for p in series.values() for name in p.labels} for series in self._series.values()]
            own = {*self._profile.labels, *self._profile.parts, "le"}
            self._copied = frozenset(set.intersection(*carried) - own) if carried else frozenset()
        return self._copied


class CounterPair(NamedTuple):
    """Two counters of a source when it was last read."""

    ts_ms: int
    part: float
    total: float


class ArrivalCount(NamedTuple):
    """A counter of arrivals that is made of a counter and gauges, when its source was last read.

    Attributes:
        way: which choice of the profile made it.
        counter: its first metric, which falls only when the process restarts.
        value: the sum of its metrics.
        conserved: requests waiting, running and finished.
        offset: requests that left the gauges uncounted.
        total: what was published.
        short_since_ms: since when value and offset are less than what was published; None = they are not.
    """

    ts_ms: int
    way: int
    counter: float
    value: float
    conserved: float
    offset: float
    total: float
    short_since_ms: int | None


_State = TypeVar("_State", CounterPair, ArrivalCount)


class Memory:
    """The last reading of fields that need it; what was not read for an hour is forgotten."""

    def __init__(self) -> None:
        self._last: dict[Hashable, CounterPair | ArrivalCount] = {}
        self._puts = 0

    def before(self, key: Hashable, ts_ms: int, kind: type[_State]) -> _State | None:
        """The last reading, if it was before this instant."""
        last = self._last.get(key)
        return last if isinstance(last, kind) and last.ts_ms < ts_ms else None

    def put(self, key: Hashable, state: CounterPair | ArrivalCount) -> None:
        """Remember a reading unless a later one is there."""
        last = self._last.get(key)
        if last is None or last.ts_ms < state.ts_ms:
            self._last[key] = state
        self._puts += 1
        if self._puts % _SWEPT_EVERY == 0:
            oldest_ms = state.ts_ms - _FORGOTTEN_AFTER_MS
            self._last = {k: v for k, v in self._last.items() if v.ts_ms > oldest_ms}


def value_of(
    choices: Sequence[FieldChoice], group: Group, memory: Memory, key: Hashable, ts_ms: int, *, is_ratio: bool
) -> float | None:
    """The field's value by the first choice whose metrics are all there; None when none is.

    Args:
        key: of the field and its source in the memory.
        is_ratio: engines of one process are averaged, not added up.
    """
    for way, choice in enumerate(choices):
        value = _value(choice, way, group, memory, key, ts_ms, is_ratio)
        if value is not None:
            return value
    return None


def _value(
    choice: FieldChoice, way: int, group: Group, memory: Memory, key: Hashable, ts_ms: int, is_ratio: bool
) -> float | None:
    average = is_ratio and choice.per is None
    added = [_combined(choice, group, name, average) for name in choice.metric]
    minus = [_combined(choice, group, name, average) for name in choice.minus]
    if choice.plus is not None:
        added += [_combined(choice.plus, group, name) for name in choice.plus.metric]
    if None in added or None in minus or (choice.positive and added[0] == 0):
        return None
    value = _sum(added) - _sum(minus)
    if choice.per is not None:
        divisors = [_combined(choice.per, group, name) for name in choice.per.metric]
        if None in divisors:
            return None
        quotient = _quotient(choice, value, _sum(divisors), memory, (key, way), ts_ms)
        if quotient is None:
            return None
        value = quotient
    if choice.steady:
        # Before the first request has finished, an exporter may not have its counter.
        conserved = fsum(_combined(part, group, name) or 0.0 for part in choice.conserved for name in part.metric)
        value = _arrivals(value, added[0] or 0.0, conserved, way, memory, key, ts_ms)
    value *= choice.scale
    if choice.complement:
        value = 1.0 - value
    return value if choice.floor is None else max(value, choice.floor)


def _combined(selection: Selection, group: Group, name: str, average: bool = False) -> float | None:
    parts = [_part_value(selection, [p.value for p in points]) for points in group.of(name, selection).values()]
    if not parts:
        return None
    return fsum(parts) / len(parts) if average else fsum(parts)


def _part_value(selection: Selection, values: Sequence[float]) -> float:
    if selection.any_bits is not None:
        values = [float(int(value) & selection.any_bits != 0) for value in values]
    match selection.combine:
        case "sum":
            return fsum(values)
        case "mean":
            return fsum(values) / len(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
        case _:
            return float(len(values))


def _sum(parts: Sequence[float | None]) -> float:
    return fsum(part for part in parts if part is not None)


def _quotient(
    choice: FieldChoice, value: float, total: float, memory: Memory, key: Hashable, ts_ms: int
) -> float | None:
    if not choice.increase:
        return value / total if total > 0 else None
    last = memory.before(key, ts_ms, CounterPair)
    memory.put(key, CounterPair(ts_ms, value, total))
    if last is None:
        return None
    gained, of = value - last.part, total - last.total
    # Either counter fell: the exporter has restarted, and nothing is known of the time between.
    return gained / of if gained >= 0 and of > 0 else None


def _arrivals(
    value: float, counter: float, conserved: float, way: int, memory: Memory, key: Hashable, ts_ms: int
) -> float:
    """A counter plus gauges that belong to it, as a counter of arrivals.

    A request on its way from the queue to the counter is in neither for a moment, and a preempted one is in both. So
    the sum may fall and rise again, and its running maximum counts each request once. A request that its client gives
    up leaves the queue for good. It also leaves the conserved sum, by which the maximum is corrected at once. Where
    that sum does not show it, a maximum that was not reached for half a minute is given up. So a request that is in
    prefill for longer may count twice.
    """
    last = memory.before(key, ts_ms, ArrivalCount)
    offset, total, short_since_ms = 0.0, value, None
    if last is not None and counter >= last.counter:
        # Another choice of the profile goes on where this one was.
        offset = last.offset if way == last.way else last.total - value
        short = last.total - value - offset
        if short > 0:
            offset += min(short, max(0.0, last.conserved - conserved))
            short_since_ms = ts_ms if last.short_since_ms is None else last.short_since_ms
            if ts_ms - short_since_ms >= _ABANDONED_AFTER_MS:
                offset, short_since_ms = last.total - value, None
        total = max(last.total, value + offset)
        if value + offset >= last.total:
            short_since_ms = None
    memory.put(key, ArrivalCount(ts_ms, way, counter, value, conserved, offset, total, short_since_ms))
    return total


# Buckets of a Prometheus histogram put together again.


def histogram_of(choice: HistogramChoice, group: Group) -> HistogramState | None:
    """The histogram that the points of a reading hold, added up over label sets; None when there is none.

    Raises:
        MalformedError: its label sets have different bounds, or its numbers make no histogram.
    """
    by_bound: dict[float, list[float]] = {}
    for point in _points(group, choice, "_bucket"):
        bound = _bound(point.labels.get("le", ""))
        if bound is not None:
            by_bound.setdefault(bound, []).append(point.value)
    everything = by_bound.pop(float("inf"), [])
    counts = [p.value for p in _points(group, choice, "_count")] or everything
    sums = [p.value for p in _points(group, choice, "_sum")]
    if not by_bound or not counts or not sums:
        return None
    bounds = sorted(by_bound)
    # A label set that lacks a bound would look like observations that vanished.
    alike = all(len(values) == len(counts) for values in by_bound.values())
    cumulative = tuple(sum(by_bound[bound]) for bound in bounds) if alike else ()
    wire = HistogramWire(
        le=tuple(bound * choice.scale for bound in bounds),
        cumulative=cumulative,
        count=sum(counts),
        sum=sum(sums) * choice.scale,
    )
    return histogram(choice.metric, wire)


def _points(group: Group, choice: HistogramChoice, suffix: str) -> list[Point]:
    return [point for points in group.of(choice.metric + suffix, choice).values() for point in points]


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound >= 0 or isinf(bound) else None


# How many requests were good, read from a histogram of times to the first token where nobody counts them.


def slo_counters(slo: Slo, ttft: HistogramState) -> dict[str, float]:
    """`slo_good_total` and `slo_total` of a cumulative histogram in seconds.

    Between two bounds the count is interpolated, so both stay counters. The time per token is not judged: two
    histograms do not say which requests miss both promises and which only one.
    """
    return {"slo_good_total": _at_most(ttft, slo.ttft_s), "slo_total": ttft.count}


def _at_most(h: HistogramState, seconds: float) -> float:
    above = bisect_right(h.le, seconds)
    below_s, below = (h.le[above - 1], h.cumulative[above - 1]) if above else (0.0, 0.0)
    if above == len(h.le):
        # Beyond the last bound nothing is known of the rest: those are not called good.
        return below
    return below + (h.cumulative[above] - below) * (seconds - below_s) / (h.le[above] - below_s)
