"""Quantiles of what was added to cumulative histograms, merged over sources whose bucket edges may differ."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from streams.records.facts import HistogramState


class Added(NamedTuple):
    """Observations that a histogram gained: at or below each edge, and in all."""

    le: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float


def added(states: Sequence[HistogramState]) -> Added | None:
    """What lies between the first and the last of consecutive states, at least two.

    Returns:
        None when a count fell or the edges changed on the way: the source started anew.
    """
    for before, after in pairwise(states):
        fell = after.count < before.count or any(
            b < a for a, b in zip(before.cumulative, after.cumulative, strict=False)
        )
        if fell or after.le != before.le:
            return None
    first, last = states[0], states[-1]
    gained = tuple(b - a for a, b in zip(first.cumulative, last.cumulative, strict=True))
    return Added(last.le, gained, last.count - first.count)


def capped(parts: Sequence[Added], cap: float) -> list[Added]:
    """The parts with none counting for more than `cap` times the mean of the others; of fewer than three, as they are.

    Shapes stay: only the weight of a part changes.
    """
    if len(parts) < 3:
        return list(parts)
    total = 0.0
    for part in parts:
        total += part.total
    kept = []
    for part in parts:
        limit = max(0.0, cap * ((total - part.total) / (len(parts) - 1)))
        if part.total > limit:
            share = limit / part.total
            part = Added(part.le, tuple(count * share for count in part.cumulative), part.total * share)
        kept.append(part)
    return kept


def merged_quantile(parts: Sequence[Added], level: float) -> float | None:
    """Quantile of the union of the parts' observations.

    Each part's cumulative count is interpolated linearly between its own edges (from nothing at 0) and, beyond its last
    edge, held: where those lie is not known. A quantile beyond every edge is the last edge.

    Returns:
        The quantile in the unit of the edges; None when nothing was observed.
    """
    total = 0.0
    for part in parts:
        total += part.total
    if total <= 0.0:
        return None
    if len({part.le for part in parts}) == 1:
        edges: Sequence[float] = parts[0].le
        columns = [part.cumulative for part in parts]
    else:
        edges = sorted({edge for part in parts for edge in part.le})
        columns = [tuple(_at(part, edge) for edge in edges) for part in parts]
    wanted = level * total
    low_edge = low_count = 0.0
    for column, edge in enumerate(edges):
        count = 0.0
        for cumulative in columns:
            count += cumulative[column]
        if count >= wanted:
            return low_edge + (edge - low_edge) * ((wanted - low_count) / (count - low_count))
        low_edge, low_count = edge, count
    return edges[-1]


def _at(part: Added, edge: float) -> float:
    at = bisect_left(part.le, edge)
    if at == len(part.le):
        return part.cumulative[-1]
    high_edge, high = part.le[at], part.cumulative[at]
    if high_edge == edge:
        return high
    low_edge, low = (part.le[at - 1], part.cumulative[at - 1]) if at else (0.0, 0.0)
    return low + (high - low) * ((edge - low_edge) / (high_edge - low_edge))
