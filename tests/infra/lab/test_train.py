"""`harmony train`: what it refuses, and a run on request loads that is taken up again."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from infra.cli.app import app
from infra.console.errors import HarmonyError
from model.network.checkpoint import load
from model.network.spec import SHIPPED


def train(*arguments: str) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, ["train", *arguments])
    return done.exit_code, done.output, done.exception


def test_request_loads_and_a_file_exclude_each_other(tmp_path: Path) -> None:
    _, _, error = train("--out", str(tmp_path), "--data", "history.csv", "--loads", "0.5")
    assert isinstance(error, HarmonyError)
    assert error.exit_code == 2
    assert "--loads" in error.message
    assert train("--out", str(tmp_path), "--loads", "1.5")[0] == 2


def test_shares_above_one_and_a_head_of_nothing_are_refused(tmp_path: Path) -> None:
    _, _, error = train("--out", str(tmp_path), "--loads", "0.5", "--patterns", "0.6")
    assert isinstance(error, HarmonyError)
    assert error.message == "--loads 0.5 and --patterns 0.6 are shares: together at most 1."
    for asked in (("--patterns", "0.5"), ("--from", "shipped", "--data", "history.csv")):
        _, _, error = train("--out", str(tmp_path), "--head", *asked)
        assert isinstance(error, HarmonyError)
        assert error.message == "--head is of a network that is trained on: give --from, and no --data."


def test_training_the_head_leaves_what_precedes_it_as_it_was(tmp_path: Path) -> None:
    asked = ["--out", str(tmp_path), "--from", "shipped", "--patterns", "1", "--head", "--workers", "0"]
    assert train(*asked, "--steps", "2")[0] == 0
    made, before = load(tmp_path), load(SHIPPED)
    assert made.about["part"] == "head"
    head = {id(part) for part in made.network.head_parameters()}
    for now, then in zip(made.network.parameters(), before.network.parameters(), strict=True):
        assert id(now) in head or bool((now == then).all())
    assert any(
        bool((now != then).any())
        for now, then in zip(made.network.head_parameters(), before.network.head_parameters(), strict=True)
    )


def test_training_on_goes_on_from_the_shipped_weights_and_from_where_it_stopped(tmp_path: Path) -> None:
    asked = ["--out", str(tmp_path), "--from", "shipped", "--loads", "1", "--workers", "0"]
    assert train(*asked, "--steps", "1")[0] == 0
    code, output, _ = train(*asked, "--steps", "2")
    assert code == 0
    assert "going on at step 1" in output
    about = json.loads((tmp_path / "spec.json").read_text())["about"]
    assert (about["from"], about["loads"], about["steps"]) == ("shipped", 1.0, 2)
    made, before = load(tmp_path), load(SHIPPED)
    assert made.digest != before.digest
    moved = [
        float((now - then).detach().abs().max())
        for now, then in zip(made.network.parameters(), before.network.parameters(), strict=True)
    ]
    assert 0 < max(moved) < 0.01  # two small updates of what was there, no beginning anew
