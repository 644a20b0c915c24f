"""Oracle of ingest in plain Python: one record at a time, dicts and lists, no shared code.

`expected_pages` takes the raw log of one partition and returns one dict per page. It is slow, obvious and independent:
it keeps every accepted sample and every page, and derives all state from those alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.oracles.indicator_oracle import GPU, REQUESTS, indicators, stuck
from tests.oracles.record_oracle import BadError, RawRecord, read

NOTHING: dict[str, Any] = {"counters": {}, "hists": {}}


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
    max_undeclared: int = 256
    declared: frozenset[str] = frozenset()
    controls: bool = True


def always_published(dead_offsets: list[int]) -> set[int]:
    """Refused records that must be published: the first hundred of every thousand offsets, then one in a hundred."""
    seen: dict[int, int] = {}
    published = set()
    for offset in dead_offsets:
        seen[offset // 1_000] = seen.get(offset // 1_000, 0) + 1
        if seen[offset // 1_000] <= 100 or offset % 100 == 0:
            published.add(offset)
    return published


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
            decoded = read(source, record, s.max_record_bytes)
        except BadError:
            count["dead"] += 1
            dead_offsets.append(offset)
            continue
        if decoded["what"] == "tombstone":
            count["tombstones"] += 1
            continue
        if decoded["what"] == "control":
            if not s.controls:
                count["dead"] += 1
                dead_offsets.append(offset)
                continue
            if len(controls) >= 64:
                count["refused"] += 1
                continue
            controls.append(decoded["control"])
            continue
        if decoded["what"] == "tick":
            mark = min(decoded["ts"], stamp)
        else:
            mark = max(decoded["times"])
            if mark > stamp + s.skew_ms:
                count["dead"] += 1
                dead_offsets.append(offset)
                count["future"] += 1
                continue
            count["unknown_names"] += decoded.get("unknown", 0)
        if closed is None:
            closed = (mark - s.grace_ms) // s.step_ms - 1
        if decoded["what"] != "tick":
            add_record(decoded, opened, closed, offset, count, s)
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


def add_record(
    decoded: dict[str, Any],
    opened: dict[int, dict[str, Any]],
    closed: int,
    offset: int,
    count: dict[str, int],
    s: Settings,
) -> None:
    """Put a record's samples and facts into their slots, unless they are late or there already."""
    workload = decoded["workload"]
    if decoded["what"] == "samples":
        entries = [
            ("sample", (workload, source, ts), ts, (row, hists)) for source, ts, row, hists in decoded["samples"]
        ]
    elif decoded["what"] == "fleet":
        entries = [("fleet", (workload, source, ts), ts, row) for source, ts, row in decoded["rows"]]
    elif decoded["what"] in ("batch", "slo"):
        entries = [(decoded["what"], (workload, *decoded["queue"][:2]), decoded["queue"][1], decoded["queue"])]
    else:
        entries = [("outcome", (workload, *decoded["fact"]), decoded["fact"][0], decoded["fact"])]
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
    for turn in ("declared", "undeclared"):
        for _, identity, _, _ in entries:
            w = identity[0]
            held = known | admitted
            strangers = [name for name in held if name not in s.declared]
            alike = [name for name in strangers if name.rpartition("/")[0] == w.rpartition("/")[0]]
            if w in known or (turn == "declared" and w in s.declared and len(held) < s.max_workloads):
                admitted.add(w)
            elif turn == "undeclared" and w not in s.declared:
                room = len(held) < s.max_workloads and len(strangers) < s.max_undeclared
                if room and len(alike) < (s.max_undeclared + 1) // 2:
                    admitted.add(w)
    count["refused"] += sum(identity[0] not in admitted for _, identity, _, _ in entries)
    rows: dict[str, dict[str, Any]] = {}
    series: dict[tuple[str, str], dict[str, Any]] = {}
    for w in sorted(admitted):
        samples: dict[str, list[tuple[int, Any, Any]]] = {}
        for kind, identity, ts, payload in entries:
            if kind == "sample" and identity[0] == w:
                samples.setdefault(identity[1], []).append((ts, *payload))
        for readings in samples.values():
            readings.sort(key=lambda t: t[0])
        before = {src: state for p in recent for (pw, src), state in p["series"].items() if pw == w}
        cells, censored, reset = indicators(source, samples, before, s.source_cap)
        for src in sorted(samples):
            series[w, src] = series_state(source, samples[src], before.get(src))
        fleet = sorted((ts, i[1], row) for kind, i, ts, row in entries if kind == "fleet" and i[0] == w)
        outcomes = sorted(
            (p for kind, i, _, p in entries if kind == "outcome" and i[0] == w),
            key=lambda f: (f[0], f[1], f[2], -1 if f[3] is None else f[3], -1 if f[4] is None else f[4]),
        )
        queues = {p[0]: p for k, i, _, p in sorted(entries, key=lambda e: e[2]) if k == "batch" and i[0] == w}
        slo = {p[0]: p for k, i, _, p in sorted(entries, key=lambda e: e[2]) if k == "slo" and i[0] == w}
        reports = [*queues.values(), *slo.values()]
        recent_sources = {
            src for p in recent if p["slot"] > slot - s.silence_steps for pw, src in p["series"] if pw == w
        }
        times = [t[0] for readings in samples.values() for t in readings]
        rows[w] = {
            "cells": cells,
            "num_samples": len(times),
            "newest_ts_ms": max(times or [*(f[0] for f in (*fleet, *outcomes)), *(report[1] for report in reports)]),
            "sources_seen": sum(
                not stuck(source, readings, before.get(src, NOTHING)) for src, readings in samples.items()
            ),
            "sources_known": len(recent_sources | set(samples)),
            "censored": censored,
            "reset": reset,
            "fleet": (fleet[-1][0], *fleet[-1][2]) if fleet else None,
            "outcomes": outcomes,
            "batch": [queues[src] for src in sorted(queues)],
            "slo": [slo[src] for src in sorted(slo)],
        }
    return {"slot": slot, "workloads": sorted(admitted), "rows": rows, "series": series}


def series_state(source: str, readings: list[tuple[int, Any, Any]], before: dict[str, Any] | None) -> dict[str, Any]:
    """Last value and time of every counter and histogram of one source."""
    state = {"ts_ms": readings[-1][0], "counters": dict((before or {}).get("counters", {}))}
    state["hists"] = dict((before or {}).get("hists", {}))
    table = REQUESTS if source == "requests" else GPU
    counters = {f for _, rule, fields, _ in table if rule in ("rate", "miss_ratio") for f in fields}
    repeats = stuck(source, readings, before or NOTHING)
    for ts, row, hists in readings:
        for name, value in row.items():
            if name in counters and value is not None and not repeats:
                state["counters"][name] = (ts, value)
        for name, h in hists.items():
            state["hists"][name] = (ts, h)
    return state
