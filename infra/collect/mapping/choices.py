"""One field of a reading, from the points that its profile names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import fsum
from typing import NamedTuple

from infra.collect.mapping.schema import Choice, Selection
from infra.collect.mapping.workloads import matches
from infra.collect.points import Point

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
    said: float


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
        known = self._last.get(key)
        if known is None or known.ts_ms < last.ts_ms:
            self._last[key] = last
        self._puts += 1
        if self._puts % _SWEPT_EVERY == 0:
            oldest_ms = last.ts_ms - _FORGOTTEN_AFTER_MS
            self._last = {k: v for k, v in self._last.items() if v.ts_ms > oldest_ms}


def value_of(choice: Choice, group: Group, memory: Memory, key: Hashable, ts_ms: int) -> float | None:
    """The field's value; None when a metric it needs is not there.

    Args:
        key: of the field and its source in the memory.
    """
    added = [_combined(choice, group, name) for name in choice.metric]
    taken = [_combined(choice, group, name) for name in choice.minus]
    if None in added or None in taken:
        return None
    value = _sum(added) - _sum(taken)
    if choice.per is not None:
        parts = [_combined(choice.per, group, name) for name in choice.per.metric]
        if None in parts:
            return None
        quotient = _quotient(choice, value, _sum(parts), memory, key, ts_ms)
        if quotient is None:
            return None
        value = quotient
    if choice.steady:
        value = _steady(value, added[0] or 0.0, memory, key, ts_ms)
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


def _quotient(choice: Choice, value: float, whole: float, memory: Memory, key: Hashable, ts_ms: int) -> float | None:
    if not choice.increase:
        return value / whole if whole > 0 else None
    last = memory.before(key, ts_ms)
    memory.put(key, Last(ts_ms, (value, whole), 0.0))
    if last is None:
        return None
    gained, of = value - last.raw[0], whole - last.raw[1]
    # Either counter fell: the exporter has restarted, and nothing is known of the time between.
    return gained / of if gained >= 0 and of > 0 else None


def _steady(value: float, counter: float, memory: Memory, key: Hashable, ts_ms: int) -> float:
    """A counter plus gauges that belong to it; what leaves a gauge uncounted must not look like a restart."""
    last = memory.before(key, ts_ms)
    said = value if last is None or counter < last.raw[0] else max(value, last.said)
    memory.put(key, Last(ts_ms, (counter, 0.0), said))
    return said
