"""Figures of the measuring commands, in one style; matplotlib is imported here, when a plot is drawn.

The functions take names and arrays, so that they depend on no command.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from infra.console.errors import HarmonyError

INK, GREY, TRUTH = "#22303c", "#8a97a3", "#111111"
FAN = "#1f77b4"
PALETTE = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#a6761d", "#66a61e", "#666666", "#17becf", "#bcbd22")
FORMATS = {".png", ".svg", ".pdf"}


def pyplot(where: Path) -> Any:
    """Return matplotlib.pyplot without a display, in the style of this module.

    Raises:
        HarmonyError: matplotlib is missing, or the file's ending names no format.
    """
    if where.suffix.lower() not in FORMATS:
        raise HarmonyError(f"{where}: a plot must end in .png, .svg or .pdf.", 2)
    try:
        import matplotlib as mpl
    except ImportError:
        raise HarmonyError("Plots need matplotlib: install the extra `plots`.", 2) from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "figure.dpi": 150,
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": GREY,
            "axes.labelcolor": INK,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.grid": True,
            "grid.color": "#e6eaee",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "svg.hashsalt": "harmony",
        }
    )
    return plt


def save(figure: Any, where: Path) -> Path:
    """Write the figure, close it and return its file; missing folders are made.

    Raises:
        HarmonyError: the file cannot be written.
    """
    from matplotlib import pyplot as plt

    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(where, bbox_inches="tight")
    except OSError as error:
        raise HarmonyError(f"{where}: the plot cannot be written ({error.strerror}).") from None
    finally:
        plt.close(figure)
    return where


def fan(axis: Any, x: Any, quantiles: Any, levels: Any, color: str = FAN) -> None:
    """Draw central intervals as shades, the widest lightest, and the median as a line.

    Args:
        quantiles: [Q, H], ascending in the levels.
    """
    pairs = [(k, len(levels) - 1 - k) for k in range(len(levels) // 2)]
    for depth, (low, high) in enumerate(pairs):
        if abs(levels[low] + levels[high] - 1) > 1e-6:
            continue
        label = f"{levels[high] - levels[low]:.0%} interval"
        shade = 0.14 + 0.16 * depth
        axis.fill_between(x, quantiles[low], quantiles[high], color=color, alpha=min(shade, 0.6), lw=0, label=label)
    middle = min(range(len(levels)), key=lambda k: abs(levels[k] - 0.5))
    axis.plot(x, quantiles[middle], color=color, lw=1.6, label="median")


# Backtest: load, replicas and good requests over time.


class GoodRequests(NamedTuple):
    """Share of good requests by window of time.

    Attributes:
        starts_s: start of each window, seconds; [W].
        window_s: length of every window, seconds.
        good: share of good requests of each window; [W], NaN without requests.
    """

    starts_s: NDArray[np.float64]
    window_s: float
    good: NDArray[np.float64]


def draw_backtest(
    where: Path,
    workload: str,
    at_s: NDArray[np.float64],
    rate_rps: ArrayLike,
    replicas: Mapping[str, ArrayLike],
    good: Sequence[GoodRequests],
    objective: float,
    score_start_s: float,
) -> Path:
    """Draw load, ready replicas and good requests, one below the other.

    Args:
        at_s, rate_rps: time and load; [T].
        replicas: ready replicas at these times, by label; the recorded ones first, HARMONY's second.
        good: in the same order as `replicas`.
        score_start_s: end of the shaded warm-up.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    plt = pyplot(where)
    figure, axes = plt.subplots(3, 1, figsize=(9.0, 6.6), sharex=True, height_ratios=(1.0, 1.4, 1.0))
    colors = (PALETTE[1], PALETTE[0])
    hours = at_s / 3600
    axes[0].fill_between(hours, 0, rate_rps, color=GREY, alpha=0.45, lw=0)
    axes[0].set_title(f"{workload}: requests/s")
    for (label, counts), color in zip(replicas.items(), colors, strict=True):
        axes[1].step(hours, counts, where="post", color=color, lw=1.3, label=label)
    axes[1].set_title("replicas, ready")
    axes[1].set_ylim(bottom=0)
    # Beside the title: within the axes it would lie on the lines.
    axes[1].legend(ncols=2, loc="lower right", bbox_to_anchor=(1.01, 0.97))
    for windows, color in zip(good, colors, strict=True):
        axes[2].plot((windows.starts_s + windows.window_s / 2) / 3600, windows.good, color=color, lw=1.3)
    axes[2].axhline(objective, color=INK, lw=0.8, ls=":")
    axes[2].set_title(f"good requests, per {good[0].window_s / 60:.0f} min; dotted: the objective")
    axes[2].set_xlabel("hours")
    for axis in axes:
        axis.axvspan(0, score_start_s / 3600, color=GREY, alpha=0.12, lw=0)
    figure.tight_layout()
    return save(figure, where)


