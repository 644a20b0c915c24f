"""Counters that stall, jump or contradict each other, wrong declarations, slow devices: what the law makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.capacity.law import EngineLaw, EngineSlot
from tests.model.capacity.test_engine_law import ANSWER, OFF_BY, PROMPT, TPOT_S, Costs, Engines, drawn, error, told

STEP_S = 15.0
Fault = Callable[[EngineSlot, float], EngineSlot]
# What becomes of a slot, and how the law says so; None: it has no word for it.
FAULTS: dict[str, tuple[Fault, str | None]] = {
    "stalled tokens": (lambda s, _: s._replace(prompt_rate=0.0, output_rate=0.0), "requests_without_tokens"),
    "stalled prompts": (lambda s, _: s._replace(prompt_rate=0.0, arrival_rate=9.0), "requests_without_tokens"),
    "prompts jump": (lambda s, x: s._replace(prompt_rate=1e4 * (1.0 + x) * s.prompt_rate), "more_work_than_time"),
    "answers jump": (lambda s, x: s._replace(output_rate=1e4 * (1.0 + x) * s.output_rate), "more_work_than_time"),
    "no requests": (lambda s, _: s._replace(arrival_rate=0.0, running=0.0, waiting=0.0), "tokens_without_requests"),
    "cache above one": (lambda s, x: s._replace(cache_ratio=1.01 + x), None),
    "reset": (lambda s, _: s._replace(prompt_rate=math.nan, output_rate=math.nan, arrival_rate=math.nan), None),
    "no gauges": (lambda s, _: s._replace(running=math.nan, waiting=math.nan), None),
}  # fmt: skip


@cache
def throttled(seed: int, slow: float) -> tuple[EngineSlot, ...]:
    """50 minutes under a load that goes up and down; from 20 to 35 min iterations take `slow` times as long."""
    costs = drawn(seed)
    engines, carried = Engines(costs, seed), 4 * costs.carried(PROMPT, ANSWER)
    slots = []
    for k in range(200):
        engines.costs = slowed(costs, slow) if 80 <= k < 140 else costs
        slots.append(engines.slot((0.4 + 0.15 * math.sin(k / 4.0)) * carried, STEP_S))
    return tuple(slots)


def slowed(costs: Costs, factor: float) -> Costs:
    seconds = [factor * cost for cost in (costs.base, costs.prefill, costs.sequence, costs.cache)]
    return Costs(*seconds, costs.cache_tokens)


def observed(law: EngineLaw, slots: Sequence[EngineSlot]) -> EngineLaw:
    for slot in slots:
        law.observe(slot)
    return law


def known() -> EngineLaw:
    return observed(EngineLaw(TPOT_S, drawn(0).carried(PROMPT, ANSWER), OFF_BY), told(0, 10.0))


def rate(law: EngineLaw) -> float:
    limit = law.limit()
    assert limit is not None
    return limit.rate


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FAULTS)), st.integers(1, 80), st.floats(0.0, 1e4))
def test_what_counters_tell_that_cannot_be_moves_nothing(name: str, slots: int, much: float) -> None:
    """For 20 minutes at most. Costs and mix stay, and afterwards the law learns on."""
    fault, contradiction = FAULTS[name]
    law = known()
    before, costs = rate(law), law.costs.tolist()
    sound = told(0, 10.0)
    observed(law, [fault(sound[k % 40], much) for k in range(slots)])
    assert rate(law) == pytest.approx(before, rel=1e-3)
    assert law.costs.tolist() == costs
    assert law.contradiction == (contradiction if slots * STEP_S > 600.0 * math.log(2.0) + STEP_S else None) or (
        abs(slots * STEP_S - 600.0 * math.log(2.0)) <= 2.0 * STEP_S
    )
    observed(law, sound)
    assert law.contradiction is None or slots > 60
    assert rate(law) == pytest.approx(rate(observed(known(), sound)), rel=0.05)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from((0.0, 1e-9, 30.0, math.inf, -1.0)), st.integers(0, 3))
def test_a_time_between_tokens_that_cannot_be_is_not_believed(gap_s: float, seed: int) -> None:
    """Zero, or milliseconds where seconds belong: the law is that of an engine which does not tell it."""
    costs = drawn(seed)
    declared = costs.carried(PROMPT, ANSWER)
    laws = [
        observed(EngineLaw(TPOT_S, declared, OFF_BY), [slot._replace(inter_token_s=one) for slot in told(seed, 10.0)])
        for one in (gap_s, math.nan)
    ]
    assert laws[0].snapshot() == pytest.approx(laws[1].snapshot(), nan_ok=True)


@pytest.mark.parametrize(("off", "left"), [(0.25, 0.1), (4.0, 1.0)])
def test_of_a_declared_capacity_that_is_off_by_four_little_is_left(off: float, left: float) -> None:
    """Half an hour without a missed request. Of a figure that is too high the rest is for misses to correct."""
    for seed in range(3):
        costs = drawn(seed)
        law = observed(EngineLaw(TPOT_S, off * costs.carried(PROMPT, ANSWER), OFF_BY), told(seed, 30.0))
        assert abs(error(law, costs)) < left


@pytest.mark.parametrize("seed", range(3))
def test_a_device_that_is_throttled_is_followed_within_five_minutes_and_so_is_its_recovery(seed: int) -> None:
    costs, slots = drawn(seed), throttled(seed, 1.4)
    law = observed(EngineLaw(TPOT_S, costs.carried(PROMPT, ANSWER), OFF_BY), slots[:80])
    before = error(law, costs)
    observed(law, slots[80:100])
    assert abs(error(law, slowed(costs, 1.4))) < 0.1
    observed(law, slots[100:160])
    assert abs(error(law, costs) - before) < 0.1


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(("arrival_rate", "prompt_rate", "output_rate", "running", "waiting", "cache_ratio")))
def test_engines_that_export_a_part_have_no_law_and_capacity_goes_by_requests(name: str) -> None:
    slots = [slot._replace(**{name: math.nan}) for slot in told(0, 10.0)]
    law = observed(EngineLaw(TPOT_S, 2.0, OFF_BY), slots)
    assert (law.limit(), law.busy_replicas, law.tested_ratio, law.contradiction) == (None, 0.0, 1.0, None)


def test_a_law_of_an_earlier_release_is_restored() -> None:
    law = known()
    earlier = law.snapshot()[:-4]
    again = EngineLaw.restore(earlier, TPOT_S, drawn(0).carried(PROMPT, ANSWER), OFF_BY)
    assert again.limit() == law.limit()
    assert again.contradiction is None
