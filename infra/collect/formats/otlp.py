"""OTLP metrics, as the OpenTelemetry Collector's Kafka exporter writes them: otlp_json, or otlp_proto."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from infra.collect.formats.values import number, objects_of, text_of, time_ms
from infra.collect.points import Point
from infra.console.host import need
from streams.records.strict_json import MalformedError

# What the Collector's receivers and processors know, under the names by which Prometheus users know it.
_LABELS = {
    "k8s.namespace.name": "namespace",
    "k8s.pod.name": "pod",
    "k8s.deployment.name": "deployment",
    "k8s.statefulset.name": "statefulset",
    "k8s.container.name": "container",
    "k8s.node.name": "node",
    "service.instance.id": "instance",
    "service.name": "job",
}
_DELTA = ("AGGREGATION_TEMPORALITY_DELTA", 1, "1")
_NOT_DELTA = "delta temporality (put a deltatocumulative processor before the exporter)"
_UNUSED_KINDS = ("exponentialHistogram", "summary")


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
        raise MalformedError("decode", "neither JSON nor OTLP protobuf") from None
    document = to_dict(message)
    if "resourceMetrics" not in document:
        raise MalformedError("schema", "an OTLP message without metrics")
    return document


def points(document: dict[str, Any], stamp_ms: int, passed_over: dict[str, int]) -> list[Point]:
    """The points of all gauges, cumulative sums and cumulative histograms with explicit bounds."""
    samples: list[Point] = []
    for resource in objects_of(document.get("resourceMetrics"), "resourceMetrics"):
        described = resource.get("resource") or {}
        shared = _attributes(described.get("attributes") if isinstance(described, dict) else None)
        for scope in objects_of(resource.get("scopeMetrics"), "scopeMetrics"):
            for metric in objects_of(scope.get("metrics"), "metrics"):
                samples += _metric(metric, shared, stamp_ms, passed_over)
    return samples


def _metric(metric: dict[str, Any], shared: dict[str, str], stamp_ms: int, passed_over: dict[str, int]) -> list[Point]:
    name = text_of(metric.get("name"), "a metric's name")
    for kind in ("gauge", "sum", "histogram"):
        body = metric.get(kind)
        if body is None:
            continue
        if not isinstance(body, dict):
            raise MalformedError("schema", f"{kind} is no object")
        data = objects_of(body.get("dataPoints"), "dataPoints")
        if kind != "gauge" and body.get("aggregationTemporality") in _DELTA:
            passed_over[_NOT_DELTA] = passed_over.get(_NOT_DELTA, 0) + len(data)
            return []
        if kind == "sum" and body.get("isMonotonic") and not name.endswith("_total"):
            name += "_total"
        read = _histogram if kind == "histogram" else _number
        return [point for item in data for point in read(name, item, shared, stamp_ms)]
    for kind in _UNUSED_KINDS:
        if kind in metric:
            passed_over[kind] = passed_over.get(kind, 0) + 1
    return []


def _number(name: str, item: dict[str, Any], shared: dict[str, str], stamp_ms: int) -> list[Point]:
    value = item.get("asDouble", item.get("asInt"))
    if value is None:
        # A point without a value is how OTLP marks a series that has ended.
        return []
    return [Point(name, shared | _attributes(item.get("attributes")), _time(item, stamp_ms), number(value))]


def _histogram(name: str, item: dict[str, Any], shared: dict[str, str], stamp_ms: int) -> list[Point]:
    bounds, counts = item.get("explicitBounds") or [], item.get("bucketCounts") or []
    if not isinstance(bounds, list) or not isinstance(counts, list) or (counts and len(counts) != len(bounds) + 1):
        raise MalformedError("schema", f"{name}: bucketCounts must be one more than explicitBounds")
    labels, ts_ms = shared | _attributes(item.get("attributes")), _time(item, stamp_ms)
    edges = [*(f"{number(bound):.12g}" for bound in bounds), "+Inf"]
    cumulative = accumulate(number(count) for count in counts)
    buckets = zip(edges, cumulative, strict=False)
    samples = [Point(f"{name}_bucket", {**labels, "le": le}, ts_ms, count) for le, count in buckets]
    samples.append(Point(f"{name}_count", labels, ts_ms, number(item.get("count", 0))))
    if "sum" in item:
        samples.append(Point(f"{name}_sum", labels, ts_ms, number(item["sum"])))
    return samples


def _time(item: dict[str, Any], stamp_ms: int) -> int:
    at = item.get("timeUnixNano")
    # Zero means that the time is not known.
    return stamp_ms if at in (None, 0, "0") else time_ms(at, stamp_ms)


def _attributes(value: Any) -> dict[str, str]:
    """Attributes under their own names with underscores, and under the names that Prometheus users know."""
    labels: dict[str, str] = {}
    for attribute in objects_of(value, "attributes"):
        name = text_of(attribute.get("key"), "an attribute's key")
        any_value = attribute.get("value")
        if not isinstance(any_value, dict):
            continue
        scalar = next(
            (any_value[k] for k in ("stringValue", "intValue", "doubleValue", "boolValue") if k in any_value), None
        )
        if scalar is None:
            continue
        text = scalar if type(scalar) is str else str(scalar).lower() if isinstance(scalar, bool) else str(scalar)
        labels[name.replace(".", "_")] = text
        if name in _LABELS:
            labels.setdefault(_LABELS[name], text)
    return labels
