"""The two runs that are compared, and the page that reports them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.lab.backtest import comparison as comparison_module
from infra.lab.backtest.comparison import (
    Comparison,
    ComparisonTerms,
    compare,
    fit_speed,
    load_test_requests,
    rate_profile,
    recorded_controller,
    scaled,
    setting_of,
)
from infra.lab.backtest.history import BIN_S, RecordedHistory, write_history
from infra.lab.backtest.report import caveats, lines_of, ready_replicas, verdict, write_report
from infra.lab.replay.policies.harmony import REPLAY_POLICY
from infra.lab.replay.policies.reactive import Behaviour, Hpa
from infra.lab.replay.setting import ScoredLoad
from infra.lab.replay.simulation import RuleController, simulate
from infra.simulator.arrivals import Arrivals, Tokens
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile, named_profile
from streams.config import StreamConfig

TERMS = ComparisonTerms(
    named_profile("dense-13b"), Objective(2.0, 0.12), 0.99, 90.0, 1, 6, 15.0, REPLAY_POLICY, Tokens(500, 0.6),
    Tokens(60, 0.6),
)  # fmt: skip


def history(minutes: int = 100) -> RecordedHistory:
    """A load that rises and falls, and replicas that follow it in steps of ten minutes."""
    k = np.arange(minutes)
    rate = 1.5 + np.sin(2 * np.pi * k / 60)
    replicas = 1.0 + (k // 10) % 3
    nothing = np.full(minutes, np.nan)
    return RecordedHistory(
        "w", 1_763_596_800_000, rate, np.full(minutes, 500.0), np.full(minutes, 60.0), replicas, nothing
    )


@pytest.fixture(scope="module")
def judged() -> Comparison:
    return compare(history().filled(), TERMS, 2, fitted=True, progress=lambda *_: None, keep_requests=True)


@pytest.mark.slow
def test_their_life_holds_the_recorded_replicas_at_every_minute(judged: Comparison) -> None:
    middles = np.arange(len(history().replicas)) * float(BIN_S) + BIN_S / 2
    for life in judged.recorded:
        assert ready_replicas(life, middles).tolist() == history().replicas.tolist()


@pytest.mark.slow
def test_both_lives_have_the_same_arrivals(judged: Comparison) -> None:
    for theirs, ours in zip(judged.recorded, judged.harmony, strict=True):
        assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in theirs.requests] == [
            (r.arrival_s, r.prompt_tokens, r.output_tokens) for r in ours.requests
        ]
    assert judged.recorded[0].requests[0].arrival_s != judged.recorded[1].requests[0].arrival_s


@pytest.mark.slow
def test_the_lines_agree_with_the_logs(judged: Comparison) -> None:
    h = history().filled()
    measured, theirs, ours = lines_of(h, judged)
    first = round(judged.score[0] / BIN_S)
    assert measured.gpu_hours == pytest.approx(h.replicas[first:].sum() / 60)
    assert measured.attainment is None
    # Their replicas, simulated, cost what was recorded but for those that are still draining.
    assert theirs.gpu_hours == pytest.approx(measured.gpu_hours, rel=0.1)
    life = judged.harmony[0]
    scored = [r for r in life.requests if judged.score[0] <= r.arrival_s < judged.score[1]]
    good = sum(r.ttft_s <= 2.0 and r.tpot_s <= 0.12 for r in scored if not math.isnan(r.finish_s))
    assert life.attainment == pytest.approx(good / len(scored))
    assert ours.attainment == pytest.approx(sum(x.attainment for x in judged.harmony) / 2)
    windows = judged.good[1]
    assert windows.window_s == 600.0
    assert len(windows.starts_s) == len(windows.good)
    assert min(windows.good) >= life.worst_window_attainment - 1e-9


@pytest.mark.slow
def test_the_page_stands_alone_and_says_what_to_doubt(judged: Comparison, tmp_path: Path) -> None:
    h = replace(history(), rate_rps=np.where(np.arange(100) == 7, np.nan, history().rate_rps), completions_only=True)
    data = write_report(tmp_path, h, h.filled(), judged, None)
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    assert "http" not in page
    assert "<script" not in page
    for said in (data["verdict"], *data["caveats"]):
        assert said in text
    notes = " ".join(caveats(h, h.filled(), judged, lines_of(h.filled(), judged)))
    for words in ("not fitted", "was not recorded", "only completions", "1.0% of the minutes"):
        assert words in notes
    assert data["lines"][2]["who"] == "HARMONY, simulated"
    assert data["harmony_minus_recorded"]["gpu_hours"][0] <= data["harmony_minus_recorded"]["gpu_hours"][1]
    assert verdict(judged, lines_of(h.filled(), judged)) == data["verdict"]
    json.dumps(data)


@pytest.mark.slow
def test_the_speed_of_an_engine_is_found_again() -> None:
    """Token times are taken from an engine of known speed; the fit must name that speed."""
    h = history(60).filled()
    rates = rate_profile(h, TERMS)
    truth = replace(TERMS, profile=scaled(TERMS.profile, 1.7))
    setting = setting_of(ScoredLoad("w", rates.between(0.0, 3600.0).arrivals(0), (0.0, 3600.0)), h, truth)
    life = simulate(setting, recorded_controller(h.replicas, TERMS.lead_s), 0)
    times = [r.tpot_s for r in life.requests if not math.isnan(r.finish_s)]
    found = fit_speed(replace(h, tpot_s=float(np.mean(times))), rates, TERMS)
    print(f"speed 1.7 found as {found:.3f}")
    assert found == pytest.approx(1.7, rel=0.05)


@pytest.mark.slow
def test_a_scaler_that_is_played_back_does_what_it_did() -> None:
    """An HPA lives; from its replicas by the minute its life is played back: the same requests, nearly the same end."""
    h = replace(history(90), rate_rps=4 * history(90).rate_rps)
    rates = rate_profile(h, TERMS)
    setting = setting_of(ScoredLoad("w", rates.arrivals(0), (1440.0, 5400.0)), h, TERMS)
    lived = simulate(
        setting, lambda s, cluster, seed: RuleController(s, cluster, Hpa(18.0, None, Behaviour()), seed), 0
    )
    minutes = np.arange(90) * float(BIN_S) + BIN_S / 2
    seen = ready_replicas(lived, minutes)
    assert len(set(seen.tolist())) > 1
    again = simulate(setting, recorded_controller(seen.astype(np.float64), TERMS.lead_s), 0)
    for who, life in (("HPA", lived), ("played back", again)):
        print(f"{who}: {life.attainment:.4f} good, {life.gpu_hours:.3f} GPU-hours")
    assert ready_replicas(again, minutes)[2:].tolist() == seen[2:].tolist()
    assert again.gpu_hours == pytest.approx(lived.gpu_hours, rel=0.03)
    assert again.attainment == pytest.approx(lived.attainment, abs=0.02)


def test_a_history_that_is_too_short_says_how_long_it_must_be() -> None:
    with pytest.raises(HarmonyError, match=r"at least 1\.6 h are needed"):
        compare(history(30), TERMS, 1, fitted=False, progress=lambda *_: None)


def test_harmony_is_told_nothing_of_what_it_is_scored_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two histories that differ only in the scored part lead to the same load test."""
    tested: list[Arrivals] = []

    def load_test(_: EngineProfile, lengths: Arrivals, *__: object) -> None:
        tested.append(lengths)

    monkeypatch.setattr(comparison_module, "benchmark_rps", load_test)
    warm_minutes = round(StreamConfig(step_ms=round(TERMS.step_s * 1000)).context_steps * TERMS.step_s / BIN_S)
    scored = np.arange(100) >= warm_minutes
    heavier = replace(
        history(),
        prompt_tokens=np.where(scored, 4_000.0, history().prompt_tokens),
        rate_rps=np.where(scored, 9.0, history().rate_rps),
    )
    for past in (history(), heavier):
        with pytest.raises(HarmonyError, match="relax --slo-ttft"):
            compare(past.filled(), TERMS, 1, fitted=False, progress=lambda *_: None)
    one, other = tested
    assert len(one) > 0
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert np.array_equal(one.output_tokens, other.output_tokens)


