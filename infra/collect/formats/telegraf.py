"""Telegraf's JSON, single or batch: `{name, tags, fields, timestamp}`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from infra.collect.formats.values import labels_of, number, objects_of, text_of, time_ms
from infra.collect.points import Point
from streams.records.strict_json import HugeInt, MalformedError

# The measurement under which its Prometheus input puts everything with metric_version = 2.
_PROMETHEUS = "prometheus"
_VALUE_FIELDS = ("counter", "gauge", "value")
_OF_HISTOGRAMS = ("count", "sum")


def points(document: dict[str, Any], stamp_ms: int, _: dict[str, int]) -> list[Point]:
    """The numeric fields of all metrics: Prometheus' under their own names, others as `<measurement>_<field>`."""
    items = objects_of(document["metrics"], "metrics") if "metrics" in document else [document]
    return [point for item in items for point in _metric(item, stamp_ms)]


def _metric(item: dict[str, Any], stamp_ms: int) -> list[Point]:
    measurement = text_of(item.get("name"), "name")
    fields = item.get("fields")
    if not isinstance(fields, dict):
        raise MalformedError("schema", f"{measurement}: fields is no object")
    labels, ts_ms = _labels(item.get("tags")), time_ms(item.get("timestamp"), stamp_ms)
    samples = []
    for field, value in fields.items():
        if isinstance(value, bool) or (isinstance(value, str) and not isinstance(value, HugeInt)) or value is None:
            continue
        name, extra = _series(measurement, field)
        samples.append(Point(name, labels | extra, ts_ms, number(value)))
    return samples


def _series(measurement: str, field: str) -> tuple[str, dict[str, str]]:
    if measurement == _PROMETHEUS:
        return field, {}
    if field in _VALUE_FIELDS:
        return measurement, {}
    if field in _OF_HISTOGRAMS:
        return f"{measurement}_{field}", {}
    try:
        # metric_version = 1 makes a field of every bucket, named by its bound.
        float(field)
    except ValueError:
        return f"{measurement}_{field}", {}
    return f"{measurement}_bucket", {"le": field}


def _labels(tags: Any) -> dict[str, str]:
    """Tags; the exporter's address, which Telegraf calls `url`, or else the host as the instance."""
    labels = labels_of(tags)
    if "instance" not in labels:
        instance = _address(labels.get("url", "")) or labels.get("host")
        if instance:
            labels["instance"] = instance
    return labels


def _address(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        # Such as a bracket that is never closed: whoever writes into the topic may send any text as a tag.
        return ""
