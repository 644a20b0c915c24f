"""OTLP metrics, as the OpenTelemetry Collector's Kafka exporter writes them: otlp_json, or otlp_proto.

Source: "Metrics Data Model" and `metrics.proto` of the OpenTelemetry specification.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import accumulate
from typing import Any

from infra.collect.formats.values import label_text, naming, number, objects_of, text_of, time_ms, with_prometheus_names
from infra.collect.points import Point
from infra.console.host import need
from streams.records.strict_json import MalformedError

_DELTA = ("AGGREGATION_TEMPORALITY_DELTA", 1, "1")
_CUMULATIVE = ("AGGREGATION_TEMPORALITY_CUMULATIVE", 2, "2")
_NOT_DELTA = "delta temporality (put a deltatocumulative processor before the exporter)"
_NOT_STATED = "no aggregationTemporality (it must be cumulative)"
_UNUSED_KINDS = {"exponentialHistogram": "exponential histogram (export explicit buckets)", "summary": "summary"}
# What identifies a series is also the scope that measured it; Prometheus names it so.
_SCOPE = "otel_scope_"
_FLAG_NO_RECORDED_VALUE = 1
_CAPITAL = re.compile("[A-Z]")


def decoded(value: bytes) -> Any:
    """otlp_proto as the document that otlp_json would be.

    Raises:
        MalformedError: `decode`.
        HarmonyError: the package for it is not installed.
    """
    metrics_pb2 = need("opentelemetry.proto.metrics.v1.metrics_pb2", "otlp_proto")
    to_dict = need("google.protobuf.json_format", "otlp_proto").MessageToDict
    message = metrics_pb2.MetricsData()
    try:
        message.ParseFromString(value)
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        raise MalformedError("decode", "neither JSON nor OTLP protobuf (Telegraf: data_format = 'json')") from None
    document = to_dict(message)
    if "resourceMetrics" not in document:
        raise MalformedError("schema", "an OTLP message without metrics")
    return document


def points(document: dict[str, Any], stamp_ms: int, passed_over: Counter[str]) -> list[Point]:
    """The points of all gauges, cumulative sums and cumulative histograms with explicit bounds.

    Names are taken as they stand. A data point without a recorded value, which is how a receiver marks a series that
    has ended or could not be read, has the value NaN, as in Prometheus.
    """
    samples: list[Point] = []
    for resource in objects_of(document.get("resourceMetrics"), "resourceMetrics"):
        of_resource = _attributes(resource.get("resource"))
        for scope in _parts(resource, "scopeMetrics"):
            shared = of_resource | _scope_labels(scope.get("scope"))
            for metric in _parts(scope, "metrics"):
                name = text_of(metric.get("name"), "a metric's name")
                with naming(name):
                    samples += _metric(name, metric, shared, stamp_ms, passed_over)
    return samples


def _parts(whole: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """An array of objects; its name in protobuf's spelling is refused, since nothing would be read without a word."""
    parts = whole.get(key)
    if parts is None and (snake := _CAPITAL.sub(r"_\g<0>", key).lower()) in whole:
        raise MalformedError("schema", f"{snake} must be written {key}")
    return objects_of(parts, key)


def _metric(
    name: str, metric: dict[str, Any], shared: dict[str, str], stamp_ms: int, passed_over: Counter[str]
) -> list[Point]:
    for kind in ("gauge", "sum", "histogram", *_UNUSED_KINDS):
        body = metric.get(kind)
        if body is None:
            continue
        if not isinstance(body, dict):
            raise MalformedError("schema", f"{kind} is no object")
        data = _parts(body, "dataPoints")
        unusable = _unusable(kind, body)
        if unusable:
            passed_over[unusable] += len(data)
            return []
        read = _histogram if kind == "histogram" else _number
        return [point for item in data for point in read(name, item, shared, stamp_ms)]
    return []


def _unusable(kind: str, body: dict[str, Any]) -> str:
    """Why the data points of a metric cannot be used; empty where they can."""
    if kind in _UNUSED_KINDS:
        return _UNUSED_KINDS[kind]
    temporality = body.get("aggregationTemporality")
    if kind == "gauge" or temporality in _CUMULATIVE:
        return ""
    return _NOT_DELTA if temporality in _DELTA else _NOT_STATED


def _number(name: str, item: dict[str, Any], shared: dict[str, str], stamp_ms: int) -> list[Point]:
    value = item.get("asDouble")
    value = item.get("asInt") if value is None else value
    recorded = math.nan if value is None or _is_blank(item) else number(value)
    return [Point(name, shared | _attributes(item), _time(item, stamp_ms), recorded)]


def _histogram(name: str, item: dict[str, Any], shared: dict[str, str], stamp_ms: int) -> list[Point]:
    labels, ts_ms = shared | _attributes(item), _time(item, stamp_ms)
    if _is_blank(item):
        return [Point(f"{name}_count", labels, ts_ms, math.nan)]
    bounds, counts = item.get("explicitBounds") or [], item.get("bucketCounts") or []
    if not isinstance(bounds, list) or not isinstance(counts, list) or (counts and len(counts) != len(bounds) + 1):
        raise MalformedError("schema", "bucketCounts must be one more than explicitBounds")
    edges = [*(f"{number(bound):.12g}" for bound in bounds), "+Inf"]
    cumulative = list(accumulate(number(count) for count in counts))
    buckets = zip(edges, cumulative, strict=False)
    samples = [Point(f"{name}_bucket", {**labels, "le": le}, ts_ms, count) for le, count in buckets]
    # Protobuf's JSON leaves out a count of 0; the buckets add up to the count.
    count = item.get("count")
    everything = number(count) if count is not None else cumulative[-1] if cumulative else 0.0
    samples.append(Point(f"{name}_count", labels, ts_ms, everything))
    if item.get("sum") is not None:
        samples.append(Point(f"{name}_sum", labels, ts_ms, number(item["sum"])))
    return samples


def _is_blank(item: dict[str, Any]) -> bool:
    """True for a data point that its flags mark as one without a recorded value."""
    flags = item.get("flags")
    return flags is not None and number(flags) % 2 == _FLAG_NO_RECORDED_VALUE


def _time(item: dict[str, Any], stamp_ms: int) -> int:
    at = item.get("timeUnixNano")
    # Zero means that the time is not known.
    return stamp_ms if at in (None, 0, "0") else time_ms(at, stamp_ms)


def _scope_labels(scope: Any) -> dict[str, str]:
    if not isinstance(scope, dict):
        return {}
    own = {_SCOPE + name: label_text(scope[name]) for name in ("name", "version") if scope.get(name)}
    return own | {_SCOPE + name: text for name, text in _attributes(scope).items()}


def _attributes(holder: Any) -> dict[str, str]:
    """Attributes under their own names with underscores, and under the names that Prometheus users know."""
    labels: dict[str, str] = {}
    for attribute in objects_of(holder.get("attributes") if isinstance(holder, dict) else None, "attributes"):
        name, any_value = text_of(attribute.get("key"), "an attribute's key"), attribute.get("value")
        if isinstance(any_value, dict):
            # Of a list or a map all counts: what differs in it only is another series.
            for value in any_value.values():
                if value is not None:
                    labels[name] = label_text(value)
    return with_prometheus_names(labels)
