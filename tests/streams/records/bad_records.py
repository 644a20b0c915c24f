"""The bad-input table: one good record, and everything that can be wrong with it, with the code it is refused by."""

from __future__ import annotations

import json
import math
from typing import Any

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
