"""The guards of HARMONY in a replay: what is relaxed, what is as shipped, and how they are asked for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agents.policy import GuardLimits, Policy
from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.lab.replay import job
from infra.lab.replay.policies.harmony import REPLAY_GUARDS, REPLAY_POLICY, acting_early, policy_of
from infra.lab.replay.policies.reactive import Behaviour
from infra.lab.replay.prepare import Cell
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


def test_shipped_guards_are_those_of_a_worker_and_fast_ones_move_as_an_hpa_may() -> None:
    shipped, fast, slow = (REPLAY_GUARDS[name] for name in ("shipped", "fast", "slow"))
    assert differing(shipped, GuardLimits()) == {"warm_up_steps", "min_coverage_ratio"}
    assert differing(fast, shipped) == {"stabilization_down_s", "down_ratio"}
    assert fast.up_period_s == shipped.up_period_s == Behaviour().up_period_s
    assert fast.stabilization_down_s < shipped.stabilization_down_s < slow.stabilization_down_s
    assert slow.down_ratio / slow.down_period_s < shipped.down_ratio / shipped.down_period_s < fast.down_ratio


def test_a_cell_is_decided_by_the_policy_it_is_given() -> None:
    policy = policy_of(setting(), 1.5, Policy(fleet="mine", epsilon=0.02, commit_s=30.0), seed=7)
    assert (policy.fleet, policy.epsilon, policy.commit_s, policy.seed) == ("replay", 0.02, 30.0, 7)
    assert [w.capacity_rps for w in policy.workloads] == [1.5]
    assert policy_of(setting(), 1.5).guards == REPLAY_GUARDS["fast"]


class _Asked(Exception):
    """Ends the command once it has said what it wants."""


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ((), REPLAY_POLICY),
        (("--guards", "shipped"), Policy(guards=REPLAY_GUARDS["shipped"])),
        (("--guards", "fast", "--epsilon", "0.05"), Policy(epsilon=0.05, guards=REPLAY_GUARDS["fast"])),
    ],
)
def test_the_command_replays_with_the_guards_that_are_asked_for(
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


def test_unknown_guards_are_named() -> None:
    result = CliRunner().invoke(app, ["replay", "--rate", "ramp", "--guards", "none"])
    assert isinstance(result.exception, HarmonyError)
    assert result.exception.exit_code == 2
    assert "--guards: 'none' is none of fast, shipped, slow." in result.exception.message
