"""Every row of the bad-input table has its code, and what is good comes back exactly."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import Source
from streams.decode import decode
from streams.pages import BatchJob, BatchQueue, ClassCounts, Control, FleetFacts, HistogramState, OutcomeFact, SloCounts
from streams.records import (
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
from streams.strict_json import depth_of

W = "prod/llm/chat-70b"
KEY = W.encode()
T = 1_763_636_415_000


def record(**changes: Any) -> bytes:
    """A good requests sample with some fields replaced; a value of ... removes the field."""
    body: dict[str, Any] = {
        "v": 1,
        "kind": "requests",
        "workload": W,
        "source": "vllm/0",
        "ts_ms": T,
        "values": {"requests_started_total": 7, "num_requests_running": 3},
    }
    body.update(changes)
    return json.dumps({k: v for k, v in body.items() if v is not ...}, ensure_ascii=False).encode()


def value(text: str, name: str = "num_requests_running") -> bytes:
    """A good sample whose one value is this JSON text."""
    return record(values={name: "@"}).replace(b'"@"', text.encode())


HIST = {"le": [0.5, 1], "cumulative": [3, 4], "count": 5, "sum": 6.5}


def hist(**changes: Any) -> bytes:
    return record(hist={"ttft_s": {**HIST, **changes}})


BAD: list[tuple[str, str, bytes]] = [
    ("empty", "decode", b""),
    ("not json", "decode", b"hello"),
    ("truncated", "decode", record()[:-2]),
    ("trailing", "decode", record() + b"x"),
    ("bad utf-8", "decode", record().replace(b"vllm", b"vl\xffm")),
    ("bad utf-8 in an unknown field", "decode", record(note="a").replace(b'"a"', b'"\xff"')),
    ("utf-16", "decode", record().decode().encode("utf-16")),
    ("byte-order mark", "decode", b"\xef\xbb\xbf" + record()),
    ("lone surrogate", "decode", record().replace(b"vllm", b"\\ud800")),
    ("raw newline in a string", "decode", record().replace(b"vllm", b"v\nm")),
    ("leading zero", "decode", value("01")),
    ("list", "schema", b"[]"),
    ("string", "schema", b'"a"'),
    ("number", "schema", b"12"),
    ("null text", "schema", b"null"),
    ("empty object", "schema", b"{}"),
    ("no kind", "schema", record(kind=...)),
    ("kind is a number", "schema", record(kind=1)),
    ("no v", "schema", record(v=...)),
    ("v is true", "schema", record(v=True)),
    ("v is text", "schema", record(v="1")),
    ("no workload", "schema", record(workload=...)),
    ("workload is null", "schema", record(workload=None)),
    ("workload is a list", "schema", record(workload=[W])),
    ("no source", "schema", record(source=...)),
    ("no values", "schema", record(values=...)),
    ("values is a list", "schema", record(values=[])),
    ("bool as number", "schema", value("true")),
    ("numeric string", "schema", value('"3"')),
    ("object as number", "schema", value("{}")),
    ("array in a single sample", "schema", value("[1]")),
    ("array under an unknown name", "schema", value("[1]", "new")),
    ("ts is text", "schema", record(ts_ms=str(T))),
    ("ts is a float", "schema", record(ts_ms=T + 0.5)),
    ("ts is true", "schema", record(ts_ms=True)),
    ("ts is null", "schema", record(ts_ms=None)),
    ("ts is an array, source is not", "schema", record(ts_ms=[T])),
    ("duplicate key", "schema", record().replace(b'"v": 1', b'"v": 1, "v": 1')),
    ("duplicate kind", "schema", record().replace(b'"v": 1', b'"v": 1, "kind": "requests"')),
    ("duplicate value name", "schema", value('1, "num_requests_running": 2')),
    ("duplicate key by escape", "schema", value('1, "num_requests_runnin\\u0067": 2')),
    ("duplicate key, colon hidden", "schema", value('1, "num_requests_running": 2').replace(b"vllm", b"\\u003allm")),
    ("duplicate key in an unknown field", "schema", record(note={}).replace(b"{}}", b'{"a":1,"a":2}}')),
    ("NaN", "non_finite", value("NaN")),
    ("Infinity", "non_finite", value("Infinity")),
    ("-Infinity", "non_finite", value("-Infinity")),
    ("1e999", "non_finite", value("1e999")),
    ("-1e999", "non_finite", value("-1e999")),
    ("1e999 in an unknown field", "non_finite", record(note="@").replace(b'"@"', b"1e999")),
    ("NaN as ts", "non_finite", record(ts_ms=math.nan)),
    ("negative count", "range", value("-1")),
    ("slightly negative count", "range", value("-1e-9")),
    ("2^53", "range", value("9007199254740992")),
    ("above 2^53", "range", value("9007199254740993")),
    ("1e300", "range", value("1e300")),
    ("5000 digits", "range", value("7" * 5000)),
    ("400 digits", "range", value("7" * 400)),
    ("ratio of 83 percent", "range", value("83", "kv_cache_usage_ratio")),
    ("ratio above 1", "range", value("1.01", "kv_cache_usage_ratio")),
    ("ratio below 0", "range", value("-0.01", "kv_cache_usage_ratio")),
    ("negative ts", "range", record(ts_ms=-1)),
    ("5000 digits as ts", "range", record(ts_ms="@").replace(b'"@"', b"7" * 5000)),
    ("300 digits as ts", "range", record(ts_ms="@").replace(b'"@"', b"7" * 300)),
    ("nanoseconds", "future", record(ts_ms=T * 1_000_000)),
    ("nanoseconds, packed", "future", record(source=["a"], ts_ms=[T * 1_000_000], values={})),
    ("version 2", "version", record(v=2)),
    ("version 0", "version", record(v=0)),
    ("version 2 of another shape", "version", b'{"v":2,"telemetry":[]}'),
    ("unknown kind", "kind", record(kind="weather")),
    ("kind of the other topic", "kind", record(kind="gpu")),
    ("oversize", "oversize", record(note="x" * 70_000)),
    ("deep array", "nesting", record(note="@").replace(b'"@"', b"[" * 40 + b"]" * 40)),
    ("deep object", "nesting", record(note="@").replace(b'"@"', b'{"a":' * 33 + b"1" + b"}" * 33)),
    ("very deep", "nesting", b"[" * 60_000),
    ("deep behind a quote", "nesting", record(note="\\").replace(b'"\\\\"', b'"\\"[", "b":' + b"[" * 40 + b"]" * 40)),
    ("workload with newline", "labels", record(workload="a\nb")),
    ("workload with escape", "labels", record(workload="a\x1b[31m")),
    ("workload with nul", "labels", record(workload="a\x00")),
    ("workload with markup", "labels", record(workload="<script>")),
    ("workload with a quote", "labels", record(workload='a"b')),
    ("workload with a direction mark", "labels", record(workload="a\u202eb")),
    ("workload empty", "labels", record(workload="")),
    ("workload too long", "labels", record(workload="w" * 129)),
    ("source too long", "labels", record(source="s" * 129)),
    ("source with a tab", "labels", record(source="a\tb")),
    ("packed source with markup", "labels", record(source=["a", "<b>"], ts_ms=[T, T], values={})),
    ("key of another workload", "key", record(workload="other")),
    ("packed, empty", "schema", record(source=[], ts_ms=[], values={})),
    ("packed, ts shorter", "schema", record(source=["a", "b"], ts_ms=[T], values={})),
    ("packed, no ts", "schema", record(source=["a"], ts_ms=..., values={})),
    ("packed, ts not an array", "schema", record(source=["a"], values={})),
    ("packed, column shorter", "schema", record(source=["a", "b"], ts_ms=[T, T], values={"num_requests_running": [1]})),
    ("packed, column is a number", "schema", record(source=["a"], ts_ms=[T], values={"num_requests_running": 1})),
    ("packed, one bad cell", "range", record(source=["a"], ts_ms=[T], values={"num_requests_running": [-1]})),
    ("packed, bool cell", "schema", record(source=["a"], ts_ms=[T], values={"num_requests_running": [True]})),
    ("hist is a number", "schema", record(hist=1)),
    ("hist without sum", "schema", record(hist={"ttft_s": {"le": [1], "cumulative": [1], "count": 1}})),
    ("hist without buckets", "schema", hist(le=[], cumulative=[])),
    ("hist of unequal lengths", "schema", hist(le=[1])),
    ("hist with null", "schema", hist(le=[None, 1])),
    ("hist array in a single sample", "schema", record(hist={"ttft_s": [HIST]})),
    ("hist not an array, packed", "schema", record(source=["a"], ts_ms=[T], values={}, hist={"ttft_s": HIST})),
    ("hist edges not ascending", "range", hist(le=[1, 1])),
    ("hist edge negative", "range", hist(le=[-1, 1])),
    ("hist not cumulative", "range", hist(cumulative=[4, 3])),
    ("hist count too small", "range", hist(count=3)),
    ("hist negative", "range", hist(cumulative=[-1, 4])),
    ("hist sum negative", "range", hist(sum=-1)),
    ("hist edge infinite", "non_finite", hist(le=[1, math.inf])),
]


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
    assert {code for _, code, _ in BAD} == set(DEAD_LETTER_CODES)


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


BAD_FACTS: list[tuple[str, dict[str, Any]]] = [
    ("schema", {"kind": "fleet", "values": {"replicas_ready": 1, "replicas_pending": 0}}),
    ("schema", {"kind": "fleet", "values": {"replicas_ready": 1, "replicas_pending": 0, "replicas_draining": None}}),
    ("schema", {"kind": "fleet", "values": {"replicas_ready": 1.5, "replicas_pending": 0, "replicas_draining": 0}}),
    ("range", {"kind": "fleet", "values": {"replicas_ready": -1, "replicas_pending": 0, "replicas_draining": 0}}),
    ("range", {"kind": "fleet", "values": {"replicas_ready": 10**9, "replicas_pending": 0, "replicas_draining": 0}}),
    ("schema", {"kind": "outcome", "command_id": "c", "status": "exploded"}),
    ("schema", {"kind": "outcome", "status": "ready"}),
    ("labels", {"kind": "outcome", "command_id": "c\n", "status": "ready"}),
    ("range", {"kind": "outcome", "command_id": "c", "status": "ready", "lead_time_s": -1}),
    ("schema", {"kind": "batch"}),
    ("schema", {"kind": "batch", "jobs": [{"due_ts_ms": T}]}),
    ("schema", {"kind": "batch", "jobs": [{"due_ts_ms": 1.5, "tokens": 1}]}),
    ("schema", {"kind": "batch", "jobs": [{"due_ts_ms": T, "tokens": 1}] * 65}),
    ("schema", {"kind": "batch", "jobs": [], "source": ["a"]}),
    ("range", {"kind": "batch", "jobs": [{"due_ts_ms": T, "tokens": -1}]}),
    ("range", {"kind": "batch", "jobs": [{"due_ts_ms": -1, "tokens": 1}]}),
    ("labels", {"kind": "batch", "jobs": [], "source": "<b>"}),
    ("schema", {"kind": "slo"}),
    ("schema", {"kind": "slo", "classes": {"a": {"total": 1}}}),
    ("schema", {"kind": "slo", "classes": {f"c{n}": {"good_total": 0, "total": 1} for n in range(17)}}),
    ("range", {"kind": "slo", "classes": {"a": {"good_total": 2, "total": 1}}}),
    ("range", {"kind": "slo", "classes": {"a": {"good_total": -1, "total": 1}}}),
    ("labels", {"kind": "slo", "classes": {"<b>": {"good_total": 0, "total": 1}}}),
    ("schema", {"kind": "control", "control_id": "c", "action": "explode"}),
    ("schema", {"kind": "control", "control_id": "c", "action": "pin"}),
    ("schema", {"kind": "control", "control_id": "c", "action": "pin", "workload": ..., "replicas": 3}),
    ("schema", {"kind": "control", "control_id": "c", "action": "mode", "mode": "chaos"}),
    ("range", {"kind": "control", "control_id": "c", "action": "pin", "replicas": -3}),
    ("labels", {"kind": "control", "control_id": "c", "action": "pause", "reason": "<b>"}),
    ("labels", {"kind": "control", "control_id": "", "action": "pause"}),
    ("range", {"kind": "control", "control_id": "c", "action": "pause", "until_ts_ms": -5}),
]


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


counts = st.integers(0, 1_000_000)


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
