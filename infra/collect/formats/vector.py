"""Vector's metric events, as its json and native_json codecs write them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate
from typing import Any

from infra.collect.formats.values import labels_of, naming, number, objects_of, text_of, time_ms
from infra.collect.points import Point
from streams.records.strict_json import MalformedError

_SIMPLE = ("counter", "gauge")
_HISTOGRAM = "aggregated_histogram"
_UNUSED_KINDS = ("aggregated_summary", "distribution", "set", "sketch")
_INCREMENTAL = "incremental kind (put an incremental_to_absolute transform before the sink)"


def is_metric(item: dict[str, Any]) -> bool:
    """True when the object holds a metric's value."""
    return any(kind in item for kind in (*_SIMPLE, _HISTOGRAM, *_UNUSED_KINDS))


def points(document: dict[str, Any], stamp_ms: int, passed_over: Counter[str]) -> list[Point]:
    """The points of an absolute counter, gauge or histogram."""
    item = document.get("metric", document)
    if not isinstance(item, dict):
        raise MalformedError("schema", "metric is no object")
    name = text_of(item.get("name"), "name")
    if item.get("namespace"):
        name = f"{text_of(item['namespace'], 'namespace')}_{name}"
    with naming(name):
        return _metric(name, item, stamp_ms, passed_over)


def _metric(name: str, item: dict[str, Any], stamp_ms: int, passed_over: Counter[str]) -> list[Point]:
    kind = item.get("kind", "absolute")
    if kind == "incremental":
        passed_over[_INCREMENTAL] += 1
        return []
    if kind != "absolute":
        raise MalformedError("schema", "kind is neither absolute nor incremental")
    labels, ts_ms = labels_of(item.get("tags")), time_ms(item.get("timestamp"), stamp_ms)
    for kind in (*_SIMPLE, _HISTOGRAM):
        body = item.get(kind)
        if isinstance(body, dict):
            if kind == _HISTOGRAM:
                return _histogram(name, body, labels, ts_ms)
            return [Point(name, labels, ts_ms, _number(body, "value"))]
    used = [kind for kind in _UNUSED_KINDS if kind in item]
    if not used:
        raise MalformedError("schema", "no value of a metric")
    passed_over[used[0]] += 1
    return []


def _number(body: dict[str, Any], key: str) -> float:
    """A number that must be there; Vector's JSON writes NaN, the mark of a series that has ended, as null."""
    return math.nan if key in body and body[key] is None else number(body.get(key))


def _histogram(name: str, body: dict[str, Any], labels: dict[str, str], ts_ms: int) -> list[Point]:
    buckets = objects_of(body.get("buckets"), "buckets")
    edges = [_edge(bucket.get("upper_limit")) for bucket in buckets]
    counts = [number(bucket.get("count")) for bucket in buckets]
    total = number(body.get("count"))
    # Vector counts each bucket alone. Counts of which the last, of all values, is the total are cumulative.
    is_cumulative = edges[-1:] == ["+Inf"] and counts[-1] == total < sum(counts)
    cumulative = counts if is_cumulative else list(accumulate(counts))
    samples = [Point(f"{name}_bucket", {**labels, "le": e}, ts_ms, c) for e, c in zip(edges, cumulative, strict=True)]
    samples.append(Point(f"{name}_count", labels, ts_ms, total))
    samples.append(Point(f"{name}_sum", labels, ts_ms, _number(body, "sum")))
    return samples


def _edge(limit: Any) -> str:
    """JSON has no infinity: the last bucket's limit comes as null or as a word."""
    if limit is None or (isinstance(limit, str) and "inf" in limit.lower()):
        return "+Inf"
    return f"{number(limit):.12g}"
