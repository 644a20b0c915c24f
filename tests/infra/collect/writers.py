"""The sample of a vLLM server as other collectors write it into Kafka, by encoders of our own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from infra.collect.formats.exposition import read_exposition
from infra.collect.points import Point
from tests.infra.collect.samples import TS_MS, VLLM, reader

LABELS = {"namespace": "prod", "pod": "chat-7b-5d9c7b6f4-x2k8p"}
RFC = datetime.fromtimestamp(TS_MS / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def samples() -> list[Point]:
    return read_exposition(VLLM, reader("vllm").reads, TS_MS, {"instance": "h:8000", **LABELS})


def families() -> dict[str, dict[str, Any]]:
    """Histograms of the sample by base name, as their parts; all else by its own name."""
    found: dict[str, dict[str, Any]] = {}
    for p in samples():
        for suffix in ("_bucket", "_count", "_sum"):
            base = p.name.removesuffix(suffix)
            if base != p.name and base.endswith("_seconds"):
                part = found.setdefault(
                    base, {"buckets": {}, "labels": {k: v for k, v in p.labels.items() if k != "le"}}
                )
                if suffix == "_bucket":
                    part["buckets"][p.labels["le"]] = p.value
                else:
                    part[suffix[1:]] = p.value
                break
        else:
            found.setdefault(p.name, {"points": []})["points"].append(p)
    return found


def alone(buckets: dict[str, float]) -> list[float]:
    """Cumulative counts -> counts of each bucket."""
    values = list(buckets.values())
    return [b - a for a, b in zip([0.0, *values], values, strict=False)]


def attributes(labels: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": k, "value": {"stringValue": v}} for k, v in labels.items()]


def otlp(temporality: object = 2) -> dict[str, Any]:
    """The sample as the Collector's Prometheus receiver and Kafka exporter make it."""
    nanos = str(TS_MS * 1_000_000)
    own = ("engine", "model_name", "finished_reason")
    metrics = []
    for name, family in families().items():
        if "points" in family:
            data = [
                {"attributes": attributes({k: v for k, v in p.labels.items() if k in own}), "timeUnixNano": nanos,
                 "asDouble": p.value}
                for p in family["points"]
            ]  # fmt: skip
            counts = name.endswith("_total")
            body = {"aggregationTemporality": temporality, "isMonotonic": True} if counts else {}
            metrics.append({"name": name, "sum" if counts else "gauge": {"dataPoints": data, **body}})
        else:
            point = {
                "attributes": attributes({k: v for k, v in family["labels"].items() if k in own}),
                "timeUnixNano": nanos, "count": str(int(family["count"])), "sum": family["sum"],
                "bucketCounts": [str(int(n)) for n in alone(family["buckets"])],
                "explicitBounds": [float(le) for le in family["buckets"] if le != "+Inf"],
            }  # fmt: skip
            metrics.append({"name": name, "histogram": {"dataPoints": [point], "aggregationTemporality": temporality}})
    resource = attributes(
        {
            "k8s.namespace.name": "prod",
            "k8s.pod.name": LABELS["pod"],
            "service.instance.id": "h:8000",
            "service.name": "v",
        }
    )
    return {"resourceMetrics": [{"resource": {"attributes": resource}, "scopeMetrics": [{"metrics": metrics}]}]}


def telegraf_v2() -> list[dict[str, Any]]:
    return [
        {"name": "prometheus", "tags": {**p.labels, "url": "http://h:8000/metrics", "host": "telegraf-1"},
         "fields": {p.name: p.value}, "timestamp": TS_MS // 1000}
        for p in samples()
    ]  # fmt: skip


def telegraf_v1() -> list[dict[str, Any]]:
    found = []
    for name, family in families().items():
        if "points" in family:
            kind = "counter" if name.endswith("_total") else "gauge"
            found += [{"name": name, "tags": dict(p.labels), "fields": {kind: p.value}} for p in family["points"]]
        else:
            fields = {**family["buckets"], "count": family["count"], "sum": family["sum"]}
            found.append({"name": name, "tags": family["labels"], "fields": fields})
    return [{**item, "timestamp": TS_MS * 1_000_000} for item in found]


def vector() -> list[dict[str, Any]]:
    found = []
    for name, family in families().items():
        head = {"name": name, "timestamp": RFC, "kind": "absolute"}
        if "points" in family:
            kind = "counter" if name.endswith("_total") else "gauge"
            found += [{**head, "tags": dict(p.labels), kind: {"value": p.value}} for p in family["points"]]
        else:
            buckets = [
                {"upper_limit": None if le == "+Inf" else float(le), "count": int(n)}
                for le, n in zip(family["buckets"], alone(family["buckets"]), strict=True)
            ]
            body = {"buckets": buckets, "count": int(family["count"]), "sum": family["sum"]}
            found.append({**head, "tags": family["labels"], "aggregated_histogram": body})
    return found
