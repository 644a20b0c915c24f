"""The summary of a played recording: the keys that scripts depend on, and the table."""

from __future__ import annotations

import json

from infra.demo.recording.playback import RecordingSummary, render_recording_summary
from infra.demo.scores import Example, IndicatorScore, Sums
from tests.infra.shown import text_of

LEVELS = (0.05, 0.5, 0.95)
EXAMPLE = Example(
    1_000, 1_000, "ridge", LEVELS, tuple((h - 1.0, float(h), h + 1.0) for h in range(1, 7)), (1.5,) + (None,) * 5
)
SUMMARY = RecordingSummary(
    recording="run_7.csv",
    step_ms=1_000,
    samples=1_600,
    slots=200,
    pages=1_608,
    forecasts_by_source={"seasonal_naive": 60, "ridge": 140},
    decisions_by_action={"hold": 199, "up": 1},
    hold_reasons={"silent": 199},
    indicators={
        "gpu.power_w": IndicatorScore({"ridge": Sums(140, 280, 140, 250, 133, 6.0, 12.0, 1.0, 4.0)}, Sums(), EXAMPLE),
        "request.arrival_rate": IndicatorScore({"seasonal_naive": Sums(60, 0, 0, 0, 0)}),
    },
)  # fmt: skip


def test_the_keys_are_those_of_the_contract() -> None:
    body = json.loads(json.dumps(SUMMARY.to_dict()))
    assert list(body) == [
        "recording",
        "step_ms",
        "samples",
        "slots",
        "pages",
        "forecasts",
        "forecasts_by_source",
        "decisions",
        "decisions_by_action",
        "hold_reasons",
        "dead_letters",
        "late",
        "indicators",
    ]
    assert (body["forecasts"], body["decisions"]) == (200, 200)
    assert list(body["indicators"]) == ["request.arrival_rate", "gpu.power_w"]
    power = body["indicators"]["gpu.power_w"]
    assert (power["forecasts"], power["coverage_90"], power["coverage_90_step1"]) == (140, 0.8929, 0.95)
    assert power["mae_ratio_to_last_value"] == 0.5
    assert power["pinball_ratio_to_last_value"] == 0.25
    assert power["by_source"]["ridge"]["scores"] == 280
    assert [step["step"] for step in power["example"]["steps"]] == [1, 2, 4, 6]
    assert power["example"]["steps"][0] == {"step": 1, "quantiles": [0.0, 1.0, 2.0], "observed": 1.5}
    assert body["indicators"]["request.arrival_rate"]["coverage_90"] is None
    assert body["indicators"]["request.arrival_rate"]["example"] is None


def shown(unicode: bool) -> str:
    return text_of(render_recording_summary(SUMMARY, unicode=unicode), width=160)


def test_people_see_counts_scores_and_an_example() -> None:
    text = shown(unicode=True)
    assert "run_7.csv: 1,600 samples · 200 slots of 1 s · 200 forecasts · 200 decisions" in text
    assert "forecasts by: ridge 140, seasonal naive 60" in text
    (row,) = [line for line in text.splitlines() if line.startswith("gpu.power_w")]
    assert " ".join(row.split()[1:]) == "140 89.3 % 95.0 % 0.500 0.250 1 [0 … 2] W, came 1.5"
    assert "by seasonal naive" in text
    # Nothing was scored with a full context, so nothing is said of it.
    assert "full context" not in text


def test_a_terminal_without_unicode_gets_none() -> None:
    assert shown(unicode=False).isascii()
