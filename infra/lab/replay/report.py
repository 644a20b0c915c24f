"""What a replay has found, as other programs read it and as people do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from infra.console.files import plain
from infra.console.options import say
from infra.lab.replay.calibration import pooled_interval, reliability
from infra.lab.replay.matrix import Bound, CellResult
from infra.lab.replay.prepare import Options
from infra.lab.replay.records import Row, paired_interval, paired_windows

_BOUND: Final = ("attainment", "gpu_hours", "mean_replicas")


def as_json(result: CellResult, options: Options) -> dict[str, Any]:
    """The results as other programs read them."""
    return plain(
        {
            "trace": result.name,
            "slo": {
                "ttft_s": options.objective.ttft_s,
                "tpot_s": options.objective.tpot_s,
                "objective": options.share,
            },
            "lead_time_s": {
                "mean": options.lead_s,
                "sigma_log": options.lead_sigma_log,
                **({} if options.mixed_starts is None else {"mixed_starts": asdict(options.mixed_starts)}),
            },
            "profile": options.profile.name,
            "benchmark_rps": result.benchmark_rps,
            "policies": [asdict(row) for row in result.rows],
            "oracle": {
                "lead_constrained": {str(seed): asdict(b) for seed, b in result.oracle.items()},
                "free_moves": None if result.free_oracle is None else asdict(result.free_oracle),
                "rate_known": {str(seed): asdict(b) for seed, b in result.rate_known.items()},
                "causal": {str(seed): asdict(b) for seed, b in result.causal.items()},
            },
            "surprises_s": result.surprises_s,
            "tuning": {
                p: [{"params": str(t.choice), "attainment": t.attainment, "gpu_hours": t.gpu_hours} for t in trials]
                for p, trials in result.trials.items()
            },
            "against_hpa": _against(result.rows, "hpa"),
            "calibration": {
                p: {
                    "bins": [asdict(b) for b in reliability(risks)],
                    "stated": sum(s.p_miss for s in risks) / len(risks),
                    "realized_and_interval": pooled_interval(risks),
                }
                for p, risks in result.stated.items()
            },
        }
    )


def _against(rows: Sequence[Row], peer: str) -> dict[str, Any] | None:
    """95 % intervals of HARMONY minus a peer, paired by seed and by window of time; None without one of both."""
    ours = {r.seed: r for r in rows if r.policy == "harmony"}
    theirs = {r.seed: r for r in rows if r.policy == peer}
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    windows = paired_windows([ours[s].windows for s in seeds], [theirs[s].windows for s in seeds])
    by_seed = {
        name: paired_interval([getattr(ours[s], name) for s in seeds], [getattr(theirs[s], name) for s in seeds])
        for name in ("attainment", "gpu_hours")
        if len(seeds) > 1
    }
    return {**by_seed, "by_window": None if windows is None else windows._asdict()}


def mean_of(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def print_table(result: CellResult, share: float) -> None:
    """The policies, then the bounds; `share` is the objective."""
    bound = mean_of([b.gpu_hours for b in result.oracle.values()])
    table = Table(box=None, pad_edge=False, title=result.name)
    for heading in (
        "policy",
        "attainment",
        "worst window",
        "GPU-hours",
        "of oracle",
        "replicas",
        "switches/h",
        "tuned",
    ):
        table.add_column(heading, justify="left" if heading in ("policy", "tuned") else "right")
    for policy in dict.fromkeys(r.policy for r in result.rows):
        mine = [r for r in result.rows if r.policy == policy]
        n = len(mine)
        attained, hours = sum(r.attainment for r in mine) / n, sum(r.gpu_hours for r in mine) / n
        table.add_row(
            policy,
            f"{attained:.2%}" + ("" if attained >= share else " !"),
            f"{min(r.worst_window_attainment for r in mine):.2%}",
            f"{hours:.3f}",
            f"{hours / bound:.2f}" if bound else "",
            f"{sum(r.mean_replicas for r in mine) / n:.2f}",
            f"{sum(r.switches_per_hour for r in mine) / n:.1f}",
            mine[0].params,
        )
    free = [] if result.free_oracle is None else [result.free_oracle]
    known = list(result.rate_known.values())
    ready = [b.ready for b in result.causal.values()]
    bounds: dict[str, Sequence[Bound | None]] = {
        "oracle": [*result.oracle.values()][:1],
        "oracle, free moves": free,
        "oracle, rate known": known,
        "oracle, surprised": [b.unready for b in result.causal.values()],
        "oracle, surprised, ready": [] if None in ready else ready,
    }
    for name, found in bounds.items():
        if found:
            kept, hours, held = (mean_of([getattr(b, what) for b in found]) or 0.0 for what in _BOUND)
            table.add_row(
                name, f"{kept:.2%}", "", f"{hours:.3f}", f"{hours / bound:.2f}" if bound else "", f"{held:.2f}"
            )
    Console(width=150).print(table)
    harmony = [r for r in result.rows if r.policy == "harmony"]
    if harmony:
        say(
            f"holds of harmony by reason: {_shares(harmony, 'holds')}; "
            f"forecasts by source: {_shares(harmony, 'forecasts')}"
        )


def _shares(rows: Sequence[Row], what: str) -> str:
    total: dict[str, int] = {}
    for row in rows:
        for name, count in getattr(row, what).items():
            total[name] = total.get(name, 0) + count
    whole = max(1, sum(total.values()))
    return (
        ", ".join(f"{name} {count / whole:.0%}" for name, count in sorted(total.items(), key=lambda x: -x[1])) or "none"
    )


# Cost against attainment of every policy as an SVG drawing; needs nothing but a browser.


_W, _H, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 520, 70, 190, 46, 56
_COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
            "#ff7f0e", "#393b79", "#637939", "#843c39", "#7b4173")  # fmt: skip
_MISS_TICKS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)


def pareto_svg(rows: Sequence[Row], oracle_gpu_hours: float | None, share: float, title: str) -> str:
    """Misses (log, better upwards) over GPU-hours; policies nobody beats on both are joined by a line."""
    points = [(r.policy, r.gpu_hours, max(1.0 - r.attainment, 2e-4)) for r in rows]
    costs = [c for _, c, _ in points] + ([oracle_gpu_hours] if oracle_gpu_hours else [])
    low, high = 0.95 * min(costs), 1.05 * max(costs)
    most = max(0.03, *(m for _, _, m in points))

    def x(cost: float) -> float:
        return _LEFT + (cost - low) / (high - low) * (_W - _LEFT - _RIGHT)

    def y(miss: float) -> float:
        top, bottom = math.log(2e-4), math.log(most * 1.2)
        return _TOP + (math.log(max(miss, 2e-4)) - top) / (bottom - top) * (_H - _TOP - _BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {_H}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_W}" height="{_H}" fill="white"/>',
        f'<text x="{_LEFT}" y="26" font-size="16">{escape(title)}</text>',
    ]
    for miss in _MISS_TICKS:
        if miss <= most * 1.2:
            out.append(f'<line x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y(miss):.1f}" y2="{y(miss):.1f}" stroke="#ddd"/>')
            out.append(f'<text x="{_LEFT - 8}" y="{y(miss) + 4:.1f}" text-anchor="end">{miss * 100:g} %</text>')
    for k in range(6):
        cost = low + (high - low) * k / 5
        out.append(f'<text x="{x(cost):.1f}" y="{_H - _BOTTOM + 20}" text-anchor="middle">{cost:.3g}</text>')
    out.append(f'<text x="{(_LEFT + _W - _RIGHT) / 2}" y="{_H - 12}" text-anchor="middle">GPU-hours</text>')
    out.append(f'<text transform="translate(16 {_H / 2}) rotate(-90)" text-anchor="middle">requests missed</text>')
    allowed = y(1.0 - share)
    out.append(f'<line x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{allowed:.1f}" y2="{allowed:.1f}" stroke="#d62728" '
               'stroke-dasharray="6 4"/>')  # fmt: skip
    if oracle_gpu_hours:
        at = x(oracle_gpu_hours)
        out.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_H - _BOTTOM}" stroke="black" '
                   'stroke-dasharray="2 3"/>')  # fmt: skip
        out.append(f'<text x="{at + 4:.1f}" y="{_TOP + 12}">oracle</text>')
    front = _front([(c, m) for _, c, m in points])
    path = " ".join(f"{x(c):.1f},{y(m):.1f}" for c, m in front)
    out.append(f'<polyline points="{path}" fill="none" stroke="#aaa"/>')
    names = list(dict.fromkeys(p for p, _, _ in points))
    for k, name in enumerate(names):
        colour = _COLOURS[k % len(_COLOURS)]
        for policy, cost, miss in points:
            if policy == name:
                radius = 7 if name == "harmony" else 5
                out.append(
                    f'<circle cx="{x(cost):.1f}" cy="{y(miss):.1f}" r="{radius}" fill="{colour}" opacity="0.8"/>'
                )
        height = _TOP + 10 + 20 * k
        out.append(f'<circle cx="{_W - _RIGHT + 20}" cy="{height}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{_W - _RIGHT + 32}" y="{height + 4}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


def write_plot(path: Path, svg: str) -> None:
    """Write it where the user said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")


def _front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other beats on cost and misses, by cost."""
    best, front = math.inf, []
    for cost, miss in sorted(points):
        if miss < best:
            best = miss
            front.append((cost, miss))
    return front
