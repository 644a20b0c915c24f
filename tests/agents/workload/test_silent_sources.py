"""Which of a fleet's telemetry sources are silent, against a fleet of which it is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.workload.signals import SilentSources
from streams.catalogue import DEFAULT_CATALOGUE
from streams.records.facts import FleetFacts
from streams.windows.table import RecentFacts, Window

STEP_MS, SILENCE = 15_000, 3
HOUR = 3_600_000 // STEP_MS


@dataclass
class Replica:
    ready_from: int  # slot
    heard_from: int
    until: int = 10**9


@dataclass
class Fleet:
    """Replicas that come and go, each with its sources; some are not heard for a while.

    Attributes:
        per_replica, beside: sources of each replica, and of the fleet (a gateway).
        leave_slots: that a replica is heard once it is no longer ready.
        start_slots: that a replica is pending.
        tells_leaving: whether it is told to be draining meanwhile.
    """

    per_replica: int = 1
    beside: int = 0
    leave_slots: int = 0
    start_slots: int = 0
    tells_leaving: bool = False
    slot: int = 0
    replicas: list[Replica] = field(default_factory=list)
    leaving: list[Replica] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)  # places of replicas that are not heard
    heard: dict[int, int] = field(default_factory=dict)  # when each replica was heard last

    def tells_all(self) -> bool:
        """Whether no replica is heard of which nothing is told."""
        return self.tells_leaving or not self.leave_slots

    def scale(self, to: int, joins_after: int = 0) -> None:
        """Order as many; replicas are heard so many slots after they are ready, or before."""
        while len(self.replicas) > to:
            self.retire(len(self.replicas) - 1)
        while len(self.replicas) < to:
            ready_from = self.slot + (self.start_slots if self.slot else 0)
            self.replicas.append(Replica(ready_from, max(ready_from + joins_after, self.slot)))

    def retire(self, place: int) -> None:
        """Take one away."""
        gone = self.replicas.pop(place)
        gone.until = self.slot + self.leave_slots
        self.leaving.append(gone)
        self.silent.discard(place)

    def live(self, slots: int) -> Iterator[tuple[int, FleetFacts]]:
        """Sources known and what is told of the fleet, slot by slot."""
        for _ in range(slots):
            self.leaving = [r for r in self.leaving if r.until > self.slot]
            speaking = [r for k, r in enumerate(self.replicas) if k not in self.silent] + self.leaving
            self.heard |= {id(r): self.slot for r in speaking if r.heard_from <= self.slot}
            known = sum(self.slot - last < SILENCE for last in self.heard.values())
            draining = len(self.leaving) if self.tells_leaving else 0
            ready = sum(r.ready_from <= self.slot for r in self.replicas)
            facts = FleetFacts(0, ready, len(self.replicas) - ready, draining, None)
            yield known * self.per_replica + self.beside, facts
            self.slot += 1


def observe(silent: SilentSources, fleet: Fleet, slots: int) -> list[int]:
    """What is missing after each slot."""
    found = []
    for known, facts in fleet.live(slots):
        silent.observe(known, facts, fleet.slot, STEP_MS, SILENCE)
        found.append(silent.missing)
    return found


FLEETS: Final = st.builds(
    Fleet,
    per_replica=st.sampled_from((1, 1, 2, 8)),
    beside=st.integers(0, 1),
    leave_slots=st.integers(0, 20),
    start_slots=st.integers(0, 30),
    tells_leaving=st.booleans(),
)
IN_TIME: Final = st.integers(1 - SILENCE, SILENCE - 1)
CHANGES: Final = st.lists(st.tuples(st.integers(0, 9), st.integers(-2, 3), st.integers(1, 30)), max_size=12)


@given(FLEETS, st.integers(1, 9), CHANGES)
def test_nobody_is_missing_while_replicas_come_and_go(
    fleet: Fleet, first: int, changes: list[tuple[int, int, int]]
) -> None:
    silent = SilentSources()
    fleet.scale(first)
    assert not any(observe(silent, fleet, 10))
    for to, joins_after, slots in changes:
        fleet.scale(to, joins_after)
        assert not any(observe(silent, fleet, slots))


@given(FLEETS, st.sampled_from((1, 2, 4, 8, 20)), IN_TIME, st.booleans(), st.integers(0, 3))
def test_a_rollout_leaves_nobody_missing(
    fleet: Fleet, replicas: int, joins_after: int, one_more: bool, pause: int
) -> None:
    """Each is replaced by another, ordered before it is gone or after, and heard before it would count as silent."""
    silent, found = SilentSources(), []
    fleet.scale(replicas)
    observe(silent, fleet, 50)
    for _ in range(replicas):
        if not one_more:
            fleet.retire(0)
        fleet.scale(len(fleet.replicas) + 1, joins_after)
        found += observe(silent, fleet, fleet.start_slots + 1)
        if one_more:
            fleet.retire(0)
        found += observe(silent, fleet, pause)
    assert not any(found + observe(silent, fleet, HOUR + 60))


@given(st.integers(1, 8), st.integers(1, 9), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), max_size=9))
def test_exporters_that_come_late_are_not_missing(per_replica: int, first: int, changes: list[tuple[int, int]]) -> None:
    silent, fleet = SilentSources(), Fleet(per_replica)
    fleet.scale(first)
    observe(silent, fleet, 10)
    for to, joins_after in changes:
        fleet.scale(to, joins_after)
        assert not any(observe(silent, fleet, 60))


@given(FLEETS.filter(Fleet.tells_all), st.integers(2, 9), st.integers(1, 4), CHANGES)
def test_whoever_falls_silent_is_missing_until_heard_again(
    fleet: Fleet, first: int, share: int, changes: list[tuple[int, int, int]]
) -> None:
    """Also while the fleet changes beside them, unless some are heard in their place who leave untold."""
    silent, many = SilentSources(), min(share, first - 1)
    fleet.scale(first)
    observe(silent, fleet, 10)
    fleet.silent = set(range(many))
    found = observe(silent, fleet, 6)
    assert found[: SILENCE - 1] == [0] * (SILENCE - 1)
    assert found[SILENCE - 1 :] == [many * fleet.per_replica] * (6 - SILENCE + 1)
    lived = 6
    for to, joins_after, slots in changes:
        if lived + slots + 10 > HOUR:
            break
        fleet.scale(max(to, many), joins_after)
        assert max(observe(silent, fleet, slots), default=0) <= many * fleet.per_replica
        lived += slots
    fleet.silent = set()
    assert observe(silent, fleet, 40)[-1] == 0


@pytest.mark.parametrize("to", [3, 6])
@pytest.mark.parametrize("joins_after", [-9, -2, 0, 2])
def test_a_change_of_the_fleet_neither_hides_nor_doubles_the_silent(to: int, joins_after: int) -> None:
    silent, fleet = SilentSources(), Fleet(start_slots=12)
    fleet.scale(4)
    observe(silent, fleet, 10)
    fleet.silent = {0}
    observe(silent, fleet, 10)
    fleet.scale(to, joins_after)
    assert observe(silent, fleet, 40) == [1] * 40


def test_replicas_that_wait_for_gpus_do_not_keep_the_silent_from_coming_back() -> None:
    silent, fleet = SilentSources(), Fleet(start_slots=400)
    fleet.scale(4)
    observe(silent, fleet, 10)
    fleet.silent = {0}
    fleet.scale(6)
    assert observe(silent, fleet, 10)[-1] == 1
    fleet.silent = set()
    assert observe(silent, fleet, 40)[-1] == 0


def test_the_silent_replica_that_is_removed_is_missed_no_longer() -> None:
    silent, fleet = SilentSources(), Fleet()
    fleet.scale(4)
    observe(silent, fleet, 10)
    fleet.silent = {3}
    assert observe(silent, fleet, 10)[-1] == 1
    fleet.silent = set()
    fleet.scale(3)
    assert observe(silent, fleet, 10)[-1] == 0


@pytest.mark.parametrize("replicas", [1, 3, 4])
def test_sources_that_are_not_the_replicas_may_be_fewer_for_reasons_of_their_own(replicas: int) -> None:
    """Ten pods of a gateway that tell of requests, of which half go for the night."""
    silent, fleet = SilentSources(), Fleet(per_replica=0, beside=11 if replicas == 3 else 10)
    fleet.scale(replicas)
    assert not any(observe(silent, fleet, 60))
    fleet.beside = 5
    assert not any(observe(silent, fleet, HOUR))


def test_as_many_by_chance_are_known_once_replicas_come_without_them() -> None:
    silent, fleet = SilentSources(), Fleet(per_replica=0, beside=4)
    fleet.scale(4)
    observe(silent, fleet, 60)
    fleet.scale(6)
    observe(silent, fleet, 60)
    fleet.beside = 2
    assert not any(observe(silent, fleet, HOUR))


def test_after_an_hour_the_silent_are_gone() -> None:
    silent, fleet = SilentSources(), Fleet()
    fleet.scale(4)
    observe(silent, fleet, 10)
    fleet.silent = {0}
    found = observe(silent, fleet, HOUR + 40)
    assert found == [0] * (SILENCE - 1) + [1] * HOUR + [0] * (40 - SILENCE + 1)


def window(values: np.ndarray) -> Window:
    columns = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
    observed = np.ones(values.shape, np.bool_)
    return Window("w", columns, values, observed, RecentFacts(None, None, {}, {}), lambda: (values[:0], observed[:0]))


def test_what_the_silent_serve_is_taken_from_the_others() -> None:
    """From the first slot without them, sums alone, and only as long as it lasts."""
    silent, fleet = SilentSources(), Fleet()
    fleet.scale(4)
    observe(silent, fleet, 10)
    first = fleet.slot
    fleet.silent = {0}
    observe(silent, fleet, 8)
    fleet.silent = set()
    observe(silent, fleet, 4)
    newest = fleet.slot - 1
    told = window(np.full((30, len(DEFAULT_CATALOGUE)), 3.0, np.float32))
    begin = newest - 29
    full = silent.in_full(told, DEFAULT_CATALOGUE, newest)
    assert (told.values == 3.0).all(), "the ring's own"
    for name, column in told.columns.items():
        summed = name in (
            *("request.arrival_rate", "request.prompt_token_rate", "request.output_token_rate"),
            *("request.uncached_prompt_token_rate", "engine.preemption_rate"),
            *("engine.running", "engine.waiting", "engine.waiting_max"),
        )
        expected = np.full(30, 3.0)
        if summed:
            expected[first - begin : first + 8 - begin] = 4.0
        assert full.values[:, column].tolist() == expected.tolist()
    heard_again = SilentSources.restore(silent.snapshot()).in_full(window(told.values[-4:]), DEFAULT_CATALOGUE, newest)
    assert (heard_again.values == 3.0).all()
    later = silent.in_full(told, DEFAULT_CATALOGUE, newest + 60)
    assert (later.values == 3.0).all()


@given(FLEETS, st.integers(2, 6), CHANGES, st.integers(0, 40))
def test_it_goes_on_from_a_snapshot(fleet: Fleet, first: int, changes: list[tuple[int, int, int]], at: int) -> None:
    silent, other, n = SilentSources(), SilentSources(), 0
    fleet.scale(first)
    for to, joins_after, slots in [(first, 0, 10), *changes]:
        fleet.scale(max(to, 2), joins_after)
        fleet.silent = {0} if to % 2 else set()
        for known, facts in fleet.live(slots):
            for one in (silent, other):
                one.observe(known, facts, fleet.slot, STEP_MS, SILENCE)
            n += 1
            if n == at:
                other = SilentSources.restore(silent.snapshot())
            assert other.snapshot() == silent.snapshot()


def test_a_damaged_snapshot_is_refused() -> None:
    assert SilentSources.restore([]).snapshot() == []
    for damaged in ([[1, 2]], [[0, 1, 1, 1, 1, 1, 1, 0, 0, 0, None, 1], [1, 2]]):
        with pytest.raises(ValueError, match="unpack"):
            SilentSources.restore(damaged)
