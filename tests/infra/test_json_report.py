"""What measuring commands write: JSON that any reader takes, and one sentence where it cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from infra.errors import HarmonyError
from infra.json_report import STDOUT, write_json

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
