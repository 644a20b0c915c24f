"""`harmony forecast FILE`: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from infra.cli.app import app
from infra.console.errors import HarmonyError


def telemetry(folder: Path, num: int = 200, *, gap: bool = False) -> Path:
    path = folder / "load.csv"
    rng = np.random.default_rng(1)
    with path.open("w") as stream:
        stream.write("item_id,timestamp,rps,gpu\n")
        for item in ("a", "b"):
            for k in range(num):
                if gap and 50 <= k < 60:
                    continue
                rps = 50 + 20 * math.sin(k / 8) + rng.normal()
                stream.write(f"{item},{1_767_225_600 + 15 * k},{rps:.4f},{'' if k % 9 == 0 else round(rps / 100, 4)}\n")
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["forecast", "--model", "pool", *arguments], catch_exceptions=True)


def test_csv_rows_are_ordered_quantiles(tmp_path: Path) -> None:
    result = run(str(telemetry(tmp_path)), "--prediction-length", "5", "--quantile-levels", "0.9,0.1,0.5")
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == 2 * 5 * 2
    assert list(rows[0]) == ["item_id", "timestamp", "indicator", "mean", "0.1", "0.5", "0.9"]
    assert rows[0]["timestamp"] == "2026-01-01T00:50:00Z"
    for row in rows:
        assert 0 <= float(row["0.1"]) <= float(row["0.5"]) <= float(row["0.9"])
    assert "step 15 s; 2 items, 400 rows" in result.stderr


def test_json_has_peaks_and_the_held_out_truth(tmp_path: Path) -> None:
    file = telemetry(tmp_path, gap=True)
    result = run(str(file), "--prediction-length", "6", "--holdout", "--items", "b", "--indicators", "rps", "--json")
    assert result.exit_code == 0, result.output
    (forecast,) = json.loads(result.stdout)["forecasts"]
    assert (forecast["item_id"], forecast["step_s"], forecast["source"]) == ("b", 15.0, "pool")
    rps = forecast["indicators"]["rps"]
    assert len(rps["truth"]) == 6
    assert rps["peak_quantiles"][-1] >= max(rps["quantiles"][3])
    assert "10 rows of the grid are absent" in result.stderr
    assert [score["model"] for score in json.loads(result.stdout)["scores"]] == ["pool", "seasonal_naive"]
    assert "held out" in result.stderr


def test_a_day_ahead_is_scored_over_all_its_steps_and_beside_the_pool_over_its_own(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    rng = np.random.default_rng(2)
    rows = [f"{1_767_225_600 + 300 * k},{30 + 20 * math.sin(k / 45.8) + rng.normal():.3f}" for k in range(12 * 288)]
    path.write_text("timestamp,rps\n" + "\n".join(rows) + "\n")
    arguments = [str(path), "--prediction-length", "288", "--holdout", "--windows", "3", "--json"]
    result = CliRunner().invoke(app, ["forecast", "--model", "long_range", *arguments])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert len(data["forecasts"][0]["timestamps"]) == 288
    scores = {(s["model"], s["steps"]): s for s in data["scores"]}
    assert set(scores) == {("long_range", 288), ("long_range", 64), ("seasonal_naive", 288), ("pool", 64)}
    assert all(s["values"] == 3 * s["steps"] for s in scores.values())
    assert scores["long_range", 288]["wql"] < scores["seasonal_naive", 288]["wql"] < 0.1
    assert 0.75 < scores["long_range", 288]["coverage_90"] <= 1
    assert scores["long_range", 288]["mase"] < 1
    assert "pool, first 64 steps" in result.stderr
    again = CliRunner().invoke(app, ["forecast", *arguments])
    assert json.loads(again.stdout)["forecasts"][0]["source"] == "combined+long_range"


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    file = str(telemetry(tmp_path))
    assert run(file).stdout == run(file).stdout


def test_files_by_their_ending(tmp_path: Path) -> None:
    file = str(telemetry(tmp_path))
    assert run(file, "--out", str(tmp_path / "f.json")).exit_code == 0
    assert json.loads((tmp_path / "f.json").read_text())["forecasts"][0]["prediction_length"] == 24
    assert run(file, "--out", str(tmp_path / "f.csv")).exit_code == 0
    assert (tmp_path / "f.csv").read_text().startswith("item_id,timestamp,")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    where = tmp_path / "plots" / f"fan.{ending}"
    result = run(str(telemetry(tmp_path)), "--holdout", "--plot", str(where))
    assert result.exit_code == 0, result.output
    assert where.read_bytes()[:4] in {b"\x89PNG", b"<?xm"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--items", "z"], "--items"),
        (["--indicators", "z"], "--indicators"),
        (["--quantile-levels", "0.5,2"], "--quantile-levels"),
        (["--step", "soon"], "--step"),
        (["--model", "oracle"], "--model"),
        (["--plot", "fan.bmp"], "must end in .png"),
        (["--lower", "nan"], "--lower nan: no value of item 'a', rps lies there or above"),
        (["--lower", "inf"], "--lower inf"),
        (["--lower", "1e300"], "--lower 1e+300"),
    ],
)
def test_wrong_usage_is_a_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = run(str(telemetry(tmp_path)), *arguments)
    assert isinstance(result.exception, HarmonyError)
    assert words in result.exception.message
    assert result.exception.exit_code == 2


def test_too_short_a_history_says_what_is_needed(tmp_path: Path) -> None:
    result = run(str(telemetry(tmp_path, num=6)))
    assert isinstance(result.exception, HarmonyError)
    assert "has 6 observed rows; a forecast of 24 steps needs 8" in result.exception.message
