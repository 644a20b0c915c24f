"""What the page keeps: the same whatever the order of topics, bounded, and blind to what it cannot read."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decide.records import encode_decision
from agents.planning.codec import encode_plan
from infra.page import memory as h
from infra.page.memory import (
    RETIRED_AFTER_STEPS,
    SLOTS,
    STALE_AFTER_STEPS,
    TURNS,
    FleetMemory,
    LoadForecast,
    SlotRing,
    WorkloadMemory,
    attainment,
    short_key,
)
from infra.page.skill import LEVELS, skill
from infra.page.views import fleet_row, workload_view
from tests.infra.page.fleet_records import STEP_MS, TOPICS, decision, forecast, load_at, name, plan, step_records


def memory(max_workloads: int = 50) -> FleetMemory:
    return FleetMemory(TOPICS, STEP_MS, max_workloads)


def fold_all(kept: FleetMemory, num_workloads: int, steps: range) -> None:
    for step in steps:
        for topic, value in step_records(num_workloads, step):
            kept.fold(topic, value)


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(-1e6, 1e6, width=32)), max_size=60), st.integers(1, 12))
def test_a_ring_holds_the_newest_slot_of_each_place(writes: list[tuple[int, float]], size: int) -> None:
    ring = SlotRing(size, 1)
    places: dict[int, tuple[int, float]] = {}
    for slot, value in writes:
        ring.put(slot, (value,))
        if slot >= places.get(slot % size, (-1, 0.0))[0]:
            places[slot % size] = slot, value
    held = dict(places.values())
    read = ring.read(0, 60)[:, 0]
    for slot in range(61):
        expected = held.get(slot, float("nan"))
        assert np.array_equal(read[slot], expected, equal_nan=True)
    assert ring.first_slot() == (min(held) if held else None)


@settings(max_examples=15)
@given(st.integers(0, 2**31))
def test_the_order_between_topics_changes_nothing(seed: int) -> None:
    # Per topic the order is the log's; between topics a reader may meet any.
    logs: dict[str, list[bytes]] = {}
    for step in range(30):
        for topic, value in step_records(2, step):
            logs.setdefault(topic, []).append(value)
    straight, shuffled = memory(), memory()
    for topic, values in logs.items():
        for value in values:
            straight.fold(topic, value)
    order = [topic for topic, values in logs.items() for _ in values]
    random.Random(seed).shuffle(order)
    reading = {topic: iter(values) for topic, values in logs.items()}
    for topic in order:
        shuffled.fold(topic, next(reading[topic]))
    for n in range(2):
        one, other = straight.get(name(n)), shuffled.get(name(n))
        assert one is not None
        assert other is not None
        assert workload_view(name(n), one) == workload_view(name(n), other)
        assert fleet_row(name(n), one) == fleet_row(name(n), other)


def test_a_decision_published_again_changes_nothing() -> None:
    kept = memory()
    for step in (1, 2):
        kept.fold(TOPICS.decisions, encode_decision(decision("w", step)))
    version = kept.version
    for step in (2, 1):
        kept.fold(TOPICS.decisions, encode_decision(decision("w", step)))
    assert kept.version == version
    history = kept.get("w")
    assert history is not None
    assert sum(turn.reasons.total() for turn in history.turns) == 2


def test_memory_is_bounded_in_workloads_slots_and_turns() -> None:
    kept = memory(max_workloads=3)
    fold_all(kept, 5, range(3))
    assert len(kept) == 3
    assert kept.refused.keys() == {name(3), name(4)}
    fold_all(kept, 12, range(3, 5))
    assert (len(kept), len(kept.refused)) == (3, 9), "all are counted, also several times as many as are kept"
    history = WorkloadMemory(STEP_MS)
    for step in range(3 * SLOTS):
        history.decide(decision("w", step, reason=f"r{step % 5}", action="up" if step % 2 else "hold"))
    assert len(history.turns) == TURNS
    window = history.window()
    assert window is not None
    assert window[1] - window[0] + 1 == SLOTS
    assert len(workload_view("w", history)["history"]["ts_ms"]) == SLOTS


def test_who_found_no_room_is_counted_for_as_long_as_it_is_there() -> None:
    kept = memory(max_workloads=3)

    def decide(step: int, *workloads: int, action: str = "hold") -> None:
        for n in workloads:
            kept.fold(TOPICS.decisions, encode_decision(decision(name(n), step, action=action)))
        kept.sweep()

    decide(1, 0, 1, 2, 3, 4, 5)
    assert kept.refused.keys() == {name(3), name(4), name(5)}
    decide(2, 0, 1, 2, 3, 5)
    decide(2, 4, action="retired")
    assert kept.refused.keys() == {name(3), name(5)}
    decide(3 + STALE_AFTER_STEPS, 0, 1, 2, 3)
    assert kept.refused.keys() == {name(3)}, "silent for long"
    # Those shown retire; the other goes on, and finds room.
    decide(4 + STALE_AFTER_STEPS, 0, 1, 2, action="retired")
    for later in range(5, 7):
        decide(later + STALE_AFTER_STEPS + RETIRED_AFTER_STEPS, 3)
    assert not kept.refused
    assert kept.get(name(3)) is not None


def test_a_capacity_in_tokens_is_not_drawn_among_requests() -> None:
    history = WorkloadMemory(STEP_MS)
    for step, indicator in enumerate(["request.arrival_rate", "request.output_token_rate"]):
        made = decision("w", step)
        told = msgspec.structs.replace(made.forecast, indicator=indicator)
        history.decide(msgspec.structs.replace(made, forecast=told))
    view = workload_view("w", history)
    first, second = view["history"]["capacity_rps"]
    assert (first is None, second is None) == (False, True)
    assert [turn["indicator"] for turn in view["turns"]] == ["request.output_token_rate"], "both are one turn"


def test_holds_that_leave_the_same_count_are_one_turn_that_names_all_reasons() -> None:
    history = WorkloadMemory(STEP_MS)
    for step, reason in enumerate(["stabilization", "step_limit", "stabilization"]):
        history.decide(decision("w", step, reason=reason))
    (turn,) = workload_view("w", history)["turns"]
    assert turn["count"] == 3
    assert turn["reasons"] == {"stabilization": 2, "step_limit": 1}
    assert turn["until_ts_ms"] - turn["from_ts_ms"] == 2 * STEP_MS


def test_turns_that_are_over_are_kept_in_few_bytes_and_told_as_before() -> None:
    history, published = WorkloadMemory(STEP_MS), []
    for step in range(TURNS):
        published.append(decision("w", step, reason="step_limit", action="up" if step % 2 else "hold"))
        history.decide(published[-1])
    assert [turn.decision for turn in history.turns] == published
    assert sum(len(kept) for turn in history.turns if isinstance(kept := turn._kept, bytes)) < 1_500 * TURNS
    told = workload_view("w", history)["turns"]
    assert [turn["decision_id"] for turn in told] == [d.decision_id for d in reversed(published)]


def test_workloads_leave_when_retired_or_silent_and_readers_are_told() -> None:
    kept = memory()
    for workload in ("stays", "retires", "vanishes"):
        kept.fold(TOPICS.decisions, encode_decision(decision(workload, 0)))
    kept.fold(TOPICS.decisions, encode_decision(decision("retires", 1, action="retired", reason="retired")))
    before = kept.version
    kept.fold(TOPICS.decisions, encode_decision(decision("stays", RETIRED_AFTER_STEPS + 2)))
    kept.sweep()
    assert kept.get("retires") is None
    assert kept.get("vanishes") is not None
    kept.fold(TOPICS.decisions, encode_decision(decision("stays", STALE_AFTER_STEPS + 1)))
    kept.sweep()
    assert set(kept.removals_since(before)) == {short_key("retires"), short_key("vanishes")}
    kept.fold(TOPICS.decisions, encode_decision(decision("vanishes", STALE_AFTER_STEPS + 2)))
    assert kept.removals_since(before) == [short_key("retires")]
    assert kept.by_key(short_key("vanishes")) == "vanishes"


@pytest.mark.parametrize(
    "value", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b'{"workload":3}', b'{"workload":"\\ud800"}', b"HPL1nonsense"]
)
@pytest.mark.parametrize("topic", [TOPICS.decisions, TOPICS.forecasts, TOPICS.plans])
def test_what_cannot_be_read_is_counted_and_passed_over(topic: str, value: bytes) -> None:
    kept = memory()
    kept.fold(topic, value)
    assert kept.unreadable == 1
    assert kept.version == 0


@given(st.binary(max_size=300))
def test_no_bytes_stop_the_page(value: bytes) -> None:
    kept = memory()
    for topic in (TOPICS.decisions, TOPICS.forecasts, TOPICS.plans):
        kept.fold(topic, value)


@pytest.mark.parametrize(
    "changes",
    [
        {"targets": {}},
        {"targets": {"request.arrival_rate": ((1.0, 2.0),)}},
        {"quantile_levels": (0.5,)},
        {"step_ms": STEP_MS + 1},
    ],
)
def test_a_forecast_that_cannot_be_drawn_is_left_out(changes: dict[str, object]) -> None:
    record = msgspec.structs.replace(forecast("w", 1), **changes)
    history = WorkloadMemory(STEP_MS)
    assert not history.forecast(msgspec.json.decode(msgspec.json.encode(record), type=LoadForecast))
    assert history.fan is None


def test_attainment_is_weighted_by_load() -> None:
    history = WorkloadMemory(STEP_MS)
    for step, (load, miss) in enumerate([(9.0, 0.0), (1.0, 0.5), (5.0, None), (None, 1.0)]):
        d = decision("w", step)
        history.decide(msgspec.structs.replace(d, inputs=msgspec.structs.replace(d.inputs, arrival_rate=load)))
        if miss is not None:
            history.observe_misses(d.origin_ts_ms, miss)
    window = history.window()
    assert window is not None
    assert attainment(history.ring.read(*window)) == pytest.approx(1 - 0.5 / 10)
    assert attainment(np.full((3, h.P_MISS + 2), np.nan)) is None


def test_skill_agrees_with_scores_computed_one_by_one() -> None:
    rng = np.random.default_rng(7)
    loads = rng.gamma(5.0, 2.0, 120)
    loads[rng.random(120) < 0.1] = np.nan
    quantiles = np.sort(rng.gamma(5.0, 2.0, (120, len(LEVELS))), axis=1)
    quantiles[rng.random(120) < 0.1] = np.nan
    for ahead in (1, 7, 16):
        scores: list[tuple[float, float, float, bool, bool]] = []
        for t in range(ahead, 120):
            q, y, last = quantiles[t], loads[t], loads[t - ahead]
            if np.isnan(q).any() or np.isnan(y) or np.isnan(last):
                continue
            pinball = sum(
                (tau * (y - v)) if y >= v else ((1 - tau) * (v - y)) for tau, v in zip(LEVELS, q, strict=True)
            )
            scores.append((abs(y - q[2]), abs(y - last), pinball / 5, q[1] <= y <= q[3], q[0] <= y <= q[4]))
        told = skill(loads, quantiles, ahead)
        assert told.scores == len(scores)
        means = np.mean(np.array(scores, float), axis=0)
        got = (told.mae, told.last_value_mae, told.pinball, told.coverage_50, told.coverage_90)
        assert got == pytest.approx(tuple(means))


def test_skill_says_nothing_on_little() -> None:
    told = skill(np.ones(10), np.ones((10, 5)), 1)
    assert (told.scores, told.mae, told.coverage_90) == (9, None, None)


def test_the_view_scores_each_forecast_against_the_slot_it_was_about() -> None:
    kept = memory()
    fold_all(kept, 1, range(80))
    history = kept.get(name(0))
    assert history is not None
    view = workload_view(name(0), history)
    assert [s["steps_ahead"] for s in view["skill"]] == [1, 8, 16]
    assert [s["scores"] for s in view["skill"]] == [79, 72, 64]
    one = view["skill"][0]
    errors = [abs(load_at(0, t) - (load_at(0, t - 1) * 0.9 + 0.8)) for t in range(1, 80)]
    assert one["mae"] == pytest.approx(np.mean(errors), rel=1e-3)


def test_slo_misses_come_from_the_plans() -> None:
    kept = memory()
    kept.fold(TOPICS.plans, encode_plan(plan({"w": 0.25}, 3)))
    assert len(kept) == 0
    kept.fold(TOPICS.decisions, encode_decision(decision("w", 3)))
    history = kept.get("w")
    assert history is not None
    assert fleet_row("w", history)["attainment"] == 0.75
