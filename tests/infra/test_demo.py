"""The demo declares what a load test of its own engines says."""

from __future__ import annotations

import pytest

from infra.demo import demo_workloads
from infra.replay.benchmark import benchmark_rps
from infra.simulator.ledger import Objective


@pytest.mark.parametrize("number", range(3))
def test_declared_capacities_are_those_of_a_load_test(number: int) -> None:
    workload = demo_workloads()[number]
    slo, lengths = workload.spec.slo, workload.source.between(0.0, 1_800.0)
    tested = benchmark_rps(workload.profile, lengths, Objective(slo.ttft_s, slo.tpot_s), slo.objective, 0)
    assert workload.spec.capacity_rps == pytest.approx(tested, rel=0.05)
