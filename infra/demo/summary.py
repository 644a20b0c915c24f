"""Summary of a `harmony run`: figures as JSON for scripts, a small table for people, and one page with pictures.

The page needs no other file and no script. Its pictures are SVG in the page, drawn here, so that no plotting library is
needed. Colours are of the Okabe-Ito palette; each line also has its own dashes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from agents.policy import Policy, WorkloadSpec
from infra.console.errors import HarmonyError
from infra.console.svg import COLOURS, DASHES, Frame, steps
from infra.console.text import printable
from infra.demo.fleet import SeriesRow


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What one policy kept and cost on the run's load; None = nothing was served, so there is nothing to say."""

    attainment: float | None
    gpu_hours: float | None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Counts and results of one run. `trace` names the load, `speed` is simulated seconds per second."""

    trace: str
    speed: float
    samples: int = 0
    slots: int = 0
    pages: int = 0
    forecasts: int = 0
    decisions: int = 0
    commands: int = 0
    dead_letters: int = 0
    late: int = 0
    forecasts_by_source: Mapping[str, int] = field(default_factory=dict)
    decisions_by_action: Mapping[str, int] = field(default_factory=dict)
    hold_reasons: Mapping[str, int] = field(default_factory=dict)
    attainment: float | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    shadows: Mapping[str, PolicyResult] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """What `harmony run --json` prints. Scripts depend on its keys: new ones may be added, none renamed."""
        return {
            "trace": self.trace,
            "speed": self.speed,
            "samples": self.samples,
            "slots": self.slots,
            "pages": self.pages,
            "forecasts": self.forecasts,
            "decisions": self.decisions,
            "commands": self.commands,
            "dead_letters": self.dead_letters,
            "late": self.late,
            "forecasts_by_source": by_count(self.forecasts_by_source),
            "decisions_by_action": by_count(self.decisions_by_action),
            "hold_reasons": by_count(self.hold_reasons),
            "attainment": _finite(self.attainment),
            "gpu_hours": _finite(self.gpu_hours),
            "cost": _finite(self.cost),
            "shadows": {
                policy: {
                    "attainment": _finite(result.attainment),
                    "gpu_hours": _finite(result.gpu_hours),
                    "cost": _finite(result.cost),
                }
                for policy, result in self.shadows.items()
            },
        }


def render_summary(summary: RunSummary, *, objective: float | None = None, unicode: bool = True) -> Group:
    """The same for people: what was read and said, then harmony beside the other policies on the same load.

    Args:
        summary: of the run.
        objective: wanted share of requests within the SLO; policies below it are marked.
        unicode: whether the terminal can show more than ASCII.
    """
    clauses = [
        f"{summary.samples:,} samples",
        f"{summary.slots:,} slots",
        f"{summary.forecasts:,} forecasts",
        f"{summary.decisions:,} decisions",
        f"{summary.commands:,} commands",
    ]
    odd = [f"{n:,} {what}" for n, what in ((summary.late, "late"), (summary.dead_letters, "dead letters")) if n]
    lines = [Text((" · " if unicode else ", ").join(clauses + odd))]
    for title, counts in (
        ("forecasts by", summary.forecasts_by_source),
        ("decisions", summary.decisions_by_action),
        ("held because of", summary.hold_reasons),
    ):
        if counts:
            listed = ", ".join(f"{printable(name).replace('_', ' ')} {n:,}" for name, n in by_count(counts).items())
            lines.append(Text(f"{title}: {listed}", style="dim"))
    parts: list[Text | Table] = [*lines, Text(), _policy_table(summary, objective, unicode)]
    if objective is not None:
        parts.append(Text(f"objective: {_percent(objective)} in SLO", style="dim"))
        if "hpa" in summary.shadows:
            # What a reader must know before comparing.
            parts.append(Text("beforehand: hpa was tuned on this load, static_peak told its peak", style="dim"))
    return Group(*parts)


def _policy_table(summary: RunSummary, objective: float | None, unicode: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if unicode else None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("policy")
    table.add_column("in SLO", justify="right")
    table.add_column("GPU-hours", justify="right")
    table.add_column("of harmony", justify="right")
    table.add_column("money", justify="right")
    own = PolicyResult(summary.attainment, summary.gpu_hours, summary.cost)
    for policy, result in {"harmony": own, **summary.shadows}.items():
        misses = objective is not None and result.attainment is not None and result.attainment < objective
        table.add_row(
            Text(printable(policy), style="bold" if result is own else "none"),
            Text(("! " if misses else "") + _percent(result.attainment), style="bold #E69F00" if misses else "none"),
            Text("-" if _finite(result.gpu_hours) is None else f"{result.gpu_hours:,.2f}"),
            Text(_ratio(result.gpu_hours, own.gpu_hours, "×" if unicode else "x")),
            Text("-" if _finite(result.cost) is None else f"{result.cost:,.0f}"),
        )
    return table


def by_count(counts: Mapping[str, int]) -> dict[str, int]:
    """The largest first, equals by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _percent(share: float | None) -> str:
    if share is None or not math.isfinite(share):
        return "-"
    # Cut, not rounded: 98.996 % has not reached 99 %.
    return f"{math.floor(share * 10_000 + 1e-9) / 100:.2f} %"


