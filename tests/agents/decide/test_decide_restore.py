"""The decide stage lives again: from its commit record, after every crash between two writes, under another policy."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decide import kernel as decide_kernel
from agents.decide.decision import Outcome
from agents.decide.kernel import DecideKernel
from agents.planning.codec import encode_plan
from streams.log import ContractBroken, Emission, LogRecord
from streams.records.facts import Control
from tests.agents.decide.decide_runs import control, kernel, newest_commit, published
from tests.agents.planning.plan_samples import FREE, STEP_MS, STREAM, TOPICS, inputs, log, plan, policy, record, spec


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
    fleet_max_power_w=9_000.0,
    fleet_reclaim=True,
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
                power = rng.choice([None, 300.0, 400.0])
                refused = rng.choice([None] * 8 + ["silent", "retired"])
                plans.append(plan(name, shown[name], rng.randint(1, 14), inputs=doubt, refused=refused, power_w=power))
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
    real, calls = decide_kernel.apply, [0]

    def breaks(*arguments: Any) -> Outcome:
        calls[0] += 1
        if calls[0] > after:
            raise MemoryError
        return real(*arguments)

    row = LogRecord(1, 0, None, encode_plan(record(1, plan("a"), plan("b"), controls=(control("pause", None),))))
    monkeypatch.setattr(decide_kernel, "apply", breaks)
    if after < 2:
        with pytest.raises(MemoryError):
            k.fold(row)
        assert (k.state, k.resume_offset) == before
    monkeypatch.undo()
    assert k.fold(row).resume_offset == 2
