"""Stated risks of a service whose classes are told apart are not held against the misses of all its requests."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.policy import Policy, Slo, SloClass, WorkloadSpec
from agents.workload.state import LearnedState, new_state
from streams.catalogue import DEFAULT_CATALOGUE
from streams.pages.page import WorkloadFacts
from streams.records.facts import ClassCounts, FleetFacts, SloCounts
from streams.windows.table import RecentFacts, Window

STEP_MS = 15_000
RATE = 10.0
CLASSES = (SloClass("interactive", 1.0, 0.05, 0.995), SloClass("bulk", 20.0, 1.0, 0.9))
POLICY = Policy(workloads=(WorkloadSpec("w", slo=Slo(1.0, 0.05, 0.995, CLASSES), capacity_rps=2.0),))
FLEET = FleetFacts(0, ready=8, pending=0, draining=0)
COLUMNS = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}


def live(state: LearnedState, slots: range, told: bool) -> None:
    """Half of the requests are bulk and miss 4 % where 10 % are allowed: 2 % of all, where the strictest allows .5."""
    values = np.zeros((16, len(COLUMNS)), np.float32)
    observed = np.zeros(values.shape, np.bool_)
    for name, value in (("request.arrival_rate", RATE), ("slo.miss_ratio", 0.02)):
        values[:, COLUMNS[name]], observed[:, COLUMNS[name]] = value, True
    for k in slots:
        end = (k + 1) * STEP_MS
        total = k * RATE / 2 * STEP_MS / 1000
        counts = ClassCounts("bulk", 0.96 * total, total), ClassCounts("interactive", total, total)
        slo = (SloCounts("gateway", end - 100, counts),) if told else ()
        facts = RecentFacts(FLEET, None, {}, {"requests": WorkloadFacts(1, end - 100, 1, 1, slo=slo)})
        window = Window("w", COLUMNS, values, observed, facts, lambda: (values[:0, :3], observed[:0, :3]))
        state.learn(window, FLEET, (), end, STEP_MS)
        state.calibration.offer(end, end + 4 * STEP_MS, [(8, 0.05)])


@pytest.mark.parametrize("told", [True, False])
def test_misses_that_one_class_may_have_move_the_risks_of_none(told: bool) -> None:
    state = new_state("w", POLICY, 0)
    live(state, range(200), told)
    assert state.calibration.shift == 0.0 if told else state.calibration.shift > 3.0


def test_what_all_requests_had_taught_before_fades_and_is_read_from_earlier_state() -> None:
    state = new_state("w", POLICY, 0)
    live(state, range(100), told=False)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot_state(state)), type=StateSnapshot)
    again = restore_state("w", stored, POLICY)
    before = again.calibration.shift
    assert before == state.calibration.shift > 1.0
    live(again, range(100, 582), told=True)
    assert again.calibration.shift == pytest.approx(before / 4, rel=0.1)