def _ratio(cost: float | None, own: float | None, times: str) -> str:
    if not own or cost is None or not math.isfinite(cost) or not math.isfinite(own):
        return "-"
    return f"{cost / own:.2f}{times}"


# The page.

REPORT: Final = "report.html"
_NAMES: Final = {"harmony": "HARMONY", "hpa": "HPA, tuned on this load", "static_peak": "fixed fleet, told the peak"}
_MOST_POINTS: Final = 450
_STYLE: Final = (
    ":root{color-scheme:light dark;--ink:#1c2833;--soft:#5b6770;--line:#d5dbe1;--paper:#fff}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6eaee;--soft:#9aa7b2;--line:#3a4550;--paper:#14191f}"
    # Lines are drawn in colours for white paper.
    '[stroke="#0072b2"]{stroke:#56b4e9}[fill="#0072b2"]{fill:#56b4e9}[stroke="#d55e00"]{stroke:#f0963c}'
    '[stroke="#767676"]{stroke:#a6b3c1}}'
    "body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:58rem;margin:2rem auto;"
    "padding:0 1rem}h1{margin-bottom:0}h2{font-size:1.15rem;margin:2rem 0 .3rem}"
    "p.sub{color:var(--soft);margin-top:.2rem}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;margin:1rem 0}"
    "td,th{padding:.35rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}"
    "td:first-child,th:first-child{text-align:left}tr.own td{font-weight:600}svg{width:100%;height:auto;display:block}"
    ".scroll>svg{min-width:38rem;margin-bottom:.6rem}"
    "svg text{fill:var(--soft);font:12px system-ui,sans-serif}.axis{stroke:var(--line)}"
    ".key{display:inline-block;margin-right:1.2rem}.key svg{display:inline;width:34px;height:10px}"
    "code{font-size:.92em}"
)


def span(seconds: float) -> str:
    """A length of time as people say it.

    >>> span(21600), span(5100), span(90)
    ('6 h', '85 min', '90 s')
    """
    if seconds >= 7200:
        return f"{seconds / 3600:.3g} h"
    return f"{round(seconds / 60)} min" if seconds >= 120 else f"{seconds:.0f} s"


