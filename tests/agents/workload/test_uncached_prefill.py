"""Prefill pools are planned by the prompt tokens that they compute, without those that a prefix cache holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.planning.request import unit_demand, unit_input
from agents.planning.rows import _day_ago, served_load
from agents.policy import KnownEvent, Policy, Schedule
from agents.records import Decision
from agents.workload.state import LearnedState, loads_before_events, new_state
from agents.workload.units import load_factor, tokens_per_request, uncached_share, unit_evidence
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.capacity.posterior import SlotEvidence
from streams.config import StreamConfig
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample
from streams.windows.table import RecentFacts, Window
from tests.agents.planning.plan_samples import policy, spec
from tests.agents.workload.demand_samples import CARRIED, COLUMNS, FIVE, STEP_MS, pool, request

PREFILL = pool("prefill")
POLICY = Policy(workloads=(PREFILL,))
NAMES = {
    "rate": "request.arrival_rate", "prompt": "request.prompt_token_rate", "miss": "slo.miss_ratio",
    "uncached": "request.uncached_prompt_token_rate", "running": "engine.running",
}  # fmt: skip


def window_of(rows: list[dict[str, float | None]]) -> Window:
    """One slot per row, oldest first; what a row lacks is not observed."""
    values, observed = np.zeros((len(rows), len(COLUMNS)), np.float32), np.zeros((len(rows), len(COLUMNS)), np.bool_)
    for at, row in enumerate(rows):
        for name, value in row.items():
            if value is not None:
                values[at, COLUMNS[NAMES[name]]], observed[at, COLUMNS[NAMES[name]]] = value, True
    return Window(
        "w", COLUMNS, values, observed, RecentFacts(None, None, {}, {}), lambda: (values[:0], observed[:0]),
        read_day_ago=lambda _, rows: (1_000.0, None, 3_000.0)[:rows],
    )  # fmt: skip


def slots(count: int, **row: float | None) -> list[dict[str, float | None]]:
    return [dict(row) for _ in range(count)]


SHARES: list[tuple[str, list[dict[str, float | None]], float | None]] = [
    ("three slots tell", slots(3, prompt=100.0, uncached=40.0), 0.4),
    ("tokens count, not slots", [*slots(2, prompt=100.0, uncached=40.0), {"prompt": 800.0, "uncached": 400.0}], 0.48),
    ("the last three", [*slots(9, prompt=100.0, uncached=90.0), *slots(3, prompt=100.0, uncached=40.0)], 0.4),
    ("slots that do not tell lie between", [*slots(3, prompt=100.0, uncached=40.0), *slots(5, prompt=100.0)], 0.4),
    ("slots without prompts", [*slots(3, prompt=10.0, uncached=4.0), *slots(5, prompt=0.0, uncached=0.0)], 0.4),
    ("a preempted prompt is computed twice", slots(3, prompt=100.0, uncached=130.0), 1.0),
    ("two slots are too few", slots(2, prompt=100.0, uncached=40.0), None),
    ("nobody counts", slots(3, prompt=100.0, uncached=0.0), None),
    ("no cache is told of", slots(9, prompt=100.0), None),
    ("no prompts are told of", slots(9, uncached=100.0), None),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "share"), [case[1:] for case in SHARES], ids=[case[0] for case in SHARES])
def test_the_share_that_is_computed(rows: list[dict[str, float | None]], share: float | None) -> None:
    window = window_of(rows)
    assert uncached_share(window) == (None if share is None else pytest.approx(share))
    assert load_factor("prompt_tokens", window) == pytest.approx(share or 1.0)
    assert load_factor("requests", window) == load_factor("output_tokens", window) == 1.0


def test_a_catalogue_without_the_indicator_plans_by_all_tokens() -> None:
    window = window_of(slots(9, prompt=100.0, uncached=40.0))
    older = replace(window, columns={n: c for n, c in window.columns.items() if n != NAMES["uncached"]})
    assert uncached_share(older) is None


_ROWS = st.lists(
    st.tuples(st.none() | st.floats(0, 1e6, width=32), st.none() | st.floats(0, 1e6, width=32)), min_size=1, max_size=12
)


@given(rows=_ROWS, factor=st.sampled_from((0.25, 2.0, 1024.0)))
def test_the_share_is_a_share_of_the_last_three_slots_that_tell(
    rows: list[tuple[float | None, float | None]], factor: float
) -> None:
    told = [(p, u) for p, u in rows if p is not None and p > 0 and u is not None][-3:]
    share = uncached_share(window_of([{"prompt": p, "uncached": u} for p, u in rows]))
    scaled = [{"prompt": p and p * factor, "uncached": u and u * factor} for p, u in rows]
    assert uncached_share(window_of(scaled)) == share, "the unit of time does not matter"
    if len(told) < 3 or not sum(u for _, u in told):
        assert share is None
    else:
        assert share == pytest.approx(min(sum(u for _, u in told) / sum(p for p, _ in told), 1.0))
        assert share is not None
        assert 0.0 < share <= 1.0


def test_every_load_of_the_pool_is_of_computed_tokens() -> None:
    """Load, queue, evidence, history and events: 40 % of what they are without a cache."""
    told = {"rate": 16.0, "prompt": 32_000.0, "running": 16.0}
    cold, warm = window_of(slots(50, **told)), window_of(slots(50, **told, uncached=12_800.0))
    slot = SlotEvidence(STEP_MS, 15.0, 16.0, 0.0, 4.0, 5, 0, 0, ttft_s=2.0, objective=0.99)
    paths = torch.full((1, 4, 5), 32_000.0)
    schedule = Schedule(events=(KnownEvent("launch", 60_000, 600_000, load_factor=2.0),))

    def loads(window: Window) -> list[float | None]:
        asked = unit_input(request(PREFILL, waiting_now=4.0), PREFILL, "prompt_tokens", window)
        evidence = unit_evidence(PREFILL, "prompt_tokens", window, slot)
        demand = unit_demand(["prompt_tokens"], [window], paths, {COLUMNS[NAMES["prompt"]]: paths}.get)
        served = served_load(paths * 0.0, [window], STEP_MS, ["prompt_tokens"])
        (event,) = loads_before_events({}, schedule, window, 30_000, "prompt_tokens").values()
        return [
            asked.arrival_rate_now, asked.waiting, 1.0 / asked.per_unit, evidence.arrival_rate, evidence.waiting,
            tokens_per_request("prompt_tokens", window), float(demand.max()), float(served[0, 0, 0]), event,
        ]  # fmt: skip

    without, computed = loads(cold), loads(warm)
    assert _day_ago("prompt_tokens", cold, 3) == (1_000.0, None, 3_000.0)
    assert [mean and round(mean, 3) for mean in _day_ago("prompt_tokens", warm, 3)] == [400.0, None, 1_200.0]
    assert without[0] == pytest.approx(32_000.0 * (1 - 2 / 240**0.5))
    assert computed == pytest.approx([0.4 * (load or 0.0) for load in without])
    assert unit_evidence(PREFILL, "prompt_tokens", warm, slot).finished == 240.0, "requests stay requests"


def learned(state: LearnedState, begin: int, count: int, uncached: float | None) -> None:
    """Slots of loads around what a replica carries, each window of 128 slots; `uncached` is a share."""
    for k in range(begin, begin + count):
        prompt = 5 * CARRIED * (0.7 + 0.6 * (k % 40) / 40)
        row = {"rate": prompt / 2_000.0, "prompt": prompt, "miss": 0.0 if prompt < 5 * CARRIED else 0.4}
        told = {"uncached": None if uncached is None else prompt * uncached}
        state.learn(window_of(slots(128, **row, **told)), FIVE, (), (k + 1) * STEP_MS, STEP_MS)


def median(state: LearnedState) -> float:
    return float(state.capacity.quantiles((0.5,))[0])


def test_what_was_learned_is_converted_when_engines_begin_to_report_and_back_when_they_cease() -> None:
    state = new_state("w", POLICY, 0)
    learned(state, 0, 400, None)
    assert median(state) == pytest.approx(CARRIED, rel=0.12)
    assert (state.indicator, state.uncached_share) == (NAMES["prompt"], None)
    before = median(state)
    learned(state, 400, 1, 0.4)
    assert median(state) == pytest.approx(0.4 * before, rel=0.06), "at once, so that no replica is given up for it"
    assert state.indicator == NAMES["uncached"]
    assert state.uncached_share == pytest.approx(0.4)
    learned(state, 401, 100, 0.2)
    assert median(state) == pytest.approx(0.2 * before, rel=0.25), "the tokens of a replica are another load then"
    halved = median(state)
    learned(state, 501, 1, None)
    assert median(state) == pytest.approx(5 * halved, rel=0.06)
    assert (state.indicator, state.uncached_share) == (NAMES["prompt"], None)


def test_a_pause_of_the_load_converts_nothing() -> None:
    state = new_state("w", POLICY, 0)
    learned(state, 0, 100, 0.4)
    before = median(state)
    quiet = window_of(slots(128, rate=0.0, prompt=0.0, uncached=0.0))
    state.learn(quiet, FIVE, (), 101 * STEP_MS, STEP_MS)
    assert median(state) == pytest.approx(before)
    assert state.uncached_share == pytest.approx(0.4)


def restored(snapshot: StateSnapshot, **changes: Any) -> LearnedState:
    wire = msgspec.msgpack.decode(
        msgspec.msgpack.encode(msgspec.structs.replace(snapshot, **changes)), type=StateSnapshot
    )
    return restore_state("w", wire, POLICY)


def test_a_restored_state_goes_on_and_one_of_an_older_release_is_converted() -> None:
    state = new_state("w", POLICY, 0)
    learned(state, 0, 100, 0.4)
    again = restored(snapshot_state(state))
    assert (median(again), again.uncached_share) == (median(state), state.uncached_share)
    older = new_state("w", POLICY, 0)
    learned(older, 0, 100, None)
    read = restored(snapshot_state(older))
    assert (read.uncached_share, median(read)) == (None, median(older))
    learned(read, 100, 1, 0.5)
    assert median(read) == pytest.approx(0.5 * median(older), rel=0.06)


def test_the_share_belongs_to_its_gpu() -> None:
    typed = replace(PREFILL, gpu_type="h100")
    state = new_state("w", Policy(workloads=(typed,)), 0)
    learned(state, 0, 100, None)
    other = Policy(workloads=(replace(PREFILL, gpu_type="b200"),))
    elsewhere = restore_state("w", snapshot_state(state), other)
    learned(elsewhere, 100, 50, 0.4)
    back = restore_state("w", snapshot_state(elsewhere), Policy(workloads=(typed,)))
    assert back.uncached_share is None, "what was learned on it is of all prompt tokens"
    assert median(back) == pytest.approx(median(state))
    learned(back, 150, 1, 0.4)
    assert median(back) == pytest.approx(0.4 * median(state), rel=0.06)


def planned_work(hit_rates: list[float]) -> list[Decision]:
    """Decisions of a prefill pool of 16,000 prompt tokens/s, one slot per hit rate."""
    declared = spec(role="prefill", capacity_tokens_per_s=200.0, lead_time_s=20.0, max_replicas=1_000)
    stream = StreamConfig(step_ms=5_000, grace_ms=0, skew_ms=0, context_steps=32)
    loop = MemoryLoop(policy(declared, paths_screen=32), stream, SeasonalNaiveForecaster())
    start, uncached = 1_763_636_400_000, 0.0
    for k, hit_rate in enumerate(hit_rates):
        begin, values = start + k * 5_000, []
        for ts_ms, seconds in ((begin + 100, 0.2), (begin + 4_900, 4.8)):
            uncached += seconds * 16_000.0 * (1.0 - hit_rate)
            tokens = {"prompt_tokens_total": (ts_ms - start) * 16.0, "uncached_prompt_tokens_total": uncached}
            counters = {"requests_started_total": (ts_ms - start) / 100, **tokens}
            values.append(encode_sample("requests", "w", "engine", ts_ms, counters))
        values.append(encode_fleet("w", "k8s", FleetFacts(begin + 4_900, 80, 0, 0)))
        loop.close_slot("w", values, begin + 5_000)
    decisions = list(loop.decisions)
    loop.close()
    return decisions


def test_a_hit_rate_of_60_percent_lowers_the_planned_work_within_three_steps_and_none_raises_it_again() -> None:
    decisions = planned_work([0.0] * 30 + [0.6] * 8 + [0.0] * 8)
    work = []
    for decision in decisions:
        peak = None if decision.forecast.peak is None else decision.forecast.peak.values[-1]
        work.append((peak, decision.shadow.get("reactive")))
    cold, warm, cold_again = work[-17], work[-17 + 3], work[-17 + 8 + 3]
    for before, during, after in zip(cold, warm, cold_again, strict=True):
        assert before is not None
        assert during is not None
        assert after is not None
        assert 0.55 <= 1.0 - during / before <= 0.65
        assert after == pytest.approx(before, rel=0.02)
    assert {d.forecast.indicator for d in decisions[-17:]} == {NAMES["uncached"]}
