"""The end of `harmony run --recording`: how good the forecasts were, as JSON for scripts and as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from infra.console.text import printable
from infra.demo.scores import Example, IndicatorScore, Sums
from infra.demo.summary import by_count
from streams.catalogue import DEFAULT_CATALOGUE

_UNITS = {indicator.name: indicator.unit for indicator in DEFAULT_CATALOGUE}
_ORDER = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
_NOTES = (
    "in the 90 % band: share of the later values between the 5 % and 95 % quantiles; 90 % is right",
    "error vs last: mean absolute error of the median / that of the last value; below 1 is better",
    "loss vs last: mean quantile loss / that of the last value + the quantiles of past changes; below 1 is better",
)


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    """Counts and forecast scores of one played recording. `step_ms` is the slot length it was played with."""

    recording: str
    step_ms: int
    samples: int = 0
    slots: int = 0
    pages: int = 0
    dead_letters: int = 0
    late: int = 0
    forecasts_by_source: Mapping[str, int] = field(default_factory=dict)
    decisions_by_action: Mapping[str, int] = field(default_factory=dict)
    hold_reasons: Mapping[str, int] = field(default_factory=dict)
    indicators: Mapping[str, IndicatorScore] = field(default_factory=dict)

    @property
    def forecasts(self) -> int:
        return sum(self.forecasts_by_source.values())

    @property
    def decisions(self) -> int:
        return sum(self.decisions_by_action.values())

    def to_dict(self) -> dict[str, Any]:
        """What `harmony run --recording PATH --json` prints. Keys may be added, none renamed."""
        return {
            "recording": self.recording,
            "step_ms": self.step_ms,
            "samples": self.samples,
            "slots": self.slots,
            "pages": self.pages,
            "forecasts": self.forecasts,
            "forecasts_by_source": by_count(self.forecasts_by_source),
            "decisions": self.decisions,
            "decisions_by_action": by_count(self.decisions_by_action),
            "hold_reasons": by_count(self.hold_reasons),
            "dead_letters": self.dead_letters,
            "late": self.late,
            "indicators": {
                name: {
                    **_sums(score.total),
                    "full_context": _sums(score.full_context),
                    "by_source": {source: _sums(sums) for source, sums in sorted(score.by_source.items())},
                    "example": _example(score.example),
                }
                for name, score in self.in_order()
            },
        }

    def in_order(self) -> list[tuple[str, IndicatorScore]]:
        """Scores by indicator, in the order of the catalogue."""
        return sorted(self.indicators.items(), key=lambda item: (_ORDER.get(item[0], len(_ORDER)), item[0]))


def render_recording_summary(summary: RecordingSummary, *, unicode: bool = True) -> Group:
    """The same for people; `unicode` says whether the terminal can show more than ASCII."""
    said = [
        f"{summary.samples:,} samples",
        f"{summary.slots:,} slots of {summary.step_ms / 1000:g} s",
        f"{summary.forecasts:,} forecasts",
        f"{summary.decisions:,} decisions",
    ]
    odd = [f"{n:,} {what}" for n, what in ((summary.late, "late"), (summary.dead_letters, "dead letters")) if n]
    dot = " · " if unicode else ", "
    lines = [Text(f"{printable(summary.recording)}: {dot.join(said + odd)}")]
    for title, counts in (
        ("forecasts by", summary.forecasts_by_source),
        ("decisions", summary.decisions_by_action),
        ("held because of", summary.hold_reasons),
    ):
        if counts:
            listed = ", ".join(f"{printable(name).replace('_', ' ')} {n:,}" for name, n in by_count(counts).items())
            lines.append(Text(f"{title}: {listed}", style="dim"))
    notes = [Text(note, style="dim") for note in _NOTES]
    return Group(*lines, Text(), _table(summary.in_order(), unicode), *notes)


def _table(scores: list[tuple[str, IndicatorScore]], unicode: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if unicode else None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("indicator", overflow="fold")
    for heading in ("forecasts", "in the 90 % band", "at step 1", "error vs last", "loss vs last"):
        table.add_column(heading, justify="right")
    table.add_column("an example, one step ahead", overflow="fold")
    for name, score in scores:
        _add_row(table, printable(name), score.total, _in_words(name, score.example, unicode))
        if score.full_context.forecasts:
            _add_row(table, "  with a full context", score.full_context, "", style="dim")
        for source, sums in sorted(score.by_source.items()):
            _add_row(table, f"  by {printable(source).replace('_', ' ')}", sums, "", style="dim")
    return table


def _add_row(table: Table, name: str, sums: Sums, example: str, style: str = "none") -> None:
    table.add_row(
        Text(name),
        f"{sums.forecasts:,}",
        _percent(sums.coverage_90),
        _percent(sums.coverage_90_step1),
        _number(sums.mae_ratio_to_last_value),
        _number(sums.pinball_ratio_to_last_value),
        Text(example),
        style=style,
    )


def _sums(sums: Sums) -> dict[str, Any]:
    return {
        "forecasts": sums.forecasts,
        "scores": sums.scores,
        "coverage_90": _rounded(sums.coverage_90),
        "coverage_90_step1": _rounded(sums.coverage_90_step1),
        "mae_ratio_to_last_value": _rounded(sums.mae_ratio_to_last_value),
        "pinball_ratio_to_last_value": _rounded(sums.pinball_ratio_to_last_value),
    }


def _example(example: Example | None) -> dict[str, Any] | None:
    """Steps 1, 2, 4, ... and the last: the whole forecast is in the topic."""
    if example is None:
        return None
    horizon = len(example.quantiles)
    steps = sorted({horizon, *(2**k for k in range(horizon.bit_length()) if 2**k <= horizon)})
    return {
        "origin_ts_ms": example.origin_ts_ms,
        "step_ms": example.step_ms,
        "source": example.source,
        "quantile_levels": list(example.quantile_levels),
        "steps": [
            {"step": h, "quantiles": list(example.quantiles[h - 1]), "observed": example.observed[h - 1]} for h in steps
        ],
    }


def _in_words(name: str, example: Example | None, unicode: bool) -> str:
    if example is None or not example.quantiles:
        return ""
    at = dict(zip(example.quantile_levels, example.quantiles[0], strict=True))
    dash, unit = "…" if unicode else "..", _UNITS.get(name, "1")
    came = "nothing observed" if example.observed[0] is None else f"came {example.observed[0]:.4g}"
    return f"{at[0.5]:.4g} [{at[0.05]:.4g} {dash} {at[0.95]:.4g}]{'' if unit == '1' else f' {unit}'}, {came}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
