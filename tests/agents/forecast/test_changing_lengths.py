"""Whole services whose answers change: when load and capacity become tokens, what is carried over and kept."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pytest

from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.planning.request import unit_input
from agents.policy import Policy, Slo, SloClass
from agents.workload.state import new_state
from agents.workload.units import recent_lengths
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.capacity.posterior import CapacityPosterior
from model.capacity.request_shape import RequestShape
from streams.config import StreamConfig
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample
from streams.windows.table import RecentFacts, Window
from tests.agents.planning.plan_samples import policy, spec
from tests.agents.workload.demand_samples import CALM, FIVE, LONG, STEP_MS, Service, grown, pool, request


def _seem_the_same(service: Service, phases: Iterable[tuple[float, int]], least_share: float) -> None:
    """Live through phases of a rate and its slots in which answers are as long as ever."""
    shape = RequestShape()
    for rate, slots in phases:
        for _ in range(slots):
            service.slot(rate, LONG)
            found = recent_lengths(service.window(), 15.0)
            if found is not None:
                assert found.least_output <= 1.15 * LONG, "tokens of those who came before"
                assert found.most_output >= least_share * LONG, "tokens still to come"
            assert not shape.observe(service.end_ts_ms, found)


@pytest.mark.parametrize("seed", range(5))
def test_lengths_hold_while_loads_come_and_go(seed: int) -> None:
    """Answers stay as they are: no burst, lull or standstill of arrivals may look like a change of them."""
    rng = np.random.default_rng(seed)
    phases = [(float(rng.choice([0.0, 0.3, 2.0, 8.0])), int(rng.integers(2, 40))) for _ in range(12)]
    _seem_the_same(Service(seed), phases, 0.85)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("calm", [0, 10, 60])
def test_lengths_hold_while_queues_come_and_go(seed: int, calm: int) -> None:
    """Neither the first requests of a service, if they come faster than it serves them, nor later ones look changed."""
    last = float(np.random.default_rng(seed).uniform(0, 6))
    phases = [(1.0, calm), (0.0, calm), (6.0, 24), (1.0, 80), (last, 20), (0.5, 120)]  # served: 2 a second
    _seem_the_same(Service(seed, at_once=40), phases, 0.45)


def test_no_lengths_without_requests_or_columns() -> None:
    service = Service()
    for _ in range(20):
        service.slot(0.5, CALM)
    assert recent_lengths(service.window(), 15.0) is None  # 150 requests
    for _ in range(10):
        service.slot(0.5, CALM)
    found = recent_lengths(service.window(), 15.0)
    assert found is not None
    assert found.output == pytest.approx(CALM, rel=0.1)
    assert found.prompt == pytest.approx(800.0)
    assert recent_lengths(service.window(without="engine.running", gap=128), 15.0) is None
    bare = Window("w", {"request.arrival_rate": 0}, np.ones((9, 1), np.float32), np.ones((9, 1), np.bool_),
                  RecentFacts(None, None, {}, {}), lambda: (np.zeros((0, 1)), np.zeros((0, 1))))  # fmt: skip
    assert recent_lengths(bare, 15.0) is None


def test_where_answers_have_grown_load_and_capacity_are_tokens() -> None:
    state, service = new_state("w", Policy(workloads=(pool("both", capacity_rps=2.0),)), 0), Service()
    grown(state, service, 60, CALM)
    assert state.unit == "requests"
    before = float(state.capacity.quantiles((0.5,))[0])
    grown(state, service, 1, LONG)
    assert state.unit == "requests", "one slot is no change"
    grown(state, service, 23, LONG)
    assert state.unit == "output_tokens"
    assert state.per_request == pytest.approx(CALM, rel=0.2)
    assert float(state.capacity.quantiles((0.05,))[0]) > 0.9 * before * CALM
    asked = unit_input(request(state.spec), state.spec, state.unit, service.window())
    assert asked.arrival_rate_now == pytest.approx(4.0 * LONG, rel=0.35)
    grown(state, service, 100, CALM)
    assert state.unit == "output_tokens", "it may come again"


def test_what_was_carried_while_answers_grew_counts_as_the_tokens_that_it_was() -> None:
    """No one length turns it into tokens: what was learned last was of answers twice as long as usual."""
    state, service = new_state("w", Policy(workloads=(pool("both"),)), 0), Service()
    grown(state, service, 120, CALM)
    slots = 0
    while state.unit == "requests":
        slots += 1
        grown(state, service, 1, CALM * 4 ** (slots / 120))
    last = CALM * 4 ** (slots / 120)
    assert state.per_request is not None
    assert state.per_request < 0.65 * last
    carried = 4.0 / 5 * 0.8 * last  # tokens/s of each replica; the mean length lags behind
    assert float(state.capacity.quantiles((0.05,))[0]) > 0.9 * carried
    grown(state, service, 20, last)
    assert float(state.capacity.quantiles((0.05,))[0]) > 0.9 * 4.0 / 5 * last


def test_units_and_what_they_rest_on_outlive_a_restart() -> None:
    declared = Policy(workloads=(pool("both", capacity_rps=2.0),))
    state, service = new_state("w", declared, 0), Service()
    grown(state, service, 60, CALM)
    grown(state, service, 24, LONG)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot_state(state)), type=StateSnapshot)
    again = restore_state("w", stored, declared)
    assert (again.unit, again.per_request) == (state.unit, state.per_request)
    grown(state, service, 1, LONG)
    again.learn(service.window(), FIVE, (), service.end_ts_ms, STEP_MS)
    assert snapshot_state(again) == snapshot_state(state)
    assert again.capacity.draws(8, 0).tolist() == state.capacity.draws(8, 0).tolist()


def test_a_release_that_knows_no_units_refuses_tokens_and_its_own_state_is_read() -> None:
    declared = Policy(workloads=(pool("both"),))
    state, service = new_state("w", declared, 0), Service()
    grown(state, service, 60, CALM)
    plain = snapshot_state(state)
    assert plain.capacity["v"] == 2
    older = StateSnapshot(plain.since_slot, plain.capacity, plain.lead, plain.last_proposed)
    assert restore_state("w", older, declared).unit == "requests"
    grown(state, service, 24, LONG)
    with pytest.raises(ValueError, match="version 3"):
        CapacityPosterior.restore(snapshot_state(state).capacity)


def test_what_is_declared_later_counts_in_requests_again() -> None:
    state, service = new_state("w", Policy(workloads=(pool("both"),)), 0), Service()
    grown(state, service, 60, CALM)
    before = float(state.capacity.quantiles((0.5,))[0])
    grown(state, service, 24, LONG)
    assert state.per_request is not None
    state.event_loads = {"launch": 2.0 * state.per_request}
    slo = Slo(2.0, 0.05, 0.99, classes=(SloClass("gold", 1.0, 0.05, 0.99),))
    classes = restore_state("w", snapshot_state(state), Policy(workloads=(pool("both", slo=slo),)))
    assert (classes.unit, classes.per_request, classes.event_loads) == ("requests", None, {"launch": 2.0})
    assert float(classes.capacity.quantiles((0.5,))[0]) > 0.9 * before
    decode = restore_state("w", snapshot_state(state), Policy(workloads=(pool("decode"),)))
    assert decode.unit == "output_tokens"
    assert decode.capacity.evidence == state.capacity.evidence


def test_what_was_learned_in_another_roles_unit_is_left_behind() -> None:
    both = Policy(workloads=(pool("both", capacity_rps=2.0),))
    decode = Policy(workloads=(pool("decode", capacity_tokens_per_s=600.0),))
    state, service = new_state("w", both, 0), Service()
    grown(state, service, 60, CALM)
    state.event_loads = {"launch": 2.0}
    pooled = restore_state("w", snapshot_state(state), decode)
    assert float(pooled.capacity.quantiles((0.5,))[0]) == pytest.approx(600.0, rel=0.01)
    assert (pooled.unit, pooled.event_loads) == ("output_tokens", {})
    again = restore_state("w", snapshot_state(pooled), both)
    assert float(again.capacity.quantiles((0.5,))[0]) == pytest.approx(2.0, rel=0.01)
    assert again.unit == "requests"


def test_without_telemetry_of_tokens_requests_are_counted_and_back() -> None:
    state, service = new_state("w", Policy(workloads=(pool("both"),)), 0), Service()
    grown(state, service, 60, CALM)
    grown(state, service, 24, LONG)
    evidence = state.capacity.snapshot()["bins"]
    answers = state.per_request
    for gap in (1, 2):
        grown(state, service, 1, LONG, without="request.output_token_rate", gap=gap)
        assert state.unit == "output_tokens"
    grown(state, service, 1, LONG, without="request.output_token_rate", gap=3)
    assert state.unit == "requests"
    grown(state, service, 1, LONG)
    assert state.unit == "output_tokens"
    assert state.per_request == answers, "of when it was counted in requests last"
    assert state.capacity.snapshot()["bins"][:4] == evidence[:4]


@pytest.mark.parametrize("plan_every", [1, 2])
def test_a_service_in_the_log_whose_answers_grow_says_what_it_is_planned_by(plan_every: int) -> None:
    declared = spec(capacity_rps=4.0, lead_time_s=20.0)
    stream = StreamConfig(step_ms=5_000, grace_ms=0, skew_ms=0, context_steps=64)
    loop = MemoryLoop(policy(declared, paths_screen=32, plan_every=plan_every), stream, SeasonalNaiveForecaster())
    start = 1_763_636_400_000
    indicators, totals = [], [0.0, 0.0, 0.0]
    for k in range(90):
        begin, tokens = start + k * 5_000, 50.0 if k < 50 else 500.0
        values = []
        for ts_ms in (begin + 1_000, begin + 4_900):
            for n, per_request in enumerate((1.0, 400.0, tokens)):
                totals[n] += 12.0 * per_request * 2.5
            counters = dict(
                zip(("requests_started_total", "prompt_tokens_total", "generation_tokens_total"), totals, strict=True)
            )
            gauges = {"num_requests_running": 12.0 * tokens * 0.05, "num_requests_waiting": 0.0}
            values.append(encode_sample("requests", "w", "engine", ts_ms, counters | gauges))
        values.append(encode_fleet("w", "k8s", FleetFacts(begin + 4_900, 4, 0, 0)))
        loop.close_slot("w", values, begin + 5_000)
        indicators += [decision.forecast.indicator for decision in loop.decisions[-1:]]
    last = next(decision for decision in reversed(loop.decisions) if decision.forecast.peak is not None)
    loop.close()
    assert indicators[0] == "request.arrival_rate"
    assert set(indicators[-20:]) == {"request.output_token_rate"}
    assert last.forecast.peak is not None
    assert last.forecast.peak.values[2] == pytest.approx(6_000.0, rel=0.25)
    assert last.capacity_per_replica is not None
    assert last.capacity_per_replica.values[2] > 100.0
    assert (last.replicas.proposed or 0) > 6, "ten times the work, not three replicas for twelve requests/s"
