"""Seeded telemetry logs with everything that goes wrong in them, as raw (offset, stamp, key, value) tuples."""

from __future__ import annotations

import json
import random
from typing import Any

RawRecord = tuple[int, int, bytes | None, bytes | None]

START_MS = 1_763_636_400_000
EDGES = ([0.5, 1.0, 2.0, 5.0], [0.25, 1.0, 4.0, 10.0], [1.0, 3.0])

POISON: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"v":1,"kind":"requests"}',
    b'{"v":2,"kind":"tick","ts_ms":1}',
    b'{"v":1,"kind":"tick","ts_ms":NaN}',
    b'{"v":1,"kind":"tick","ts_ms":1e999}',
    b'{"v":1,"kind":"tick","ts_ms":true}',
    b'{"v":1,"kind":"tick","ts_ms":1,"ts_ms":2}',
    b'{"v":1,"kind":"tick","ts_ms":' + b"9" * 5000 + b"}",
    b'{"v":1,"kind":"tick","ts_ms":1,"x":' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"v":1,"kind":"nonsense","ts_ms":1}',
    b'{"v":1,"kind":"control","control_id":"c","action":"explode","ts_ms":1}',
)


class Publisher:
    """One source of one workload: counters that grow, and now and then start again."""

    def __init__(self, rng: random.Random, kind: str, workload: str, source: str) -> None:
        self.rng, self.kind, self.workload, self.source = rng, kind, workload, source
        self.counters: dict[str, float] = {}
        self.completions_only = rng.random() < 0.2
        self.edges = rng.choice(EDGES)
        self.hist = {name: [0.0] * (len(self.edges) + 1) for name in ("ttft_s", "tpot_s")}
        self.with_hist = kind == "requests" and rng.random() < 0.6
        self.reset()

    def reset(self) -> None:
        names = ["prompt_tokens_total", "generation_tokens_total", "slo_good_total", "slo_total"]
        names.append("requests_finished_total" if self.completions_only else "requests_started_total")
        names += ["uncached_prompt_tokens_total", "preemptions_total"]
        devices = ["energy_total_j", "ecc_errors_total"]
        self.counters = dict.fromkeys(names if self.kind == "requests" else devices, 0.0)

    def row(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next values and histograms."""
        rng = self.rng
        if rng.random() < 0.03:
            self.reset()
            self.hist = {name: [0.0] * len(h) for name, h in self.hist.items()}
        if rng.random() < 0.01:
            self.edges = rng.choice(EDGES)
            self.hist = {name: [0.0] * (len(self.edges) + 1) for name in self.hist}
        if rng.random() < 0.8:  # otherwise nothing happened, and increases are 0
            for name in self.counters:
                self.counters[name] += rng.randint(0, 50) if name != "slo_good_total" else rng.randint(0, 40)
        values: dict[str, Any] = dict(self.counters)
        if self.kind == "requests":
            values["num_requests_running"] = rng.randint(0, 64)
            values["num_requests_waiting"] = rng.random() * 10
            values["kv_cache_usage_ratio"] = rng.choice([0.0, -0.0, 1.0004, rng.random()])
            values["inter_token_s"] = rng.random() / 20
        else:
            values["sm_active_ratio"] = rng.random()
            values["tensor_active_ratio"] = rng.random()
            values["memory_total_bytes"] = rng.choice([0, 85899345920])
            values["memory_used_bytes"] = values["memory_total_bytes"] * rng.random()
            values["power_w"] = rng.random() * 700
            values["temperature_c"] = rng.randint(-5, 95)
            values["sm_clock_mhz"] = rng.randint(210, 1980)
            values["throttled_ratio"] = rng.randint(0, 1)
            values["xid_code"] = rng.choice([0, 0, 43, 79])
        for name in list(values):
            chance = rng.random()
            if chance < 0.05:
                values[name] = None
            elif chance < 0.08:
                del values[name]
        if rng.random() < 0.05:
            values["some_new_name"] = 1
        hists: dict[str, Any] = {}
        if self.with_hist and rng.random() < 0.9:
            for name, counts in self.hist.items():
                for _ in range(rng.randint(0, 9)):
                    counts[rng.randrange(len(counts))] += 1
                cumulative = [sum(counts[: i + 1]) for i in range(len(self.edges))]
                hists[name] = {"le": self.edges, "cumulative": cumulative, "count": sum(counts), "sum": sum(counts)}
        return values, hists


def random_log(
    seed: int, source: str, step_ms: int, grace_ms: int, skew_ms: int, num_slots: int, num_workloads: int = 4
) -> list[RawRecord]:
    """A log of one partition: out of order, late, repeated, fast clocks, packed, resets, silences, poison, facts.

    Stamps never fall. Event times lie mostly within the grace of their stamp.
    """
    rng = random.Random(seed)
    publishers = [
        Publisher(rng, source, f"team/w-{w}", f"node-{s}" + (":9" if rng.random() < 0.2 else ""))
        for w in range(num_workloads)
        for s in range(rng.randint(1, 3))
    ]
    away: dict[int, int] = {}
    sent: list[tuple[int, bytes | None, bytes | None]] = []  # stamp, key, value
    now = START_MS + rng.randrange(step_ms)
    end = now + num_slots * step_ms
    while now < end:
        now += rng.randint(0, step_ms // 8)
        if rng.random() < 0.01:
            now += rng.randint(0, 8 * step_ms)  # nothing is heard of anybody
        i = rng.randrange(len(publishers))
        if away.get(i, 0) > now:
            continue
        if rng.random() < 0.02:
            away[i] = now + rng.randint(1, 9) * step_ms
        sent += _records(rng, publishers[i], now, step_ms, grace_ms, skew_ms)
        if sent and rng.random() < 0.05:
            _, key, value = rng.choice(sent[-30:])
            sent.append((now, key, value))
    offset, log = rng.randint(0, 1000), []
    for stamp, key, value in sent:
        log.append((offset, stamp, key, value))
        offset += 1 if rng.random() < 0.98 else rng.randint(2, 4)
    return log


def _records(
    rng: random.Random, p: Publisher, now: int, step_ms: int, grace_ms: int, skew_ms: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    key = p.workload.encode()
    ts = now - rng.randint(0, max(1, grace_ms // 2))
    chance = rng.random()
    if chance < 0.03:
        ts = now - grace_ms - step_ms - rng.randint(0, 5 * step_ms)  # too late
    elif chance < 0.05:
        ts = now + rng.choice([skew_ms, skew_ms + 1, 60_000])  # a fast clock
    head: dict[str, Any] = {"v": 1, "kind": p.kind, "workload": p.workload}
    odd = _odd_record(rng, p, head, now, ts, grace_ms)
    if odd is not None:
        return [odd]
    if rng.random() < 0.15:
        return [(now, key, _packed(rng, p, head, ts, step_ms))]
    values, hists = p.row()
    body = {**head, "source": p.source, "ts_ms": ts, "values": values}
    if hists:
        body["hist"] = hists
    if rng.random() < 0.02:
        del body["ts_ms"]
    if rng.random() < 0.03:
        body["comment"] = 'a "note" with: colons'
    return [(now, key if rng.random() < 0.99 else b"elsewhere", _json(body))]


def _odd_record(
    rng: random.Random, p: Publisher, head: dict[str, Any], now: int, ts: int, grace_ms: int
) -> tuple[int, bytes | None, bytes | None] | None:
    """Now and then a record that is no sample, or no good one."""
    key = p.workload.encode()
    what = rng.random()
    if what < 0.03:
        return (now, rng.choice([key, None]), rng.choice(POISON))
    if what < 0.04:
        return (now, key, None)
    if what < 0.07:
        return (now, None, _json({"v": 1, "kind": "tick", "ts_ms": now - grace_ms // 2 + rng.randint(-50, 5000)}))
    if what < 0.10:
        names = ("replicas_ready", "replicas_pending", "replicas_draining")
        values: dict[str, Any] = {name: rng.randint(0, 9) for name in names}
        if rng.random() < 0.7:
            values["replicas_desired"] = rng.choice([None, 7])
        if rng.random() < 0.1:
            del values["replicas_pending"]
        fleet = {"source": rng.choice(["k8s", "slurm"]), "ts_ms": ts, "values": values}
        return (now, key, _json({**head, "kind": "fleet", **fleet}))
    if what < 0.12:
        told = {"source": "k8s", "ts_ms": ts, "command_id": f"c{rng.randint(0, 3)}"}
        status = {"status": rng.choice(["ready", "applied", "lost"]), "replicas_ready": 3, "lead_time_s": 61.5}
        return (now, key, _json({**head, "kind": "outcome", **told, **status}))
    if what < 0.14:
        control = {"kind": "control", "control_id": f"op-{rng.randint(0, 99)}", "ts_ms": ts, "action": "pause"}
        return (now, None, _json({"v": 1, **control, "by": "someone"}))
    if what < 0.17:
        bad = {"source": p.source, "ts_ms": ts, "values": {"num_requests_running": "3", "power_w": -1}}
        return (now, rng.choice([key, b"other", None]), _json({**head, **bad}))
    if what < 0.19:
        jobs = [{"due_ts_ms": ts + rng.randint(-1, 3) * 1000, "tokens": rng.randint(-1, 40) * 0.5}] * rng.randint(0, 2)
        jobs += [{"due_ts_ms": now + rng.randint(0, 9), "tokens": rng.randint(0, 9)} for _ in range(rng.randint(0, 2))]
        queue = {"source": rng.choice(["nightly", "jobs/eval"]), "ts_ms": ts, "jobs": jobs}
        return (now, key, _json({**head, "kind": "batch", **queue}))
    if what < 0.21:
        totals = {name: rng.randint(0, 9) for name in rng.sample(["chat", "bulk", "<b>", "live"], rng.randint(0, 2))}
        classes = {name: {"good_total": rng.randint(0, 9) * 0.5, "total": total} for name, total in totals.items()}
        counts = {"source": rng.choice(["gateway", "jobs/eval"]), "ts_ms": ts, "classes": classes}
        return (now, key, _json({**head, "kind": "slo", **counts}))
    return None


def _packed(rng: random.Random, p: Publisher, head: dict[str, Any], ts: int, step_ms: int) -> bytes:
    size = rng.randint(1, 6)
    rows = [p.row() for _ in range(size)]
    times = [ts - rng.randint(0, step_ms) for _ in range(size)]
    sources = [p.source if rng.random() < 0.7 else f"pod-{rng.randint(0, 2)}" for _ in range(size)]
    names = sorted({name for values, _ in rows for name in values})
    body = {**head, "source": sources, "ts_ms": times}
    body["values"] = {name: [values.get(name) for values, _ in rows] for name in names}
    hist_names = sorted({name for _, hists in rows for name in hists})
    if hist_names:
        body["hist"] = {name: [hists.get(name) for _, hists in rows] for name in hist_names}
    if rng.random() < 0.05:
        body["ts_ms"] = times[:-1]
    return _json(body)


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
