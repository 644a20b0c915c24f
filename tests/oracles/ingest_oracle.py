"""What ingest must make of a log, said again in plain Python: one record at a time, dicts and lists, no shared code.

`expected_pages` takes the raw log of one partition and returns one dict per page. It is slow, obvious and independent:
it keeps every accepted sample and every page, and derives what is known from those alone.
"""

from __future__ import annotations

import json
import math
import struct
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

RawRecord = tuple[int, int, bytes | None, bytes | None]  # offset, broker stamp, key, value

# name, rule, fields, over sources
REQUESTS: list[tuple[str, str, list[str], str]] = [
    ("request.arrival_rate", "rate", ["requests_started_total", "requests_finished_total"], "sum"),
    ("request.prompt_token_rate", "rate", ["prompt_tokens_total"], "sum"),
    ("request.output_token_rate", "rate", ["generation_tokens_total"], "sum"),
    ("engine.running", "mean", ["num_requests_running"], "sum"),
    ("engine.waiting", "mean", ["num_requests_waiting"], "sum"),
    ("engine.waiting_max", "max", ["num_requests_waiting"], "sum"),
    ("engine.kv_cache_usage_ratio", "max", ["kv_cache_usage_ratio"], "mean"),
    ("slo.miss_ratio", "miss_ratio", ["slo_good_total", "slo_total"], "sum"),
    ("request.ttft_p95_s", "p95", ["ttft_s"], "sum"),
    ("request.tpot_p95_s", "p95", ["tpot_s"], "sum"),
]
GPU: list[tuple[str, str, list[str], str]] = [
    ("gpu.utilization_ratio", "mean", ["sm_active_ratio"], "mean"),
    ("gpu.tensor_active_ratio", "mean", ["tensor_active_ratio"], "mean"),
    ("gpu.memory_used_ratio", "ratio", ["memory_used_bytes", "memory_total_bytes"], "mean"),
    ("gpu.power_w", "mean", ["power_w"], "sum"),
    ("gpu.temperature_c", "mean", ["temperature_c"], "mean"),
]
CLOSED_RANGE = {
    "kv_cache_usage_ratio": (0.0, 1.0),
    "sm_active_ratio": (0.0, 1.0),
    "tensor_active_ratio": (0.0, 1.0),
    "temperature_c": (-50.0, 150.0),
}
TOO_LARGE = 2.0**53


class BadError(Exception):
    """The record is refused."""


@dataclass
class Settings:
    step_ms: int
    grace_ms: int
    skew_ms: int
    context_steps: int
    max_workloads: int
    max_record_bytes: int
    silence_steps: int
    source_cap: float | None = None


# Reading one record.


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
    told = (label(body.get("command_id")), body["status"], whole(body.get("replicas_ready")), lead)
    fact = (event_time(body.get("ts_ms", stamp)), *told)
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
    told_hists: Any,
) -> dict[str, Any]:
    known = {f for _, rule, fields, _ in (REQUESTS if source == "requests" else GPU) if rule != "p95" for f in fields}
    for name, column in columns.items():
        for c in column:
            need(c is None or type(c) in (int, float))
            if name in known:
                cell(name, c)
    unknown = sum(name not in known for name in columns)
    rows = [{name: cell(name, c[i]) for name, c in columns.items() if name in known} for i in range(len(sources))]
    for row in rows:
        used, total = row.get("memory_used_bytes"), row.get("memory_total_bytes")
        need(used is None or total is None or used <= total * 1.001)
    need(told_hists is None or type(told_hists) is dict)
    hists: list[dict[str, Any]] = [{} for _ in sources]
    for name, column in (told_hists or {}).items():
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


