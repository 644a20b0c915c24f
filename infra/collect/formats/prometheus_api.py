"""Answers of Prometheus' HTTP API kept as documents: whole ones, or single series of them.

Source: "HTTP API" of Prometheus' documentation; VictoriaMetrics exports the same series with times in an array apart.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from infra.collect.formats.values import label_text, labels_of, naming, number, objects_of, time_ms
from infra.collect.points import Point
from streams.records.strict_json import MalformedError

_WITH_SERIES = ("vector", "matrix")
_NATIVE = "native histogram"
_NAMELESS = "a series without a name (ask for a metric, not for an expression of it)"


def is_answer(item: dict[str, Any]) -> bool:
    """True for an answer, and for a series of one."""
    answer = "status" in item and ("data" in item or "error" in item)
    return answer or ("metric" in item and ("value" in item or "values" in item))


def points(document: dict[str, Any], stamp_ms: int, passed_over: Counter[str]) -> list[Point]:
    """The samples of all series, each with its own time."""
    if "metric" in document:
        return series_points(document, stamp_ms, passed_over)
    if document.get("status") != "success":
        raise MalformedError("schema", f"the server's answer is an error: {label_text(document.get('error'))[:200]}")
    data = document.get("data")
    if not isinstance(data, dict) or data.get("resultType") not in _WITH_SERIES:
        raise MalformedError("schema", "the server's answer holds no series; keep that of api/v1/query or query_range")
    found = objects_of(data.get("result"), "result")
    return [point for series in found for point in series_points(series, stamp_ms, passed_over)]


def series_points(series: dict[str, Any], stamp_ms: int, passed_over: Counter[str]) -> list[Point]:
    """The samples of one series; without a name it has none.

    Raises:
        MalformedError: `schema`, or `range` for a time.
    """
    metric = series.get("metric")
    if not isinstance(metric, dict) or not all(type(text) is str for text in metric.values()):
        raise MalformedError("schema", "the metric of a series is no mapping of names to texts")
    labels = labels_of(metric)
    name = labels.pop("__name__", "")
    native = not series.keys().isdisjoint(("histogram", "histograms"))
    for reason in (_NATIVE,) * native + (_NAMELESS,) * (not name):
        passed_over[reason] += 1
    with naming(name or "a series"):
        points = [Point(name, labels, time_ms(at, stamp_ms), number(value)) for at, value in _pairs(series)]
    return points if name else []


def _pairs(series: dict[str, Any]) -> list[tuple[Any, Any]]:
    values = series.get("values", [series["value"]] if "value" in series else [])
    times = series.get("timestamps")
    if times is not None and isinstance(times, list) and isinstance(values, list) and len(times) == len(values):
        return list(zip(times, values, strict=True))
    if times is None and isinstance(values, list) and all(isinstance(v, list) and len(v) == 2 for v in values):
        return [(at, value) for at, value in values]
    raise MalformedError("schema", "the values of a series are no pairs of a time and a value")