@given(st.lists(st.sampled_from((0.0, 1e-6, 0.5, 40.0)), min_size=32, max_size=32), st.floats(50.0, 5_000.0))
@settings(max_examples=20, deadline=None)
def test_a_load_test_has_the_lengths_of_its_part_however_few_requests_it_holds(
    rates_rps: list[float], prompt: float
) -> None:
    part = replace(history(32), rate_rps=np.array(rates_rps), prompt_tokens=np.full(32, prompt))
    tested = load_test_requests(rate_profile(part, TERMS))
    assert 1_500 < len(tested) < 2_400  # 32 minutes of one request/s
    assert float(tested.prompt_tokens.mean()) == pytest.approx(prompt, rel=0.15)


def test_an_objective_beyond_the_engine_is_named() -> None:
    with pytest.raises(HarmonyError, match="relax --slo-ttft"):
        compare(history(), replace(TERMS, objective=Objective(0.001, 0.001)), 1, fitted=False, progress=lambda *_: None)


def run(*arguments: str) -> tuple[int, str, Any]:
    result = CliRunner().invoke(app, ["backtest", *arguments])
    if isinstance(result.exception, HarmonyError):
        return result.exception.exit_code, result.exception.message, None
    return result.exit_code, result.output, result.exception


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either --prometheus URL or --history FILE"),
        (("--history", "none.csv"), "none.csv"),
        (("--prometheus", "x:1"), "is no address"),
        (("--history", "HISTORY", "--engine", "warp"), "warp"),
        (("--history", "HISTORY", "--max-replicas", "1"), "--max-replicas 1: up to 3 replicas are recorded"),
        (("--history", "HISTORY", "--objective", "2"), "--objective between 0 and 1"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_history(tmp_path / "h.csv", history())
    code, said, _ = run(*(a.replace("HISTORY", str(tmp_path / "h.csv")) for a in arguments))
    assert code == 2
    assert words in said


@pytest.mark.slow
def test_the_command_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (extra plots) is not installed")
    monkeypatch.chdir(tmp_path)
    write_history(tmp_path / "h.csv", history())
    code, said, error = run("--history", "h.csv", "--slo-tpot", "0.12", "--lead-time", "90", "--json", "--out", "o")
    assert code == 0, (said, error)
    assert {p.name for p in (tmp_path / "o").iterdir()} == {"report.html", "report.md", "backtest.png", "backtest.json"}
    data = json.loads((tmp_path / "o/backtest.json").read_text())
    assert [line["who"] for line in data["lines"]] == [
        "your scaler, as measured", "your replicas, simulated", "HARMONY, simulated"
    ]  # fmt: skip
    assert "data:image/png;base64," in (tmp_path / "o/report.html").read_text()
