"""What others write into Kafka: each format's record comes to the same telemetry as the exporter's own text."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.exposition import read_exposition
from infra.collect.points import Point
from infra.collect.raw_record import read_raw
from infra.collect.raw_values import time_ms
from infra.collect.readings import Reading
from streams.strict_json import MalformedError
from tests.collect.samples import TS_MS, VLLM, packed, reader, readings_of

STAMP_MS = TS_MS + 900
LABELS = {"namespace": "prod", "pod": "chat-7b-5d9c7b6f4-x2k8p"}
RFC = datetime.fromtimestamp(TS_MS / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def truth() -> list[Reading]:
    return readings_of(VLLM, reader("vllm"), **LABELS)


def samples() -> list[Point]:
    return read_exposition(VLLM, reader("vllm").wanted, TS_MS, {"instance": "h:8000", **LABELS})


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


def same(points: list[Point]) -> None:
    """The points mean what the exporter's own text means."""
    readings = reader("vllm").read(points)
    assert readings == truth()
    assert packed(readings) == packed(truth())


def test_otlp_json() -> None:
    raw = read_raw(json.dumps(otlp()).encode(), STAMP_MS)
    assert raw.passed_over == {}
    same(raw.points)


def test_otlp_proto_is_read_as_its_json() -> None:
    pytest.importorskip("opentelemetry.proto.metrics.v1", reason="opentelemetry-proto (extra collect) is not installed")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    body = ParseDict(otlp(), MetricsData()).SerializeToString()
    assert read_raw(body, STAMP_MS) == read_raw(json.dumps(otlp()).encode(), STAMP_MS)
    same(read_raw(body, STAMP_MS, "otlp_proto").points)
    for bad, code in ((b"\x0a\xff", "decode"), (b"", "schema"), (b"hello", "decode")):
        with pytest.raises(MalformedError) as caught:
            read_raw(bad, STAMP_MS)
        assert caught.value.code == code


@pytest.mark.parametrize("temporality", [1, "AGGREGATION_TEMPORALITY_DELTA"])
def test_delta_sums_are_no_counters(temporality: object) -> None:
    raw = read_raw(json.dumps(otlp(temporality)).encode(), STAMP_MS)
    assert list(raw.passed_over) == ["delta temporality (put a deltatocumulative processor before the exporter)"]
    assert {p.name for p in raw.points} == {n for n, f in families().items() if "points" in f and "_total" not in n}


def test_a_record_of_nothing_but_deltas_is_refused_with_the_remedy() -> None:
    document = otlp(1)
    metrics = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    metrics[:] = [m for m in metrics if "gauge" not in m]
    with pytest.raises(MalformedError, match="deltatocumulative") as caught:
        read_raw(json.dumps(document).encode(), STAMP_MS)
    assert caught.value.code == "schema"


def test_opentelemetrys_own_names() -> None:
    point = {"asInt": "4294967296", "timeUnixNano": str(TS_MS * 10**6), "attributes": attributes({"hw.id": "GPU-a"})}
    power = {"asDouble": 350.5, "attributes": attributes({"hw.id": "GPU-a", "hw.type": "gpu"})}
    document = {
        "resourceMetrics": [{
            "resource": {"attributes": attributes({"host.name": "n1"})},
            "scopeMetrics": [{"metrics": [
                {"name": "hw.gpu.memory.usage", "sum": {"dataPoints": [point], "aggregationTemporality": 2}},
                {"name": "hw.power", "gauge": {"dataPoints": [{**power, "timeUnixNano": TS_MS * 10**6}]}},
                {"name": "hw.temperature", "gauge": {"dataPoints": [{"attributes": []}]}},
                {"name": "x", "summary": {}},
            ]}],
        }]
    }  # fmt: skip
    raw = read_raw(json.dumps(document).encode(), STAMP_MS)
    assert raw.passed_over == {"summary": 1}
    (reading,) = reader("otel-gpu", workload="w").read(raw.points)
    assert (reading.source, dict(reading.values)) == ("n1/GPU-a", {"memory_used_bytes": 2.0**32, "power_w": 350.5})


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


@pytest.mark.parametrize("items", [telegraf_v1(), telegraf_v2()], ids=["metric_version 1", "metric_version 2"])
def test_telegraf(items: list[dict[str, Any]]) -> None:
    batch = read_raw(json.dumps({"metrics": items}).encode(), STAMP_MS)
    same(batch.points)
    one_by_one = [p for item in items for p in read_raw(json.dumps(item).encode(), STAMP_MS).points]
    assert one_by_one == batch.points


