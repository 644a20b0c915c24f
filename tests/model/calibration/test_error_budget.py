"""Laws of the error budget and of the risk that follows it."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.calibration.budget import ErrorBudget

HOUR_MS = 3_600_000
slots = st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1)), min_size=1, max_size=30)


def budget(*seen: tuple[float, float]) -> ErrorBudget:
    b = ErrorBudget()
    for k, (requests, miss_ratio) in enumerate(seen):
        b.observe(15_000 * (k + 1), requests, miss_ratio)
    return b


def test_before_any_evidence_what_is_declared_holds() -> None:
    assert ErrorBudget().scaled_by_budget(0.01, 0.99) == pytest.approx(0.01)
    assert ErrorBudget().left_ratio(0.99) == pytest.approx(0.5)


def test_an_untouched_budget_allows_more_and_a_spent_one_less() -> None:
    assert budget((1e8, 0.0)).scaled_by_budget(0.001, 0.99) == pytest.approx(0.008, rel=0.01)
    assert budget((1e8, 0.0)).scaled_by_budget(0.6, 0.99) == pytest.approx(0.9)
    assert budget((1e8, 0.01)).scaled_by_budget(0.01, 0.99) == pytest.approx(0.005, rel=0.01)
    assert budget((1e7, 0.5)).scaled_by_budget(0.01, 0.99) == pytest.approx(0.005)
    assert budget((1e7, 0.0)).scaled_by_budget(0.95, 0.99) == 0.95
    dared = [budget((1e6, miss)).scaled_by_budget(0.01, 0.99) for miss in (0.0, 0.002, 0.004, 0.006, 0.01, 0.1)]
    assert dared == sorted(dared, reverse=True)
    assert dared[0] > 0.01 > dared[-2]


def test_quiet_hours_are_needed_before_more_is_dared() -> None:
    assert budget((1e3, 0.0)).scaled_by_budget(0.1, 0.99) == pytest.approx(0.1, rel=0.06)
    assert budget((2e4, 0.0)).scaled_by_budget(0.1, 0.99) < 0.21 < budget((4e5, 0.0)).scaled_by_budget(0.1, 0.99)


def test_doubts_are_tried_once_a_quarter_is_to_spare_and_not_while_misses_burn() -> None:
    assert ErrorBudget().exploration(0.5, 0.99) == 0.0
    assert budget((1e6, 0.005)).exploration(0.5, 0.99) == pytest.approx(0.0, abs=1e-9)
    assert budget((2e4, 0.0)).exploration(0.5, 0.99) == 0.0
    quiet = budget((4e4, 0.0))
    assert quiet.exploration(0.5, 0.99) == 0.5
    quiet.observe(HOUR_MS, 1e4, 0.05)
    assert quiet.exploration(0.5, 0.99) == 0.0


def test_misses_that_no_longer_burn_do_not_tighten_and_a_fresh_burn_ends_the_ease() -> None:
    burnt = budget((1e5, 0.1))
    assert burnt.scaled_by_budget(0.01, 0.99) < 0.01
    for minute in range(1, 181):
        burnt.observe(15_000 + minute * 60_000, 600.0, 0.0)
    assert burnt.left_ratio(0.99) < 0
    assert burnt.scaled_by_budget(0.01, 0.99) == pytest.approx(0.01)
    quiet = budget((1e6, 0.0))
    eased = quiet.scaled_by_budget(0.01, 0.99)
    quiet.observe(HOUR_MS, 1e4, 0.05)
    assert quiet.left_ratio(0.99) > 0.9
    assert quiet.scaled_by_budget(0.01, 0.99) == pytest.approx(0.01) != pytest.approx(eased)


def test_a_few_fresh_misses_end_the_ease_by_and_by() -> None:
    """One request missed of a slow service must not switch from one fleet to another."""
    dared = []
    for missed in range(40):
        b = budget((1e6, 0.0))
        b.observe(3 * HOUR_MS, 2_000.0, missed / 2_000.0)
        dared.append(b.scaled_by_budget(0.01, 0.99))
    assert dared == sorted(dared, reverse=True)
    assert dared[0] > 0.05
    assert dared[-1] == pytest.approx(0.01)
    assert max(before / after for before, after in pairwise(dared)) < 1.3


@settings(max_examples=60, deadline=None)
@given(slots, st.floats(0.001, 0.5), st.floats(0.9, 0.9999))
def test_more_misses_never_allow_more_risk(seen: list[tuple[float, float]], declared: float, objective: float) -> None:
    worse = [(requests, min(1.0, miss + 0.1)) for requests, miss in seen]
    assert budget(*worse).scaled_by_budget(declared, objective) <= budget(*seen).scaled_by_budget(
        declared, objective
    ) * (1 + 1e-12)
    assert 0 < budget(*seen).scaled_by_budget(declared, objective) <= max(declared, 0.9)


def test_old_misses_fade() -> None:
    b = budget((1e6, 0.02))
    before = b.left_ratio(0.99)
    for hour in range(1, 49):
        b.observe(15_000 + hour * HOUR_MS, 1e4, 0.0)
    assert before < 0 < b.left_ratio(0.99)


@pytest.mark.parametrize("bad", [(None, 0.1), (5.0, None), (float("nan"), 0.1), (5.0, float("inf")), (-1.0, 0.5)])
def test_what_was_not_observed_changes_nothing(bad: tuple[float | None, float | None]) -> None:
    b = ErrorBudget()
    b.observe(15_000, *bad)
    assert b.left_ratio(0.99) == ErrorBudget().left_ratio(0.99)
    b.observe(15_000, 1e6, 0.5)
    assert b.left_ratio(0.99) == ErrorBudget().left_ratio(0.99)


@settings(max_examples=30, deadline=None)
@given(slots, slots)
def test_a_restored_budget_goes_on_with_the_same_bits(
    first: list[tuple[float, float]], then: list[tuple[float, float]]
) -> None:
    straight = budget(*first, *then)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(budget(*first).snapshot()))
    resumed = ErrorBudget.restore(stored)
    for k, (requests, miss_ratio) in enumerate(then):
        resumed.observe(15_000 * (len(first) + k + 1), requests, miss_ratio)
    assert resumed.snapshot() == straight.snapshot()


def test_other_versions_are_refused_and_none_starts_anew() -> None:
    with pytest.raises(ValueError, match="version 3"):
        ErrorBudget.restore({"v": 3})
    first = ErrorBudget.restore({"v": 1, "requests": 1e6, "misses": 5e3, "last_ts_ms": 15_000})
    assert first.left_ratio(0.99) == budget((1e6, 0.005)).left_ratio(0.99)
    assert ErrorBudget.restore({}).snapshot() == ErrorBudget().snapshot()


@given(slots)
def test_what_was_asked_before_a_slot_does_not_count_after_it(seen: list[tuple[float, float]]) -> None:
    """What a plan asks of a budget is kept until the next slot."""
    asked = ErrorBudget()
    for k, (requests, miss_ratio) in enumerate(seen):
        asked.scaled_by_budget(0.01, 0.99)
        asked.observe(15_000 * (k + 1), requests, miss_ratio)
    assert (
        asked.scaled_by_budget(0.01, 0.99)
        == budget(*seen).scaled_by_budget(0.01, 0.99)
        == asked.scaled_by_budget(0.01, 0.99)
    )
