"""Tuning, HARMONY's own loop, and figures that anyone can compute again from the logs."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from infra.lab.replay.policies.catalogue import TRIALS, PolicyChoice, candidates, controller_of
from infra.lab.replay.policies.harmony import Variant, harmony_controller
from infra.lab.replay.results import paired_interval, write_logs
from infra.lab.replay.run import Trial, best_of
from infra.lab.replay.simulation import simulate
from infra.simulator.ledger import Objective
from infra.simulator.sizing import benchmark_rps
from tests.infra.lab.replay.replay_setting import HALF, KNOWN, OBJECTIVE, poisson, setting


def test_the_cheapest_that_kept_the_objective_wins_else_the_best() -> None:
    trials = [
        Trial(PolicyChoice("a"), 0.995, 3.0),
        Trial(PolicyChoice("b"), 0.991, 2.0),
        Trial(PolicyChoice("c"), 0.9, 1.0),
    ]
    assert best_of(trials, 0.99).policy == "b"
    assert best_of(trials, 0.999).policy == "a"


def test_where_none_kept_it_nothing_is_paid_for_a_few_requests_more() -> None:
    trials = [
        Trial(PolicyChoice("a"), 0.92, 19.0),
        Trial(PolicyChoice("b"), 0.9165, 15.0),
        Trial(PolicyChoice("c"), 0.91, 14.0),
    ]
    assert best_of(trials, 0.99).policy == "b"


@pytest.mark.parametrize("policy", ["hpa", "keda-queue", "kpa", "llmd-slo", "dynamo", "dynamo-dual", "seasonal-naive",
                                    "scheduled", "optscaler"])  # fmt: skip
def test_every_public_policy_has_equally_many_trials_and_lives(policy: str) -> None:
    s = setting()
    offered = candidates(policy, s, KNOWN)
    assert len(offered) == TRIALS
    assert len(candidates("harmony", s, KNOWN)) == 1, "one setting serves every load"
    lived = simulate(s, controller_of(offered[5], KNOWN), 0)
    assert 0.0 <= lived.attainment <= 1.0
    assert lived.gpu_hours > 0


def test_a_load_test_finds_what_the_engine_carries() -> None:
    rate = benchmark_rps(HALF, poisson(1.0, 300.0, 0), OBJECTIVE, 0.99, 0)
    assert rate is not None
    assert 1.0 < rate < 2.0  # eight at once, four seconds each
    assert benchmark_rps(HALF, poisson(1.0, 300.0, 0), Objective(0.1, 1.0), 0.99, 0) is None


def test_harmony_is_the_same_twice_and_follows_the_load() -> None:
    s = setting(step_s=5.0, initial_replicas=2)
    make = harmony_controller(Variant(policy={"epsilon": 0.05, "paths_screen": 64}), 1.5)
    first, again = simulate(s, make, 0), simulate(s, make, 0)
    counts = [(r.command_s, r.ready_s, r.drain_s) for r in first.replicas]
    assert str(counts) == str([(r.command_s, r.ready_s, r.drain_s) for r in again.replicas])
    during = [r for r in first.replicas if 300 < r.command_s < 500]
    assert during
    assert all(math.isnan(r.ready_s) or r.ready_s == pytest.approx(r.command_s + 20.0) or r.command_s == 0
               for r in first.replicas)  # fmt: skip


def test_every_figure_can_be_computed_from_the_logs(tmp_path: Path) -> None:
    s = setting()
    lived = simulate(s, controller_of(candidates("hpa", s, KNOWN)[4], KNOWN), 0)
    write_logs(tmp_path, "hpa", lived)
    start, end = s.load.score
    with (tmp_path / "hpa-0" / "requests.csv").open() as lines:
        rows = [r for r in csv.DictReader(lines) if start <= float(r["arrival_s"]) < end]
    good = 0
    for r in rows:
        if r["first_token_s"] and r["finish_s"]:
            first, finish, output = float(r["first_token_s"]), float(r["finish_s"]), int(r["output_tokens"])
            tpot = (finish - first) / (output - 1)
            good += first - float(r["arrival_s"]) <= 2.0 and tpot <= 1.0
    assert good / len(rows) == lived.attainment
    held = 0.0
    with (tmp_path / "hpa-0" / "replicas.csv").open() as lines:
        for r in csv.DictReader(lines):
            release = float(r["release_s"]) if r["release_s"] else end
            held += max(0.0, min(release, end) - max(float(r["command_s"]), start))
    assert held * 2 / 3600 == pytest.approx(lived.gpu_hours)


def test_paired_intervals_hold_a_known_gap() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=60)
    low, high = paired_interval((base + 1 + 0.1 * rng.normal(size=60)).tolist(), base.tolist())
    assert low < 1 < high
    assert high - low < 0.1
