"""The demo declares what a load test of its own engines says, and buys little more than that."""

from __future__ import annotations

import pytest

from infra.demo.workloads import demo_fleet, demo_policy, demo_workloads
from infra.lab.replay.policies.harmony import Variant, harmony_controller
from infra.lab.replay.setting import ScoredLoad, Setting
from infra.lab.replay.simulation import simulate
from infra.simulator.ledger import Objective
from infra.simulator.sizing import benchmark_rps


@pytest.mark.parametrize("number", range(3))
def test_declared_capacities_are_those_of_a_load_test(number: int) -> None:
    workload = demo_workloads()[number]
    slo, lengths = workload.spec.slo, workload.source.between(0.0, 1_800.0)
    tested = benchmark_rps(workload.profile, lengths, Objective(slo.ttft_s, slo.tpot_s), slo.objective, 0)
    assert workload.spec.capacity_rps == pytest.approx(tested, rel=0.05)


def test_its_chat_costs_little_more_than_it_needs() -> None:
    """From too few replicas, so that a queue stands early: what slots of five seconds say of it must not be believed
    one by one (the same load once cost three and a half times what it needs)."""
    chat = demo_workloads()[0]
    arrivals, spec = chat.source.between(0.0, 1_440.0), chat.spec
    assert spec.capacity_rps is not None
    setting = Setting(
        ScoredLoad("chat", arrivals, (640.0, 1_440.0)),
        chat.profile,
        Objective(spec.slo.ttft_s, spec.slo.tpot_s),
        max_replicas=spec.max_replicas,
        lead_s=spec.lead_time_s,
        lead_sigma_log=chat.lead_sigma_log,
        initial_replicas=3,
    )
    demo = Variant(policy={"guards": demo_policy(demo_fleet()).guards})
    lived = simulate(setting, harmony_controller(demo, spec.capacity_rps), 0)
    replica_hours = float((arrivals.arrival_s >= 640.0).sum()) / spec.capacity_rps / 3_600.0
    assert lived.gpu_hours < 2.0 * replica_hours * spec.gpus_per_replica
    assert lived.attainment > 0.97
