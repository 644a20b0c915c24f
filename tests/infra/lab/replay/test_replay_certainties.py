"""Ablations of what is learned: the planner is told a figure as certain, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.workload.state import new_state
from infra.lab.replay.loop import FixedCapacity, FixedLeadTime, constant_price
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS, policy_of
from infra.lab.replay.simulation import WORKLOAD, HarmonyController
from infra.simulator.cluster import Cluster
from model.calibration.budget import ErrorBudget
from model.capacity.draws import CapacityTable, LeadTable
from model.capacity.posterior import SPACING, CapacityPosterior
from tests.infra.lab.replay.replay_setting import setting

LEVELS = (0.01, 0.5, 0.99)


@given(st.floats(1e-2, 1e3))
def test_a_fixed_capacity_is_the_declared_one_whatever_is_beside_it(declared: float) -> None:
    table = CapacityTable.of([FixedCapacity(declared, 0.99), CapacityPosterior(2.0)])
    fixed, learned = table.quantiles(LEVELS)
    assert fixed == pytest.approx([declared] * 3, rel=SPACING)
    assert learned[2] > 1.5 * learned[0]
    assert table.known == [True, True]


@given(st.floats(1.0, 3_600.0))
def test_a_fixed_lead_time_is_the_declared_one(declared_s: float) -> None:
    (row,) = LeadTable.of([FixedLeadTime(declared_s)]).quantiles(LEVELS)
    assert row == pytest.approx([declared_s] * 3, rel=1e-3)


def test_a_constant_price_forgets_what_was_missed() -> None:
    state = new_state(WORKLOAD, policy_of(setting(), 1.1), 0)
    for slot in range(1, 41):
        state.budget.observe(slot * 15_000, 50.0, 0.2, 0.99, 0.5)
    first = ErrorBudget().miss_price(0.99)
    assert state.budget.miss_price(0.99) > 2.0 * first
    assert constant_price(state).budget.miss_price(0.99) == first


@pytest.mark.parametrize(
    ("name", "capacity_is_fixed", "lead_is_fixed"),
    [("harmony", False, False), ("harmony-fixed-capacity", True, False), ("harmony-fixed-lead", False, True)],
)
def test_decisions_rest_on_what_the_planner_was_told(name: str, capacity_is_fixed: bool, lead_is_fixed: bool) -> None:
    s = setting(step_s=5.0, initial_replicas=2)
    variant, declared_rps = HARMONY_VARIANTS[name], 1.1
    cluster = Cluster(s.profile, s.initial_replicas, s.lead_time(0), s.objective)
    cluster.feed(s.load.arrivals)
    policy = policy_of(s, declared_rps, paths_screen=64)
    controller = HarmonyController(s, cluster, policy, variant.forecaster(s), 0, variant.state_override)
    while controller.next_s < 400.0:
        cluster.advance(controller.next_s)
        controller.act()
    controller.close()
    capacities = [d.capacity_per_replica.values for d in controller.decisions if d.capacity_per_replica is not None]
    leads = [d.lead_time_s.values for d in controller.decisions if d.lead_time_s is not None]
    assert len(capacities) > 30
    assert (np.ptp(capacities) < 2 * SPACING * declared_rps) == capacity_is_fixed
    assert (np.ptp(leads) < 0.1) == lead_is_fixed
