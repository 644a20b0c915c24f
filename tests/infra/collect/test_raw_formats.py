"""What others write into Kafka: each format's record comes to the same telemetry as the exporter's own text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.formats import vector as raw_vector
from infra.collect.formats.raw_record import NOT_MEASURED, UNFORESEEN, read_raw
from infra.collect.formats.values import time_ms
from infra.collect.mapping.readings import SourceReading
from infra.collect.points import Point, is_measured
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
                {"name": "x", "summary": {"dataPoints": [{}]}},
            ]}],
        }]
    }  # fmt: skip
    raw = read_raw(json.dumps(document).encode(), STAMP_MS)
    assert raw.passed_over == {"summary": 1, NOT_MEASURED: 1}
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


@pytest.mark.parametrize("measurement", ["prometheus", "engines", "x_prometheus", "gauge"])
def test_telegrafs_metric_version_2_under_any_measurement(measurement: str) -> None:
    items = [{**item, "name": measurement} for item in telegraf_v2()]
    same(read_raw(json.dumps({"metrics": items}).encode(), STAMP_MS).points)


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("a", ["m_a", "a"]), ("gauge", ["m"]), ("counter", ["m"]), ("value", ["m"]), ("count", ["m_count"]),
        ("sum", ["m_sum"]), ("0.5", ["m_bucket"]), ("+Inf", ["m_bucket"]), ("1_0", ["m_1_0", "1_0"]),
    ],
)  # fmt: skip
def test_names_of_telegrafs_fields(field: str, names: list[str]) -> None:
    raw = read_raw(json.dumps({"name": "m", "fields": {field: 4}}).encode(), STAMP_MS)
    assert [(p.name, p.value) for p in raw.points] == [(name, 4.0) for name in names]


def test_telegrafs_fields_that_are_no_numbers_are_passed_over() -> None:
    item = {"name": "m", "fields": {"a": "4", "b": True, "c": None, "d": 4, "e": 9223372036854775794}}
    assert [p.name for p in read_raw(json.dumps(item).encode(), STAMP_MS).points] == ["m_d", "d", "m_e", "e"]


def test_tags_with_dots_have_prometheus_names_too() -> None:
    tags = {"k8s.namespace.name": "n", "k8s.pod.name": "chat-0"}
    item = {"name": "prometheus", "tags": tags, "fields": {"vllm:num_requests_running": 4}}
    (reading,) = reader("vllm").read(read_raw(json.dumps(item).encode(), STAMP_MS).points)
    assert (reading.workload, reading.source) == ("n/chat", "chat-0")


@pytest.mark.parametrize(
    "record",
    [
        {"name": "a", "kind": "absolute", "gauge": {"value": None}},
        {"name": "a", "kind": "absolute", "counter": {"value": None}},
        {"name": "a", "labels": {}, "value": "NaN"},
        {"name": "a", "labels": {}, "value": "+Inf"},
        {"name": "a", "labels": {}, "value": "9223372036854775794"},
    ],
)
def test_what_stands_for_no_value_is_a_point_that_is_no_measurement(record: dict[str, Any]) -> None:
    raw = read_raw(json.dumps(record).encode(), STAMP_MS)
    assert [(p.name, is_measured(p.value)) for p in raw.points] == [("a", False)]
    assert raw.passed_over == {NOT_MEASURED: 1}


@pytest.mark.parametrize(
    ("counts", "total", "cumulative"),
    [
        ([80, 15, 5], 100, [80, 95, 100]),  # as Vector writes it
        ([80, 95, 100], 100, [80, 95, 100]),  # added up already
        ([1, 2, 3], 5, [1, 3, 6]),  # read while it was counted: the total lags behind
        ([80, 15, 5], 99, [80, 95, 100]),
        ([0, 0, 100], 100, [0, 0, 100]),
        ([0, 0, 0], 0, [0, 0, 0]),
    ],
)
def test_buckets_of_vector_are_added_up_once(counts: list[int], total: int, cumulative: list[int]) -> None:
    limits = (0.5, 1.0, None)
    buckets = [{"upper_limit": limit, "count": n} for limit, n in zip(limits, counts, strict=True)]
    item = {"name": "h", "kind": "absolute", "aggregated_histogram": {"buckets": buckets, "count": total, "sum": None}}
    points = read_raw(json.dumps(item).encode(), STAMP_MS).points
    assert [(p.labels["le"], p.value) for p in points[:3]] == list(zip(("0.5", "1", "+Inf"), cumulative, strict=True))
    assert (points[3].name, points[3].value) == ("h_count", total)
    assert (points[4].name, is_measured(points[4].value)) == ("h_sum", False)


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
        (b'{"name":"x","gauge":{"value":true}}', "schema", "x: 'true' is no number"),
        (b'{"name":"x","gauge":{}}', "schema", "x: 'null' is no number"),
        (b'{"name":"x","kind":"delta","gauge":{"value":1}}', "schema", "x: kind is neither"),
        (b'{"name":"x","labels":{},"value":"4,0"}', "schema", "x: '4,0' is no number"),
        (b'{"name":"x","labels":{},"value":"4_0"}', "schema", "x: '4_0' is no number"),
        (b'{"name":"x","labels":{},"value":" 4"}', "schema", "x: ' 4' is no number"),
        (b'{"name":"x","labels":{},"value":"1e999"}', "schema", "x: '1e999' is no number"),
        (b'{"name":"x","labels":{},"value":"4","timestamp":"0001-01-01T00:00:00Z"}', "range", "x: 0001-01-01"),
        (b'{"name":"x","fields":{"a":{"b":1}}}', "schema", "is no number"),
        (b'{"name":"x","fields":{"a":1},"timestamp":1e29}', "range", "x: 1e+29 is no time"),
        (b"cpu,host=a x=1 1763636415000000000", "decode", "neither JSON nor OTLP protobuf (Telegraf: data_format"),
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
        (TS_MS * 10**6 + 499_999, TS_MS),
        (f"{TS_MS / 1000 + 0.25}", TS_MS + 250),
        (f"{TS_MS / 1e9:.15f}e9", TS_MS),
        (None, STAMP_MS),
    ],
)
def test_times_in_every_unit(written: object, ms: int) -> None:
    assert time_ms(written, STAMP_MS) == ms


@pytest.mark.parametrize(
    "written", [-1, 10**40, 10**23, "x", True, [], float("1e300"), "1_0", "٣", "NaN", "1969-12-31T23:59:59Z"]
)
def test_what_is_no_time(written: object) -> None:
    with pytest.raises(MalformedError):
        time_ms(written, STAMP_MS)
