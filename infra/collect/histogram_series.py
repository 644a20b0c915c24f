"""Buckets of a Prometheus histogram put together again."""

from __future__ import annotations

from math import isinf

from infra.collect.mapping.choices import Group
from infra.collect.mapping.schema import HistogramChoice
from streams.records.facts import HistogramState
from streams.records.limits import histogram
from streams.records.schema import HistogramWire


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
