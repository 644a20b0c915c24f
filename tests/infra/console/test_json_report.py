"""What measuring commands write: JSON that any reader takes, and one sentence where it cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.lab.report import STDOUT, write_json

BODY = {"mse": float("nan"), "rows": [(1, float("inf")), {"crps": np.float64(0.5)}], "none": None, "whole": 7}
READ = {"mse": None, "rows": [[1, None], {"crps": 0.5}], "none": None, "whole": 7}


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_a_file_is_made_with_its_folders_and_holds_only_json(tmp_path: Path) -> None:
    where = tmp_path / "new" / "out.json"
    write_json(where, BODY)
    assert json.loads(where.read_text(), parse_constant=refuse) == READ


def test_a_dash_is_one_line_of_stdout_and_nothing_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write_json(None, BODY)
    assert capsys.readouterr().out == ""
    write_json(STDOUT, BODY)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line, parse_constant=refuse) == READ


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HarmonyError, match=r"--json: cannot write .*out\.json: ") as raised:
        write_json(tmp_path / "file" / "out.json", BODY)
    assert raised.value.exit_code == 2


# Each with a second mistake that is found later, so that nothing runs for hours where the first one is not.
WRONG = {
    "replay": ["--rate", "ramp", "--policies", "nobody"],
    "evaluate": ["--protocol", "nobody"],
    "ablate": ["--tasks", "nobody", "--out", "."],
    "train": ["--data", "nobody.csv"],
    "bench ingest": ["--form", "nobody"],
    "bench inference": ["--batches", "nobody"],
}


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((command, "--json") for command in WRONG if command != "train"),
        ("replay", "--plot"),
        ("replay", "--plot-risk"),
        ("replay", "--log-dir"),
        ("evaluate", "--plots"),
        ("ablate", "--out"),
        ("train", "--out"),
    ],
)
def test_a_place_that_takes_no_results_is_named_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    where = str(tmp_path / "file" / "out.svg")
    result = CliRunner().invoke(app, [*command.split(), *WRONG[command], option, where], env={"COLUMNS": "500"})
    assert (result.exit_code, f"'{option}': cannot write {where}" in result.output) == (2, True), result.output


def test_trying_a_place_leaves_it_as_it_was(tmp_path: Path) -> None:
    (kept := tmp_path / "kept.json").write_text("{}")
    for where in (kept, tmp_path / "new" / "out.json"):
        assert CliRunner().invoke(app, ["replay", *WRONG["replay"], "--json", str(where)]).exit_code != 0
    assert kept.read_text() == "{}"
    assert list((tmp_path / "new").iterdir()) == []