# Replay: the reliability diagram of stated risks.

_MIN_RISK, _MAX_RISK = 8e-4, 1.0  # rarer risks are drawn at the edge, because a logarithm has no zero
_RISK_TICKS = (0.001, 0.01, 0.1, 1.0)
_LONG_LABEL_CHARS = 20  # two longer labels do not fit beside each other


class ReliabilityCurve(NamedTuple):
    """Decisions grouped by stated risk.

    Attributes:
        stated: mean stated probability of each bin; [K].
        realized: share of missed windows of each bin; [K].
        intervals: 95 % intervals of `realized`; [K, 2].
        counts: decisions in each bin; [K].
    """

    stated: ArrayLike
    realized: ArrayLike
    intervals: ArrayLike
    counts: ArrayLike


def draw_reliability(where: Path, curves: Mapping[str, ReliabilityCurve], title: str) -> Path:
    """Draw the reliability diagram: realized frequency over stated probability, both logarithmic.

    Source: Murphy & Winkler, "Reliability of Subjective Probability Forecasts", Applied Statistics 26 (1977).

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    plt = pyplot(where)
    figure, axis = plt.subplots(figsize=(5.4, 4.6))
    axis.plot([_MIN_RISK, _MAX_RISK], [_MIN_RISK, _MAX_RISK], color=GREY, lw=0.9, ls="--")
    axis.annotate("more misses than stated", (0.0013, 0.55), color=INK, fontsize=8)
    axis.annotate("fewer", (0.35, 0.0013), color=INK, fontsize=8)
    for k, (name, curve) in enumerate(curves.items()):
        stated, realized = (np.clip(values, _MIN_RISK, _MAX_RISK) for values in (curve.stated, curve.realized))
        ends = np.clip(curve.intervals, _MIN_RISK, _MAX_RISK).reshape(-1, 2)
        color = PALETTE[k % len(PALETTE)]
        apart = 1.03 ** (k - (len(curves) - 1) / 2)  # so that intervals of several curves do not hide each other
        axis.vlines(stated * apart, ends[:, 0], ends[:, 1], color=color, lw=1.0, alpha=0.45)
        axis.plot(stated * apart, realized, color=color, lw=1.0, alpha=0.8, label=name)
        axis.scatter(stated * apart, realized, s=6 + 2 * np.sqrt(curve.counts), color=color, zorder=3)
    axis.set(xscale="log", yscale="log", xlim=(_MIN_RISK, _MAX_RISK * 1.1), ylim=(_MIN_RISK, _MAX_RISK * 1.1))
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_ticks(_RISK_TICKS, [f"{100 * tick:g} %" for tick in _RISK_TICKS])
    axis.set(xlabel="stated P(miss)", ylabel="windows missed")
    columns = 1 if max(map(len, curves), default=0) > _LONG_LABEL_CHARS else 2
    axis.set_title(title, pad=8 + 14 * math.ceil(len(curves) / columns))
    axis.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns)
    figure.tight_layout()
    return save(figure, where)


# Replay: cost against misses. It is written as SVG by hand, so that `--plot` works without matplotlib.

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 520, 70, 190, 46, 56
_POLICY_COLORS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
                  "#ff7f0e", "#393b79", "#637939", "#843c39", "#7b4173")  # fmt: skip
_MISS_TICKS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
_MIN_MISS = 2e-4  # the edge of the logarithmic axis


class RunCost(NamedTuple):
    """One run of a policy: what it cost and which share of its requests was good."""

    policy: str
    gpu_hours: float
    attainment: float


def pareto_svg(runs: Sequence[RunCost], oracle_gpu_hours: float | None, objective: float, title: str) -> str:
    """Return an SVG of misses (logarithmic, fewer is higher) over GPU-hours, with the Pareto front as a line.

    Args:
        oracle_gpu_hours: cost of the clairvoyant oracle, drawn as a vertical line; None = not known.
        objective: wanted share of good requests, drawn as a horizontal line.
    """
    points = [(policy, hours, max(1.0 - attainment, _MIN_MISS)) for policy, hours, attainment in runs]
    costs = [cost for _, cost, _ in points] + ([oracle_gpu_hours] if oracle_gpu_hours else [])
    low, high = 0.95 * min(costs), 1.05 * max(costs)
    max_miss = max(0.03, *(miss for _, _, miss in points))

    def x(cost: float) -> float:
        return _LEFT + (cost - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(miss: float) -> float:
        top, bottom = math.log(_MIN_MISS), math.log(max_miss * 1.2)
        return _TOP + (math.log(max(miss, _MIN_MISS)) - top) / (bottom - top) * (_HEIGHT - _TOP - _BOTTOM)

    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
            'font-size="13">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="26" font-size="16">{escape(title)}</text>',
    ]
    for miss in _MISS_TICKS:
        if miss <= max_miss * 1.2:
            out.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y(miss):.1f}" y2="{y(miss):.1f}" stroke="#ddd"/>')
            out.append(f'<text x="{_LEFT - 8}" y="{y(miss) + 4:.1f}" text-anchor="end">{miss * 100:g} %</text>')
    for k in range(6):
        cost = low + (high - low) * k / 5
        out.append(f'<text x="{x(cost):.1f}" y="{bottom + 20}" text-anchor="middle">{cost:.3g}</text>')
    out.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">GPU-hours</text>')
    out.append(f'<text transform="translate(16 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">requests missed</text>')
    allowed = y(1.0 - objective)
    out.append(f'<line x1="{_LEFT}" x2="{right}" y1="{allowed:.1f}" y2="{allowed:.1f}" stroke="#d62728" '
               'stroke-dasharray="6 4"/>')  # fmt: skip
    if oracle_gpu_hours:
        at = x(oracle_gpu_hours)
        out.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}" stroke="black" '
                   'stroke-dasharray="2 3"/>')  # fmt: skip
        out.append(f'<text x="{at + 4:.1f}" y="{_TOP + 12}">oracle</text>')
    path = " ".join(f"{x(cost):.1f},{y(miss):.1f}" for cost, miss in pareto_front([(c, m) for _, c, m in points]))
    out.append(f'<polyline points="{path}" fill="none" stroke="#aaa"/>')
    for k, name in enumerate(dict.fromkeys(policy for policy, _, _ in points)):
        color, radius = _POLICY_COLORS[k % len(_POLICY_COLORS)], 7 if name == "harmony" else 5
        for policy, cost, miss in points:
            if policy == name:
                out.append(f'<circle cx="{x(cost):.1f}" cy="{y(miss):.1f}" r="{radius}" fill="{color}" opacity="0.8"/>')
        height = _TOP + 10 + 20 * k
        out.append(f'<circle cx="{right + 20}" cy="{height}" r="5" fill="{color}"/>')
        out.append(f'<text x="{right + 32}" y="{height + 4}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (cost, misses) that no other point beats on both, by ascending cost.

    >>> pareto_front([(3.0, 0.1), (1.0, 0.2), (2.0, 0.3)])
    [(1.0, 0.2), (3.0, 0.1)]
    """
    lowest, front = math.inf, []
    for cost, miss in sorted(points):
        if miss < lowest:
            lowest = miss
            front.append((cost, miss))
    return front
