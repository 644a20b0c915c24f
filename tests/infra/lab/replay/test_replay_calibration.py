"""Stated against realized risk: bins, intervals and the diagram."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.lab.replay.calibration import StatedRisk, curves_of, draw_diagram, main, pooled_interval, reliability

RISKS = st.builds(StatedRisk, st.floats(0.0, 36_000.0), st.floats(0.0, 1.0), st.booleans())


def independent(p_miss: float, truth: float, count: int, seed: int) -> list[StatedRisk]:
    """Decisions a block of time apart, each missed with the same chance."""
    rng = np.random.default_rng(seed)
    return [StatedRisk(600.0 * k, p_miss, bool(rng.random() < truth)) for k in range(count)]


@given(st.lists(RISKS, max_size=60))
def test_every_decision_is_in_one_bin_and_each_interval_holds_its_share(stated: list[StatedRisk]) -> None:
    bins = reliability(stated)
    assert sum(b.count for b in bins) == len(stated)
    assert round(sum(b.count * b.realized for b in bins)) == sum(s.missed for s in stated)
    for b in bins:
        assert b.low <= b.stated <= b.high
        assert 0.0 <= b.interval[0] <= b.realized + 1e-9
        assert b.realized - 1e-9 <= b.interval[1] <= 1.0


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(100):
        pooled = pooled_interval(independent(0.1, 0.2, 200, seed))
        assert pooled is not None
        held += pooled[1] <= 0.2 <= pooled[2]
    assert 88 <= held <= 100


def test_decisions_of_one_block_count_once() -> None:
    apart = pooled_interval(independent(0.1, 0.3, 40, 1))
    together = pooled_interval([StatedRisk(s.at_s + k, s.p_miss, s.missed) for s in independent(0.1, 0.3, 40, 1)
                                for k in range(10)])  # fmt: skip
    assert apart is not None
    assert together == pytest.approx(apart)


def test_the_diagram_of_several_results_is_drawn(tmp_path: Path) -> None:
    for k, name in enumerate(("a_trace", "ramp")):
        bins = [asdict(b) for b in reliability(independent(0.02 * (k + 1), 0.05, 100, k))]
        body = {"trace": name, "lead_time_s": {"mean": 100.0}, "calibration": {"harmony": {"bins": bins}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(body))
    results = [tmp_path / "a_trace.json", tmp_path / "ramp.json"]
    curves = curves_of(results)
    assert list(curves) == ["trace, 100 s", "ramp, 100 s"]
    assert curves["ramp, 100 s"] == reliability(independent(0.04, 0.05, 100, 1))
    body = json.loads(results[1].read_text())
    body["calibration"]["harmony-baselines"] = body["calibration"]["harmony"]
    (tmp_path / "both.json").write_text(json.dumps(body))
    assert list(curves_of([tmp_path / "both.json"])) == ["ramp, 100 s, harmony", "ramp, 100 s, harmony-baselines"]
    drawn = draw_diagram(tmp_path / "risk.svg", curves, "title").read_text()
    assert "trace, 100 s" in drawn
    assert main([str(tmp_path / "risk.png"), *map(str, results)]) == 0
    assert (tmp_path / "risk.png").stat().st_size > 10_000


@pytest.mark.parametrize("text", ["[1]", '{"trace": 1}', "[" * 100_000, "\ufeff{}", ""])
def test_a_file_that_is_no_result_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(HarmonyError, match=r"other\.json: not a result"):
        curves_of([tmp_path / "other.json"])
    assert main([str(tmp_path / "risk.png"), str(tmp_path / "none.json")]) == 2
    assert main([]) == 2
    assert "Traceback" not in capsys.readouterr().err
