"""Oracle of the indicators of one workload in one slot, in plain Python: numbers and lists, no shared code."""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import Any

Rules = list[tuple[str, str, list[str], str]]  # name, rule, fields, over sources
REQUESTS: Rules = [
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
    ("request.uncached_prompt_token_rate", "rate", ["uncached_prompt_tokens_total"], "sum"),
    ("engine.inter_token_s", "mean", ["inter_token_s"], "mean"),
    ("engine.preemption_rate", "rate", ["preemptions_total"], "sum"),
]
GPU: Rules = [
    ("gpu.utilization_ratio", "mean", ["sm_active_ratio"], "mean"),
    ("gpu.tensor_active_ratio", "mean", ["tensor_active_ratio"], "mean"),
    ("gpu.memory_used_ratio", "ratio", ["memory_used_bytes", "memory_total_bytes"], "mean"),
    ("gpu.power_w", "mean", ["power_w"], "sum"),
    ("gpu.temperature_c", "mean", ["temperature_c"], "mean"),
    ("gpu.sm_clock_mhz", "mean", ["sm_clock_mhz"], "mean"),
    ("gpu.throttled_ratio", "mean", ["throttled_ratio"], "mean"),
    ("gpu.energy_w", "rate", ["energy_total_j"], "sum"),
    ("gpu.ecc_error_rate", "rate", ["ecc_errors_total"], "sum"),
    ("gpu.xid_code", "max", ["xid_code"], "max"),
]
# Per source: its samples, and its state before the slot.
Inputs = list[tuple[list[tuple[int, Any, Any]], dict[str, Any]]]


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
    everyone = [(samples[src], before.get(src, nothing)) for src in sorted(samples)]
    inputs = [(readings, old) for readings, old in everyone if not stuck(source, readings, old)]
    for _, rule, fields, over in REQUESTS if source == "requests" else GPU:
        fell = False
        if rule == "rate":
            value, fell, later = rate(fields, inputs, over, cap)
            censored = censored or later
        elif rule == "miss_ratio":
            value, fell = miss_ratio(fields, inputs, cap)
        elif rule == "p95":
            value, fell = p95_of_increase(fields[0], everyone, cap)
        else:
            value = over_sources([gauge_of(rule, fields, readings) for readings, _ in inputs], over, cap)
        any_fell = any_fell or fell
        cells.append(None if fell or value is None else single(value))
    return cells, censored, any_fell


def stuck(source: str, readings: list[tuple[int, Any, Any]], old: dict[str, Any]) -> bool:
    """Whether an engine with running requests repeats its earlier counters, generated tokens among them."""
    if source != "requests" or not all((row.get("num_requests_running") or 0) > 0 for _, row, _ in readings):
        return False
    table = {f for _, rule, fields, _ in REQUESTS if rule in ("rate", "miss_ratio") for f in fields}
    counters = [(f, x) for _, row, _ in readings for f, x in row.items() if f in table and x is not None]
    return "generation_tokens_total" in dict(counters) and all(
        f in old["counters"] and old["counters"][f][1] == x for f, x in counters
    )


def rate(fields: list[str], inputs: Inputs, over: str, cap: float | None) -> tuple[float | None, bool, bool]:
    per_source: list[float | None] = []
    fell = later = False
    for readings, old in inputs:
        present = [f for f in fields if any(row.get(f) is not None for _, row, _ in readings)]
        if present:
            later = later or present[0] != fields[0]
            dropped, gain, span = growth(present[0], readings, old)
            fell = fell or dropped
            per_source.append(gain * 1000.0 / span if span else None)
    return over_sources(per_source, over, cap), fell, later


def miss_ratio(fields: list[str], inputs: Inputs, cap: float | None) -> tuple[float | None, bool]:
    fell = False
    gains = []
    for readings, old in inputs:
        a, b = growth(fields[0], readings, old), growth(fields[1], readings, old)
        fell = fell or a[0] or b[0]
        if a[2] and b[2]:
            gains.append((a[1], b[1]))
    limits = limits_of([b for _, b in gains], cap)
    good = add([a * limit / b if b > limit else a for (a, b), limit in zip(gains, limits, strict=True)])
    total = add([min(b, limit) for (_, b), limit in zip(gains, limits, strict=True)])
    return (min(max(1.0 - good / total, 0.0), 1.0) if total > 0 else None), fell


def p95_of_increase(field: str, inputs: Inputs, cap: float | None) -> tuple[float | None, bool]:
    fell = False
    gains = []
    for readings, old in inputs:
        states = [h[field] for _, _, h in readings if field in h]
        if states and field in old["hists"]:
            states.insert(0, old["hists"][field][1])
        if len(states) > 1:
            gain = histogram_delta(states)
            fell = fell or gain is None
            gains.append(gain)
    valid = [g for g in gains if g is not None]
    limits = limits_of([g["count"] for g in valid], cap)
    return p95([limit_weight(g, limit) for g, limit in zip(valid, limits, strict=True)]), fell


def limit_weight(gain: dict[str, Any], limit: float) -> dict[str, Any]:
    if gain["count"] <= limit:
        return gain
    share = limit / gain["count"]
    return gain | {"cumulative": [c * share for c in gain["cumulative"]], "count": gain["count"] * share}


def limits_of(numbers: list[float], cap: float | None) -> list[float]:
    """Upper limit of each source: `cap` times the mean of the others, where there are at least two."""
    if cap is None or len(numbers) < 3:
        return [math.inf] * len(numbers)
    whole_ = add(numbers)
    return [max(0.0, cap * ((whole_ - x) / (len(numbers) - 1))) for x in numbers]


def gauge_of(rule: str, fields: list[str], readings: list[tuple[int, Any, Any]]) -> float | None:
    numbers = [x for x in (gauge(rule, fields, row) for _, row, _ in readings) if x is not None]
    if not numbers:
        return None
    return max(numbers) if rule == "max" else add(numbers) / len(numbers)


def over_sources(per_source: list[float | None], over: str, cap: float | None = None) -> float | None:
    numbers = [x for x in per_source if x is not None]
    if not numbers:
        return None
    if over == "max":
        return max(numbers)
    if over == "sum":
        numbers = [min(x, limit) for x, limit in zip(numbers, limits_of(numbers, cap), strict=True)]
    return add(numbers) / (len(numbers) if over == "mean" else 1)


def growth(field: str, readings: list[tuple[int, Any, Any]], old: dict[str, Any]) -> tuple[bool, float, int]:
    """Whether the counter fell anywhere, by how much it grew, and over how many ms (0: not known)."""
    points = [(ts, row[field]) for ts, row, _ in readings if row.get(field) is not None]
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


def histogram_delta(states: list[dict[str, Any]]) -> dict[str, Any] | None:
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
    merged = [add([interpolate(g, e) for g in gains]) for e in edges]
    wanted = 0.95 * total
    points = [(0.0, 0.0), *zip(edges, merged, strict=True)]
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= wanted:
            return x0 + (x1 - x0) * ((wanted - y0) / (y1 - y0))
    return edges[-1]


def interpolate(gain: dict[str, Any], edge: float) -> float:
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
