"""OTLP: which data points are measurements, what identifies a series, and what is counted instead of read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.formats.raw_record import NOT_MEASURED, RawPoints, UnusableError, read_raw
from infra.collect.points import Point, is_measured
from streams.records.strict_json import MalformedError
from tests.infra.collect.samples import TS_MS, reader
from tests.infra.collect.writers import attributes

STAMP_MS = TS_MS + 900
NANOS = str(TS_MS * 10**6)
CUMULATIVE: dict[str, Any] = {"aggregationTemporality": 2, "isMonotonic": True}
ENCODINGS = ["json", "protobuf"]


def document(*metrics: dict[str, Any], scope: dict[str, Any] | None = None) -> dict[str, Any]:
    resource = {"attributes": attributes({"k8s.namespace.name": "prod", "k8s.pod.name": "chat-0"})}
    scopes = {"metrics": list(metrics), **({} if scope is None else {"scope": scope})}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scopes]}]}


def metric(name: str, kind: str, *items: dict[str, Any], **body: Any) -> dict[str, Any]:
    cumulative = {} if kind in ("gauge", "summary") else {"aggregationTemporality": 2}
    return {"name": name, kind: {**cumulative, "dataPoints": [{"timeUnixNano": NANOS, **i} for i in items], **body}}


def read(*metrics: dict[str, Any], encoding: str = "json") -> RawPoints:
    return read_raw(encoded(document(*metrics), encoding), STAMP_MS)


def encoded(body: dict[str, Any], encoding: str) -> bytes:
    if encoding == "json":
        return json.dumps(body).encode()
    pytest.importorskip("opentelemetry.proto.metrics.v1", reason="opentelemetry-proto (extra collect) is not installed")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    return bytes(ParseDict(body, MetricsData()).SerializeToString())


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("name", "profile", "read_as"),
    [
        ("tgi_request_count", "tgi", "requests_started_total"),
        ("vllm:prompt_tokens_total", "vllm", "prompt_tokens_total"),
        ("vllm:prompt_tokens", "vllm", "prompt_tokens_total"),
    ],
)
def test_a_counters_name_is_taken_as_it_stands_with_or_without_total(
    name: str, profile: str, read_as: str, encoding: str
) -> None:
    raw = read(metric(name, "sum", {"asInt": "150"}, isMonotonic=True), encoding=encoding)
    assert [p.name for p in raw.points] == [name]
    (reading,) = reader(profile, workload="w").read(raw.points)
    assert reading.values[read_as] == 150.0


HISTOGRAM = {"count": "5", "sum": 2.5, "bucketCounts": ["3", "2"], "explicitBounds": [1.0]}
KINDS = {
    "gauge": {"asDouble": 4.0},
    "sum": {"asInt": "4"},
    "histogram": HISTOGRAM,
    "exponentialHistogram": {"count": "5", "scale": 3},
    "summary": {"count": "5", "sum": 2.5},
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [1, "1", 3])
def test_a_data_point_without_a_recorded_value_is_no_measurement(kind: str, flags: object, encoding: str) -> None:
    good = metric("vllm:num_requests_running", "gauge", {"asInt": "4"})
    raw = read(metric("vllm:prompt_tokens_total", kind, {**KINDS[kind], "flags": flags}), good, encoding=encoding)
    assert [p for p in raw.points if is_measured(p.value)] == [raw.points[-1]]
    assert sum(raw.passed_over.values()) == 1


@pytest.mark.parametrize("flags", [0, "0", 2, None])
def test_other_flags_mean_nothing(flags: object) -> None:
    (point,) = read(metric("a", "gauge", {"asInt": "4", "flags": flags})).points
    assert point.value == 4.0


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_after_a_failed_scrape_no_history_counts_twice(encoding: str) -> None:
    def scrape(second: int, count: int, **flags: int) -> list[Point]:
        item = {**HISTOGRAM, "count": str(count), "bucketCounts": [str(count), "0"], **flags}
        item["timeUnixNano"] = str((TS_MS + 1000 * second) * 10**6)
        return read(metric("vllm:time_to_first_token_seconds", "histogram", item), encoding=encoding).points

    points = [*scrape(0, 1000), *scrape(15, 0, flags=1), *scrape(30, 1005)]
    readings = reader("vllm").read(points)
    assert [(r.ts_ms - TS_MS, r.hists["ttft_s"].count) for r in readings] == [(0, 1000.0), (30_000, 1005.0)]


def test_a_record_of_nothing_but_marks_is_no_fault() -> None:
    raw = read(metric("a", "gauge", {"flags": 1}), metric("b", "sum", {}))
    assert [(p.name, math.isnan(p.value)) for p in raw.points] == [("a", True), ("b", True)]
    assert raw.passed_over == {NOT_MEASURED: 2}


@pytest.mark.parametrize("temporality", [None, 0, "0", "AGGREGATION_TEMPORALITY_UNSPECIFIED", 7])
@pytest.mark.parametrize("kind", ["sum", "histogram"])
def test_a_temporality_that_is_not_stated_is_not_guessed(temporality: object, kind: str) -> None:
    with pytest.raises(UnusableError, match="no aggregationTemporality"):
        read(metric("a", kind, KINDS[kind], aggregationTemporality=temporality))


@pytest.mark.parametrize("temporality", [2, "2", "AGGREGATION_TEMPORALITY_CUMULATIVE"])
def test_a_cumulative_temporality_in_every_spelling(temporality: object) -> None:
    assert len(read(metric("a", "sum", {"asInt": 1}, aggregationTemporality=temporality)).points) == 1


@pytest.mark.parametrize(
    ("kind", "words"), [("exponentialHistogram", "export explicit buckets"), ("summary", "summary")]
)
def test_other_kinds_are_counted_by_data_point(kind: str, words: str) -> None:
    raw = read(metric("a", kind, KINDS[kind], KINDS[kind]), metric("b", "gauge", {"asInt": 1}))
    ((reason, count),) = raw.passed_over.items()
    assert words in reason
    assert count == 2


@pytest.mark.parametrize(
    ("changed", "points"),
    [
        ({}, {"_bucket 1": 3.0, "_bucket +Inf": 5.0, "_count": 5.0, "_sum": 2.5}),
        ({"bucketCounts": [3, 2], "explicitBounds": ["1.0"], "sum": "2.5"}, {"_bucket 1": 3.0, "_count": 5.0}),
        ({"count": None}, {"_count": 5.0}),
        ({"count": None, "bucketCounts": ["0", "0"]}, {"_count": 0.0}),
        ({"count": None, "bucketCounts": None, "explicitBounds": None}, {"_count": 0.0}),
        ({"bucketCounts": ["5"], "explicitBounds": []}, {"_bucket +Inf": 5.0, "_count": 5.0}),
        ({"sum": None}, {"_bucket +Inf": 5.0, "_count": 5.0}),
    ],
)
def test_a_histogram_of_text_and_numbers_and_what_protobuf_leaves_out(
    changed: dict[str, Any], points: dict[str, float]
) -> None:
    raw = read(metric("h", "histogram", {**HISTOGRAM, **changed}))
    found = {f"{p.name[1:]} {p.labels.get('le', '')}".strip(): p.value for p in raw.points}
    assert points.items() <= found.items()
    assert ("_sum" in found) == (changed.get("sum", "") is not None)


ANY_VALUES = [
    {"stringValue": "1"}, {"intValue": "2"}, {"intValue": 3}, {"doubleValue": 0.5}, {"boolValue": True},
    {"bytesValue": "YQ=="}, {"bytesValue": "Yg=="},
    {"arrayValue": {"values": [{"stringValue": "a"}]}}, {"arrayValue": {"values": [{"stringValue": "b"}]}},
    {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "a"}}]}},
    {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "b"}}]}},
]  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_series_that_differ_in_any_attribute_are_added_up(encoding: str) -> None:
    items = [
        {"asInt": str(2**n), "attributes": [{"key": "finished_reason", "value": v}]} for n, v in enumerate(ANY_VALUES)
    ]
    raw = read(metric("vllm:request_success_total", "sum", *items), encoding=encoding)
    (reading,) = reader("vllm").read(raw.points)
    assert reading.values["requests_finished_total"] == 2.0 ** len(ANY_VALUES) - 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "a"}, {"name": "b"}),
        ({"name": "a", "version": "1"}, {"name": "a", "version": "2"}),
        ({"attributes": attributes({"x": "1"})}, {"attributes": attributes({"x": "2"})}),
        ({"name": "a"}, None),
    ],
)
def test_series_of_two_scopes_are_told_apart_and_are_copies(one: dict[str, Any], other: dict[str, Any] | None) -> None:
    bodies = [
        document(metric("vllm:request_success_total", "sum", {"asInt": n}), scope=scope)
        for n, scope in ((5, one), (7, other))
    ]
    both = {"resourceMetrics": [part for body in bodies for part in body["resourceMetrics"]]}
    points = read_raw(json.dumps(both).encode(), STAMP_MS).points
    assert len({tuple(sorted(point.labels.items())) for point in points}) == 2
    (reading,) = reader("vllm").read(points)
    assert reading.values["requests_finished_total"] == 7.0


def test_attributes_without_a_value_are_no_labels() -> None:
    odd = [{"key": "a", "value": {}}, {"key": "b"}, {"key": "c", "value": {"stringValue": None}}]
    (point,) = read(metric("g", "gauge", {"asInt": 1, "attributes": odd})).points
    assert set(point.labels) == {"k8s_namespace_name", "namespace", "k8s_pod_name", "pod"}


@pytest.mark.parametrize(
    ("item", "ts_ms"),
    [
        ({"timeUnixNano": NANOS}, TS_MS),
        ({"timeUnixNano": int(NANOS) + 499_999}, TS_MS),
        ({"timeUnixNano": float(NANOS)}, TS_MS),
        ({"timeUnixNano": "1.763636415e18"}, TS_MS),
        ({"timeUnixNano": 0}, STAMP_MS),
        ({"timeUnixNano": None}, STAMP_MS),
    ],
)
def test_times(item: dict[str, Any], ts_ms: int) -> None:
    (point,) = read(metric("g", "gauge", {"asInt": 1, **item})).points
    assert point.ts_ms == ts_ms


@given(st.integers(10**11, 2 * 10**12))
def test_every_millisecond_keeps_its_place(ts_ms: int) -> None:
    for at in (ts_ms * 10**6, str(ts_ms * 10**6), ts_ms * 1000, ts_ms, ts_ms / 1000):
        (point,) = read(metric("g", "gauge", {"asInt": 1, "timeUnixNano": at})).points
        assert point.ts_ms == ts_ms


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"resourceMetrics": [{"scope_metrics": []}]}, "scope_metrics must be written scopeMetrics"),
        (document({"name": "g", "gauge": {"data_points": []}}), "g: data_points must be written dataPoints"),
        (document(metric("g", "gauge", {"asInt": "3_0"})), "g: '3_0' is no number"),
        (document(metric("g", "gauge", {"asInt": "３"})), "g: '３' is no number"),
        (document(metric("g", "gauge", {"asInt": 1, "flags": "x"})), "g: 'x' is no number"),
        (document(metric("g", "gauge", {"asInt": 1, "timeUnixNano": "-5"})), "g: -5 is no time"),
        (document(metric("h", "histogram", {**HISTOGRAM, "bucketCounts": ["3"]})), "h: bucketCounts must be one more"),
    ],
)
def test_what_is_refused_names_the_metric(body: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_raw(json.dumps(body).encode(), STAMP_MS)
    assert words in caught.value.detail


def test_protobuf_of_every_length_is_known_as_such() -> None:
    """A message begins with a line feed and its length, which may be the byte of a brace, a bracket or a blank."""
    lengths = set()
    for length in range(1, 140):
        body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric("a" * length, "gauge", {"asInt": 3})]}]}]}
        value = encoded(body, "protobuf")
        lengths.add(value[1])
        assert [len(p.name) for p in read_raw(value, STAMP_MS).points] == [length]
    assert set(b"{[") <= lengths
    for text in (b'\n{"a":1}', b"\n{", b"\n["):
        with pytest.raises(MalformedError):
            read_raw(text, STAMP_MS)
