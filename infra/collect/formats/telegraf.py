"""Telegraf's JSON, single or batch: `{name, tags, fields, timestamp}`."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from infra.collect.formats.values import labels_of, naming, number, objects_of, parse_number, text_of, time_ms
from infra.collect.points import Point
from streams.records.strict_json import HugeInt, MalformedError

# The measurement under which its Prometheus input puts everything with metric_version = 2, unless it is renamed.
_PROMETHEUS = "prometheus"
_VALUE_FIELDS = ("counter", "gauge", "value")
_OF_HISTOGRAMS = ("count", "sum")


def points(document: dict[str, Any], stamp_ms: int, _: Counter[str]) -> list[Point]:
    """The numeric fields of all metrics.

    A field is named `<measurement>_<field>`, or as the field alone where metric_version = 2 wrote it. A measurement may
    have any name (`name_override`), so such a field comes under both names: a profile reads at most one of them.
    """
    items = objects_of(document["metrics"], "metrics") if "metrics" in document else [document]
    samples: list[Point] = []
    for item in items:
        measurement = text_of(item.get("name"), "name")
        with naming(measurement):
            samples += _metric(measurement, item, stamp_ms)
    return samples


def _metric(measurement: str, item: dict[str, Any], stamp_ms: int) -> list[Point]:
    fields = item.get("fields")
    if not isinstance(fields, dict):
        raise MalformedError("schema", "fields is no object")
    labels, ts_ms = _labels(item.get("tags")), time_ms(item.get("timestamp"), stamp_ms)
    samples = []
    for field, value in fields.items():
        if isinstance(value, bool) or (isinstance(value, str) and not isinstance(value, HugeInt)) or value is None:
            continue
        names, extra = _series(measurement, field)
        samples += [Point(name, labels | extra, ts_ms, number(value)) for name in names]
    return samples


def _series(measurement: str, field: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names that a field's series may have, and labels that its name holds."""
    if measurement == _PROMETHEUS:
        return (field,), {}
    if field in _VALUE_FIELDS:
        return (measurement,), {}
    if field in _OF_HISTOGRAMS:
        return (f"{measurement}_{field}",), {}
    # metric_version = 1 makes a field of every bucket, named by its bound.
    if parse_number(field) is not None:
        return (f"{measurement}_bucket",), {"le": field}
    return (f"{measurement}_{field}", field), {}


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
