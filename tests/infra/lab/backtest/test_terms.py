"""What a backtest holds HARMONY to: flags, else the settings, else what is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agents.policy import GuardLimits, Policy
from infra.cli.app import app
from infra.lab.backtest import comparison, job
from infra.lab.backtest.comparison import ComparisonTerms
from infra.lab.replay.policies.harmony import acting_early
from infra.lab.replay.simulation import NewController
from tests.infra.lab.backtest.test_comparison import history


class _Asked(Exception):
    """Ends the command once it has said what it wants."""


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, settings: str = "") -> ComparisonTerms:
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
    assert asked(monkeypatch, tmp_path, *arguments, settings=settings).policy == Policy(
        epsilon=epsilon, guards=acting_early(GuardLimits())
    )


SETTINGS = """
max_gpus: 64
advanced:
  guards: {up_period_s: 20, down_ratio: 0.5, warm_up_steps: 300, min_coverage_ratio: 0.9, fleet_min_replicas: 30}
  planning: {commit_s: 90, bearable_ratio: 0.25}
"""


def test_harmony_decides_by_the_settings_but_early_and_for_one_workload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy = asked(monkeypatch, tmp_path, settings=SETTINGS).policy
    assert (policy.commit_s, policy.bearable_ratio) == (90.0, 0.25)
    assert policy.guards == acting_early(GuardLimits(fleet_max_gpus=64, up_period_s=20.0, down_ratio=0.5))


def test_harmony_decides_at_the_pace_and_the_risk_of_the_workload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = "\nworkloads: [{id: w, slo: {epsilon: 0.02}, guards: {down_ratio: 0.1}}]"
    policy = asked(monkeypatch, tmp_path, settings=SETTINGS + own).policy
    assert policy.epsilon == 0.02
    assert policy.guards == acting_early(GuardLimits(fleet_max_gpus=64, up_period_s=20.0, down_ratio=0.1))


def test_harmony_lives_by_these_terms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terms = asked(monkeypatch, tmp_path, settings=SETTINGS)
    found = []

    def meet(_: object, __: float, base: Policy) -> NewController:
        found.append(base)
        raise _Asked

    monkeypatch.setattr(comparison, "benchmark_rps", lambda *_: 1.0)
    monkeypatch.setattr(comparison, "harmony_controller", meet)
    with pytest.raises(_Asked):
        comparison.compare(history().filled(), terms, 1, fitted=False, progress=lambda *_: None)
    assert found == [terms.policy]
