"""What others write into Kafka: each format's record comes to the same telemetry as the exporter's own text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.formats import vector as raw_vector
from infra.collect.formats.raw_record import UNFORESEEN, read_raw
from infra.collect.formats.values import time_ms
from infra.collect.mapping.readings import SourceReading
from infra.collect.points import Point
from streams.records.strict_json import MalformedError
from tests.infra.collect.samples import TS_MS, VLLM, packed, reader, readings_of
from tests.infra.collect.writers import (
    LABELS,
    RFC,
    attributes,
    families,
    otlp,
    samples,
    telegraf_v1,
    telegraf_v2,
    vector,
)

STAMP_MS = TS_MS + 900


def truth() -> list[SourceReading]:
    return readings_of(VLLM, reader("vllm"), **LABELS)


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
    refused = ""
    try:
        read_raw(json.dumps(document).encode(), STAMP_MS)
    except MalformedError as error:
        refused = error.detail
    assert not refused.startswith(UNFORESEEN)


@given(st.text("[]:/@%?#ab1\u2100\ud800", max_size=12) | st.text(max_size=12))
def test_a_tag_that_is_no_address_costs_telegrafs_metric_no_more_than_the_address(rest: str) -> None:
    item = {"name": "prometheus", "tags": {"url": f"http://{rest}", "host": "h"}, "fields": {"x": 3}}
    (point,) = read_raw(json.dumps(item).encode(), STAMP_MS).points
    assert (point.name, point.value) == ("x", 3.0)
    assert point.labels["instance"]


def test_what_no_reader_thought_of_refuses_that_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Point]:
        raise KeyError("x")

    monkeypatch.setattr(raw_vector, "points", broken)
    with pytest.raises(MalformedError, match=f"{UNFORESEEN}: KeyError"):
        read_raw(b'{"name":"x","gauge":{"value":1}}', STAMP_MS)


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
