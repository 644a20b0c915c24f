"""The guards of HARMONY in a replay: what is relaxed, what is as shipped, and how they are asked for."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agents.policy import GuardLimits, Policy
from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.lab.replay import job
from infra.lab.replay.policies.catalogue import OperatorKnowledge
from infra.lab.replay.policies.harmony import REPLAY_POLICY, acting_early, policy_of
from infra.lab.replay.policies.reactive import Behaviour
from infra.lab.replay.prepare import Cell
from infra.lab.replay.run import tune
from tests.infra.lab.replay.replay_setting import setting


def differing(one: GuardLimits, other: GuardLimits) -> set[str]:
    return {f.name for f in fields(GuardLimits) if getattr(one, f.name) != getattr(other, f.name)}


@given(st.integers(0, 500), st.floats(0.0, 1.0), st.floats(0.0, 900.0))
def test_acting_early_relaxes_warm_up_and_coverage_and_nothing_else(steps: int, ratio: float, down_s: float) -> None:
    guards = GuardLimits(warm_up_steps=steps, min_coverage_ratio=ratio, stabilization_down_s=down_s)
    early = acting_early(guards)
    assert differing(early, guards) <= {"warm_up_steps", "min_coverage_ratio"}
    assert early.warm_up_steps <= steps
    assert early.min_coverage_ratio <= ratio
    assert acting_early(early) == early


def test_guards_are_those_of_a_worker_that_may_act_early() -> None:
    assert differing(REPLAY_POLICY.guards, GuardLimits()) == {"warm_up_steps", "min_coverage_ratio"}
    assert REPLAY_POLICY.guards.up_period_s == Behaviour().up_period_s


def test_a_cell_is_decided_by_the_policy_it_is_given() -> None:
    policy = policy_of(setting(), 1.5, Policy(fleet="mine", epsilon=0.02, commit_s=30.0), seed=7)
    assert (policy.fleet, policy.epsilon, policy.commit_s, policy.seed) == ("replay", 0.02, 30.0, 7)
    assert [w.capacity_rps for w in policy.workloads] == [1.5]
    assert policy_of(setting(), 1.5).guards == REPLAY_POLICY.guards


class _Asked(Exception):
    """Ends the command once it has said what it wants."""


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ((), REPLAY_POLICY),
        (("--epsilon", "0.05"), replace(REPLAY_POLICY, epsilon=0.05)),
    ],
)
def test_the_command_replays_with_the_policy_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], policy: Policy
) -> None:
    found = []

    def ask(cell: Cell, *_: object, **__: object) -> None:
        found.append(cell.knowledge.policy)
        raise _Asked

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "run_cell", ask)
    Path("load.csv").write_text("start_s,rate_rps\n0,1\n600,0\n")
    result = CliRunner().invoke(app, ["replay", "--rate", "load.csv", "--no-tune", *arguments])
    assert isinstance(result.exception, _Asked), result.output
    assert found == [policy]


@pytest.mark.parametrize("first_seed", [0, 7])
def test_draws_are_counted_from_the_first_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first_seed: int
) -> None:
    def ask(cell: Cell, *_: object, **__: object) -> None:
        found.append(cell.scored(1).load.arrivals.arrival_s.tolist())
        raise _Asked

    found: list[list[float]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "run_cell", ask)
    Path("load.csv").write_text("start_s,rate_rps\n0,1\n600,0\n")
    for words in (("--first-seed", str(first_seed)), ("--first-seed", str(first_seed + 1)), ()):
        CliRunner().invoke(app, ["replay", "--rate", "load.csv", "--no-tune", *words])
    assert (found[0] == found[2]) is (first_seed == 0)
    assert found[0] != found[1]


def test_recorded_requests_are_one_draw(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replay", "--requests", str(tmp_path / "no.csv"), "--first-seed", "1"])
    assert isinstance(result.exception, HarmonyError)
    assert "--first-seed chooses draws of a rate file" in result.exception.message


@pytest.mark.parametrize(
    ("load", "words", "says"),
    [
        ("--rate", ("--train-share", "0.3"), "--train-share is of recorded requests"),
        ("--requests", ("--output-tokens", "200"), "--prompt-tokens and --output-tokens are of a rate file"),
        ("--requests", ("--mean-rate", "2"), "--day and --mean-rate are of a rate file"),
    ],
)
def test_an_option_of_the_other_kind_of_load_is_not_ignored(load: str, words: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(app, ["replay", load, "ramp", *words])
    assert isinstance(result.exception, HarmonyError)
    assert result.exception.exit_code == 2
    assert says in result.exception.message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("hpa.target",), "'hpa.target' is no setting: write POLICY.NAME=VALUE, such as hpa.target=40."),
        (("hpa=40",), "'hpa=40' is no setting"),
        (("hpa.target=-1",), "'hpa.target=-1' is no setting"),
        (("kpa.target=1",), "'kpa' is no rival in this replay: it has hpa."),
        (("harmony.epsilon=0.1",), "'harmony' is no rival in this replay: it has hpa."),
        (("hpa.aim=4",), "hpa has no setting 'aim': its settings are target, down_window_s, min_replicas."),
        (("hpa.target=4",), "hpa needs hpa.down_window_s too: its settings are target, down_window_s, min_replicas."),
    ],
)
def test_a_setting_that_a_rival_cannot_run_with_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "run_cell", lambda *_, **__: pytest.fail("it began"))
    Path("load.csv").write_text("start_s,rate_rps\n0,1\n600,0\n")
    asked = [part for word in words for part in ("--set", word)]
    result = CliRunner().invoke(app, ["replay", "--rate", "load.csv", "--policies", "harmony,hpa", *asked])
    assert isinstance(result.exception, HarmonyError), result.output
    assert result.exception.exit_code == 2
    assert says in result.exception.message


def test_a_rival_runs_with_the_settings_that_it_is_given_and_is_not_tuned() -> None:
    known = OperatorKnowledge(1.5, 6.0, np.zeros(0), given={"hpa": {"target": 4.5, "down_window_s": 60.0}})
    choice, trials = tune("hpa", setting(), setting(), known, 0)
    assert (dict(choice.params), trials) == ({"target": 4.5, "down_window_s": 60.0}, [])
    assert len(tune("kpa", setting(), setting(), known, 0, tuned=False)[0].params) > 1
