"""Cost against attainment of every policy as an SVG drawing; needs nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from infra.lab.replay.records import Row

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
