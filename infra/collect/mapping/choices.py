"""One field of a reading, from the points that its profile names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from math import fsum, isinf
from typing import NamedTuple

from agents.policy import Slo
from infra.collect.mapping.schema import FieldChoice, HistogramChoice, Selection
from infra.collect.mapping.workloads import matches
from infra.collect.points import Point
from streams.records.facts import HistogramState
from streams.records.limits import histogram
from streams.records.schema import HistogramWire

_FORGOTTEN_AFTER_MS = 3_600_000
_SWEPT_EVERY = 100_000


class Group:
    """The points of one reading; the same series twice counts once, the later value."""

    __slots__ = ("_series",)

    def __init__(self) -> None:
        self._series: dict[str, dict[tuple[tuple[str, str], ...], Point]] = {}

    def add(self, point: Point) -> None:
        self._series.setdefault(point.name, {})[tuple(sorted(point.labels.items()))] = point

    def of(self, name: str, where: Mapping[str, str]) -> list[Point]:
        """The points of a metric whose labels fit."""
        points = self._series.get(name, {}).values()
        return [p for p in points if matches(p.labels, where)] if where else list(points)


class Last(NamedTuple):
    """What a field was made of when its source was last read, and what was said."""

    ts_ms: int
    raw: tuple[float, float]
    steady_value: float


class Memory:
    """The last reading of fields that need it; what was not heard for an hour is forgotten."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Last] = {}
        self._puts = 0

    def before(self, key: Hashable, ts_ms: int) -> Last | None:
        """The last reading, if it was before this instant."""
        last = self._last.get(key)
        return last if last is not None and last.ts_ms < ts_ms else None

    def put(self, key: Hashable, last: Last) -> None:
        """Remember a reading unless a later one is known."""
        previous = self._last.get(key)
        if previous is None or previous.ts_ms < last.ts_ms:
            self._last[key] = last
        self._puts += 1
        if self._puts % _SWEPT_EVERY == 0:
            oldest_ms = last.ts_ms - _FORGOTTEN_AFTER_MS
            self._last = {k: v for k, v in self._last.items() if v.ts_ms > oldest_ms}


def value_of(choice: FieldChoice, group: Group, memory: Memory, key: Hashable, ts_ms: int) -> float | None:
    """The field's value; None when a metric it needs is not there.

    Args:
        key: of the field and its source in the memory.
    """
    addends = [_combined(choice, group, name) for name in choice.metric]
    subtrahends = [_combined(choice, group, name) for name in choice.minus]
    if None in addends or None in subtrahends:
        return None
    value = _sum(addends) - _sum(subtrahends)
    if choice.per is not None:
        parts = [_combined(choice.per, group, name) for name in choice.per.metric]
        if None in parts:
            return None
        quotient = _quotient(choice, value, _sum(parts), memory, key, ts_ms)
        if quotient is None:
            return None
        value = quotient
    if choice.steady:
        value = _steady(value, addends[0] or 0.0, memory, key, ts_ms)
    value *= choice.scale
    if choice.complement:
        value = 1.0 - value
    return value if choice.floor is None else max(value, choice.floor)


def _combined(selection: Selection, group: Group, name: str) -> float | None:
    values = [point.value for point in group.of(name, selection.where)]
    if not values:
        return None
    match selection.combine:
        case "sum":
            return fsum(values)
        case "mean":
            return fsum(values) / len(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
        case "count":
            return float(len(values))


def _sum(parts: Sequence[float | None]) -> float:
    return fsum(part for part in parts if part is not None)


def _quotient(
    choice: FieldChoice, value: float, divisor: float, memory: Memory, key: Hashable, ts_ms: int
) -> float | None:
    if not choice.increase:
        return value / divisor if divisor > 0 else None
    last = memory.before(key, ts_ms)
    memory.put(key, Last(ts_ms, (value, divisor), 0.0))
    if last is None:
        return None
    gained, of = value - last.raw[0], divisor - last.raw[1]
    # Either counter fell: the exporter has restarted, and nothing is known of the time between.
    return gained / of if gained >= 0 and of > 0 else None


def _steady(value: float, counter: float, memory: Memory, key: Hashable, ts_ms: int) -> float:
    """A counter plus gauges that belong to it; what leaves a gauge uncounted must not look like a restart."""
    last = memory.before(key, ts_ms)
    steady_value = value if last is None or counter < last.raw[0] else max(value, last.steady_value)
    memory.put(key, Last(ts_ms, (counter, 0.0), steady_value))
    return steady_value


# Buckets of a Prometheus histogram put together again.


def histogram_of(choice: HistogramChoice, group: Group) -> HistogramState | None:
    """The histogram that the points of a reading hold, added up over label sets; None when there is none.

    Raises:
        MalformedError: its label sets have different bounds, or its numbers make no histogram.
    """
    by_bound: dict[float, list[float]] = {}
    for point in group.of(choice.metric + "_bucket", choice.where):
        bound = _bound(point.labels.get("le", ""))
        if bound is not None:
            by_bound.setdefault(bound, []).append(point.value)
    everything = by_bound.pop(float("inf"), [])
    counts = [p.value for p in group.of(choice.metric + "_count", choice.where)] or everything
    sums = [p.value for p in group.of(choice.metric + "_sum", choice.where)]
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
