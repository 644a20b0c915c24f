"""What a fleet takes in while a queue stands: averaged, and believed when it is surely more than chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model.capacity.evidence import NONE, OLDER, SlotEvidence, StandingQueue

SLOT = SlotEvidence(
    end_ts_ms=0, step_s=15.0, arrival_rate=5.0, miss_ratio=1.0, waiting=160.0, ready=2, pending=1, draining=0,
    ttft_s=2.0, objective=0.99,
)  # fmt: skip


def test_it_counts_what_came_less_what_the_queue_grew_by() -> None:
    queue = NONE.after(SLOT, 130.0)
    assert queue == StandingQueue(45.0, 15.0, 75.0)
    assert queue.rate(2) == pytest.approx(1.5)
    assert queue.after(SLOT, 160.0) == StandingQueue(120.0, 30.0, 150.0)


@pytest.mark.parametrize(
    ("change", "before"),
    [
        ({"in_tokens": True}, 130.0),  # it also grows by the lengths of what waits
        ({"draining": 1}, 130.0),
        ({"ready": 0}, 130.0),
        ({"arrival_rate": None}, 130.0),
        ({"waiting": float("nan")}, 130.0),
        ({}, 9.0),  # it stood in this slot, not in the one before
        ({}, None),
    ],
)
def test_where_no_queue_stands_nothing_is_kept(change: dict[str, object], before: float | None) -> None:
    queue = StandingQueue(50.0, 20.0).after(replace(SLOT, **change), before)  # type: ignore[arg-type]
    assert queue == NONE
    assert queue.at_most(2, 0.0) is None


def test_it_reaches_a_minute_back_and_follows_what_changes() -> None:
    queue = NONE
    for _ in range(20):
        queue = queue.after(SLOT, 130.0)
    assert queue.seconds == pytest.approx(60.0)
    assert queue.rate(2) == pytest.approx(1.5)
    for _ in range(20):
        queue = queue.after(SLOT, 145.0)  # 60 of 75 are taken in
    assert queue.rate(2) == pytest.approx(2.0, rel=0.01)
    assert NONE.after(replace(SLOT, step_s=300.0), 130.0).seconds == 300.0


@pytest.mark.parametrize("step_s", [1.0, 5.0, 15.0])
def test_a_fleet_that_carries_what_is_believed_is_seldom_doubted_however_short_the_slots(step_s: float) -> None:
    """Poisson arrivals, 20/s of them taken in: how often a queue of ten minutes says less than nine tenths of it."""
    rng, doubted = np.random.default_rng(7), 0
    for _ in range(200):
        queue, waiting, doubts = NONE, 500.0, False
        for _ in range(round(600 / step_s)):
            before = waiting
            arrived, taken = rng.poisson(20.0 * step_s), rng.poisson(20.0 * step_s)
            waiting = max(before + arrived - taken, 200.0)
            slot = replace(SLOT, step_s=step_s, arrival_rate=arrived / step_s, waiting=waiting, ready=10)
            queue = queue.after(slot, before)
            at_most = queue.at_most(10, 0.0)
            doubts |= at_most is not None and at_most < 0.9 * 2.0
        doubted += doubts
    assert doubted <= 10


def test_it_says_nothing_before_what_is_in_service_has_turned_over() -> None:
    queue, slot = NONE, replace(SLOT, step_s=5.0)
    for seconds in range(5, 95, 5):
        queue = queue.after(slot, 155.0)
        for residence_s in (0.0, 22.0, 300.0):
            assert (queue.at_most(2, residence_s) is None) == (seconds < min(max(15.0, residence_s), 60.0))


@pytest.mark.parametrize("queue", [NONE, OLDER, StandingQueue(12.5, 40.0, 30.0, older=True)])
def test_it_is_stored_as_plain_numbers(queue: StandingQueue) -> None:
    assert StandingQueue.of(queue.stored()) == queue


def test_of_what_an_earlier_release_stored_only_that_a_queue_stood_is_taken_over() -> None:
    assert StandingQueue.of([12.5, 40.0]) == OLDER


def test_a_queue_older_than_the_fleet_tells_what_all_take_in_only_while_it_grows() -> None:
    queue = StandingQueue.on_new_fleet(SLOT)
    assert queue == OLDER
    shrinking, growing = queue.after(SLOT, 190.0), queue.after(SLOT, 130.0)
    assert shrinking.at_most(2, 0.0) is None
    assert growing.at_most(2, 0.0) == NONE.after(SLOT, 130.0).at_most(2, 0.0) is not None
    # On the whole it must have grown, whatever it did in the newest slot.
    assert growing.after(SLOT, 161.0).at_most(2, 0.0) is not None
    assert growing.after(SLOT, 250.0).at_most(2, 0.0) is None


def test_a_queue_is_older_until_it_is_gone() -> None:
    queue = StandingQueue.on_new_fleet(SLOT)
    gone = replace(SLOT, waiting=9.0)
    assert queue.after(replace(SLOT, waiting=None), 160.0) == OLDER  # nobody knows
    assert queue.after(gone, 160.0) == NONE == StandingQueue.on_new_fleet(gone)