def test_telegrafs_nvidia_smi_input() -> None:
    item = {
        "name": "nvidia_smi", "tags": {"host": "n1", "index": "0", "uuid": "GPU-a", "pstate": "P0"},
        "fields": {"utilization_gpu": 87, "memory_used": 1024, "memory_total": 4096, "power_draw": 300.25,
                   "temperature_gpu": 61, "driver_version": "590.48", "is_up": True},
        "timestamp": TS_MS // 1000,
    }  # fmt: skip
    (reading,) = reader("nvidia-smi", workload="w").read(read_raw(json.dumps(item).encode(), STAMP_MS).points)
    assert reading.source == "n1/0/GPU-a"
    assert reading.values == {
        "sm_active_ratio": pytest.approx(0.87), "memory_used_bytes": 2.0**30, "memory_total_bytes": 2.0**32,
        "power_w": 300.25, "temperature_c": 61.0,
    }  # fmt: skip


def test_prometheus_kafka_adapter() -> None:
    records = [
        {"timestamp": RFC, "value": f"{p.value:g}" if p.value < 1e5 else str(int(p.value)), "name": p.name,
         "labels": {"__name__": p.name, **p.labels}}
        for p in samples()
    ]  # fmt: skip
    same([p for record in records for p in read_raw(json.dumps(record).encode(), STAMP_MS).points])


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


def test_vector() -> None:
    same([p for item in vector() for p in read_raw(json.dumps(item).encode(), STAMP_MS).points])
    wrapped = [{"metric": item} for item in vector()]
    same(read_raw(json.dumps(wrapped).encode(), STAMP_MS).points)


def test_vectors_namespace_increments_and_other_kinds() -> None:
    item: dict[str, Any] = {
        "name": "cpu",
        "namespace": "host",
        "kind": "absolute",
        "gauge": {"value": 1},
        "tags": {"a": ["x", "y"]},
    }
    (point,) = read_raw(json.dumps(item).encode(), STAMP_MS).points
    assert point == Point("host_cpu", {"a": "y"}, STAMP_MS, 1.0)
    for changed, words in (({"kind": "incremental"}, "incremental_to_absolute"), ({"gauge": None, "set": {}}, "set")):
        with pytest.raises(MalformedError, match=words):
            read_raw(json.dumps({**item, **changed}).encode(), STAMP_MS)


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        (b"{", "decode", "not JSON"),
        (b"[1]", "schema", "neither an object"),
        (b"{}", "schema", "no known format; the keys are none"),
        (b'{"a":1,"b":2}', "schema", "the keys are a, b"),
        (b'{"name":"x","fields":3}', "schema", "fields is no object"),
        (b'{"name":"x","fields":{"a":1},"timestamp":"soon"}', "schema", "'soon' is no time"),
        (b'{"name":"x","labels":{},"value":"seven"}', "schema", "'seven' is no number"),
        (b'{"name":"","labels":{},"value":"7"}', "schema", "name is missing"),
        (b'{"name":"x","name":"y","labels":{},"value":"7"}', "schema", "stands twice"),
        (b'{"name":"x","labels":{},"value":NaN}', "non_finite", "NaN"),
        (b"[" * 40, "nesting", "levels deep"),
        (b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{}}]}]}]}', "schema", "a metric's name"),
        (b'{"resourceMetrics":3}', "schema", "resourceMetrics is no array"),
        (b'{"name":"x","gauge":{"value":true}}', "schema", "no number"),
    ],
)
def test_what_cannot_be_read_says_why(value: bytes, code: str, words: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_raw(value, STAMP_MS)
    assert caught.value.code == code
    assert words in caught.value.detail


WORDS = """
    resourceMetrics scopeMetrics metrics name gauge sum histogram dataPoints attributes key value asDouble fields
    timeUnixNano tags timestamp labels counter kind metric aggregated_histogram buckets count explicitBounds
    bucketCounts resource
"""
KEYS = st.sampled_from(WORDS.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@given(JSON)
def test_any_json_is_read_or_refused(document: object) -> None:
    with suppress(MalformedError):
        read_raw(json.dumps(document).encode(), STAMP_MS)


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        (TS_MS // 1000, TS_MS),
        (TS_MS, TS_MS),
        (TS_MS * 1000, TS_MS),
        (str(TS_MS * 10**6), TS_MS),
        (TS_MS / 1000 + 0.25, TS_MS + 250),
        (RFC, TS_MS),
        (RFC.replace("Z", ".123456789Z"), TS_MS + 123),
        (RFC.replace("Z", "+00:00"), TS_MS),
        (RFC.replace("Z", ".5"), TS_MS + 500),
        (None, STAMP_MS),
    ],
)
def test_times_in_every_unit(written: object, ms: int) -> None:
    assert time_ms(written, STAMP_MS) == ms


@pytest.mark.parametrize("written", [-1, 10**40, "x", True, [], float("1e300")])
def test_what_is_no_time(written: object) -> None:
    with pytest.raises(MalformedError):
        time_ms(written, STAMP_MS)
