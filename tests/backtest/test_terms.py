"""What a backtest holds HARMONY to: flags, else the settings, else what is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agents.policy import Policy
from infra.backtest import job
from infra.backtest.judge import Terms
from infra.cli import app
from tests.backtest.test_judge import history


class _Asked(Exception):
    """Ends the command once it has said what it wants."""


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, settings: str = "") -> Terms:
    """Terms of `harmony backtest` in a folder whose harmony.yaml holds these settings."""
    found = []

    def ask(wanted: job.Job, _: object) -> None:
        found.append(job.terms_of(wanted, history().filled()))
        raise _Asked

    monkeypatch.chdir(folder)
    monkeypatch.setattr(job, "run_backtest", ask)
    (folder / "harmony.yaml").write_text(settings)
    result = CliRunner().invoke(app, ["backtest", "--history", "any.csv", *arguments])
    assert isinstance(result.exception, _Asked), result.output
    return found[0]


@pytest.mark.parametrize(
    ("arguments", "settings", "epsilon"),
    [
        ((), "", Policy().epsilon),
        ((), "epsilon: 0.05", 0.05),
        (("--epsilon", "0.02"), "", 0.02),
        (("--epsilon", "0.02"), "epsilon: 0.05", 0.02),
    ],
)
def test_the_accepted_risk_is_the_flags_else_that_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], settings: str, epsilon: float
) -> None:
    assert asked(monkeypatch, tmp_path, *arguments, settings=settings).epsilon == epsilon
