"""Lead times read from a fleet's counts, against a fleet whose lead times are known."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity.lead_time import LeadTimePosterior
from model.capacity.replica_starts import ReplicaStarts

DAY_MS = 86_400_000


class Fleet:
    """Replicas that an autoscaler orders and that serve after a lead time, the oldest order first."""

    def __init__(self, lead_times_s: np.ndarray, ready: int = 2) -> None:
        self.ready = self.desired = ready
        self._lead_times_s = iter(lead_times_s)
        self._due_s: list[float] = []

    def scale(self, now_s: float, desired: int) -> None:
        """Order or release replicas; ordered ones that do not serve yet go first."""
        for _ in range(desired - self.desired):
            self._due_s.append(now_s + float(next(self._lead_times_s)))
        for _ in range(self.desired - desired):
            if self._due_s:
                self._due_s.pop()
            else:
                self.ready -= 1
        self.desired = desired

    def advance(self, now_s: float) -> None:
        """Let the replicas whose time has come serve."""
        served = [due for due in self._due_s if due <= now_s]
        self.ready += len(served)
        self._due_s = [due for due in self._due_s if due > now_s]


@pytest.mark.parametrize(
    ("truth_s", "declared_s", "interval_s"),
    [(100.0, 120.0, 5.0), (240.0, 120.0, 15.0), (600.0, 30.0, 5.0), (600.0, 60.0, 30.0), (120.0, 900.0, 5.0)],
)
def test_the_tail_is_learned_from_twenty_starts_that_somebody_else_made(
    truth_s: float, declared_s: float, interval_s: float
) -> None:
    """An autoscaler adds one replica now and then; only ready and desired counts are seen, at intervals."""
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        fleet, starts, lead = Fleet(truth_s * np.exp(0.05 * rng.standard_normal(40))), ReplicaStarts(), None
        lead = LeadTimePosterior(declared_s)
        now_s, change_s = 1e6 + float(rng.uniform(0, interval_s)), 1e6 + 50.0
        while lead.num_starts < 20:
            now_s += interval_s
            if now_s >= change_s:
                fleet.scale(change_s, fleet.desired + 1 if fleet.desired < 8 else 2)
                change_s += truth_s * float(rng.uniform(1.2, 2.0))
            fleet.advance(now_s)
            for lead_time_s in starts.observe(round(now_s * 1000), fleet.ready, fleet.desired):
                lead.update(lead_time_s)
        errors.append(lead.quantile(0.95) / (truth_s * math.exp(1.645 * 0.05)) - 1.0)
    assert abs(float(np.median(errors))) < 0.1


COUNTS = st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 6), st.integers(0, 6)), max_size=40)


@given(COUNTS, st.integers(0, 39))
def test_a_restored_one_goes_on_as_the_same(counts: list[tuple[int, int, int]], at: int) -> None:
    starts, ts_ms, seen = ReplicaStarts(), 10 * DAY_MS, []
    restored, again = ReplicaStarts(), []
    for n, (gap_ms, ready, desired) in enumerate(counts):
        ts_ms += gap_ms
        if n == at:
            restored = ReplicaStarts.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(restored.snapshot())))
        seen += starts.observe(ts_ms, ready, desired)
        again += restored.observe(ts_ms, ready, desired)
        assert restored.snapshot() == starts.snapshot()
    assert seen == again


@given(COUNTS)
def test_no_lead_time_is_longer_than_what_was_seen_and_no_replica_counts_twice(
    counts: list[tuple[int, int, int]],
) -> None:
    starts, ts_ms, begin_ms, num_raised, last = ReplicaStarts(), 10 * DAY_MS, None, 0, None
    num_seen = 0
    for gap_ms, ready, desired in counts:
        ts_ms += gap_ms
        begin_ms = ts_ms if begin_ms is None else begin_ms
        num_raised += max(0, desired - last) if last is not None else 0
        last = desired
        for lead_time_s in starts.observe(ts_ms, ready, desired):
            num_seen += 1
            assert 0 < lead_time_s <= (ts_ms - begin_ms) / 1000
    assert num_seen <= num_raised


def at(starts: ReplicaStarts, *counts: tuple[int, int, int]) -> list[list[float]]:
    return [starts.observe(10 * DAY_MS + 1000 * second, ready, desired) for second, ready, desired in counts]


def test_orders_that_are_taken_back_and_replicas_that_are_lost_teach_nothing() -> None:
    assert at(ReplicaStarts(), (0, 2, 2), (10, 2, 4), (20, 2, 3), (60, 2, 3), (70, 3, 3), (120, 4, 4))[4:] == [
        [60.0],
        [],
    ]
    assert at(ReplicaStarts(), (0, 2, 2), (10, 2, 4), (20, 1, 4), (70, 4, 4))[-1] == []
    assert at(ReplicaStarts(), (0, 2, 2), (10, 2, 4), (10, 4, 4), (5, 4, 4))[2:] == [[], []]


def test_reports_that_are_too_far_apart_teach_nothing() -> None:
    assert at(ReplicaStarts(), (0, 2, 2), (60, 2, 3), (120, 3, 3))[-1] == []
    assert at(ReplicaStarts(), (0, 2, 2), (60, 2, 3), (300, 2, 3), (360, 3, 3))[-1] == [300.0]


def test_an_actuator_that_reports_is_believed_until_it_is_gone_for_a_day() -> None:
    starts = ReplicaStarts()
    starts.report(10 * DAY_MS)
    counts = [(0, 2, 2), (10, 2, 3), (110, 2, 3), (120, 3, 3)]
    assert at(starts, *counts)[-1] == []
    day_s = DAY_MS // 1000
    assert at(starts, *((day_s + second, ready + 1, desired + 1) for second, ready, desired in counts))[-1] == [110.0]
