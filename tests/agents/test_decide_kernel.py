"""The decide stage as a pure machine: leases, operators' words, budgets, replay, and every crash between two writes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import decide_kernel
from agents.decide_kernel import STAGE, DecideKernel
from agents.decide_records import decode_command, decode_decision
from agents.plan_codec import decode_plan, encode_plan
from agents.policy import Policy
from agents.records import Command, Decision
from streams.commit_codec import Commit, CommitAssembler
from streams.log import ContractBroken, Emission, LogRecord
from streams.pages import Control
from tests.agents.plan_samples import FREE, STEP_MS, STREAM, TOPICS, facts, inputs, log, plan, policy, record, spec


def kernel(p: Policy | None = None, **options: Any) -> DecideKernel:
    return DecideKernel(p or policy(), STREAM, TOPICS, **options)


def published(emissions: list[Emission]) -> tuple[list[Decision], list[Command]]:
    rows = [r for e in emissions for group in e.outputs for r in group]
    decisions = [decode_decision(r.value or b"") for r in rows if r.topic == TOPICS.decisions]
    return decisions, [decode_command(r.value or b"") for r in rows if r.topic == TOPICS.commands]


def run(records: list[LogRecord], p: Policy | None = None, **options: Any) -> tuple[list[Decision], list[Command]]:
    k = kernel(p, **options)
    return published([k.fold(r) for r in records])


def newest_commit(emissions: list[Emission]) -> Commit | None:
    assembler = CommitAssembler(STAGE, 0)
    for offset, r in enumerate(r for e in emissions for r in e.commits):
        assembler.feed(LogRecord(offset, 0, r.key, r.value))
    return assembler.newest


def control(action: str, workload: str | None = "w", ident: str = "", **changes: Any) -> Control:
    return Control(ident or f"{action}-{workload}", 0, action, workload, by="op", **changes)


def test_a_plan_survives_its_codec_and_foreign_bytes_name_the_remedy() -> None:
    r = record(3, plan(), controls=(control("pin", replicas=3),))
    assert decode_plan(encode_plan(r)) == r
    for bad in (None, b"", b"{}", b"HPL1garbage", encode_plan(r)[:-3]):
        with pytest.raises(ContractBroken, match=r"offset 7.*state reset"):
            kernel().fold(LogRecord(7, 0, None, bad))


def test_another_step_is_refused_by_name() -> None:
    with pytest.raises(ContractBroken, match="restore the old step"):
        DecideKernel(policy(), replace(STREAM, step_ms=1_000), TOPICS).fold(log(record(0, plan()))[0])


def test_every_workload_gets_a_decision_and_only_act_ones_a_command() -> None:
    p = policy(spec("a"), spec("b", mode="observe"))
    decisions, commands = run(log(record(0, plan("a", 2, 4), plan("b", 2, 4), plan("c", 2, 4))), p)
    assert [(d.workload, d.mode, d.action, d.replicas.final) for d in decisions] == [
        ("a", "act", "up", 4),
        ("b", "observe", "up", 4),
        ("c", "observe", "up", 4),
    ]
    assert [d.command_id is None for d in decisions] == [False, True, True]
    assert [c.workload for c in commands] == ["a"]
    assert "no configuration declares" in decisions[2].guards[0].reason


def test_an_act_workload_without_a_target_is_only_observed() -> None:
    decisions, commands = run(log(record(0, plan(proposed=9))), policy(replace(spec(), target=spec("").target)))
    assert decisions[0].mode == "observe"
    assert commands == []


def test_a_command_is_a_lease() -> None:
    """Same id and a later end while the count stands, a new id when it changes; sequence is origin / step."""
    wanted = [7, 7, 7, 6]
    shown = [5, 5, 7, 7]
    _, commands = run(
        log(*(record(i, plan(current=c, proposed=w)) for i, (c, w) in enumerate(zip(shown, wanted, strict=True))))
    )
    assert [c.replicas for c in commands] == wanted
    assert len({c.command_id for c in commands[:3]}) == 1
    assert commands[3].command_id != commands[0].command_id
    assert [c.expected_current for c in commands] == shown
    assert [c.sequence for c in commands] == [1, 2, 3, 4]
    assert [c.issued_ts_ms for c in commands] == [STEP_MS * i for i in (1, 2, 3, 4)]
    lease_ms = STREAM.grace_ms + 4 * STEP_MS
    assert all(c.valid_until_ts_ms - c.issued_ts_ms == lease_ms for c in commands)
    assert commands[0].p_miss == pytest.approx(1 / 8)


def test_a_change_not_yet_shown_counts_as_made_until_its_lease_ends() -> None:
    """Down to 4; the fleet goes on to show 6. A hold keeps the order, and after its lease the fleet is believed."""
    held = plan(current=6, proposed=2, inputs=inputs(cliff=True))
    decisions, _ = run(log(record(0, plan(current=6, proposed=4)), *(record(slot, held) for slot in range(1, 7))))
    seen = [(d.replicas.current, d.replicas.final, d.action) for d in decisions]
    assert seen == [(6, 4, "down"), *[(4, 4, "hold")] * 4, *[(6, 6, "hold")] * 2]


@pytest.mark.parametrize("refused", ["silent", "warming_up", "horizon", "no_fleet_facts"])
def test_no_plan_is_an_audited_hold_without_a_lease(refused: str) -> None:
    decisions, commands = run(log(record(0, plan(proposed=None, refused=refused))))
    assert (decisions[0].action, decisions[0].replicas.final) == ("hold", 5)
    assert decisions[0].reason == ("warm_up" if refused == "warming_up" else refused)
    assert commands == []


def test_unknown_replicas_are_never_a_zero() -> None:
    decisions, commands = run(log(record(0, plan(current=None, proposed=7))))
    assert (decisions[0].replicas.current, decisions[0].replicas.final, decisions[0].action) == (None, None, "hold")
    assert decisions[0].reason == "no_fleet_facts"
    assert commands == []


def test_replicas_once_seen_stand_in_for_missing_facts() -> None:
    decisions, _ = run(log(record(0, plan(current=4, proposed=4)), record(1, plan(current=None, proposed=6))))
    assert (decisions[1].replicas.current, decisions[1].replicas.final) == (4, 6)


def test_retired_forgets_the_workload_and_commands_nothing() -> None:
    k = kernel()
    decisions, commands = published([k.fold(r) for r in log(record(0, plan()), record(1, plan(refused="retired")))])
    assert (decisions[1].action, decisions[1].reason, decisions[1].replicas.final) == ("retired", "retired", None)
    assert len(commands) == 1
    assert k.state.workloads == {}


def test_warm_up_is_counted_and_a_later_hole_does_not_undo_it() -> None:
    p = policy(guards=replace(FREE, warm_up_steps=4))
    steps = [inputs(observed_steps=n) for n in (2, 3)] + [inputs(observed_steps=3, arrival_rate=None)]
    steps += [inputs(observed_steps=3), inputs(observed_steps=1)]
    decisions, _ = run(log(*(record(i, plan(proposed=9, inputs=x)) for i, x in enumerate(steps))), p)
    assert [d.reason for d in decisions] == ["warm_up", "warm_up", "warm_up", "chance", "chance"]


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


def test_the_fleet_budget_serves_priorities_first_and_never_takes_away() -> None:
    p = policy(
        spec("a", gpus_per_replica=2),
        spec("b", gpus_per_replica=2, priority=5),
        guards=replace(FREE, fleet_max_gpus=26),
    )
    decisions, _ = run(log(record(0, plan("a", 5, 9), plan("b", 5, 7), plan("free", 3, 3))), p)
    assert [(d.workload, d.replicas.final, d.reason) for d in decisions] == [
        ("a", 5, "fleet_budget"),
        ("b", 6, "fleet_budget"),
        ("free", 3, "chance"),
    ]


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


def test_plans_read_too_late_are_folded_without_a_command() -> None:
    origin = STEP_MS
    lease_ms = STREAM.grace_ms + 4 * STEP_MS
    for stamp, wanted in ((origin + lease_ms, "chance"), (origin + lease_ms + 1, "expired")):
        decisions, commands = run(log(record(0, plan(proposed=9)), stamp_ms=stamp), expire_by_stamp=True)
        assert decisions[0].reason == wanted
        assert len(commands) == (wanted == "chance")
    assert len(run(log(record(0, plan(proposed=9)), stamp_ms=10**15))[1]) == 1


def test_a_late_pin_has_no_command_either() -> None:
    r = record(0, plan(), controls=(control("pin", replicas=9),))
    decisions, commands = run(log(r, stamp_ms=10**12), expire_by_stamp=True)
    assert decisions[0].reason == "pin"
    assert commands == []


def test_older_and_repeated_plans_change_nothing() -> None:
    k = kernel()
    rows = log(record(5, plan()), record(5, plan(proposed=9)), record(4, plan(proposed=9)))
    first = k.fold(rows[0])
    before = k.state
    for r in rows[1:]:
        emission = k.fold(r)
        assert (emission.outputs, emission.commits, emission.resume_offset) == ((), (), r.offset + 1)
    assert k.state is before
    assert first.resume_offset == 1


def test_a_workload_of_two_partitions_is_decided_once_per_origin_and_fenced_when_older() -> None:
    decisions, commands = run(
        log(
            record(5, plan(proposed=6)),
            record(5, plan(proposed=9), partition=1),
            record(4, plan(proposed=9), partition=2),
        )
    )
    assert [(d.origin_ts_ms, d.reason) for d in decisions] == [(6 * STEP_MS, "chance"), (5 * STEP_MS, "fence")]
    assert [c.replicas for c in commands] == [6]


def test_a_changed_policy_changes_ids_from_the_next_origin_on() -> None:
    rows = log(record(0, plan(proposed=6)), record(1, plan(proposed=6)))
    k = kernel()
    first = k.fold(rows[0])
    other = DecideKernel.restore(policy(epsilon=0.02), STREAM, TOPICS, commit=newest_commit([first]))
    (a,), _ = published([first])
    (b,), (command,) = published([other.fold(rows[1])])
    assert a.fingerprint.policy != b.fingerprint.policy
    assert b.risk.epsilon == 0.02
    assert command.command_id == a.command_id


def test_a_raised_epoch_starts_new_leases_and_a_lowered_one_is_refused() -> None:
    rows = log(record(0, plan(proposed=6)), record(1, plan(proposed=6)))
    first = kernel(policy(epoch=2)).fold(rows[0])
    with pytest.raises(ContractBroken, match="set the epoch to 2"):
        DecideKernel.restore(policy(), STREAM, TOPICS, commit=newest_commit([first]))
    k = DecideKernel.restore(policy(epoch=3), STREAM, TOPICS, commit=newest_commit([first]))
    _, (command,) = published([k.fold(rows[1])])
    assert command.epoch == 3
    assert command.command_id != published([first])[1][0].command_id


@pytest.mark.parametrize(("change", "words"), [({"fleet": "other"}, "restore the name"), ({}, "restore the old step")])
def test_a_foreign_commit_record_names_the_remedy(change: dict[str, Any], words: str) -> None:
    commit = newest_commit([kernel().fold(log(record(0, plan()))[0])])
    stream = STREAM if change else replace(STREAM, step_ms=1_000)
    with pytest.raises(ContractBroken, match=words):
        DecideKernel.restore(replace(policy(), **change), stream, TOPICS, commit=commit)


# A day in small: two partitions, three workloads, budgets that bind, controls, holes, facts that lag.

LIMITS = replace(
    FREE,
    warm_up_steps=3,
    stabilization_down_s=20.0,
    up_replicas=3,
    up_ratio=0.5,
    down_replicas=2,
    down_ratio=0.2,
    fleet_max_gpus=30,
    fleet_removals_per_minute=6,
)
FLEET = policy(spec("a"), spec("b", gpus_per_replica=2, priority=1), spec("c", mode="observe"), guards=LIMITS)


def day(seed: int, slots: int = 25) -> list[LogRecord]:
    rng = random.Random(seed)
    shown = {"a": 4, "b": 3, "c": 5}
    rows = []
    for slot in range(slots):
        for partition, names in ((0, ("a", "c")), (1, ("b",))):
            plans = []
            for name in names:
                if rng.random() < 0.4:
                    shown[name] = max(1, shown[name] + rng.randint(-2, 2))
                doubt = inputs(
                    cliff=rng.random() < 0.1,
                    coverage_ratio=rng.choice([1.0, 1.0, 0.5]),
                    arrival_rate=rng.choice([1.0, 2.0, None]),
                )
                refused = rng.choice([None] * 8 + ["silent", "retired"])
                plans.append(plan(name, shown[name], rng.randint(1, 14), inputs=doubt, refused=refused))
            words: tuple[Control, ...] = ()
            if rng.random() < 0.15:
                action = rng.choice(["pin", "unpin", "pause", "resume", "mode"])
                end = (slot + rng.randint(1, 6)) * STEP_MS
                mode = rng.choice(["act", "observe"])
                words = (control(action, rng.choice("abc"), f"{slot}", replicas=7, until_ts_ms=end, mode=mode),)
            rows.append(record(slot, *plans, partition=partition, controls=words))
    return log(*rows)


def whole(rows: list[LogRecord]) -> list[Emission]:
    k = kernel(FLEET)
    return [k.fold(r) for r in rows]


def test_the_same_log_gives_the_same_bytes() -> None:
    assert whole(day(1)) == whole(day(1))
    assert whole(day(1)) != whole(day(2))


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), cut=st.integers(0, 49), written=st.integers(0, 3), ahead=st.integers(1, 4))
def test_a_crash_anywhere_between_two_writes_changes_no_byte(seed: int, cut: int, written: int, ahead: int) -> None:
    """The lane publishes up to four plans' outputs, level by level, before their commits; only some records get out."""
    rows = day(seed)
    oracle = whole(rows)
    group = oracle[cut : cut + ahead]
    level = [r for e in group for g in e.outputs for r in g if r.topic == TOPICS.decisions]
    out = level[:written]
    history = [r.value for e in oracle[:cut] for g in e.outputs for r in g if r.topic == TOPICS.decisions]
    foreign = [b"{}", b"\xff", (level or [oracle[0].outputs[0][0]])[0].value.replace(b'"w', b'"x')]  # type: ignore[union-attr]
    k = DecideKernel.restore(
        FLEET,
        STREAM,
        TOPICS,
        commit=newest_commit(oracle[:cut]),
        published=[v for v in (*history, *foreign, *(r.value for r in out)) if v is not None],
    )
    assert k.resume_offset == (rows[cut].offset if cut else None)
    again = [k.fold(r) for r in rows[cut:]]

    def decisions(emissions: list[Emission]) -> set[tuple[bytes | None, bytes | None]]:
        return {(r.key, r.value) for e in emissions for g in e.outputs for r in g if r.topic == TOPICS.decisions}

    def commands(emissions: list[Emission]) -> list[bytes | None]:
        return [r.value for e in emissions for g in e.outputs for r in g if r.topic == TOPICS.commands]

    assert decisions(again) | {(r.key, r.value) for r in out} == decisions(oracle[cut:])
    assert not decisions(again) & {(r.key, r.value) for r in out}
    assert commands(again) == commands(oracle[cut:])
    assert [e.commits for e in again] == [e.commits for e in oracle[cut:]]


