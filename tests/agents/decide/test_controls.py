"""Operators' words count once, however far a partition is behind that repeats them, and are not remembered for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agents.decide.kernel import DecideKernel
from agents.decide.state import (
    MAX_CONTROL_IDS,
    MIN_CONTROL_IDS,
    DecideCommit,
    DecideState,
    PartitionMark,
    apply_controls,
    forget_controls,
    unpack_commit,
)
from agents.records import PlanRecord
from streams.records.facts import Control
from streams.topics import DAY_MS
from tests.agents.decide.decide_runs import control, kernel, newest_commit, published
from tests.agents.planning.plan_samples import STEP_MS, STREAM, TOPICS, log, plan, policy, record

T0_MS = 340_000_000 * STEP_MS
WEEKS_MS = 4 * 7 * DAY_MS
TWO = replace(TOPICS, partitions=2)
MANY = tuple(control("mode", f"u{k}", mode="observe") for k in range(300))


def test_a_word_repeated_after_hundreds_of_others_changes_nothing() -> None:
    resume, pause = control("resume", None), control("pause", None)
    k = DecideKernel(policy(), STREAM, TWO)
    decisions, commands = published(
        [
            k.fold(r)
            for r in log(
                record(0, plan(proposed=6), controls=(resume,)),
                record(1, plan(proposed=6), controls=(*MANY, pause)),
                record(0, plan("x"), controls=(resume,), partition=1),  # this partition is behind
                record(2, plan(proposed=8)),
            )
        ]
    )
    assert [d.reason for d in decisions if d.workload == "w"] == ["chance", "kill_switch", "kill_switch"]
    assert [c.replicas for c in commands] == [6]


def pages_of(partition: int, words: Sequence[tuple[int, Control]], past_ms: int, slots: int) -> list[PlanRecord]:
    """A partition's plans: each brings the words that were written there since the one before."""
    plans, begin_ms = [], 0
    for k in range(slots):
        close_ms = T0_MS + (k + 1) * STEP_MS + STREAM.grace_ms
        brought = tuple(word for at_ms, word in words if begin_ms < at_ms <= close_ms)
        slot = (T0_MS - past_ms) // STEP_MS + k
        told = record(slot, partition=partition, controls=brought)
        plans.append(msgspec.structs.replace(told, end_stamp_ms=close_ms))
        begin_ms = close_ms
    return plans


def hear(state: DecideState, told: PlanRecord, num_partitions: int) -> None:
    apply_controls(state, told)
    state.clock_ms = max(state.clock_ms, told.origin_ts_ms)
    state.partitions[str(told.partition)] = PartitionMark(told.slot, told.origin_ts_ms)
    forget_controls(state, num_partitions)


said = st.tuples(
    st.integers(0, 180 * STEP_MS),
    st.sampled_from(("pause", "resume", "pin", "unpin")),
    st.sampled_from((None, "v", "w")),
)


@given(
    words=st.lists(said, max_size=24).map(lambda words: sorted(words, key=lambda word: word[0])),
    delays_ms=st.lists(st.integers(0, 240_000), min_size=1, max_size=3),
    past_ms=st.sampled_from((0, WEEKS_MS)),
    data=st.data(),
)
def test_every_word_counts_once_and_in_order_whichever_partition_is_behind(
    words: list[tuple[int, str, str | None]], delays_ms: list[int], past_ms: int, data: st.DataObject
) -> None:
    controls = [
        (T0_MS + at_ms, control(action, workload, f"c-{k}", replicas=k))
        for k, (at_ms, action, workload) in enumerate(words)
    ]
    logs = [
        pages_of(p, [(at_ms + delay_ms, word) for at_ms, word in controls], past_ms, slots=240)
        for p, delay_ms in enumerate(delays_ms)
    ]
    state, expected, heard = DecideState(), DecideState(), 0
    with patch("agents.decide.state.MIN_CONTROL_IDS", 1):
        while any(logs):
            ahead = data.draw(st.sampled_from([k for k, left in enumerate(logs) if left]))
            for _ in range(data.draw(st.integers(1, 240))):
                if not logs[ahead]:
                    break
                told = logs[ahead].pop(0)
                hear(state, told, len(logs))
                newest = max((int(c.control_id[2:]) + 1 for c in told.controls), default=0)
                for _, word in controls[heard:newest]:
                    apply_controls(expected, record(0, controls=(word,)))
                heard = max(heard, newest)
                assert (state.paused, state.operator) == (expected.paused, expected.operator)
        later = [record(T0_MS // STEP_MS + 1_000_000, partition=p) for p in range(len(logs))]
        for told in later:
            hear(state, told, len(logs))
    assert len(state.control_ids) == len(state.control_stamps_ms) <= 1


def test_of_more_ids_than_are_remembered_the_oldest_are_dropped() -> None:
    state, beyond = DecideState(), 7
    orders = tuple(control("mode", f"u{k}", mode="observe") for k in range(MAX_CONTROL_IDS + beyond))
    for begin in range(0, len(orders), 1_000):
        hear(state, record(T0_MS // STEP_MS, controls=orders[begin : begin + 1_000]), 2)
    remembered = tuple(order.control_id for order in orders[beyond:])
    assert state.control_ids == remembered
    assert len(state.control_stamps_ms) == MAX_CONTROL_IDS
    # A partition that is so far behind repeats an order: what is remembered counts once, what was dropped again.
    hear(state, record(T0_MS // STEP_MS, partition=1, controls=(orders[0], orders[-1])), 2)
    assert state.control_ids == (*remembered[1:], orders[0].control_id)


def test_a_partition_without_plans_is_waited_for_as_long_as_telemetry_is_kept() -> None:
    state = DecideState()
    hear(state, record(T0_MS // STEP_MS, controls=MANY), 2)
    hear(state, record((T0_MS + 7 * DAY_MS) // STEP_MS), 2)
    assert len(state.control_ids) == len(MANY)
    hear(state, record((T0_MS + 9 * DAY_MS) // STEP_MS), 2)
    assert state.control_ids == tuple(word.control_id for word in MANY[-MIN_CONTROL_IDS:])


def test_ids_of_a_release_that_kept_no_stamps_count_from_its_commit_record() -> None:
    commit = newest_commit([kernel().fold(log(record(0, plan(), controls=MANY[:3]))[0])])
    assert commit is not None
    fields = msgspec.msgpack.decode(commit.body)
    del fields["state"]["control_stamps_ms"]
    earlier = msgspec.structs.replace(commit, body=msgspec.msgpack.encode(fields), stamp_ms=T0_MS)
    body: DecideCommit = unpack_commit(earlier, policy(), STREAM)
    assert body.state.control_ids == tuple(word.control_id for word in MANY[:3])
    assert body.state.control_stamps_ms == (T0_MS,) * 3
