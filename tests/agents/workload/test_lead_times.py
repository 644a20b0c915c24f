"""Lead times are learned from an actuator's outcomes, and without one from the fleet's counts."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.policy import Policy, WorkloadSpec
from agents.workload.state import LearnedState, new_state
from streams.catalogue import DEFAULT_CATALOGUE
from streams.pages.page import WorkloadFacts
from streams.records.facts import FleetFacts, OutcomeFact
from streams.windows.table import RecentFacts, Window

STEP_MS = 15_000
START_MS = 1_790_000_000_000
LEAD_SLOTS = 16
POLICY = Policy(workloads=(WorkloadSpec("w", lead_time_s=120.0),))
COLUMNS = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
EMPTY = np.zeros((16, len(COLUMNS)), np.float32)
UNOBSERVED = EMPTY.astype(np.bool_)


def live(state: LearnedState, starts: range, *, reported_s: float | None, tells_desired: bool) -> None:
    """For each start, 20 slots: one more replica is ordered in the first one and serves 16 slots later."""
    for start in starts:
        for n in range(20):
            end_ms = START_MS + (start * 20 + n + 1) * STEP_MS
            ready = 2 + start + (n >= LEAD_SLOTS)
            fleet = FleetFacts(end_ms - 200, ready, 3 + start - ready, 0, 3 + start if tells_desired else None)
            outcomes = []
            if reported_s is not None and n == LEAD_SLOTS:
                outcomes = [OutcomeFact(end_ms - 100, f"c{start}", "ready", ready, reported_s)]
            facts = RecentFacts(fleet, None, {}, {"requests": WorkloadFacts(1, end_ms - 100, 1, 1)})
            window = Window("w", COLUMNS, EMPTY, UNOBSERVED, facts, lambda: (EMPTY[:0, :3], UNOBSERVED[:0, :3]))
            state.learn(window, fleet, outcomes, end_ms, STEP_MS)


@pytest.mark.parametrize("tells_desired", [True, False])
def test_an_autoscaler_of_somebody_else_teaches_the_lead_time(tells_desired: bool) -> None:
    state = new_state("w", POLICY, 0)
    live(state, range(10), reported_s=None, tells_desired=tells_desired)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot_state(state)), type=StateSnapshot)
    state = restore_state("w", stored, POLICY)
    live(state, range(10, 21), reported_s=None, tells_desired=tells_desired)
    assert state.lead.num_starts == 20  # the first report is no change
    assert state.lead.quantile(0.95) == pytest.approx(LEAD_SLOTS * STEP_MS / 1000, rel=0.1)


def test_what_an_actuator_reports_is_not_counted_twice() -> None:
    state = new_state("w", POLICY, 0)
    live(state, range(20), reported_s=231.0, tells_desired=True)
    # The first start ends before the first outcome is known, or in the same slot.
    assert state.lead.num_starts in (20, 21)
    assert state.lead.quantile(0.5) == pytest.approx(231.0, rel=0.01)
