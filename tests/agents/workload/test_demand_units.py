"""Load in requests or in tokens: prefill and decode pools, judged by the half of the SLO that is theirs."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from agents.decide.kernel import DecideKernel
from agents.planning.planner import plan
from agents.planning.request import unit_demand, unit_input
from agents.policy import UNIT_OF, Policy, Role, Slo
from agents.records import Decision
from agents.workload.state import LearnedState, new_state
from agents.workload.units import demand_steps, role_miss_ratio, unit_evidence
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.capacity.posterior import SlotEvidence
from streams.config import StreamConfig
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample
from streams.windows.table import RecentFacts, Window
from tests.agents.planning.plan_samples import STREAM, TOPICS, log, policy, record, spec
from tests.agents.planning.plan_samples import plan as sample_plan
from tests.agents.workload.demand_samples import CARRIED, COLUMNS, FIVE, STEP_MS, pool, request


def window_of(slots: int = 1, **values: float | None) -> Window:
    cells, observed = np.zeros((slots, len(COLUMNS)), np.float32), np.zeros((slots, len(COLUMNS)), np.bool_)
    names = {"rate": "request.arrival_rate", "prompt": "request.prompt_token_rate"}
    names |= {"output": "request.output_token_rate", "miss": "slo.miss_ratio", "waiting": "engine.waiting"}
    names |= {"ttft": "request.ttft_p95_s", "tpot": "request.tpot_p95_s"}
    for short, value in values.items():
        if value is not None:
            cells[:, COLUMNS[names[short]]], observed[:, COLUMNS[names[short]]] = value, True
    return Window("w", COLUMNS, cells, observed, RecentFacts(None, None, {}, {}), lambda: (cells[:0], observed[:0]))


def live(state: LearnedState, tokens: float, slots: int, first: int, column: str = "prompt") -> None:
    """Slots under loads around what five replicas carry; requests have so many tokens."""
    for k in range(slots):
        per_replica = CARRIED * (0.7 + 0.6 * (k % 40) / 40)
        miss = 0.0 if per_replica < CARRIED else 0.4
        told = {"rate": 5 * per_replica / tokens, column: 5 * per_replica, "miss": miss}
        state.learn(window_of(**told), FIVE, (), (first + k + 1) * STEP_MS, STEP_MS)


@pytest.mark.parametrize(("role", "column"), [("prefill", "prompt"), ("decode", "output")])
def test_capacity_is_learned_in_tokens_and_stays_when_requests_grow(role: Role, column: str) -> None:
    """Four times the tokens are four times the load, not a quarter of the capacity."""
    whole = new_state("w", Policy(workloads=(pool("both"),)), 0)
    half = new_state("w", Policy(workloads=(pool(role),)), 0)
    learned = []
    for tokens in (500.0, 2_000.0):
        for state in (whole, half):
            live(state, tokens, 400, 400 * len(learned), column)
        learned.append([float(state.capacity.quantiles((0.5,))[0]) for state in (whole, half)])
    (requests, before), (fewer, after) = learned
    assert before == pytest.approx(CARRIED, rel=0.12)
    assert after == pytest.approx(before, rel=0.06)
    assert requests == pytest.approx(CARRIED / 500, rel=0.12)
    assert fewer < 0.7 * requests


def test_misses_are_those_of_the_pools_own_half() -> None:
    for role, own, other in (("prefill", "ttft", "tpot"), ("decode", "tpot", "ttft")):
        limit = {"ttft": 2.0, "tpot": 0.05}[own]
        declared = pool(role)  # type: ignore[arg-type]
        assert role_miss_ratio(declared, window_of(miss=0.3, **{own: 9.0})) == pytest.approx(0.3)
        assert role_miss_ratio(declared, window_of(**{own: limit * 1.1, other: 0.0})) == 0.05
        # Fewer than one in twenty missed; whether that is one in a hundred is not known.
        assert role_miss_ratio(declared, window_of(**{own: limit * 0.9, other: 99.0})) is None
        loose = pool(role, slo=Slo(2.0, 0.05, 0.9))  # type: ignore[arg-type]
        assert role_miss_ratio(loose, window_of(**{own: limit * 0.9})) == 0.0
        assert role_miss_ratio(declared, window_of(**{other: 99.0})) is None
    assert role_miss_ratio(pool("both"), window_of(ttft=9.0)) is None


def evidence(**changes: Any) -> SlotEvidence:
    known: dict[str, Any] = {
        "end_ts_ms": STEP_MS, "step_s": 15.0, "arrival_rate": 2.0, "miss_ratio": 0.1, "waiting": 3.0, "ready": 2,
        "pending": 0, "draining": 0, "ttft_s": 2.0, "objective": 0.99,
    }  # fmt: skip
    return SlotEvidence(**{**known, **changes})


def test_evidence_weighs_requests_and_measures_tokens() -> None:
    window = window_of(10, rate=2.0, prompt=800.0, output=200.0)
    prefill, decode = (unit_evidence(pool(role), UNIT_OF[role], window, evidence()) for role in ("prefill", "decode"))
    assert (prefill.arrival_rate, prefill.waiting, prefill.finished, prefill.ttft_s) == (800.0, 1200.0, 30.0, 2.0)
    assert (decode.arrival_rate, decode.waiting, decode.finished, decode.ttft_s) == (200.0, 300.0, 30.0, 2.0)
    # Twenty tokens at 50 ms each: an answer that waits a second has missed.
    short = unit_evidence(pool("decode"), "output_tokens", window_of(10, rate=2.0, output=40.0), evidence())
    assert short.ttft_s == pytest.approx(1.0)
    whole = unit_evidence(pool("both"), "requests", window, evidence())
    assert whole == evidence(), "a whole service is counted in requests"
    unseen = unit_evidence(pool("prefill"), "prompt_tokens", window_of(rate=2.0), evidence())
    assert (unseen.arrival_rate, unseen.waiting) == (None, None)


def test_the_planner_is_asked_in_tokens() -> None:
    window = window_of(10, rate=16.0, prompt=32_000.0)
    asked = unit_input(request(pool("prefill"), waiting_now=4.0), pool("prefill"), "prompt_tokens", window)
    assert asked.waiting == pytest.approx(8_000.0)
    assert asked.per_unit == pytest.approx(1 / 2_000.0)
    # Of 240 requests some thirty may be chance.
    assert asked.arrival_rate_now == pytest.approx(32_000.0 * (1 - 2 / 240**0.5))
    same = request(pool("both"))
    assert unit_input(same, pool("both"), "requests", window) is same
    nothing = unit_input(
        request(pool("prefill"), arrival_rate_now=None), pool("prefill"), "prompt_tokens", window_of(rate=None)
    )
    assert nothing.arrival_rate_now is None
    paths = torch.full((1, 64, 24, 1), 32_000.0)
    in_tokens = unit_input(request(pool("prefill")), pool("prefill"), "prompt_tokens", window)
    (planned,) = plan([in_tokens], paths, Policy())
    (fewer,) = plan([in_tokens], paths / 2, Policy())
    assert planned.proposed is not None
    assert planned.proposed >= 4
    assert (fewer.proposed or 0) < planned.proposed


def test_each_workload_is_planned_by_its_own_column() -> None:
    paths = torch.arange(3.0).expand(2, 4, 5, 3)
    windows = [window_of(rate=1.0, prompt=9.0)] * 2
    tokens = windows[0].columns["request.prompt_token_rate"]
    known = {tokens: paths[..., 2]}
    demand = unit_demand(["requests", "prompt_tokens"], windows, paths[..., 0], known.get)
    assert demand[0].eq(0.0).all()
    assert demand[1].eq(2.0).all()
    # What was not observed enough is not forecast.
    assert unit_demand(["output_tokens"], windows[:1], paths[:1, ..., 0], known.get).eq(0.0).all()
    assert (demand_steps("prompt_tokens", windows[0]), demand_steps("output_tokens", windows[0])) == (1, 0)


def test_a_decision_names_what_its_figures_are_of() -> None:
    told = sample_plan(proposed=7)
    kernel = DecideKernel(policy(spec(role="decode")), STREAM, TOPICS)
    (entry,) = log(record(1, told))
    (decision,) = (msgspec.json.decode(r.value or b"", type=Decision) for r in kernel.fold(entry).outputs[0])
    assert decision.forecast.indicator == "request.output_token_rate"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_pool_in_the_log_is_planned_by_its_tokens(role: Role) -> None:
    declared = spec(role=role, capacity_tokens_per_s=CARRIED, lead_time_s=20.0)
    stream = StreamConfig(step_ms=5_000, grace_ms=0, skew_ms=0, context_steps=32)
    loop = MemoryLoop(policy(declared, paths_screen=32), stream, SeasonalNaiveForecaster())
    start = 1_763_636_400_000
    name = "prompt_tokens_total" if role == "prefill" else "generation_tokens_total"
    for k in range(30):
        begin = start + k * 5_000
        values = []
        for ts_ms in (begin + 1_000, begin + 4_900):
            counters = {"requests_started_total": (ts_ms - start) / 100, name: (ts_ms - start) * 32.0}
            values.append(encode_sample("requests", "w", "engine", ts_ms, counters))
        values.append(encode_fleet("w", "k8s", FleetFacts(begin + 4_900, 2, 0, 0)))
        loop.close_slot("w", values, begin + 5_000)
    last = loop.decisions[-1]
    loop.close()
    assert last.capacity_per_replica is not None
    assert last.capacity_per_replica.values[2] > 1_000
    assert last.forecast.peak is not None
    assert last.forecast.peak.values[2] == pytest.approx(32_000.0, rel=0.2)
    assert 4 <= (last.replicas.proposed or 0) <= 20
