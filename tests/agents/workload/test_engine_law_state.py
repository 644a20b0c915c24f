"""The law of the engine within the learned state: from telemetry to the capacity, through restarts and other GPUs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.policy import Policy
from agents.workload.state import LearnedState, new_state
from model.capacity.posterior import SlotEvidence
from streams.runtime.commits import encode_body
from streams.windows.table import RecentFacts, Window
from tests.agents.workload.demand_samples import COLUMNS, FIVE, STEP_MS, pool
from tests.model.capacity.taught import place

NAMES = ("request.arrival_rate", "request.prompt_token_rate", "request.output_token_rate", "engine.running",
         "engine.waiting", "engine.kv_cache_usage_ratio", "slo.miss_ratio")  # fmt: skip
DECLARED = Policy(workloads=(pool("both", capacity_rps=2.0),))


def window(rate: float, answer: float) -> Window:
    """A slot of five busy replicas: 800 tokens a prompt, an iteration of 30 ms."""
    running = rate * answer * 0.03
    told = (rate, rate * 800.0, rate * answer, running, 0.0, min(running / 5 * 0.002, 1.0), 0.0)
    cells, observed = np.zeros((4, len(COLUMNS)), np.float32), np.zeros((4, len(COLUMNS)), np.bool_)
    at = [COLUMNS[name] for name in NAMES]
    cells[:, at], observed[:, at] = told, True
    return Window("w", COLUMNS, cells, observed, RecentFacts(None, None, {}, {}), lambda: (cells[:0], observed[:0]))


def lived(state: LearnedState, slots: range, answer: float) -> LearnedState:
    for k in slots:
        rate = 6.0 + 2.0 * np.sin(k / 5.0)
        state.learn(window(float(rate), answer), FIVE, (), (k + 1) * STEP_MS, STEP_MS)
    return state


def moved(state: LearnedState, now: Policy) -> LearnedState:
    """After a restart, by way of the bytes of a commit record."""
    return restore_state("w", msgspec.msgpack.decode(encode_body(snapshot_state(state)), type=StateSnapshot), now)


def middle(state: LearnedState) -> float:
    return float(state.capacity.quantiles((0.5,))[0])


def test_longer_answers_are_less_capacity_without_a_missed_request() -> None:
    state = lived(new_state("w", DECLARED, 0), range(80), 200.0)
    before, limit = middle(state), state.law.limit()
    lived(state, range(80, 120), 600.0)
    after = state.law.limit()
    assert limit is not None
    assert after is not None
    assert after.rate < 0.7 * limit.rate
    assert middle(state) < 0.9 * before
    assert state.unit == "requests"


def test_a_restart_in_the_middle_changes_nothing() -> None:
    straight, stopped = (lived(new_state("w", DECLARED, 0), range(47), 200.0) for _ in range(2))
    again = moved(stopped, DECLARED)
    for state in (straight, again):
        lived(state, range(47, 90), 300.0)
    assert encode_body(snapshot_state(again)) == encode_body(snapshot_state(straight))
    assert again.capacity.draws(8, 0).tolist() == straight.capacity.draws(8, 0).tolist()


def test_the_law_is_stored_per_gpu_type() -> None:
    first, second = (Policy(workloads=(pool("both", capacity_rps=2.0, gpu_type=name),)) for name in ("a100", "h100"))
    state = lived(new_state("w", first, 0), range(80), 200.0)
    other = moved(state, second)
    assert (other.law.snapshot(), other.law.limit(), other.capacity.evidence) == ([], None, 0.0)
    assert middle(other) == pytest.approx(2.0, rel=0.02)
    lived(other, range(80, 120), 400.0)
    again = moved(other, first)
    assert again.law.snapshot() == state.law.snapshot()
    assert again.capacity.snapshot() == state.capacity.snapshot()
    assert moved(again, second).law.snapshot() == other.law.snapshot()


def test_pools_have_no_law() -> None:
    for role in ("prefill", "decode"):
        state = new_state("w", Policy(workloads=(pool(role),)), 0)  # type: ignore[arg-type]
        assert lived(state, range(40), 200.0).law.snapshot() == []


@pytest.mark.parametrize("changes", [{"unit": "output_tokens"}, {"unit": "output_tokens", "v": 3}])
def test_a_capacity_in_the_tokens_of_an_earlier_release_starts_anew(changes: dict[str, object]) -> None:
    stored = snapshot_state(lived(new_state("w", DECLARED, 0), range(80), 200.0))
    older = msgspec.structs.replace(
        stored, unit="output_tokens", law=[], capacity=stored.capacity | {k: v for k, v in changes.items() if k == "v"}
    )
    state = restore_state("w", older, DECLARED)
    assert (state.unit, state.capacity.evidence) == ("requests", 0.0)
    assert middle(state) == pytest.approx(2.0, rel=0.02)


def test_a_capacity_in_requests_of_an_earlier_release_keeps_its_place_when_the_law_is_known() -> None:
    """Releases before had no law: their evidence is in requests/s."""
    state = new_state("w", DECLARED, 0)
    for k in range(200):
        slot = SlotEvidence((k + 1) * STEP_MS, 15.0, 9.0, 0.0, 0.0, 5, 0, 0, ttft_s=2.0, objective=0.99)
        state.capacity.observe(slot)
    again = moved(state, DECLARED)
    carried = place(again.capacity)
    assert carried == pytest.approx(9.0 / 5, rel=0.05)
    lived(again, range(200, 206), 200.0)
    assert again.law.limit() is not None
    assert place(again.capacity) == pytest.approx(carried, rel=0.04)
