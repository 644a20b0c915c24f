"""Summary of a `harmony run`: the figures as JSON for scripts, and as a small table for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from infra.console.text import printable


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What one policy kept and cost on the run's load; None = nothing was served, so there is nothing to say."""

    attainment: float | None
    gpu_hours: float | None


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
            "shadows": {
                policy: {"attainment": _finite(result.attainment), "gpu_hours": _finite(result.gpu_hours)}
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
    own = PolicyResult(summary.attainment, summary.gpu_hours)
    for policy, result in {"harmony": own, **summary.shadows}.items():
        misses = objective is not None and result.attainment is not None and result.attainment < objective
        table.add_row(
            Text(printable(policy), style="bold" if result is own else "none"),
            Text(("! " if misses else "") + _percent(result.attainment), style="bold #E69F00" if misses else "none"),
            Text("-" if _finite(result.gpu_hours) is None else f"{result.gpu_hours:,.2f}"),
            Text(_ratio(result.gpu_hours, own.gpu_hours, "×" if unicode else "x")),
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
