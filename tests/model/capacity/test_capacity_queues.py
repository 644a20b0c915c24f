"""What a queue that stands teaches of capacity: what a fleet at its limit takes in, and when it says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.capacity.posterior import CapacityPosterior
from tests.model.capacity.taught import SLOT, STEP_MS, Truth, taught


def believed(posterior: CapacityPosterior) -> float:
    return float(posterior.quantiles((0.5,))[0])


def overloaded(
    posterior: CapacityPosterior, carried: float, slots: int, *, ready: int = 2, pending: int = 1, step_s: float = 15.0
) -> list[str]:
    """Slots of 5 requests/s on replicas of which each takes in so many, the rest queues; the verdicts."""
    verdicts, waiting, now_ms = [], 100.0, 10_000 * STEP_MS
    for k in range(slots):
        verdicts.append(
            posterior.observe(
                replace(
                    SLOT,
                    end_ts_ms=now_ms + round(k * step_s * 1000),
                    step_s=step_s,
                    arrival_rate=5.0,
                    miss_ratio=1.0,
                    waiting=waiting,
                    ready=ready,
                    pending=pending,
                    residence_s=30.0,
                )
            )
        )
        waiting = max(waiting + step_s * (5.0 - carried * ready), 30.0)
    return verdicts


@pytest.mark.parametrize("declared", [None, 3.0])
@pytest.mark.parametrize("pending", [0, 1])
@pytest.mark.parametrize("step_s", [1.0, 5.0, 15.0, 60.0])
def test_requests_that_became_heavier_are_noticed_by_what_a_fleet_at_its_limit_takes_in(
    declared: float | None, pending: int, step_s: float
) -> None:
    posterior = taught(CapacityPosterior(declared), Truth(3.0, 20.0, seed=4), 300)
    assert believed(posterior) == pytest.approx(3.0, rel=0.15)
    # Within two minutes, or a few slots where they are long, though replicas are on their way.
    assert "bad" in overloaded(posterior, 0.6, max(5, round(120 / step_s)), pending=pending, step_s=step_s)
    assert posterior.known
    assert believed(posterior) < 0.75


def test_a_queue_that_is_worked_off_as_fast_as_believed_says_nothing_new() -> None:
    posterior = taught(CapacityPosterior(2.0), Truth(2.0, 20.0, seed=5), 300)
    before = believed(posterior)
    assert "bad" not in overloaded(posterior, 2.6, 8)
    assert believed(posterior) == before


@pytest.mark.parametrize(("grows", "learned"), [(False, False), (True, True)])
def test_replicas_that_started_while_a_queue_stood_elsewhere_are_not_at_their_limit(grows: bool, learned: bool) -> None:
    """Nine replicas of 2/s each: seven are new and idle for the most part, 300 requests wait at the others."""
    posterior = taught(CapacityPosterior(2.0), Truth(2.0, 20.0, seed=8), 300)
    overloaded(posterior, 2.0, 6)
    before, waiting = believed(posterior), 300.0
    slot = replace(SLOT, arrival_rate=9.0, miss_ratio=0.3, ready=9, pending=0, step_s=15.0, residence_s=20.0)
    for k in range(6):
        posterior.observe(replace(slot, end_ts_ms=10_100 * STEP_MS + k * 15_000, waiting=waiting))
        waiting += 30.0 if grows else -30.0
    assert (believed(posterior) < before) == learned


def test_a_fleet_that_serves_nothing_is_broken_and_its_requests_are_not_heavier() -> None:
    posterior = taught(CapacityPosterior(2.0), Truth(2.0, 20.0, seed=6), 300)
    before = believed(posterior)
    assert "bad" not in overloaded(posterior, 0.02, 40)
    assert believed(posterior) == before


def test_a_queue_over_a_gap_in_the_telemetry_says_nothing_of_what_was_taken_in() -> None:
    posterior = taught(CapacityPosterior(2.0), Truth(2.0, 20.0, seed=7), 300)
    before = believed(posterior)
    slot = replace(SLOT, arrival_rate=5.0, miss_ratio=1.0, ready=2, pending=1)
    posterior.observe(replace(slot, end_ts_ms=10_000 * STEP_MS, waiting=100.0))
    posterior.observe(replace(slot, end_ts_ms=10_003 * STEP_MS, waiting=160.0))
    assert believed(posterior) == before


def test_it_goes_on_from_a_snapshot_while_a_queue_stands() -> None:
    posterior = taught(CapacityPosterior(3.0), Truth(3.0, 20.0, seed=9), 300)
    overloaded(posterior, 2.2, 2, step_s=5.0)
    restored = CapacityPosterior.restore(posterior.snapshot(), 3.0)
    assert "standing" in posterior.snapshot()
    for each in (posterior, restored):
        slot = replace(SLOT, arrival_rate=5.0, miss_ratio=1.0, ready=2, pending=1, step_s=5.0, waiting=108.0)
        for k in range(2, 40):
            each.observe(replace(slot, end_ts_ms=10_000 * STEP_MS + k * 5_000, waiting=104.0 + 3.0 * k))
    assert posterior.snapshot() == restored.snapshot()