def never_sampled(dead_offsets: list[int]) -> set[int]:
    """Refused records that must be published: the first hundred of every thousand offsets, then one in a hundred."""
    seen: dict[int, int] = {}
    kept = set()
    for offset in dead_offsets:
        seen[offset // 1_000] = seen.get(offset // 1_000, 0) + 1
        if seen[offset // 1_000] <= 100 or offset % 100 == 0:
            kept.add(offset)
    return kept


# Folding a log.


def expected_pages(
    source: str, log: list[RawRecord], s: Settings, dead_offsets: list[int] | None = None
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Pages, and the counters at the end of the log; offsets of refused records go into `dead_offsets`."""
    dead_offsets = [] if dead_offsets is None else dead_offsets
    pages: list[dict[str, Any]] = []
    opened: dict[int, dict[str, Any]] = {}
    names = ["records", "samples", "late", "duplicate", "dead", "future", "refused", "unknown_names", "tombstones"]
    count = dict.fromkeys(names, 0)
    controls: list[dict[str, Any]] = []
    stream_time = closed = None
    for record in log:
        offset, stamp, _, _ = record
        count["records"] += 1
        try:
            told = read(source, record, s.max_record_bytes)
        except BadError:
            count["dead"] += 1
            dead_offsets.append(offset)
            continue
        if told["what"] == "tombstone":
            count["tombstones"] += 1
            continue
        if told["what"] == "control":
            controls.append(told["control"])
            continue
        if told["what"] == "tick":
            mark = min(told["ts"], stamp)
        else:
            mark = max(told["times"])
            if mark > stamp + s.skew_ms:
                count["dead"] += 1
                dead_offsets.append(offset)
                count["future"] += 1
                continue
            count["unknown_names"] += told.get("unknown", 0)
        if closed is None:
            closed = (mark - s.grace_ms) // s.step_ms - 1
        if told["what"] != "tick":
            keep(told, opened, closed, offset, count, s)
        if stream_time is not None and mark <= stream_time:
            continue
        stream_time = mark
        last = (stream_time - s.grace_ms) // s.step_ms - 1
        due = set(range(max(closed + 1, last - s.context_steps + 1), last + 1)) | {n for n in opened if n <= last}
        for slot in sorted(due):
            content = opened.pop(slot, {"entries": []})
            starts = [o["first"] for o in opened.values()]
            page = close(source, slot, content["entries"], pages, count, s)
            page.update(
                prev=pages[-1]["slot"] if pages else None,
                end_offset=offset,
                end_stamp_ms=stamp,
                resume_offset=min([*starts, offset]),
                controls=controls,
                counters=dict(count),
            )
            controls = []
            pages.append(page)
        closed = max(closed, last)
    return pages, count


def keep(
    told: dict[str, Any],
    opened: dict[int, dict[str, Any]],
    closed: int,
    offset: int,
    count: dict[str, int],
    s: Settings,
) -> None:
    """Put a record's samples and facts into their slots, unless they are late or there already."""
    workload = told["workload"]
    if told["what"] == "samples":
        entries = [("sample", (workload, source, ts), ts, (row, hists)) for source, ts, row, hists in told["samples"]]
    elif told["what"] == "fleet":
        entries = [("fleet", (workload, source, ts), ts, row) for source, ts, row in told["rows"]]
    elif told["what"] in ("batch", "slo"):
        entries = [(told["what"], (workload, *told["queue"][:2]), told["queue"][1], told["queue"])]
    else:
        entries = [("outcome", (workload, *told["fact"]), told["fact"][0], told["fact"])]
    for kind, identity, ts, payload in entries:
        slot = ts // s.step_ms
        if slot <= closed:
            count["late"] += 1
            continue
        o = opened.setdefault(slot, {"first": offset, "entries": []})
        if any(e[0] == kind and e[1] == identity for e in o["entries"]):
            count["duplicate"] += 1
            continue
        o["entries"].append((kind, identity, ts, payload))
        count["samples"] += 1


def close(
    source: str,
    slot: int,
    entries: list[tuple[str, tuple[Any, ...], int, Any]],
    pages: list[dict[str, Any]],
    count: dict[str, int],
    s: Settings,
) -> dict[str, Any]:
    """The page of one slot, given the pages before it."""
    recent = [p for p in pages if p["slot"] >= slot - s.context_steps]
    known = {w for p in recent for w in p["workloads"]}
    admitted: set[str] = set()
    for _, identity, _, _ in entries:
        w = identity[0]
        if w in admitted:
            continue
        if w in known or len(known | admitted) < s.max_workloads:
            admitted.add(w)
    count["refused"] += sum(identity[0] not in admitted for _, identity, _, _ in entries)
    rows: dict[str, dict[str, Any]] = {}
    series: dict[tuple[str, str], dict[str, Any]] = {}
    for w in sorted(admitted):
        samples: dict[str, list[tuple[int, Any, Any]]] = {}
        for kind, identity, ts, payload in entries:
            if kind == "sample" and identity[0] == w:
                samples.setdefault(identity[1], []).append((ts, *payload))
        for told in samples.values():
            told.sort(key=lambda t: t[0])
        before = {src: state for p in recent for (pw, src), state in p["series"].items() if pw == w}
        cells, censored, reset = indicators(source, samples, before, s.source_cap)
        for src in sorted(samples):
            series[w, src] = remembered(source, samples[src], before.get(src))
        fleet = sorted((ts, i[1], row) for kind, i, ts, row in entries if kind == "fleet" and i[0] == w)
        outcomes = sorted(
            (p for kind, i, _, p in entries if kind == "outcome" and i[0] == w),
            key=lambda f: (f[0], f[1], f[2], -1 if f[3] is None else f[3], -1 if f[4] is None else f[4]),
        )
        queues = {p[0]: p for k, i, _, p in sorted(entries, key=lambda e: e[2]) if k == "batch" and i[0] == w}
        slo = {p[0]: p for k, i, _, p in sorted(entries, key=lambda e: e[2]) if k == "slo" and i[0] == w}
        words = [*queues.values(), *slo.values()]
        heard = {src for p in recent if p["slot"] > slot - s.silence_steps for pw, src in p["series"] if pw == w}
        times = [t[0] for told in samples.values() for t in told]
        rows[w] = {
            "cells": cells,
            "num_samples": len(times),
            "newest_ts_ms": max(times or [*(f[0] for f in (*fleet, *outcomes)), *(word[1] for word in words)]),
            "sources_seen": len(samples),
            "sources_known": len(heard | set(samples)),
            "censored": censored,
            "reset": reset,
            "fleet": (fleet[-1][0], *fleet[-1][2]) if fleet else None,
            "outcomes": outcomes,
            "batch": [queues[src] for src in sorted(queues)],
            "slo": [slo[src] for src in sorted(slo)],
        }
    return {"slot": slot, "workloads": sorted(admitted), "rows": rows, "series": series}


def remembered(source: str, told: list[tuple[int, Any, Any]], before: dict[str, Any] | None) -> dict[str, Any]:
    """Last value and time of every counter and histogram of one source."""
    state = {"ts_ms": told[-1][0], "counters": dict((before or {}).get("counters", {}))}
    state["hists"] = dict((before or {}).get("hists", {}))
    table = REQUESTS if source == "requests" else GPU
    counters = {f for _, rule, fields, _ in table if rule in ("rate", "miss_ratio") for f in fields}
    for ts, row, hists in told:
        for name, value in row.items():
            if name in counters and value is not None:
                state["counters"][name] = (ts, value)
        for name, h in hists.items():
            state["hists"][name] = (ts, h)
    return state


# Indicators of one workload in one slot.


def indicators(
    source: str,
    samples: dict[str, list[tuple[int, Any, Any]]],
    before: dict[str, dict[str, Any]],
    cap: float | None = None,
) -> tuple[list[float | None], bool, bool]:
    """Value or None per indicator, in the table's order; whether arrivals are censored; whether a counter fell."""
    cells: list[float | None] = []
    censored = any_fell = False
    nothing: dict[str, Any] = {"counters": {}, "hists": {}}
    told_by = [(samples[src], before.get(src, nothing)) for src in sorted(samples)]
    for _, rule, fields, over in REQUESTS if source == "requests" else GPU:
        fell = False
        if rule == "rate":
            value, fell, later = rate(fields, told_by, over, cap)
            censored = censored or later
        elif rule == "miss_ratio":
            value, fell = miss_ratio(fields, told_by, cap)
        elif rule == "p95":
            value, fell = added_p95(fields[0], told_by, cap)
        else:
            value = over_sources([gauge_of(rule, fields, told) for told, _ in told_by], over, cap)
        any_fell = any_fell or fell
        cells.append(None if fell or value is None else single(value))
    return cells, censored, any_fell


Told = list[tuple[list[tuple[int, Any, Any]], dict[str, Any]]]


def rate(fields: list[str], told_by: Told, over: str, cap: float | None) -> tuple[float | None, bool, bool]:
    per_source: list[float | None] = []
    fell = later = False
    for told, old in told_by:
        present = [f for f in fields if any(row.get(f) is not None for _, row, _ in told)]
        if present:
            later = later or present[0] != fields[0]
            dropped, gain, span = growth(present[0], told, old)
            fell = fell or dropped
            per_source.append(gain * 1000.0 / span if span else None)
    return over_sources(per_source, over, cap), fell, later


def miss_ratio(fields: list[str], told_by: Told, cap: float | None) -> tuple[float | None, bool]:
    fell = False
    gains = []
    for told, old in told_by:
        a, b = growth(fields[0], told, old), growth(fields[1], told, old)
        fell = fell or a[0] or b[0]
        if a[2] and b[2]:
            gains.append((a[1], b[1]))
    limits = limits_of([b for _, b in gains], cap)
    good = add([a * limit / b if b > limit else a for (a, b), limit in zip(gains, limits, strict=True)])
    total = add([min(b, limit) for (_, b), limit in zip(gains, limits, strict=True)])
    return (min(max(1.0 - good / total, 0.0), 1.0) if total > 0 else None), fell


def added_p95(field: str, told_by: Told, cap: float | None) -> tuple[float | None, bool]:
    fell = False
    gains = []
    for told, old in told_by:
        states = [h[field] for _, _, h in told if field in h]
        if states and field in old["hists"]:
            states.insert(0, old["hists"][field][1])
        if len(states) > 1:
            gain = gained(states)
            fell = fell or gain is None
            gains.append(gain)
    known = [g for g in gains if g is not None]
    limits = limits_of([g["count"] for g in known], cap)
    return p95([lighter(g, limit) for g, limit in zip(known, limits, strict=True)]), fell


def lighter(gain: dict[str, Any], limit: float) -> dict[str, Any]:
    if gain["count"] <= limit:
        return gain
    share = limit / gain["count"]
    return gain | {"cumulative": [c * share for c in gain["cumulative"]], "count": gain["count"] * share}


def limits_of(numbers: list[float], cap: float | None) -> list[float]:
    """What each source may count for at most: `cap` times the mean of the others, where there are at least two."""
    if cap is None or len(numbers) < 3:
        return [math.inf] * len(numbers)
    whole_ = add(numbers)
    return [max(0.0, cap * ((whole_ - x) / (len(numbers) - 1))) for x in numbers]


def gauge_of(rule: str, fields: list[str], told: list[tuple[int, Any, Any]]) -> float | None:
    numbers = [x for x in (gauge(rule, fields, row) for _, row, _ in told) if x is not None]
    if not numbers:
        return None
    return max(numbers) if rule == "max" else add(numbers) / len(numbers)


def over_sources(per_source: list[float | None], over: str, cap: float | None = None) -> float | None:
    numbers = [x for x in per_source if x is not None]
    if not numbers:
        return None
    if over == "sum":
        numbers = [min(x, limit) for x, limit in zip(numbers, limits_of(numbers, cap), strict=True)]
    return add(numbers) / (len(numbers) if over == "mean" else 1)


def growth(field: str, told: list[tuple[int, Any, Any]], old: dict[str, Any]) -> tuple[bool, float, int]:
    """Whether the counter fell anywhere, by how much it grew, and over how many ms (0: not known)."""
    points = [(ts, row[field]) for ts, row, _ in told if row.get(field) is not None]
    if not points:
        return False, 0.0, 0
    if field in old["counters"]:
        points.insert(0, old["counters"][field])
    fell = any(b[1] < a[1] for a, b in pairwise(points))
    return fell, points[-1][1] - points[0][1], points[-1][0] - points[0][0]


def gauge(rule: str, fields: list[str], row: dict[str, float | None]) -> float | None:
    if rule != "ratio":
        return row.get(fields[0])
    part, whole_ = row.get(fields[0]), row.get(fields[1])
    return None if part is None or not whole_ else min(part / whole_, 1.0)


def gained(states: list[dict[str, Any]]) -> dict[str, Any] | None:
    for a, b in pairwise(states):
        if a["le"] != b["le"] or b["count"] < a["count"]:
            return None
        if any(y < x for x, y in zip(a["cumulative"], b["cumulative"], strict=True)):
            return None
    a, b = states[0], states[-1]
    cumulative = [y - x for x, y in zip(a["cumulative"], b["cumulative"], strict=True)]
    return {"le": a["le"], "cumulative": cumulative, "count": b["count"] - a["count"]}


def p95(gains: list[dict[str, Any]]) -> float | None:
    total = add([g["count"] for g in gains])
    if total <= 0:
        return None
    edges = sorted({e for g in gains for e in g["le"]})
    merged = [add([interpolated(g, e) for g in gains]) for e in edges]
    wanted = 0.95 * total
    points = [(0.0, 0.0), *zip(edges, merged, strict=True)]
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= wanted:
            return x0 + (x1 - x0) * ((wanted - y0) / (y1 - y0))
    return edges[-1]


def interpolated(gain: dict[str, Any], edge: float) -> float:
    points = [(0.0, 0.0), *zip(gain["le"], gain["cumulative"], strict=True)]
    for x, y in points[1:]:
        if x == edge:
            return float(y)
    if edge > points[-1][0]:
        return float(points[-1][1])
    (x0, y0), (x1, y1) = next((a, b) for a, b in pairwise(points) if a[0] < edge < b[0])
    return float(y0 + (y1 - y0) * ((edge - x0) / (x1 - x0)))


def add(numbers: list[float]) -> float:
    total = 0.0
    for x in numbers:
        total += x
    return total


def single(x: float) -> float:
    """Rounded to float32."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])
