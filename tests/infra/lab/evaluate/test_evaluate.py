"""`harmony evaluate`: the report's shape, the tables, what it refuses, what it cannot run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from infra.cli.app import app
from infra.console.errors import HarmonyError

COLUMNS = ("load", "cpu.busy", "blkio.throttle.io_service_bytes_Async")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("first", "second"):
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        rows = ["item_id,timestamp,rate,gpu"]
        for item in ("a", "b"):
            level = rng.normal(size=300).cumsum() + 40
            rows += [f"{item},{1_700_000_000 + 60 * k},{level[k]:.4f},{level[k] / 100:.5f}" for k in range(300)]
        (folder / "data.csv").write_text("\n".join(rows) + "\n")
        spec = {
            "step_s": 60, "prediction_lengths": [1, 6], "context_length": 120, "season_lengths": [],
            "max_origins_per_item": 6, "items": {"a": {}, "b": {}},
            "indicators": [{"name": "rate", "level": 1, "lower": 0.0}, {"name": "gpu", "level": 3}],
        }  # fmt: skip
        (folder / "task.json").write_text(json.dumps(spec))
    return tmp_path / "tasks"


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    folder = tmp_path / "fisher"
    folder.mkdir()
    for number in (1, 2, 10):
        rows = ["date," + ",".join(COLUMNS)]
        values = rng.normal(size=(600, 3)).cumsum(0)
        rows += [f"{1_700_000_400 + 600 * k}," + ",".join(f"{v:.4f}" for v in values[k]) for k in range(600)]
        (folder / f"container{number}.csv").write_text("\n".join(rows) + "\n")
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["evaluate", "--draws", "10", *arguments])


def test_rolling_report(tasks: Path) -> None:
    result = run("--protocol", "rolling", "--dataset", str(tasks), "--models", "last,ewma,served_pool", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["protocol"], report["track"]) == ("rolling", "local")
    rows = report["results"]
    assert len(rows) == 2 * 2 * 3
    row = rows[0]
    wanted = {
        "series", "model", "input_length", "prediction_length", "mse", "mae", "crps", "coverage_50", "coverage_90",
        "energy_score", "fit_seconds", "per_indicator",
    }  # fmt: skip
    assert wanted <= set(row)
    assert set(row["per_indicator"]) == {"rate", "gpu"}
    assert len(rows[-1]["skill_by_step"]) == rows[-1]["prediction_length"]
    last = next(line for line in report["summary"] if line["model"] == "last")
    assert last["relative"]["wql"] == 1  # without a season the seasonal naive is the last value
    assert last["pairs"] == last["pairs_forecast"] == 4
    assert len(last["conditional_coverage_90"]["load_decile"]) == 10


def test_rolling_table_and_subset(tasks: Path) -> None:
    arguments = ["--tasks", "second", "--prediction-lengths", "6", "--limit", "1", "--part", "validation", "--pairs"]
    result = run("--protocol", "rolling", "--dataset", str(tasks), "--models", "ridge,ens", *arguments)
    assert result.exit_code == 0, result.output
    assert "second" in result.stdout
    assert "first" not in result.stdout
    assert "1/1" in result.stdout


def test_fisher_report_counts_all_windows_and_the_published_ones(containers: Path) -> None:
    about = ["--protocol", "fisher", "--dataset", str(containers), "--input-lengths", "36"]
    result = run(*about, "--models", "last,ridge_scaled,served_pool", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [row["series"] for row in report["results"][::3]] == ["container1", "container2", "container10"]
    assert report["results"][0]["num_windows"] == 120
    assert {row["containers"] for row in report["summary"]} == {3}
    assert report["summary"][0]["crps"] != report["summary"][0]["crps_published_rows"]
    assert all(row["load_crps"] > 0 for row in report["summary"])


@pytest.mark.slow
def test_plots(tasks: Path, containers: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "plots"
    assert (
        run("--protocol", "rolling", "--dataset", str(tasks), "--models", "last,ewma", "--plots", str(out)).exit_code
        == 0
    )
    assert sorted(path.name for path in out.iterdir()) == [
        "calibration.png", "fans.png", "skill_by_step.png", "skill_by_task.png",
    ]  # fmt: skip
    more = tmp_path / "more"
    arguments = ["--input-lengths", "36", "--models", "last,ridge", "--plots", str(more)]
    assert run("--protocol", "fisher", "--dataset", str(containers), *arguments).exit_code == 0
    assert sorted(path.name for path in more.iterdir()) == ["calibration.png", "crps_by_indicator.png"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--protocol", "guess"], "neither fisher nor rolling"),
        (["--protocol", "rolling", "--track", "x"], "--track"),
        (["--protocol", "rolling", "--part", "x"], "--part"),
        (["--protocol", "rolling", "--models", "oracle"], "knows no oracle"),
        (["--protocol", "rolling", "--tasks", "third"], "has no third; it has first, second"),
        (["--protocol", "rolling", "--prediction-lengths", "soon"], "--prediction-lengths"),
        (["--protocol", "rolling", "--prediction-lengths", "500"], "no task has room"),
    ],
)
def test_wrong_usage_is_a_sentence(tasks: Path, arguments: list[str], words: str) -> None:
    result = run("--dataset", str(tasks), *arguments)
    assert isinstance(result.exception, HarmonyError)
    assert words in result.exception.message
    assert result.exception.exit_code == 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "task.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "task.json").write_text("{}"), "is missing or wrong"),
        (lambda folder: (folder / "data.csv").unlink(), "no data.csv"),
        (lambda folder: (folder / "data.csv").write_text("timestamp,rate\n1,1\n2,1\n"), "a"),
    ],
)
def test_a_spoilt_task_is_named(tasks: Path, spoil: object, words: str) -> None:
    spoil(tasks / "first")  # type: ignore[operator]
    result = run("--protocol", "rolling", "--dataset", str(tasks), "--models", "last")
    assert isinstance(result.exception, HarmonyError)
    assert words in result.exception.message
    assert "first" in result.exception.message


def test_what_cannot_run_is_listed(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chronos", "fracast", "statsforecast", "statsforecast.models"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run(
        "--protocol", "rolling", "--dataset", str(tasks), "--models", "last,chronos,fracast,AutoETS", "--json", "-"
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report["not_run"]) == {"chronos", "fracast", "AutoETS"}
    assert "extra `foundation`" in report["not_run"]["chronos"]
    assert "extra `rivals`" in report["not_run"]["fracast"]
    assert {row["model"] for row in report["results"]} == {"last"}


def test_a_small_public_network_stands_among_the_rivals(tasks: Path) -> None:
    pytest.importorskip("fracast", reason="fracast is not installed (extra `rivals`)")
    result = run("--protocol", "rolling", "--dataset", str(tasks), "--models", "snaive,fracast", "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    scored = {row["model"]: row for row in report["results"]}
    assert report["not_run"] == {}
    assert 0 < scored["fracast"]["crps"] < 5 * scored["snaive"]["crps"]


@pytest.mark.slow
def test_statistical_rivals_answer_on_their_subset(tasks: Path) -> None:
    pytest.importorskip("statsforecast")
    about = ["--protocol", "rolling", "--dataset", str(tasks), "--tasks", "first", "--limit", "1"]
    result = run(*about, "--models", "AutoETS", "--json", "-")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["results"]
    assert (row["prediction_length"], row["num_origins"]) == (6, 1)
