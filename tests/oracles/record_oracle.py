"""Oracle of the telemetry decoder in plain Python: bytes to dicts and lists, or a refusal; no shared code."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any

from tests.oracles.indicator_oracle import GPU, REQUESTS

RawRecord = tuple[int, int, bytes | None, bytes | None]  # offset, broker stamp, key, value
CLOSED_RANGE = {
    "kv_cache_usage_ratio": (0.0, 1.0),
    "sm_active_ratio": (0.0, 1.0),
    "tensor_active_ratio": (0.0, 1.0),
    "temperature_c": (-50.0, 150.0),
    "throttled_ratio": (0.0, 1.0),
}
TOO_LARGE = 2.0**53


class BadError(Exception):
    """The record is refused."""


def parse(value: bytes, limit: int) -> Any:
    if len(value) > limit:
        raise BadError("oversize")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({k for k, _ in items}) < len(items):
            raise BadError("twice")
        return dict(items)

    def constant(text: str) -> Any:
        raise BadError(text)

    try:
        return json.loads(value.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise BadError(str(error)) from None


def nesting(body: Any) -> int:
    if isinstance(body, dict):
        return 1 + max((nesting(v) for v in body.values()), default=0)
    if isinstance(body, list):
        return 1 + max((nesting(v) for v in body), default=0)
    return 0


def infinite(body: Any) -> bool:
    if isinstance(body, dict):
        return any(infinite(v) for v in body.values())
    if isinstance(body, list):
        return any(infinite(v) for v in body)
    return isinstance(body, float) and math.isinf(body)


def need(condition: bool) -> None:
    if not condition:
        raise BadError("condition")


def label(text: Any, longest: int = 128) -> str:
    need(type(text) is str and 0 < len(text) <= longest)
    need(not set(text) & set("<>\"'`&\\"))
    for character in text:
        category = unicodedata.category(character)
        need(character == " " or category[0] not in "CZ")
    return str(text)


def number(value: Any) -> float:
    need(type(value) in (int, float))
    need(abs(value) < TOO_LARGE)
    return float(value) + 0.0


def cell(name: str, value: Any) -> float | None:
    if value is None:
        return None
    x = number(value)
    if name in CLOSED_RANGE:
        low, high = CLOSED_RANGE[name]
        slack = (high - low) / 1000
        need(low - slack <= x <= high + slack)
        return min(max(x, low), high)
    need(x >= 0)
    return x


def event_time(value: Any) -> int:
    need(type(value) is int and 0 <= value < TOO_LARGE)
    return int(value)


def whole(value: Any) -> int | None:
    if value is None:
        return None
    need(type(value) is int and 0 <= value <= 1_000_000)
    return int(value)


def hist(value: Any) -> dict[str, Any]:
    need(type(value) is dict and {"le", "cumulative", "count", "sum"} <= set(value))
    need(type(value["le"]) is list and type(value["cumulative"]) is list)
    le = [number(x) for x in value["le"]]
    cumulative = [number(x) for x in value["cumulative"]]
    count, total = number(value["count"]), number(value["sum"])
    need(0 < len(le) == len(cumulative) and le[0] >= 0 and cumulative[0] >= 0 and total >= 0)
    need(le == sorted(set(le)) and cumulative == sorted(cumulative) and cumulative[-1] <= count)
    return {"le": le, "cumulative": cumulative, "count": count, "sum": total}


def read(source: str, record: RawRecord, limit: int) -> dict[str, Any]:
    """A record as {"what": samples | fleet | batch | slo | outcome | tick | control | tombstone, ...}."""
    _, stamp, key, value = record
    if value is None:
        return {"what": "tombstone"}
    body = parse(value, limit)
    need(type(body) is dict and nesting(body) <= 32 and not infinite(body))
    need(type(body.get("v")) is int and body["v"] == 1)
    kind = body.get("kind")
    if kind == "tick":
        return {"what": "tick", "ts": event_time(body.get("ts_ms"))}
    if kind == "control" and source == "requests":
        return {"what": "control", "control": read_control(body, stamp)}
    need(kind in (source, "fleet", "outcome") or (kind in ("batch", "slo") and source == "requests"))
    workload = label(body.get("workload"))
    need(key == workload.encode())
    if kind == "outcome":
        return read_outcome(workload, body, stamp)
    if kind == "batch":
        return read_batch(workload, body, stamp)
    if kind == "slo":
        return read_slo(workload, body, stamp)
    values = body.get("values")
    need(type(values) is dict)
    sources = body.get("source")
    packed = type(sources) is list
    if packed:
        need(len(sources) > 0 and type(body.get("ts_ms")) is list and len(body["ts_ms"]) == len(sources))
        need(all(type(c) is list and len(c) == len(sources) for c in values.values()))
        times, columns = [event_time(t) for t in body["ts_ms"]], values
    else:
        sources, times = [sources], [event_time(body.get("ts_ms", stamp))]
        columns = {name: [c] for name, c in values.items()}
    for s in sources:
        label(s)
    if kind == "fleet":
        return read_fleet(workload, sources, times, columns)
    return read_samples(source, workload, packed, sources, times, columns, body.get("hist"))


def read_outcome(workload: str, body: dict[str, Any], stamp: int) -> dict[str, Any]:
    label(body.get("source"))
    need(body.get("status") in ("accepted", "applied", "ready", "refused", "expired", "failed"))
    lead = body.get("lead_time_s")
    if lead is not None:
        lead = number(lead)
        need(lead >= 0)
    fields = (label(body.get("command_id")), body["status"], whole(body.get("replicas_ready")), lead)
    fact = (event_time(body.get("ts_ms", stamp)), *fields)
    return {"what": "outcome", "workload": workload, "fact": fact, "times": [fact[0]]}


def read_batch(workload: str, body: dict[str, Any], stamp: int) -> dict[str, Any]:
    need(type(body.get("jobs")) is list and len(body["jobs"]) <= 64)
    due: dict[int, float] = {}
    for job in body["jobs"]:
        need(type(job) is dict)
        at, tokens = event_time(job.get("due_ts_ms")), number(job.get("tokens"))
        need(tokens >= 0)
        due[at] = due.get(at, 0.0) + tokens
    queue = (label(body.get("source")), event_time(body.get("ts_ms", stamp)), sorted(due.items()))
    return {"what": "batch", "workload": workload, "queue": queue, "times": [queue[1]]}


def read_slo(workload: str, body: dict[str, Any], stamp: int) -> dict[str, Any]:
    need(type(body.get("classes")) is dict and len(body["classes"]) <= 16)
    counted = []
    for name, counts in sorted(body["classes"].items()):
        need(type(counts) is dict)
        good, total = number(counts.get("good_total")), number(counts.get("total"))
        need(0 <= good <= total)
        counted.append((label(name), good, total))
    word = (label(body.get("source")), event_time(body.get("ts_ms", stamp)), counted)
    return {"what": "slo", "workload": workload, "queue": word, "times": [word[1]]}


def read_samples(
    source: str,
    workload: str,
    packed: bool,
    sources: list[str],
    times: list[int],
    columns: dict[str, list[Any]],
    hist_columns: Any,
) -> dict[str, Any]:
    known_fields = {
        f for _, rule, fields, _ in (REQUESTS if source == "requests" else GPU) if rule != "p95" for f in fields
    }
    for name, column in columns.items():
        for c in column:
            need(c is None or type(c) in (int, float))
            if name in known_fields:
                cell(name, c)
    unknown = sum(name not in known_fields for name in columns)
    rows = [
        {name: cell(name, c[i]) for name, c in columns.items() if name in known_fields} for i in range(len(sources))
    ]
    for row in rows:
        used, total = row.get("memory_used_bytes"), row.get("memory_total_bytes")
        need(used is None or total is None or used <= total * 1.001)
    need(hist_columns is None or type(hist_columns) is dict)
    hists: list[dict[str, Any]] = [{} for _ in sources]
    for name, column in (hist_columns or {}).items():
        need(not packed or (type(column) is list and len(column) == len(sources)))
        states = [None if h is None else h for h in (column if packed else [column])]
        if not (source == "requests" and name in ("ttft_s", "tpot_s")):
            unknown += 1
            continue
        for i, state in enumerate(states):
            if state is not None:
                hists[i][name] = hist(state)
    samples = list(zip(sources, times, rows, hists, strict=True))
    return {"what": "samples", "workload": workload, "samples": samples, "times": times, "unknown": unknown}


def read_fleet(workload: str, sources: list[str], times: list[int], columns: dict[str, list[Any]]) -> dict[str, Any]:
    names = ["replicas_ready", "replicas_pending", "replicas_draining", "replicas_desired"]
    rows = []
    for i, source in enumerate(sources):
        row = [whole(columns[name][i]) if name in columns else None for name in names]
        need(None not in row[:3])
        rows.append((source, times[i], row))
    for name, column in columns.items():
        if name not in names:
            need(all(c is None or type(c) is int for c in column))
    unknown = sum(name not in names for name in columns)
    return {"what": "fleet", "workload": workload, "rows": rows, "times": times, "unknown": unknown}


def read_control(body: dict[str, Any], stamp: int) -> dict[str, Any]:
    label(body.get("control_id"))
    need(body.get("action") in ("mode", "pin", "unpin", "pause", "resume"))
    if body["action"] in ("mode", "pin", "unpin"):
        need(body.get("workload") is not None)
    if body.get("workload") is not None:
        label(body["workload"])
    if body["action"] == "mode" or body.get("mode") is not None:
        need(body.get("mode") in ("observe", "act"))
    if body["action"] == "pin":
        need(body.get("replicas") is not None)
    for text in ("by", "reason"):
        if body.get(text):
            label(body[text], 256)
    until = body.get("until_ts_ms")
    return {
        "control_id": body["control_id"],
        "ts_ms": event_time(body.get("ts_ms", stamp)),
        "action": body["action"],
        "workload": body.get("workload"),
        "mode": body.get("mode"),
        "replicas": whole(body.get("replicas")),
        "until_ts_ms": None if until is None else event_time(until),
        "by": body.get("by", ""),
        "reason": body.get("reason", ""),
    }
