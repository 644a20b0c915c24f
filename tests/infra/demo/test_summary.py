"""The end-of-run summary: the exact keys that scripts depend on, and a table that does not flatter."""

from __future__ import annotations

import json
import math

import pytest

from infra.demo.summary import PolicyResult, RunSummary, render_summary
from tests.infra.shown import text_of

SUMMARY = RunSummary(
    trace="daily",
    speed=20.0,
    samples=81_200,
    slots=812,
    pages=3_248,
    forecasts=3_240,
    decisions=3_240,
    commands=41,
    dead_letters=2,
    late=12,
    forecasts_by_source={"seasonal_naive": 240, "ridge": 3_000},
    decisions_by_action={"up": 22, "hold": 3_199, "down": 19},
    hold_reasons={"warm_up": 128, "tolerance": 3_000},
    attainment=0.99412,
    gpu_hours=12.14,
    shadows={"static_peak": PolicyResult(0.9999, 20.31, 45.0), "hpa": PolicyResult(0.989_999, 14.02)},
)


def shown(summary: RunSummary, width: int = 100, **options: object) -> str:
    return text_of(render_summary(summary, **options), width=width)  # type: ignore[arg-type]


def test_the_keys_are_those_of_the_contract_in_order() -> None:
    assert list(SUMMARY.to_dict()) == [
        "trace",
        "speed",
        "samples",
        "slots",
        "pages",
        "forecasts",
        "decisions",
        "commands",
        "dead_letters",
        "late",
        "forecasts_by_source",
        "decisions_by_action",
        "hold_reasons",
        "attainment",
        "gpu_hours",
        "cost",
        "shadows",
    ]
    assert SUMMARY.to_dict()["shadows"] == {
        "static_peak": {"attainment": 0.9999, "gpu_hours": 20.31, "cost": 45.0},
        "hpa": {"attainment": 0.989_999, "gpu_hours": 14.02, "cost": None},
    }
    assert list(SUMMARY.to_dict()["decisions_by_action"]) == ["hold", "up", "down"]


def test_it_is_strict_json_even_when_nothing_was_served() -> None:
    empty = RunSummary(
        "none", 1.0, attainment=math.nan, gpu_hours=None, shadows={"hpa": PolicyResult(math.nan, math.inf)}
    )
    document = json.dumps(empty.to_dict(), allow_nan=False)
    assert json.loads(document)["attainment"] is None
    assert json.loads(document)["shadows"] == {"hpa": {"attainment": None, "gpu_hours": None, "cost": None}}


@pytest.mark.parametrize("width", [60, 100, 140])
def test_the_table_compares_on_equal_terms(width: int) -> None:
    lines = shown(SUMMARY, width, objective=0.99).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert "99.41 %" in rows["harmony"]
    assert "1.00×" in rows["harmony"]
    assert "1.67×" in rows["static_peak"]
    assert "!" not in rows["static_peak"]
    # 98.9999 % has not reached 99 % and must not be rounded up to it.
    assert "! 98.99 %" in rows["hpa"]
    assert "1.15×" in rows["hpa"]
    assert "tuned on this load" in rows["beforehand:"]


def test_what_was_held_and_refused_is_told() -> None:
    text = shown(SUMMARY, 140)
    assert "12 late" in text
    assert "2 dead letters" in text
    assert "held because of: tolerance 3,000, warm up 128" in text
    assert "late" not in shown(RunSummary("x", 1.0))


def test_an_empty_run_shows_dashes_not_zeros() -> None:
    row = next(line for line in shown(RunSummary("x", 1.0), objective=0.99).splitlines() if line.startswith("harmony"))
    assert row.split() == ["harmony", "-", "-", "-", "-"]


def test_ascii_and_hostile_names() -> None:
    hostile = RunSummary("x", 1.0, shadows={"a\x1b[2J": PolicyResult(1.0, 1.0)}, hold_reasons={"b\n\x07": 1})
    text = shown(hostile, unicode=False)
    assert text.isascii()
    assert "\x1b" not in text
    assert "\x07" not in text
