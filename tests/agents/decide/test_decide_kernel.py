"""The decide stage as a pure machine: plans, decisions, leases."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from agents.decide.kernel import DecideKernel
from agents.decide.records import decode_command, decode_decision, encode_command, encode_decision
from agents.planning.codec import decode_plan, encode_plan
from streams.log import ContractBroken, LogRecord
from tests.agents.decide.decide_runs import control, kernel, published, run
from tests.agents.planning.plan_samples import (
    FREE,
    STEP_MS,
    STREAM,
    TOPICS,
    facts,
    inputs,
    log,
    plan,
    policy,
    record,
    spec,
)


def test_a_plan_survives_its_codec_and_foreign_bytes_name_the_remedy() -> None:
    r = record(3, plan(), controls=(control("pin", replicas=3),))
    assert decode_plan(encode_plan(r)) == r
    for bad in (None, b"", b"{}", b"HPL1garbage", encode_plan(r)[:-3]):
        with pytest.raises(ContractBroken, match=r"offset 7.*state reset"):
            kernel().fold(LogRecord(7, 0, None, bad))


def test_only_records_of_this_version_are_read_and_all_else_is_refused_in_one_way() -> None:
    (decision,), (command,) = run(log(record(0, plan(proposed=9))))
    for decode, good in ((decode_decision, encode_decision(decision)), (decode_command, encode_command(command))):
        assert decode(good) in (decision, command)
        for bad in (b"", b"\xff", good[:-1], good.replace(b'"w"', b'"\xff"'), good.replace(b'"v":1', b'"v":2')):
            with pytest.raises(msgspec.MsgspecError):
                decode(bad)


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


def test_plans_read_too_late_are_folded_without_a_command() -> None:
    origin = STEP_MS
    lease_ms = STREAM.grace_ms + 4 * STEP_MS
    for stamp, wanted in ((origin + lease_ms, "chance"), (origin + lease_ms + 1, "expired")):
        decisions, commands = run(log(record(0, plan(proposed=9)), stamp_ms=stamp), expire_by_stamp=True)
        assert decisions[0].reason == wanted
        assert len(commands) == (wanted == "chance")
    assert len(run(log(record(0, plan(proposed=9)), stamp_ms=10**15))[1]) == 1


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


def test_expected_current_is_the_wanted_count_or_else_ready_and_pending() -> None:
    told, untold = facts(9, desired=6), facts(3, desired=None, pending=2)
    for fleet, wanted in ((told, 6), (untold, 5)):
        _, (command,) = run(log(record(0, plan(proposed=7, fleet=fleet))))
        assert command.expected_current == wanted


def test_declared_workloads_are_decided_first_then_by_priority_and_act_before_observe() -> None:
    specs = (spec("b", mode="observe"), spec("c"), spec("d", priority=1, mode="observe"))
    k = kernel(policy(*specs))
    swapped = control("mode", "c", mode="observe"), control("mode", "b", mode="act")
    first, second = log(record(0, plan("a"), plan("b"), plan("c"), plan("d")), record(1, controls=swapped))
    k.fold(first)
    ranks = {w: k._rank(k.state, k._policy.spec(w), w) for w in "abcd"}
    assert sorted("abcd", key=ranks.__getitem__) == ["d", "c", "b", "a"]
    k.fold(second)
    ranks = {w: k._rank(k.state, k._policy.spec(w), w) for w in "abcd"}
    assert sorted("abcd", key=ranks.__getitem__) == ["d", "b", "c", "a"]
