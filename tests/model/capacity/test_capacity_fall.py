"""A fall of what replicas serve that was an incident is got over within hours; one that stays is found out once."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from model.capacity.evidence import LoadEvidence
from model.capacity.grid import SPACING
from model.capacity.posterior import CapacityPosterior, SlotEvidence

STEP_S, RATE, HEADROOM = 15.0, 16.0, 1.58  # above capacity half of the requests miss, then they queue
HOUR, LEAD, WINDOW = 240, 4, 20  # in slots
BEFORE = HOUR


class Service:
    """A steady load on a fleet that follows a low quantile of what is believed, four slots late."""

    def __init__(self, capacity: Callable[[int], float], declared_rps: float | None) -> None:
        self.posterior = CapacityPosterior(declared_rps)
        self.capacity = capacity
        self.slot, self.queue, self.ready = 0, 0.0, 9
        self.orders = [9] * WINDOW
        self.missed: list[int] = []

    def run(self, slots: int, restart: bool = False) -> None:
        for _ in range(slots):
            self.slot += 1
            served = self.ready * self.capacity(self.slot)
            self.queue = max(0.0, self.queue + (RATE - HEADROOM * served) * STEP_S)
            late = self.queue > 2.0 * HEADROOM * served
            share = 1.0 if late else 1.0 / (1.0 + 99.0 * (RATE / served) ** -10)
            if share > 0.01:
                self.missed.append(self.slot)
            if restart:
                stored = msgspec.msgpack.decode(msgspec.msgpack.encode(self.posterior.snapshot()))
                self.posterior = CapacityPosterior.restore(stored, self.posterior._declared_rps)
            self.posterior.observe(
                SlotEvidence(
                    end_ts_ms=round(self.slot * STEP_S * 1000), step_s=STEP_S, arrival_rate=RATE, miss_ratio=share,
                    waiting=self.queue, ready=self.ready, pending=0, draining=0, ttft_s=2.0, objective=0.99,
                    residence_s=3.0,
                )
            )  # fmt: skip
            self._order()

    def _order(self) -> None:
        low = float(self.posterior.quantiles((0.1,))[0])
        self.orders.append(min(60, math.ceil(RATE / (0.9 * low) + self.queue / 60.0 / low)))
        highest = max(self.orders[-WINDOW:])
        self.ready = highest if highest < self.ready else max(self.ready, min(self.orders[-LEAD:]))


@pytest.mark.parametrize("declared_rps", [2.0, None])
def test_after_ten_bad_minutes_the_fleet_is_as_before_within_hours(declared_rps: float | None) -> None:
    service = Service(lambda slot: 0.3 if BEFORE <= slot < BEFORE + 40 else 2.0, declared_rps)
    service.run(BEFORE - 1)
    usual = service.ready
    service.run(41)
    assert service.posterior.quantiles((0.5,))[0] < 0.5
    service.run(3 * HOUR)
    assert service.ready <= usual + 2
    assert max(service.missed) < BEFORE + 60  # and nothing is missed for it


@pytest.mark.parametrize("declared_rps", [2.0, None])
def test_a_fall_that_stays_is_doubted_once(declared_rps: float | None) -> None:
    service = Service(lambda slot: 2.0 if slot < BEFORE else 0.5, declared_rps)
    service.run(BEFORE + 20 * HOUR)
    found_out = [slot for slot in service.missed if slot > BEFORE + 60]
    assert 0 < len(found_out) <= 12
    assert max(found_out) - min(found_out) < HOUR
    assert service.posterior.quantiles((0.5,))[0] == pytest.approx(0.5, rel=0.15)


def test_a_doubt_outlives_a_restart() -> None:
    def capacity(slot: int) -> float:
        return 0.3 if BEFORE <= slot < BEFORE + 40 else 2.0

    one, other = Service(capacity, 2.0), Service(capacity, 2.0)
    for service in (one, other):
        service.run(BEFORE + 40)
    one.run(HOUR)
    other.run(HOUR, restart=True)
    assert one.posterior.snapshot() == other.posterior.snapshot()
    assert one.orders == other.orders


def test_no_fall_leaves_no_trace() -> None:
    service = Service(lambda _slot: 2.0, 2.0)
    service.run(HOUR)
    assert "fall" not in service.posterior.snapshot()


def test_a_share_of_counts_is_replaced_by_that_of_others() -> None:
    these, those = LoadEvidence(), LoadEvidence()
    these.add(300.0, 100.0, 20.0)
    those.add(320.0, 40.0, 0.0)
    these.replace(0.25, those)
    assert these.cells.T.tolist() == [[300.0, 75.0, 15.0], [320.0, 10.0, 0.0]]
    assert these.total == 100.0
    assert those.total == 40.0


def test_what_was_believed_before_a_fall_moves_with_the_unit_of_the_evidence() -> None:
    """A new belief in the costs of an engine makes the unit smaller by twenty places of the lattice."""
    service = Service(lambda slot: 0.3 if slot >= BEFORE else 2.0, 2.0)
    service.posterior.revalue(math.exp(24 * SPACING), 0.0)
    service.run(BEFORE + 20)
    posterior = service.posterior
    stored = posterior.snapshot()
    posterior.revalue(math.exp(4 * SPACING), -20 * SPACING)
    moved = posterior.snapshot()
    for before, after in ((stored, moved), (stored["fall"], moved["fall"])):
        counts = before.get("before", [before.get("bins")]), after.get("before", [after.get("bins")])
        old, new = (np.frombuffer(one[0], "<i2") for one in counts)
        assert (new == old + 20).all()
    assert moved["fall"]["log_before"] == pytest.approx(stored["fall"]["log_before"] + 20 * SPACING)