def check_writable(path: Path) -> None:
    """Before a run of minutes: whether its report can be written.

    Raises:
        HarmonyError: it cannot (exit code 2).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if path.stat().st_size == 0:
            path.unlink()
    except OSError as error:
        raise HarmonyError(
            f"--report: cannot write {path}: {error.strerror or error}. Choose another file.", 2
        ) from None


def taken_back(held: Sequence[int], at_s: Sequence[float], within_s: float) -> tuple[int, int]:
    """How often a count was lowered, and how often it was back within so long.

    >>> taken_back([5, 4, 4, 5, 3, 3], [0, 10, 20, 30, 40, 50], 25)
    (2, 1)
    """
    shrinks = back = 0
    for k in range(1, len(held)):
        if held[k] < held[k - 1]:
            shrinks += 1
            later = [n for n, t in zip(held[k + 1 :], at_s[k + 1 :], strict=True) if t <= at_s[k] + within_s]
            back += any(n >= held[k - 1] for n in later)
    return shrinks, back


def write_run_report(
    path: Path, title: str, summary: RunSummary, series: Mapping[str, Sequence[SeriesRow]], policy: Policy
) -> bool:
    """Write the page; false where nothing was scored, so that there is nothing to show.

    Args:
        series: rows of each workload, one per slot.

    Raises:
        HarmonyError: the file cannot be written.
    """
    if not any(len(rows) > 1 for rows in series.values()):
        return False
    try:
        path.write_text(_page(title, summary, series, policy), encoding="utf-8")
    except OSError as error:
        raise HarmonyError(f"--report: cannot write {path}: {error.strerror or error}.") from None
    return True


def _page(title: str, summary: RunSummary, series: Mapping[str, Sequence[SeriesRow]], policy: Policy) -> str:
    specs = {spec.id: spec for spec in policy.workloads}
    objective = min(spec.slo.objective for spec in policy.workloads)
    length_s = max(rows[-1].at_s for rows in series.values() if rows)
    keys = "".join(_key(name) for name in _NAMES) + _key("load")
    sections = "".join(_section(w, [*rows], specs[w]) for w, rows in series.items() if len(rows) > 1)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>HARMONY: {escape(title)}</title><style>{_STYLE}</style></head><body><main>\n"
        f"<h1>HARMONY</h1>\n<p class=sub>{escape(title)}; {span(length_s)} of simulated time</p>\n"
        f"<p>{escape(_verdict(summary, objective))}</p>\n{_policy_rows(summary, objective)}\n"
        f"<p>{keys}</p>\n{sections}\n"
        "<h2>How to read it</h2>\n<ul>"
        "<li>All policies meet the same requests, on the same simulated engine, with the same lead times.</li>"
        "<li>The fixed fleet is sized for the peak, which no operator has beforehand. The target of the HPA is "
        "tuned on this load. HARMONY knows the capacity of a replica from a load test, and nothing of the load.</li>"
        "<li>The band is the forecast of the demand at the time when a new replica would serve. The load is to lie "
        "below its upper edge nine times of ten.</li></ul>\n"
        "<h2>Next</h2>\n<ul><li><code>harmony backtest --prometheus URL</code>: the same on your own load of last "
        "week, without Kafka.</li>"
        "<li><code>harmony init --detect URL</code>: watch your own fleet. Nothing is commanded.</li></ul>\n"
        "</main></body></html>\n"
    )


def _verdict(summary: RunSummary, objective: float) -> str:
    own, peak, hpa = summary, summary.shadows.get("static_peak"), summary.shadows.get("hpa")
    if not own.gpu_hours or own.attainment is None:
        return "Nothing was scored."
    kept = "kept" if own.attainment >= objective else "missed"
    text = f"HARMONY {kept} the objective of {_percent(objective)}: {_percent(own.attainment)} of the requests were "
    text += f"within the SLO, on {own.gpu_hours:,.1f} GPU-hours."
    shadows = ((peak, "a fixed fleet that is told the peak"), (hpa, "an HPA that is tuned on this load"))
    beside = [
        f"{own.gpu_hours / result.gpu_hours:.2f} times those of {who} ({_percent(result.attainment)} within the SLO)"
        for result, who in shadows
        if result is not None and result.gpu_hours
    ]
    if beside:
        text += f" These are {' and '.join(beside)}."
    return text


def _policy_rows(summary: RunSummary, objective: float) -> str:
    own = PolicyResult(summary.attainment, summary.gpu_hours, summary.cost)
    rows, any_misses = [], False
    for name, result in {"harmony": own, **summary.shadows}.items():
        misses = result.attainment is not None and result.attainment < objective
        any_misses = any_misses or misses
        share = "" if not own.gpu_hours or result.gpu_hours is None else f"{result.gpu_hours / own.gpu_hours:.2f}"
        cells = (
            escape(_NAMES.get(name, name)),
            ("<b title='below the objective'>!</b> " if misses else "") + _percent(result.attainment),
            "–" if result.gpu_hours is None else f"{result.gpu_hours:,.1f}",
            share,
            "–" if result.cost is None else f"{result.cost:,.0f}",
        )
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f"<tr{' class=own' if name == 'harmony' else ''}>{row}</tr>")
    heads = "".join(f"<th scope=col>{h}</th>" for h in ("policy", "within SLO", "GPU-hours", "× HARMONY", "money"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    note = f"<p class=sub>!: below the objective of {_percent(objective)}</p>" if any_misses else ""
    return f"<div class=scroll tabindex=0>{table}</div>{note}"


def _key(name: str) -> str:
    colour, dashes = COLOURS.get(name, "var(--ink)"), DASHES.get(name, "")
    band = "" if name != "load" else f'<rect width=34 height=10 fill="{COLOURS["harmony"]}" fill-opacity=".22"/>'
    line = f'{band}<line x1=0 y1=5 x2=34 y2=5 stroke="{colour}" stroke-width=3 stroke-dasharray="{dashes}"/>'
    text = escape(_NAMES.get(name, "load, and its forecast a lead time before"))
    return f'<span class=key><svg viewBox="0 0 34 10" aria-hidden=true>{line}</svg> {text}</span>'


def _section(workload: str, rows: Sequence[SeriesRow], spec: WorkloadSpec) -> str:
    at_s = [row.at_s for row in rows]
    shrinks, back = taken_back([row.held["harmony"] for row in rows], at_s, 2 * spec.lead_time_s)
    text = (
        f"A new replica serves after {span(spec.lead_time_s)}. HARMONY removed replicas {shrinks} times; "
        f"{back} times it wanted them back within two such starts."
    )
    return (
        f"<h2>{escape(workload)}</h2>\n<p class=sub>{text}</p>\n"
        f"<div class=scroll tabindex=0>{_load_picture(workload, rows)}{_replica_picture(workload, rows)}</div>"
    )


def _load_picture(workload: str, rows: Sequence[SeriesRow]) -> str:
    end_s = rows[-1].at_s
    thin = _thinned(rows)
    bands = [(row.at_s + row.window_s, *row.peak_rps) for row in thin if row.peak_rps is not None]
    bands = [band for band in bands if band[0] <= end_s]
    top = max([row.load_rps for row in rows] + [band[3] for band in bands] + [1e-9]) * 1.05
    frame = Frame(end_s, top)
    parts = [frame.axes("requests/s")]
    if bands:
        outline = [(t, high) for t, _, _, high in bands] + [(t, low) for t, low, _, _ in reversed(bands)]
        parts.append(frame.area(outline, COLOURS["harmony"]))
    load = [(row.at_s, row.load_rps) for row in _means(rows)]
    parts.append(frame.line(load, "var(--ink)", 1.2))
    return frame.picture(f"Load of {workload}, and the demand that was forecast a lead time before", parts)


def _replica_picture(workload: str, rows: Sequence[SeriesRow]) -> str:
    top = max(max(row.held.values()) for row in rows) + 1
    frame = Frame(rows[-1].at_s, top)
    parts = [frame.axes("replicas")]
    for name in ("static_peak", "hpa", "harmony"):
        points = steps([(row.at_s, float(row.held.get(name, 0))) for row in rows])
        parts.append(frame.line(points, COLOURS[name], 2.4 if name == "harmony" else 1.6, DASHES[name]))
    return frame.picture(f"Replicas of {workload} that each policy holds", parts)


def _thinned(rows: Sequence[SeriesRow]) -> list[SeriesRow]:
    """Every n-th, so that a picture has some hundred points."""
    return [*rows[:: max(1, len(rows) // _MOST_POINTS)]]


def _means(rows: Sequence[SeriesRow]) -> list[SeriesRow]:
    """Means of the load over as many rows as are left out."""
    n = max(1, len(rows) // _MOST_POINTS)
    groups = [rows[k : k + n] for k in range(0, len(rows), n)]
    return [g[-1]._replace(load_rps=sum(row.load_rps for row in g) / len(g)) for g in groups]
