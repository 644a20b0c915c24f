"""Which promise gives way first, from telemetry to the decision, and where promises are not told apart."""

from __future__ import annotations

from typing import Final

import pytest

from agents.forecast.commit import restore_state, snapshot_state
from agents.policy import Slo, SloClass, WorkloadSpec
from agents.records import Quantiles
from agents.workload.slo_classes import promise_capacities, strain_of
from agents.workload.state import LearnedState, new_state
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.capacity.attribution import Strain
from streams.config import StreamConfig
from streams.records.facts import FleetFacts, HistogramState
from streams.records.schema import encode_fleet, encode_sample
from tests.agents.planning.plan_samples import policy, spec
from tests.agents.workload.test_demand_units import window_of

STEP_MS: Final = 15_000
FIVE: Final = FleetFacts(0, ready=5, pending=0, draining=0, desired=5)
SLO: Final = Slo(2.0, 0.2, 0.99)
CLASSED: Final = Slo(2.0, 0.2, 0.99, (SloClass("chat", 2.0, 0.2, 0.99), SloClass("bulk", 9.0, 1.0, 0.9)))
TELLING: Final = {"ttft": 1.0, "tpot": 0.3}
PEAK: Final = Quantiles((0.1, 0.5, 0.9), (8.0, 9.5, 12.0))


def test_a_slots_percentiles_are_held_against_the_limits() -> None:
    declared = spec(slo=SLO)
    assert strain_of(declared, window_of(**TELLING)) == Strain(0.5, pytest.approx(1.5))
    assert strain_of(declared, window_of(ttft=1.0)) is None
    assert strain_of(declared, window_of(rate=1.0)) is None


def test_a_slot_in_which_nothing_finished_is_told_of_by_the_others() -> None:
    window = window_of(3, **TELLING)
    window.observed[-1] = False
    assert strain_of(spec(slo=SLO), window) == Strain(None, None)


@pytest.mark.parametrize(
    "declared", [spec(slo=CLASSED), spec(role="prefill", slo=SLO), spec(role="decode", slo=SLO)], ids=lambda s: s.role
)
def test_pools_and_classes_are_not_told_apart(declared: WorkloadSpec) -> None:
    assert strain_of(declared, window_of(**TELLING)) is None
    state = lived()
    assert promise_capacities(state.spec, state.capacity, 5, PEAK)
    assert promise_capacities(declared, state.capacity, 5, PEAK) == ()


def test_nothing_is_told_where_no_load_is_planned_for() -> None:
    state = lived()
    assert promise_capacities(state.spec, state.capacity, 0, PEAK) == ()
    assert promise_capacities(state.spec, state.capacity, 5, None) == ()


def lived() -> LearnedState:
    """Loads around what five replicas carry; what each of them is given too much of, tokens come too slowly for."""
    declared = policy(spec("w", capacity_rps=2.0, slo=SLO))
    state = new_state("w", declared, 0)
    for k in range(80):
        load = 1.4 + 1.2 * (k % 40) / 40
        missed = 0.0 if load < 2.0 else 0.04
        told = {"rate": 5 * load, "output": 1000 * load, "miss": missed, "ttft": 0.5, "tpot": 0.1 * load}
        state.learn(window_of(**told), FIVE, (), (k + 1) * STEP_MS, STEP_MS)
    return restore_state("w", snapshot_state(state), declared)


def test_it_is_learned_and_outlives_a_restart() -> None:
    state = lived()
    (only,) = promise_capacities(state.spec, state.capacity, 5, PEAK)
    assert only.promise == "tpot"
    assert only.capacity.values[2] == pytest.approx(2.0, rel=0.1)
    assert only.capacity.values == tuple(state.capacity.quantiles(only.capacity.levels))
    assert only.miss_share == state.capacity.miss_share(1.9)
    shares = [promise_capacities(state.spec, state.capacity, n, PEAK)[0].miss_share for n in (7, 6, 5, 4)]
    assert shares == sorted(shares)
    assert shares[0] < 0.002 < 0.03 < shares[-1]


def histogram(count: float, slow: float, at: float) -> HistogramState:
    """So many requests, of which some took longer than `at` seconds; the others half as long."""
    return HistogramState((at / 2, at, 4 * at), (count - slow, count - slow, count), count, at * count)


@pytest.mark.parametrize(("slow", "fast"), [("tpot", "ttft"), ("ttft", "tpot")])
def test_a_decision_says_which_promise_gives_way_first(slow: str, fast: str) -> None:
    declared = spec(slo=SLO, capacity_rps=2.0, lead_time_s=20.0)
    stream = StreamConfig(step_ms=5_000, grace_ms=0, skew_ms=0, context_steps=32)
    loop = MemoryLoop(policy(declared, paths_screen=32), stream, SeasonalNaiveForecaster())
    limit = {"ttft": SLO.ttft_s, "tpot": SLO.tpot_s}
    start, total, missed = 1_763_636_400_000, 0.0, 0.0
    for k in range(60):
        arrived = 15.0 if k % 20 < 10 else 30.0
        total += arrived
        missed += 0.2 * arrived if arrived > 20.0 else 0.0
        hist = {
            f"{slow}_s": histogram(total, missed, limit[slow]),
            f"{fast}_s": histogram(total, 0.0, limit[fast]),
        }
        ts_ms = start + k * 5_000 + 4_900
        counters = {
            "requests_started_total": total, "slo_good_total": total - missed, "slo_total": total,
            "num_requests_running": 4.0, "num_requests_waiting": 0.0,
        }  # fmt: skip
        values = [encode_sample("requests", "w", "engine", ts_ms, counters, hist)]
        values.append(encode_fleet("w", "k8s", FleetFacts(ts_ms, 2, 0, 0)))
        loop.close_slot("w", values, ts_ms + 100)
    planned = [d for d in loop.decisions if d.capacity_per_replica is not None]
    loop.close()
    assert planned[0].risk.promises == ()
    (only,), whole = planned[-1].risk.promises, planned[-1].capacity_per_replica
    assert only.promise == slow
    assert whole is not None
    assert only.capacity.values == pytest.approx(whole.values)