def test_adopted_decisions_stand_even_if_the_policy_changed_meanwhile() -> None:
    rows = log(record(0, plan(proposed=6)), record(1, plan(proposed=8)))
    oracle = [kernel()]
    emissions = [oracle[0].fold(r) for r in rows]
    out = [r.value or b"" for r in emissions[1].outputs[0]]
    k = DecideKernel.restore(
        policy(spec(max_replicas=7)), STREAM, TOPICS, commit=newest_commit(emissions[:1]), published=out
    )
    decisions, commands = published([k.fold(rows[1])])
    assert decisions == []
    assert [c.replicas for c in commands] == [8]


def test_a_decision_of_another_fleet_is_not_adopted() -> None:
    rows = log(record(0, plan(proposed=6)))
    foreign = kernel(policy(spec(max_replicas=5))).fold(rows[0]).outputs[0][0].value or b""
    assert (
        published([DecideKernel.restore(policy(), STREAM, TOPICS, commit=None, published=[foreign]).fold(rows[0])])[0]
        == []
    )
    elsewhere = replace(policy(), fleet="elsewhere")
    k = DecideKernel.restore(elsewhere, STREAM, TOPICS, commit=None, published=[foreign])
    (decision,), _ = published([k.fold(rows[0])])
    assert decision.replicas.final == 6


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_fold_that_fails_leaves_the_state_as_it_was(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    k = kernel(policy(spec("a"), spec("b")))
    k.fold(log(record(0, plan("a")))[0])
    before = (k.state.copy(), k.resume_offset)
    real, calls = decide_kernel.build_command, [0]

    def breaks(*arguments: Any) -> Command | None:
        calls[0] += 1
        if calls[0] > after:
            raise MemoryError
        return real(*arguments)

    row = LogRecord(1, 0, None, encode_plan(record(1, plan("a"), plan("b"), controls=(control("pause", None),))))
    monkeypatch.setattr(decide_kernel, "build_command", breaks)
    if after < 2:
        with pytest.raises(MemoryError):
            k.fold(row)
        assert (k.state, k.resume_offset) == before
    monkeypatch.undo()
    assert k.fold(row).resume_offset == 2


def test_expected_current_is_the_wanted_count_or_else_ready_and_pending() -> None:
    told, untold = facts(9, desired=6), facts(3, desired=None, pending=2)
    for fleet, wanted in ((told, 6), (untold, 5)):
        _, (command,) = run(log(record(0, plan(proposed=7, fleet=fleet))))
        assert command.expected_current == wanted
