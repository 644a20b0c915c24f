"""What a replica draws, from what its devices say: the largest of what was seen, and only of slots that tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.forecast.commit import StateSnapshot
from agents.forecast.workloads import PartitionWorkloads
from streams.catalogue import DEFAULT_CATALOGUE, of_source
from streams.meter import NullMeter
from streams.pages.chain import JoinedSlot
from streams.pages.page import Page, WorkloadFacts
from streams.records.facts import FleetFacts
from tests.agents.planning.plan_samples import STEP_MS, STREAM, policy

GPU = of_source(DEFAULT_CATALOGUE, "gpu")
POWER = [i.name for i in GPU].index("gpu.power_w")
WEEK_STEPS = 7 * 86_400_000 // STEP_MS


def slot_of(slot: int, power_w: float | None, seen: int = 4, known: int = 4, **fleet: int) -> JoinedSlot:
    """One workload's slot: its devices draw so much together, and its fleet is like this."""
    end_ms = (slot + 1) * STEP_MS
    values, observed = np.zeros((1, len(GPU)), np.float32), np.zeros((1, len(GPU)), np.bool_)
    if power_w is not None:
        values[0, POWER], observed[0, POWER] = power_w, True
    counts = {"ready": 2, "pending": 0, "draining": 0, **fleet}
    told = WorkloadFacts(seen, end_ms - 1, seen, known, fleet=FleetFacts(end_ms - 1, **counts))
    page: Any = Page(
        source="gpu", partition=0, slot=slot, prev=None, prev_digest=None, end_offset=slot, end_stamp_ms=0,
        resume_offset=slot, step_ms=STREAM.step_ms, grace_ms=STREAM.grace_ms, indicators=tuple(i.name for i in GPU),
        workloads=("w",), values=values, observed=observed, facts=(told,),
    )  # fmt: skip
    return JoinedSlot(slot, {"gpu": page})


def known() -> PartitionWorkloads:
    return PartitionWorkloads(STREAM, DEFAULT_CATALOGUE, policy(), NullMeter(), min_context=1)


def learn(workloads: PartitionWorkloads, joined: JoinedSlot) -> float | None:
    workloads.fill(joined)
    (subject,) = workloads.subjects(["w"], joined.slot, (joined.slot + 1) * STEP_MS, {})
    return subject.state.power_w


def test_it_is_the_draw_of_all_devices_over_the_replicas_that_serve() -> None:
    workloads = known()
    assert learn(workloads, slot_of(0, 5_600.0)) == 2_800.0
    assert learn(workloads, slot_of(1, 5_700.0, ready=3)) == pytest.approx(2_800.0, rel=1e-4)  # idler than before
    assert learn(workloads, slot_of(2, 9_000.0, ready=3)) == 3_000.0


@pytest.mark.parametrize(
    "told",
    [
        {"power_w": None},
        {"power_w": 90_000.0, "seen": 3},
        {"power_w": 90_000.0, "ready": 0},
        {"power_w": 90_000.0, "pending": 1},
        {"power_w": 90_000.0, "draining": 1},
    ],
)
def test_a_slot_that_does_not_tell_changes_nothing(told: dict[str, Any]) -> None:
    workloads = known()
    assert learn(workloads, slot_of(0, **told)) is None
    learn(workloads, slot_of(1, 5_600.0))
    assert learn(workloads, slot_of(2, **told)) == 2_800.0


def test_half_of_it_is_forgotten_in_a_week_of_idling() -> None:
    workloads = known()
    learn(workloads, slot_of(0, 5_600.0))
    steps = WEEK_STEPS // 100
    for slot in range(1, 1 + steps):
        draw = learn(workloads, slot_of(slot, 10.0))
    assert draw == pytest.approx(2_800.0 * 0.5 ** (steps / WEEK_STEPS), rel=1e-9)


@given(st.lists(st.none() | st.floats(1.0, 1e6), min_size=1, max_size=20), st.integers(1, 19))
def test_a_worker_that_takes_over_goes_on_with_it(powers: list[float | None], cut: int) -> None:
    slots = [slot_of(k, power) for k, power in enumerate(powers)]
    first = known()
    whole = [learn(first, joined) for joined in slots]
    head, tail = slots[:cut], slots[cut:]
    before = known()
    for joined in head:
        learn(before, joined)
    after = known()
    told: dict[str, StateSnapshot] = before.snapshots(before.names())
    after.restore(told, head[-1].slot)
    for joined in head:
        after.table.write(joined.pages["gpu"])
    assert [learn(after, joined) for joined in tail] == whole[cut:]
    largest = max((p for p in powers if p is not None), default=None)
    assert whole[-1] is None if largest is None else whole[-1] == pytest.approx(np.float32(largest) / 2, rel=1e-3)
