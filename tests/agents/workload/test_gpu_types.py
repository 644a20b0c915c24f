"""What a replica carries, draws and takes to start is learned for each GPU that a workload runs on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.policy import Policy, Slo, SloClass
from agents.workload.state import LearnedState, new_state
from infra.lab.capacity.law_errors import REPLICAS, Case, slots_of
from infra.simulator.arrivals import Arrivals, Tokens
from infra.simulator.ledger import Objective
from infra.simulator.profiles import named_profile
from model.capacity.evidence import SlotEvidence
from model.capacity.law import EngineSlot
from model.capacity.posterior import CapacityPosterior
from streams.records.facts import ClassCounts, SloCounts
from streams.runtime.commits import encode_body
from tests.agents.planning.plan_samples import policy, spec

TYPES = ("a100", "h100", "l40s", "mi300x", "b200", "gaudi3", "t4")


def declared(gpu_type: str, **changes: Any) -> Policy:
    return policy(spec("w", gpu_type=gpu_type, **({"capacity_rps": 3.0, "lead_time_s": 90.0} | changes)))


def taught(capacity: CapacityPosterior, rate: float, begin_slot: int, slots: int = 8) -> None:
    for k in range(begin_slot, begin_slot + slots):
        capacity.observe(SlotEvidence(15_000 * (k + 1), 15.0, rate, 0.0, 0.0, 1, 0, 0, ttft_s=2.0, objective=0.99))


def lived(state: LearnedState, slots: int) -> None:
    """Slots that teach the costs of an iteration."""
    for k in range(slots):
        state.law.observe(EngineSlot(15.0, 2, 4.0, 3200.0, 800.0 + k, 24.0, 0.0, 0.05, 0.03))


def moved(state: LearnedState, now: Policy) -> LearnedState:
    """After a restart, by way of the bytes of a commit record."""
    stored = msgspec.msgpack.decode(encode_body(snapshot_state(state)), type=StateSnapshot)
    return restore_state("w", stored, now)


def of_a_replica(state: LearnedState) -> tuple[Any, ...]:
    return state.capacity.snapshot(), state.lead.snapshot(), state.power_w, state.unit, state.law.snapshot()


def test_on_another_gpu_a_replica_is_learned_anew_and_on_the_first_again_it_is_known() -> None:
    state = new_state("w", declared("a100"), 0)
    taught(state.capacity, 2.5, 0)
    state.lead.update(200.0)
    state.power_w, state.last_proposed = 700.0, 4
    lived(state, 40)
    state.budget.observe(9_000_000, 100.0, 0.5, 0.99, 0.6)
    known = of_a_replica(state)

    other = moved(state, declared("h100", capacity_rps=9.0, lead_time_s=40.0))
    assert other.capacity.evidence == 0.0
    assert float(other.capacity.quantiles((0.5,))[0]) == pytest.approx(9.0, rel=0.02)
    assert other.lead.quantile(0.5) == pytest.approx(40.0, rel=0.01)
    assert (other.power_w, other.law.snapshot(), other.gpu_type) == (None, [], "h100")
    assert other.budget.snapshot() == state.budget.snapshot(), "what users saw is of the service"
    assert other.last_proposed == 4

    taught(other.capacity, 7.0, 20)
    again = moved(other, declared("a100"))
    assert of_a_replica(again) == known
    assert moved(again, declared("h100", capacity_rps=9.0)).capacity.snapshot() == other.capacity.snapshot()


def test_a_type_declared_for_the_first_time_is_what_there_was() -> None:
    state = new_state("w", declared(""), 0)
    taught(state.capacity, 2.5, 0)
    named = moved(state, declared("a100"))
    assert of_a_replica(named) == of_a_replica(state)
    assert named.gpu_type == "a100"
    silent = moved(named, declared(""))
    assert of_a_replica(silent) == of_a_replica(state)
    assert silent.gpu_type == "a100", "who falls silent has not moved"
    assert moved(silent, declared("h100")).capacity.evidence == 0.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 3)), min_size=1, max_size=14))
def test_each_of_the_last_types_is_found_as_it_was_left(stays: list[tuple[str, int]]) -> None:
    """Against a dictionary that keeps the four which were left last."""
    state, left, slot = new_state("w", declared(stays[0][0]), 0), dict[str, tuple[Any, ...]](), 0
    for gpu_type, slots in stays:
        if gpu_type != state.gpu_type:
            left.pop(state.gpu_type, None)
            left[state.gpu_type] = of_a_replica(state)
            expected = left.pop(gpu_type, None)
            left = dict(list(left.items())[-4:])
            state = moved(state, declared(gpu_type))
            nothing = of_a_replica(new_state("w", declared(gpu_type), 0))
            assert of_a_replica(state) == (nothing if expected is None else expected)
        assert [gpu.gpu_type for gpu in state.elsewhere] == list(left)
        taught(state.capacity, 2.0, slot, slots)
        state.lead.update(100.0 + slot)
        lived(state, 6 * slots)
        slot += slots + 3


def test_classes_are_learned_anew_too_and_keep_their_budgets() -> None:
    slo = Slo(classes=(SloClass("chat", 2.0, 0.2, 0.99), SloClass("bulk", 9.0, 0.5, 0.9)))
    state = new_state("w", declared("a100", slo=slo), 0)
    for k in range(1, 6):
        told = [SloCounts("engine", 15_000 * k, (ClassCounts("chat", 90.0 * k, 100.0 * k),))]
        slot = SlotEvidence(15_000 * k, 15.0, 6.6, 0.0, 0.0, 3, 0, 0, ttft_s=2.0, objective=0.99)
        state.classes.learn(state.spec, told, slot)
    before = state.classes.states["chat"]
    assert before.capacity.evidence > 0.0
    other = moved(state, declared("h100", slo=slo)).classes.states["chat"]
    assert other.capacity.evidence == 0.0
    assert other.budget.snapshot() == before.budget.snapshot()
    there = moved(moved(state, declared("h100", slo=slo)), declared("a100", slo=slo))
    assert there.classes.snapshot() == state.classes.snapshot()


def measured_on(profile: str, declared_rps: float | None) -> tuple[LearnedState, Case]:
    """A service that has run for ten minutes on four simulated replicas."""
    rng = np.random.default_rng(7)
    lengths = Tokens(900.0, 0.6).draw(rng, 2_000), Tokens(200.0, 0.6).draw(rng, 2_000)
    case = Case("w", named_profile(profile), Objective(5.0, 0.15), Arrivals(np.zeros(2_000), *lengths))
    slo = Slo(ttft_s=5.0, tpot_s=0.15)
    state = new_state("w", declared("a100-80gb", capacity_rps=declared_rps, slo=slo), 0)
    load = case.load(0.55 * REPLICAS * case.carried_rps(1.0, 1.0), 1)
    for slot, _ in slots_of(case, load):
        state.law.observe(slot)
    limit = state.law.limit()
    assert limit is not None
    state.capacity.revalue(limit.rate, 0.0, state.law.tested_ratio)
    taught(state.capacity, 0.8 * limit.rate, 0, 40)
    return state, case


def test_on_another_gpu_a_replica_begins_with_what_data_sheets_make_of_the_former() -> None:
    """Llama-2 70B moves from A100 to H100, whose costs were fitted to measurements; no capacity is declared."""
    state, case = measured_on("llama2-70b-a100-tp8", 2.0)
    new = declared("h100", capacity_rps=None, slo=state.spec.slo)
    other = moved(state, new)
    true_rps = replace(case, profile=named_profile("llama2-70b-h100-tp8")).carried_rps(1.0, 1.0)
    low, first_rps, high = other.capacity.quantiles((0.05, 0.5, 0.95)).tolist()
    former_rps = float(state.capacity.quantiles((0.5,))[0])
    assert abs(first_rps / true_rps - 1.0) < 0.35
    assert former_rps / true_rps - 1.0 < -0.35, "what the former GPU carried is too little by half"
    assert low < true_rps < high
    again = moved(other, new)
    assert again.capacity.quantiles((0.5,)).tolist() == other.capacity.quantiles((0.5,)).tolist()
    assert encode_body(snapshot_state(again)) == encode_body(snapshot_state(other))


@pytest.mark.parametrize(("name", "capacity_rps"), [("our-new-cards", None), ("h100", 9.0)])
def test_without_a_data_sheet_or_with_a_declared_capacity_nothing_is_scaled(
    name: str, capacity_rps: float | None
) -> None:
    state, _ = measured_on("llama2-70b-a100-tp8", 2.0)
    other = moved(state, declared(name, capacity_rps=capacity_rps, slo=state.spec.slo))
    assert other.capacity.known == (capacity_rps is not None)
    if capacity_rps is not None:
        assert float(other.capacity.quantiles((0.5,))[0]) == pytest.approx(capacity_rps, rel=0.02)
