"""How far a declared capacity may be off reaches what is learned of it: at first sight, after a restart, by class."""

from __future__ import annotations

import pytest

from agents.forecast.commit import restore_state, snapshot_state
from agents.policy import Slo, SloClass, WorkloadSpec
from agents.workload.slo_classes import Classes
from agents.workload.state import new_state
from model.capacity.evidence import SlotEvidence
from model.capacity.posterior import CapacityPosterior
from streams.records.facts import ClassCounts, SloCounts
from tests.agents.planning.plan_samples import policy, spec


def doubt(capacity: CapacityPosterior) -> float:
    low, high = capacity.quantiles((0.16, 0.84))
    return float(high / low) ** 0.5


@pytest.mark.parametrize(("off_by", "expected"), [(None, 1.28), (2.2, 2.2)])
def test_a_workload_begins_and_goes_on_with_the_doubt_that_is_declared(off_by: float | None, expected: float) -> None:
    declared = policy(spec("w", capacity_rps=3.0, capacity_off_by=off_by))
    state = new_state("w", declared, 0)
    assert doubt(state.capacity) == pytest.approx(expected, rel=0.1)
    assert doubt(restore_state("w", snapshot_state(state), declared).capacity) == doubt(state.capacity)
    other = policy(spec("w", capacity_rps=3.0, capacity_off_by=1.6))
    assert doubt(restore_state("w", snapshot_state(state), other).capacity) == pytest.approx(1.6, rel=0.1)


def test_each_class_begins_with_it_too() -> None:
    slo = Slo(classes=(SloClass("chat", 2.0, 0.2, 0.99), SloClass("batch", 9.0, 0.5, 0.9)))
    workload = WorkloadSpec("w", slo=slo, capacity_rps=3.0, capacity_off_by=2.2)
    classes = Classes()
    for k in (1, 2):
        counted = (ClassCounts("chat", 100.0 * k, 100.0 * k), ClassCounts("batch", 50.0 * k, 50.0 * k))
        told = [SloCounts("engine", 15_000 * k, counted)]
        classes.learn(
            workload, told, SlotEvidence(15_000 * k, 15.0, 1.0, 0.0, 0.0, 1, 0, 0, ttft_s=2.0, objective=0.99)
        )
    assert doubt(classes.states["chat"].capacity) > 1.8
    restored = Classes.restore(classes.snapshot(), workload)
    assert doubt(restored.states["chat"].capacity) == doubt(classes.states["chat"].capacity)
