"""Every row of the bad-input table has its code, and what is good comes back exactly."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import Source
from streams.records.decode import decode
from streams.records.facts import (
    BatchJob,
    BatchQueue,
    ClassCounts,
    Control,
    FleetFacts,
    HistogramState,
    OutcomeFact,
    SloCounts,
)
from streams.records.limits import MAX_REPLICAS
from streams.records.schema import (
    DEAD_LETTER_CODES,
    ControlRecord,
    DeadLetter,
    FleetRecord,
    OutcomeRecord,
    SampleRecord,
    SourceRecord,
    TickRecord,
    Tombstone,
    encode_batch,
    encode_control,
    encode_fleet,
    encode_outcome,
    encode_packed,
    encode_sample,
    encode_slo,
    encode_tick,
    record_key,
)
from streams.records.strict_json import depth_of
from tests.streams.records.bad_records import BAD, BAD_FACTS, HIST, KEY, T, W, hist, record


@pytest.mark.parametrize(("code", "bad"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_has_its_code(code: str, bad: bytes) -> None:
    found = decode(bad, KEY, "requests")
    assert isinstance(found, DeadLetter)
    assert found.code == code, found
    assert found.code in DEAD_LETTER_CODES
    assert found.detail.isprintable()
    assert found.detail.isascii()
    assert 0 < len(found.detail) <= 200


def test_every_code_but_the_kernels_own_is_reached() -> None:
    assert {code for _, code, _ in BAD} == set(DEAD_LETTER_CODES) - {"control", "limit"}


def test_a_tombstone_is_no_dead_letter() -> None:
    assert decode(None, KEY, "requests") == Tombstone()


@pytest.mark.parametrize("key", [None, b"", b"other", KEY + b" "])
@pytest.mark.parametrize("kind", ["requests", "fleet", "batch", "slo", "outcome"])
def test_the_key_must_be_the_workload(key: bytes | None, kind: str) -> None:
    values = {"replicas_ready": 1, "replicas_pending": 0, "replicas_draining": 0}
    bad = decode(record(kind=kind, values=values, command_id="c", status="ready", jobs=[], classes={}), key, "requests")
    assert isinstance(bad, DeadLetter)
    assert bad.code == "key"


@pytest.mark.parametrize("key", [None, KEY, b"\xff"])
def test_ticks_and_controls_need_no_key(key: bytes | None) -> None:
    control = Control(control_id="c-1", ts_ms=T, action="pause")
    assert decode(encode_tick(T), key, "gpu") == TickRecord(T)
    assert decode(encode_control(control), key, "requests") == ControlRecord(control)


def test_control_records_belong_to_the_requests_topic() -> None:
    found = decode(encode_control(Control(control_id="c-1", ts_ms=T, action="pause")), None, "gpu")
    assert isinstance(found, DeadLetter)
    assert found.code == "kind"


@pytest.mark.parametrize(("code", "changes"), BAD_FACTS)
def test_bad_facts_have_their_code(code: str, changes: dict[str, Any]) -> None:
    found = decode(record(**changes), KEY, "requests")
    assert isinstance(found, DeadLetter)
    assert found.code == code, found


def test_queued_work_is_in_order_of_deadlines_and_what_is_due_together_is_one_job() -> None:
    jobs = [BatchJob(T + 2, 5.0), BatchJob(T + 1, 1.0), BatchJob(T + 2, 2.5)]
    found = decode(encode_batch(W, "nightly", T, jobs), KEY, "requests")
    assert found == SourceRecord(W, BatchQueue("nightly", T, (BatchJob(T + 1, 1.0), BatchJob(T + 2, 7.5))))
    elsewhere = decode(encode_batch(W, "nightly", T, []), KEY, "gpu")
    assert isinstance(elsewhere, DeadLetter)
    assert elsewhere.code == "kind"
    with pytest.raises(ValueError, match="has no place in telemetry"):
        encode_batch(W, "nightly", T, [BatchJob(T, math.inf)])


def test_counts_by_class_are_in_order_of_their_names() -> None:
    classes = [ClassCounts("chat", 3.0, 4.0), ClassCounts("bulk", 0.0, 0.0)]
    found = decode(encode_slo(W, "gateway", T, classes), KEY, "requests")
    assert found == SourceRecord(W, SloCounts("gateway", T, (classes[1], classes[0])))


GPU_BAD = [
    ("range", {"memory_used_bytes": 11, "memory_total_bytes": 10}),
    ("range", {"temperature_c": 1000}),
    ("range", {"sm_active_ratio": 83}),
]


@pytest.mark.parametrize(("code", "values"), GPU_BAD)
def test_gpu_ranges(code: str, values: dict[str, float]) -> None:
    for changes in ({"values": values}, {"source": ["a"], "ts_ms": [T], "values": {k: [v] for k, v in values.items()}}):
        found = decode(record(kind="gpu", **changes), KEY, "gpu")
        assert isinstance(found, DeadLetter)
        assert found.code == code


def sample_of(value: bytes, source: Source = "requests", stamp_ms: int | None = None) -> SampleRecord:
    found = decode(value, KEY, source, stamp_ms=stamp_ms)
    assert isinstance(found, SampleRecord), found
    return found


def test_unknown_names_are_ignored_and_counted() -> None:
    found = sample_of(record(values={"num_requests_running": 3, "new": 1, "newer": None}, hist={"new_s": HIST}))
    assert found.unknown_names == 3
    assert found.samples[0].values == {"num_requests_running": 3.0}
    packed = sample_of(record(source=["a"], ts_ms=[T], values={"new": [1]}, extra={"deep": [1, 2]}))
    assert packed.unknown_names == 1


@pytest.mark.parametrize(
    ("name", "told", "kept"),
    [
        ("kv_cache_usage_ratio", -0.0, 0.0),
        ("kv_cache_usage_ratio", 1.0000001, 1.0),
        ("kv_cache_usage_ratio", -0.0005, 0.0),
        ("num_requests_running", -0.0, 0.0),
        ("requests_started_total", 2.0**53 - 1, 2.0**53 - 1),
    ],
)
def test_rounding_is_put_right(name: str, told: float, kept: float) -> None:
    for body in (record(values={name: told}), record(source=["a"], ts_ms=[T], values={name: [told]})):
        found = sample_of(body).samples[0].values[name]
        assert found is not None
        assert (found, math.copysign(1, found)) == (kept, 1.0)


def test_a_missing_time_is_the_brokers_stamp() -> None:
    assert sample_of(record(ts_ms=...), stamp_ms=T + 5).samples[0].ts_ms == T + 5
    missing = decode(record(ts_ms=...), KEY, "requests")
    assert isinstance(missing, DeadLetter)
    assert missing.code == "schema"


@pytest.mark.parametrize("text", ["a:b", "node:9090/gpu", "Zürich/模型", "with space", "w" * 128])
def test_labels_may_hold_what_people_write(text: str) -> None:
    body = record(workload=text, source=text)
    assert isinstance(decode(body, text.encode(), "requests"), SampleRecord)


numbers = st.floats(0, 2.0**53 - 1, allow_nan=False) | st.integers(0, 2**53 - 1).map(float)
cells = st.none() | numbers
names = st.sampled_from(["requests_started_total", "slo_total", "num_requests_running", "prompt_tokens_total"])
labels = st.text(
    st.characters(codec="utf-8", categories=["L", "N"], include_characters=":/.-_ "), min_size=1, max_size=9
)
instants = st.integers(0, 2**53 - 1)


@st.composite
def histograms(draw: st.DrawFn) -> HistogramState:
    le = sorted(draw(st.sets(st.floats(0, 1e6), min_size=1, max_size=5)))
    steps = draw(st.lists(st.integers(0, 1000), min_size=len(le) + 1, max_size=len(le) + 1))
    cumulative = tuple(float(sum(steps[: i + 1])) for i in range(len(le)))
    return HistogramState(tuple(le), cumulative, float(sum(steps)), draw(st.floats(0, 1e9)))


hist_maps = st.dictionaries(st.sampled_from(["ttft_s", "tpot_s"]), histograms())


@settings(max_examples=60)
@given(labels, labels, instants, st.dictionaries(names, cells), hist_maps)
def test_a_sample_comes_back_as_it_was_told(
    workload: str, source: str, ts_ms: int, values: dict[str, float | None], hist: dict[str, HistogramState]
) -> None:
    body = encode_sample("requests", workload, source, ts_ms, values, hist)
    found = decode(body, record_key(workload), "requests")
    assert isinstance(found, SampleRecord), found
    (sample,) = found.samples
    assert (found.workload, found.unknown_names) == (workload, 0)
    assert (sample.source, sample.ts_ms, sample.values, sample.hists) == (source, ts_ms, values, hist)


@settings(max_examples=40)
@given(st.lists(st.tuples(labels, instants, cells, cells, st.none() | histograms()), min_size=1, max_size=6))
def test_a_pack_is_its_samples(rows: list[tuple[str, int, float | None, float | None, HistogramState | None]]) -> None:
    columns = {"slo_total": [r[2] for r in rows], "num_requests_running": [r[3] for r in rows]}
    sources, instants_ms = [r[0] for r in rows], [r[1] for r in rows]
    body = encode_packed("requests", W, sources, instants_ms, columns, {"ttft_s": [r[4] for r in rows]})
    found = sample_of(body)
    assert len(found.samples) == len(rows)
    for sample, (source, ts_ms, a, b, h) in zip(found.samples, rows, strict=True):
        alone = {"ttft_s": h} if h is not None else {}
        same = sample_of(
            encode_sample("requests", W, source, ts_ms, {"slo_total": a, "num_requests_running": b}, alone)
        )
        assert sample == same.samples[0]


counts = st.integers(0, MAX_REPLICAS)


@settings(max_examples=30)
@given(instants, counts, counts, counts, st.none() | counts)
def test_facts_come_back(ts_ms: int, ready: int, pending: int, draining: int, desired: int | None) -> None:
    facts = FleetFacts(ts_ms, ready, pending, draining, desired)
    assert decode(encode_fleet(W, "k8s", facts), KEY, "gpu") == FleetRecord(W, [("k8s", facts)])
    outcome = OutcomeFact(ts_ms, "c-1", "ready", desired, 61.5)
    assert decode(encode_outcome(W, "k8s", outcome), KEY, "requests") == OutcomeRecord(W, outcome)


def test_packed_fleet_facts() -> None:
    values = {"replicas_ready": [1, 2], "replicas_pending": [0, 0], "replicas_draining": [0, 1], "new": [1, 2]}
    found = decode(record(kind="fleet", source=["a", "b"], ts_ms=[T, T + 1], values=values), KEY, "requests")
    facts = [("a", FleetFacts(T, 1, 0, 0, None)), ("b", FleetFacts(T + 1, 2, 0, 1, None))]
    assert found == FleetRecord(W, facts, unknown_names=1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_publishers_cannot_encode_what_is_no_number(bad: float) -> None:
    with pytest.raises(ValueError, match="use None"):
        encode_sample("gpu", W, "s", T, {"power_w": bad})
    with pytest.raises(ValueError, match="use None"):
        encode_packed("gpu", W, ["s"], [T], {"power_w": [bad]})
    with pytest.raises(ValueError, match="equally long"):
        encode_packed("gpu", W, ["s"], [T, T], {"power_w": [1.0]})


@settings(max_examples=200)
@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode), st.sampled_from(["requests", "gpu"]))
def test_no_bytes_raise(value: bytes, source: Source) -> None:
    assert isinstance(decode(value, KEY, source), DeadLetter)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.sampled_from(["v", "kind", "workload", "source", "ts_ms", "values", "hist", "note"]), json_values)
def test_no_field_raises_whatever_it_holds(name: str, held: Any) -> None:
    found = decode(json.dumps({**json.loads(record()), name: held}).encode(), KEY, "requests", stamp_ms=T)
    assert isinstance(found, DeadLetter | SampleRecord)


@settings(max_examples=100)
@given(st.data(), st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_damage_never_raises(data: st.DataObject, at: int, damage: bytes) -> None:
    good = data.draw(st.sampled_from([record(), hist(), encode_tick(T), record(source=["a"], ts_ms=[T], values={})]))
    at %= len(good)
    decode(good[:at] + damage + good[at + len(damage) :], KEY, "requests")


@given(json_values)
def test_depth_is_that_of_the_parsed_value(body: Any) -> None:
    def depth(x: Any) -> int:
        inner = list(x.values()) if isinstance(x, dict) else x if isinstance(x, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert depth_of(json.dumps(body).encode()) == depth(body)
