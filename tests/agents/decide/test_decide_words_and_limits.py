"""Operators' words, budgets of the fleet and limits of each step, as the decide stage applies them to plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.policy import Slo, WorkloadGuards
from streams.records.facts import Control
from tests.agents.decide.decide_runs import control, run
from tests.agents.planning.plan_samples import FREE, STEP_MS, log, plan, policy, record, spec


def test_pin_wins_until_it_ends_and_over_pause_and_bounds() -> None:
    words = (control("pin", replicas=200, until_ts_ms=3 * STEP_MS), control("pause", None))
    decisions, commands = run(log(record(0, plan(), controls=words), record(1, plan()), record(2, plan())))
    assert [(d.reason, d.replicas.final) for d in decisions] == [("pin", 200), ("pin", 200), ("kill_switch", 200)]
    assert [c.replicas for c in commands] == [200, 200]


def test_unpin_and_resume_give_the_workload_back() -> None:
    decisions, _ = run(
        log(
            record(0, plan(proposed=6), controls=(control("pin", replicas=2), control("pause"))),
            record(1, plan(proposed=6), controls=(control("unpin"),)),
            record(2, plan(proposed=6), controls=(control("resume"),)),
        )
    )
    assert [d.reason for d in decisions] == ["pin", "kill_switch", "chance"]


def test_mode_by_control_and_never_act_for_the_undeclared() -> None:
    p = policy(spec("a", mode="observe"))
    words = (control("mode", "a", mode="act"), control("mode", "x", mode="act"))
    decisions, commands = run(log(record(0, plan("a", 5, 6), plan("x", 5, 6), controls=words)), p)
    assert [d.mode for d in decisions] == ["act", "observe"]
    assert [c.workload for c in commands] == ["a"]


def test_a_control_counts_once_by_its_id_whatever_partition_repeats_it() -> None:
    pin, unpin = control("pin", replicas=9, ident="1"), control("unpin", ident="2")
    decisions, _ = run(
        log(
            record(0, plan("a"), controls=(pin, unpin)),
            record(0, plan("w"), partition=1, controls=(pin,)),  # this partition is behind and says it again
            record(1, plan("w"), partition=1),
        )
    )
    assert [d.reason for d in decisions] == ["chance"] * 3


@pytest.mark.parametrize(
    "word",
    [
        control("pin"),
        control("pin", replicas=-1),
        control("mode", mode="yolo"),
        control("pin", None, replicas=1),
        control("dance"),
    ],
)
def test_a_word_without_meaning_changes_nothing(word: Control) -> None:
    decisions, _ = run(log(record(0, plan(proposed=6), controls=(word,))))
    assert (decisions[0].reason, decisions[0].mode) == ("chance", "act")


def test_a_late_pin_has_no_command_either() -> None:
    r = record(0, plan(), controls=(control("pin", replicas=9),))
    decisions, commands = run(log(r, stamp_ms=10**12), expire_by_stamp=True)
    assert decisions[0].reason == "pin"
    assert commands == []


def test_the_fleet_budget_serves_priorities_first_and_never_takes_away() -> None:
    p = policy(
        spec("a", gpus_per_replica=2),
        spec("b", gpus_per_replica=2, priority=5),
        spec("free"),
        guards=replace(FREE, fleet_max_gpus=26),
    )
    decisions, _ = run(log(record(0, plan("a", 5, 9), plan("b", 5, 7), plan("free", 3, 3))), p)
    assert [(d.workload, d.replicas.final, d.reason) for d in decisions] == [
        ("a", 5, "fleet_budget"),
        ("b", 6, "fleet_budget"),
        ("free", 3, "chance"),
    ]


@pytest.mark.parametrize(("declared", "grown", "shrunk"), [(False, 9, 3), (True, 5, 1)])
def test_what_is_not_declared_takes_no_budget_and_is_no_floor(declared: bool, grown: int, shrunk: int) -> None:
    """The control arm: the same workload, declared, takes the budget and is the floor."""
    made_up = [spec("made-up", max_replicas=20_000)] if declared else []
    guards = replace(FREE, fleet_max_gpus=20, fleet_max_power_w=14_000.0, fleet_min_replicas=3)
    row = record(0, plan("a", 5, 9), plan("made-up", 10_000, 10_000))
    (first, _), _ = run(log(row), policy(spec("a", power_w_per_replica=700.0), *made_up, guards=guards))
    assert first.replicas.final == grown
    row = record(0, plan("a", 5, 1), plan("made-up", 10_000, 10_000))
    (first, _), _ = run(log(row), policy(spec("a"), *made_up, guards=replace(guards, fleet_max_gpus=None)))
    assert first.replicas.final == shrunk


def test_the_fleet_budget_sees_workloads_of_other_partitions() -> None:
    p = policy(spec("a"), spec("b"), guards=replace(FREE, fleet_max_gpus=12))
    decisions, _ = run(log(record(0, plan("a", 5, 8)), record(0, plan("b", 2, 9), partition=1)), p)
    assert [d.replicas.final for d in decisions] == [8, 4]


def test_the_power_ceiling_counts_declared_draws() -> None:
    p = policy(
        spec("a", power_w_per_replica=700.0),
        spec("b", power_w_per_replica=350.5),
        guards=replace(FREE, fleet_max_power_w=7_000.0),
    )
    decisions, _ = run(log(record(0, plan("a", 5, 5), plan("b", 2, 99))), p)
    assert (decisions[1].replicas.final, decisions[1].reason) == (9, "fleet_power")


def test_the_power_ceiling_counts_what_is_measured_where_that_is_more() -> None:
    p = policy(
        spec("a", power_w_per_replica=700.0),
        spec("b", power_w_per_replica=700.0),
        spec("c"),
        guards=replace(FREE, fleet_max_power_w=10_000.0),
    )
    measured = [plan("a", 5, 5, power_w=900.0), plan("b", 2, 2, power_w=500.0), plan("c", 1, 99, power_w=800.0)]
    decisions, _ = run(log(record(0, *measured), record(1, *measured)), p)
    last = decisions[-1]
    assert (last.workload, last.replicas.final, last.reason) == ("c", 5, "fleet_power")  # 4500 + 1400 + 5 * 800 = 9900
    assert last.guards[-1].reason == "4100 W are left in the fleet, 800 per replica as measured"


def test_a_measured_draw_is_remembered_where_a_plan_does_not_tell() -> None:
    p = policy(spec("a"), spec("b"), guards=replace(FREE, fleet_max_power_w=5_000.0))
    told = [plan("a", 2, 2, power_w=1_000.0), plan("b", 1, 1, power_w=500.0)]
    untold = [plan("a", 2, 9), plan("b", 1, 9)]
    decisions, _ = run(log(record(0, *told), record(1, *untold)), p)
    assert [d.replicas.final for d in decisions] == [2, 1, 4, 2]


def test_the_fleet_keeps_its_floor() -> None:
    p = policy(spec("a"), spec("b"), guards=replace(FREE, fleet_min_replicas=7))
    decisions, _ = run(log(record(0, plan("a", 5, 1), plan("b", 5, 1))), p)
    assert [d.replicas.final for d in decisions] == [2, 5]


def test_removals_per_minute_are_shared_by_the_fleet_and_come_back() -> None:
    p = policy(spec("a"), spec("b"), guards=replace(FREE, fleet_removals_per_minute=3))
    slots = [(0, 9, 9), (1, 7, 8), (13, 7, 8)]
    decisions, _ = run(log(*(record(s, plan("a", a, 7), plan("b", b, 2)) for s, a, b in slots)), p)
    assert [d.replicas.final for d in decisions] == [7, 8, 7, 8, 7, 5]
    assert decisions[3].reason == "removal_limit"


def test_what_is_ordered_again_after_others_undid_it_counts_as_removed_once_more() -> None:
    p = policy(spec("a"), spec("b"), guards=replace(FREE, fleet_removals_per_minute=1))
    decisions, commands = run(log(*(record(s, plan("a", n, 5), plan("b", n, 5)) for s, n in [(0, 5), (9, 6)])), p)
    assert [d.replicas.final for d in decisions] == [5, 5, 5, 6]
    assert decisions[3].reason == "removal_limit"
    assert commands[2].command_id == commands[0].command_id


def test_an_order_that_is_not_carried_out_is_counted_once() -> None:
    p = policy(spec("a"), spec("b"), guards=replace(FREE, fleet_removals_per_minute=1))
    slots = [(0, 9), (1, 9), (13, 8)]
    decisions, _ = run(log(*(record(s, plan("a", 9, 8), plan("b", 9, wanted)) for s, wanted in slots)), p)
    assert [d.replicas.final for d in decisions] == [8, 9, 8, 9, 8, 8]


def test_step_limits_count_what_was_added_within_the_period() -> None:
    p = policy(guards=replace(FREE, up_ratio=1.0, up_replicas=4, up_period_s=60.0))
    decisions, _ = run(
        log(
            record(0, plan(current=2, proposed=50)),
            record(1, plan(current=6, proposed=50)),
            record(12, plan(current=6, proposed=50)),
        ),
        p,
    )
    assert [d.replicas.final for d in decisions] == [6, 6, 12]


def test_stabilization_holds_the_largest_proposal_of_the_window() -> None:
    p = policy(guards=replace(FREE, stabilization_down_s=15.0))
    wanted = [9, 4, 5, 3, 3]
    decisions, _ = run(log(*(record(i, plan(current=9, proposed=n)) for i, n in enumerate(wanted))), p)
    assert [d.replicas.final for d in decisions] == [9, 9, 9, 5, 5]


def test_between_plans_the_window_of_stabilization_holds() -> None:
    p = policy(guards=replace(FREE, stabilization_down_s=15.0))
    wanted = [(9, True), (4, False), (4, True), (4, False), (4, False), (12, False), (4, True)]
    plans = [plan(current=9, proposed=n, **({} if made else {"risks": ()})) for n, made in wanted]
    decisions, _ = run(log(*(record(i, each) for i, each in enumerate(plans))), p)
    assert [d.replicas.final for d in decisions] == [9, 9, 9, 4, 4, 12, 12]


def test_a_workload_may_have_a_pace_of_its_own() -> None:
    own = WorkloadGuards(stabilization_down_s=15.0, up_replicas=1, up_ratio=0.0, up_period_s=5.0, tolerance_ratio=0.2)
    p = policy(spec("calm", guards=own), spec("free"))
    wishes = [9, 4, 3, 3, 3, 3]
    rows = [record(i, plan("calm", 9, n), plan("free", 9, n)) for i, n in enumerate(wishes)]
    decisions, _ = run(log(*rows), p)
    assert [d.replicas.final for d in decisions if d.workload == "free"] == [9, 4, 3, 3, 3, 3]
    assert [d.replicas.final for d in decisions if d.workload == "calm"] == [9, 9, 9, 4, 3, 3]
    up = [record(i, plan("calm", 2 + i, 9), plan("free", 2 if i == 0 else 9, 9)) for i in range(3)]
    decisions, _ = run(log(*up), p)
    assert [d.replicas.final for d in decisions if d.workload == "calm"] == [3, 4, 5]
    assert {d.replicas.final for d in decisions if d.workload == "free"} == {9}
    decisions, _ = run(log(record(0, plan("calm", 9, 10), plan("free", 9, 10))), p)
    assert [(d.replicas.final, d.reason) for d in decisions] == [(9, "tolerance"), (10, "chance")]


def test_an_objective_may_have_a_risk_of_its_own() -> None:
    p = policy(spec("a", slo=Slo(epsilon=0.4)), spec("b"), epsilon=0.07)
    decisions, commands = run(log(record(0, plan("a", 5, 6), plan("b", 5, 6))), p)
    assert [d.risk.epsilon for d in decisions] == [0.4, 0.07]
    assert [c.epsilon for c in commands] == [0.4, 0.07]
