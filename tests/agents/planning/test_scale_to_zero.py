"""To and from zero: the last replica goes when it is surely idle and hardly needed soon, and comes back at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decide.guards.chain import run_guards
from agents.decide.guards.gates import missing_metric, sanity
from agents.forecast.commit import restore_state, snapshot_state
from agents.planning.limits import chance_needed, with_last_replica
from agents.planning.request import PlanInput, PlanResult
from agents.policy import GuardLimits, IdleRule, Policy, TargetRef, WorkloadSpec
from agents.records import Command, Decision, Limit
from agents.workload.signals import idle_since
from agents.workload.state import new_state
from infra.lab.replay.loop import MemoryLoop
from model.baselines.pool import FallbackForecaster
from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.pages.page import WorkloadFacts
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample
from streams.windows.table import RecentFacts, Window
from tests.agents.planning.plan_samples import FREE, inputs, situation, spec

STEP_MS = 5_000
START_MS = 1_763_636_400_000
COUNTERS = ("requests_started_total", "prompt_tokens_total", "generation_tokens_total")
ZERO = IdleRule(idle_s=60.0, risk=0.05)
WAITS = Limit("first_request", 1, None, "2 requests wait and no replica is there")


class Service:
    """A gateway and replicas that obey at once, told slot by slot."""

    def __init__(self, replicas: int = 1, **changes: Any) -> None:
        declared = WorkloadSpec(
            "w", TargetRef(name="w"), 0, 8, capacity_rps=2.0, lead_time_s=20.0, mode="act", zero=ZERO
        )
        limits = GuardLimits(warm_up_steps=changes.pop("warm_up", 16), stabilization_down_s=30.0, down_period_s=10.0)
        policy = Policy(workloads=(declared,), guards=limits, commit_s=30.0, paths_screen=64, **changes)
        stream = StreamConfig(step_ms=STEP_MS, grace_ms=0, skew_ms=0, context_steps=64)
        self.loop = MemoryLoop(policy, stream, FallbackForecaster(RidgeForecaster(), SeasonalNaiveForecaster()))
        self.replicas, self.started, self.slot = replicas, 0, START_MS // STEP_MS

    def live(self, arriving: int, waiting: int = 0, running: int = 0) -> tuple[Decision, list[Command]]:
        """One slot; returns its decision and commands, which are carried out."""
        begin = self.slot * STEP_MS
        self.started += arriving
        values = []
        for ts_ms in (begin + 2_000, begin + 4_900):
            told = {**dict.fromkeys(COUNTERS, 0.0), "num_requests_waiting": float(waiting)}
            values.append(encode_sample("requests", "w", "gateway", ts_ms, told))
            if self.replicas:
                engine = {**dict.fromkeys(COUNTERS, float(self.started)), "num_requests_running": float(running)}
                values.append(encode_sample("requests", "w", "engine", ts_ms, engine))
        facts = FleetFacts(begin + 4_900, self.replicas, 0, 0, self.replicas)
        values.append(encode_fleet("w", "k8s", facts))
        self.slot += 1
        commands = self.loop.close_slot("w", values, self.slot * STEP_MS)
        for command in commands:
            self.replicas = command.replicas
        if not self.loop.decisions:  # the first slot only begins the log
            return self.live(arriving, waiting, running)
        return self.loop.decisions[-1], commands


def idle_until_none(service: Service, most: int = 120) -> int:
    for slots in range(most):
        service.live(0)
        if service.replicas == 0:
            return slots
    raise AssertionError(f"still {service.replicas} replicas, {service.loop.decisions[-1]}")


def test_a_workload_goes_to_zero_and_its_first_request_brings_it_back() -> None:
    service = Service()
    for _ in range(30):
        service.live(5, running=1)
    assert service.replicas >= 1
    slots = idle_until_none(service)
    assert slots * STEP_MS / 1000 >= ZERO.idle_s
    down = service.loop.decisions[-1]
    assert (down.action, down.proposer, down.replicas.final) == ("down", "idle", 0)
    assert down.risk.p_needed is not None
    assert down.risk.p_needed < ZERO.risk
    for _ in range(20):
        calm, _ = service.live(0)
        assert (calm.replicas.final, calm.action) == (0, "hold")
    up, (command,) = service.live(0, waiting=2)
    assert (up.action, up.reason, command.replicas) == ("up", "first_request", 1)
    assert up.replicas.proposed == 1
    # It is served, and the replica stays its time.
    stay = [service.live(0)[0].replicas.final for _ in range(int(ZERO.idle_s * 1000 / STEP_MS) - 1)]
    assert set(stay) == {1}


def test_between_plans_the_first_request_is_heard_too() -> None:
    service = Service(plan_every=4)
    for _ in range(30):
        service.live(5, running=1)
    idle_until_none(service)
    while service.slot % 4 != 1:  # the next slot closed is not one of planning
        service.live(0)
    up, commands = service.live(0, waiting=1)
    assert (up.reason, [c.replicas for c in commands]) == ("first_request", [1])


def test_what_comes_up_between_plans_keeps_the_last_replica() -> None:
    """A plan to go to zero, held back by the stabilization window, is void when a request is served meanwhile."""
    service = Service(plan_every=8)
    for _ in range(30):
        service.live(5, running=1)
    while service.loop.decisions[-1].proposer != "idle":
        service.live(0)
    assert service.replicas > 0
    busy = [service.live(0, running=1)[0] for _ in range(7)]
    assert {d.replicas.final for d in busy} == {1}
    assert {d.replicas.proposed for d in busy} == {1}


def test_a_fresh_worker_serves_the_first_request_before_it_is_warm() -> None:
    service = Service(replicas=0, warm_up=64)
    for _ in range(3):
        calm, commands = service.live(0)
        assert (calm.reason, commands) == ("warm_up", [])
    up, commands = service.live(0, waiting=1)
    assert (up.action, up.reason, [c.replicas for c in commands]) == ("up", "first_request", [1])
    again, commands = service.live(1, running=1)
    assert (again.reason, again.replicas.final) == ("warm_up", 1)


def window_of(**changes: Any) -> Window:
    told: dict[str, float | None] = {
        "request.arrival_rate": 0.0,
        "engine.running": 0.0,
        "engine.waiting_max": 0.0,
        **changes.pop("values", {}),
    }
    columns = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
    values, observed = np.zeros((1, len(columns)), np.float32), np.zeros((1, len(columns)), np.bool_)
    for name, value in told.items():
        if value is not None:
            values[0, columns[name]], observed[0, columns[name]] = value, True
    facts = WorkloadFacts(**{"num_samples": 1, "newest_ts_ms": 0, "sources_seen": 2, "sources_known": 2, **changes})
    recent = RecentFacts(None, None, {}, {"requests": facts})
    return Window("w", columns, values, observed, recent, lambda: (values[:0], observed[:0]))


ONE = FleetFacts(0, ready=1, pending=0, draining=0)


def test_idleness_is_counted_only_while_a_ready_replica_surely_has_nothing_to_do() -> None:
    def since(window: Window, fleet: FleetFacts | None = ONE, before: int | None = 5_000) -> int | None:
        return idle_since(before, window, fleet, 60_000, STEP_MS)

    assert since(window_of()) == 5_000
    assert since(window_of(), before=None) == 55_000
    assert since(window_of(values={"engine.running": None})) == 5_000
    for doubt in (
        window_of(values={"request.arrival_rate": None}),
        window_of(values={"request.arrival_rate": 0.2}),
        window_of(values={"engine.running": 0.5}),
        window_of(values={"engine.waiting_max": 1.0}),
        window_of(sources_seen=1),
        window_of(censored=True),
    ):
        assert since(doubt) is None
    assert since(window_of(), fleet=None) is None
    assert since(window_of(), fleet=FleetFacts(0, ready=0, pending=1, draining=0)) is None


@given(st.lists(st.lists(st.floats(0, 3, width=32), min_size=4, max_size=4), min_size=1, max_size=9), st.floats(0, 90))
def test_the_chance_of_a_request_is_that_of_poisson_arrivals_on_the_paths(
    rates: list[list[float]], reach_s: float
) -> None:
    steps = max(1, math.ceil(reach_s / 5.0 - 1e-9))
    paths = [(path + [path[-1]] * steps)[:steps] for path in rates]
    expected = 1.0 - sum(math.exp(-5.0 * sum(path)) for path in paths) / len(paths)
    found = chance_needed(np.array(rates, np.float32), 5.0, reach_s)
    assert found == pytest.approx(expected, abs=1e-9)
    assert found <= chance_needed(np.array(rates, np.float32), 5.0, reach_s + 5.0) + 1e-12


def request(ready: int, rate: float | None = 0.0, waiting: float = 0.0) -> PlanInput:
    capacity, lead = CapacityPosterior(2.0), LeadTimePosterior(20.0)
    return PlanInput("w", START_MS, STEP_MS, spec(min_replicas=0), ready, 0, 0, rate, waiting, capacity, lead)


PLANNED = PlanResult("w", None, 0.01, 1, "cheapest")


@pytest.mark.parametrize(
    ("asked", "idle_s", "p_needed", "proposed"),
    [
        (request(1), 60.0, 0.049, 0),
        (request(1), 59.0, 0.049, 1),
        (request(1), None, 0.0, 1),
        (request(1), 900.0, 0.05, 1),
        (request(1, rate=0.1), 900.0, 0.0, 1),
        (request(1, waiting=1.0), 900.0, 0.0, 1),
        (request(0), None, 0.19, 0),
        (request(0), None, 0.2, 1),  # fetched ahead of a request only when that is four times as likely
        (request(0, waiting=1.0), None, 0.0, 1),
        (request(0, rate=None), None, 0.0, 0),
    ],
)
def test_the_last_replica_goes_by_time_and_chance(
    asked: PlanInput, idle_s: float | None, p_needed: float, proposed: int
) -> None:
    done = with_last_replica(PLANNED, asked, ZERO, idle_s, p_needed)
    assert (done.proposed, done.p_needed) == (proposed, p_needed)
    wakes = asked.ready == 0 and asked.waiting > 0
    assert done.proposer == ("idle" if proposed == 0 else "first_request" if wakes else "cheapest")


def test_a_refused_plan_stays_refused() -> None:
    refused = PlanResult("w", "horizon", 0.01)
    assert with_last_replica(refused, request(1), ZERO, 900.0, 0.0).proposed is None


def test_guards_know_a_zero_that_was_waited_for() -> None:
    idle = {"current": 1, "proposed": 0, "proposer": "idle", "spec": spec(min_replicas=0), "reactive": 0}
    sudden = inputs(arrival_rate=0.0, zero_after_nonzero=True)
    assert run_guards(situation(**idle, epsilon=0.01)).final == 0
    assert sanity(situation(**idle, inputs=sudden), 0) is None
    held = situation(**{**idle, "proposer": "cheapest"}, inputs=sudden)
    assert run_guards(held).final == 1
    # A silent source may have a request: one stays.
    partial = situation(**{**idle, "current": 3}, inputs=inputs(coverage_ratio=0.8))
    step = missing_metric(partial, 0)
    assert step is not None
    assert step.after == 1


def test_the_first_request_is_heard_in_spite_of_holds_but_not_of_operators_nor_in_vain() -> None:
    none: dict[str, Any] = {
        "current": 0,
        "proposed": 0,
        "spec": spec(min_replicas=0),
        "reactive": 0,
        "standing": (WAITS,),
    }
    for changes in ({}, {"refused": "warming_up"}, {"limits": replace(FREE, warm_up_steps=9), "seen_steps": 3}):
        guarded = run_guards(situation(**none, **changes))
        assert (guarded.final, guarded.reason, guarded.at_gate) == (1, "first_request", False)
    for changes in ({"paused": "fleet"}, {"overdue_ms": 1}, {"gpus_left": 0}, {"newest_ts_ms": 9}):
        assert run_guards(situation(**none, **changes)).final == 0
        assert run_guards(situation(**none, **changes, refused="warming_up")).final == 0
    night = (WAITS, Limit("schedule", None, 0, "at night none"))
    assert run_guards(situation(**{**none, "standing": night}, refused="warming_up")).final == 0
    assert run_guards(situation(**{**none, "current": 1})).final == 0
    assert run_guards(situation(**{**none, "proposed": 3})).final == 3


def test_idleness_survives_a_restart() -> None:
    policy = Policy(workloads=(spec(),))
    state = new_state("w", policy, 0)
    state.idle_since_ms = 123
    assert restore_state("w", snapshot_state(state), policy).idle_since_ms == 123
