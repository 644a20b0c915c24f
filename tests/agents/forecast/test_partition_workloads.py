"""Who is known: workloads come with a sample or a fact, and leave with one last plan, whatever L was before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from agents.forecast.workloads import PartitionWorkloads
from streams.catalogue import DEFAULT_CATALOGUE
from streams.meter import NullMeter
from streams.pages.chain import JoinedSlot
from streams.pages.page import Page, WorkloadFacts
from streams.windows.coarse import COARSE_ROWS, COARSE_STEP_MS
from tests.agents.planning.plan_samples import STREAM, plan, policy, record

NAMES = ("a", "b", "c")
COARSE_SLOTS = COARSE_STEP_MS // STREAM.step_ms


def known(context_steps: int) -> PartitionWorkloads:
    stream = replace(STREAM, context_steps=context_steps)
    return PartitionWorkloads(stream, DEFAULT_CATALOGUE, policy(), NullMeter(), min_context=1)


def joined(slot: int, *names: str) -> JoinedSlot:
    """A slot in which these workloads said something, without an indicator."""
    page = Page(
        source="requests",
        partition=0,
        slot=slot,
        prev=None,
        prev_digest=None,
        end_offset=slot,
        end_stamp_ms=0,
        resume_offset=slot,
        step_ms=STREAM.step_ms,
        grace_ms=STREAM.grace_ms,
        indicators=(),
        workloads=names,
        values=np.zeros((len(names), 0), np.float32),
        observed=np.zeros((len(names), 0), np.bool_),
        facts=tuple(WorkloadFacts(1, slot * STREAM.step_ms, 1, 1) for _ in names),
    )
    return JoinedSlot(slot, {"requests": page})


def follow(workloads: PartitionWorkloads, slots: list[JoinedSlot]) -> set[str]:
    """Fold slots; who was retired in them."""
    retired = set()
    for slot in slots:
        workloads.fill(slot)
        retired |= {plan.workload for plan in workloads.retire()}
    return retired


def named(slots: list[JoinedSlot]) -> set[str]:
    return {workload for slot in slots for workload in slot.pages["requests"].workloads}


said = st.lists(st.sets(st.sampled_from(NAMES)).map(sorted), min_size=1, max_size=24)


@example([["a"], []], 2, 1, 2)
@given(said, st.integers(1, 12), st.integers(1, 12), st.integers(1, 24))
def test_whoever_falls_silent_is_retired_also_after_a_restart_with_another_context(
    names: list[list[str]], before: int, after: int, restart: int
) -> None:
    slots = [joined(slot, *told) for slot, told in enumerate(names)]
    first, second = slots[:restart], slots[restart:]
    earlier, later = known(before), known(after)
    follow(earlier, first)

    later.restore(earlier.snapshots(earlier.names()), first[-1].slot)
    read_back = first[-after:]
    for slot in read_back:
        later.table.write(slot.pages["requests"])
    retired = follow(later, [*second, *(joined(len(slots) + k) for k in range(after))])

    assert later.names() == []
    held = set(earlier.names()) | named(second)
    assert held <= retired <= held | named(read_back)  # a longer context may bring back who had been retired


def test_a_plan_of_an_earlier_life_retires_whom_it_says_and_the_next_one_the_others() -> None:
    workloads = known(1)
    follow(workloads, [joined(0, "a", "b")])
    workloads.fill(joined(1))
    assert [p.workload for p in workloads.retire(record(1, plan("a"), plan("b", refused="retired")))] == ["b"]
    assert workloads.names() == ["a"]
    workloads.fill(joined(2))
    assert [(p.workload, p.refused) for p in workloads.retire()] == [("a", "retired")]


@given(st.integers(0, 3_000 * COARSE_SLOTS), st.integers(1, 3_000), st.integers(0, 3_000))
def test_rows_count_as_lost_from_the_first_sight_of_a_workload_or_for_a_week(
    since_slot: int, num_rows: int, first_kept: int
) -> None:
    workloads, newest = known(1), num_rows - 1
    assert workloads.lost_coarse_rows(None, newest) == 0
    follow(workloads, [joined(since_slot, "a")])
    written = [row for row in range(num_rows) if (row + 1) * COARSE_SLOTS > since_slot]
    week = [row for row in written if row > newest - COARSE_ROWS]
    kept = [row for row in range(num_rows) if row >= first_kept]
    lost = workloads.lost_coarse_rows(min(kept, default=None), newest)
    assert lost == len([row for row in week if row < first_kept])
