"""Trust in a workload's forecasts: widened before demoted, demoted before planned by, tried again after a pause."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from model.forecast_trust import BASELINES, NETWORK, REACTIVE, ForecastTrust, Outlook

AHEAD = 4


def _run(
    trust: ForecastTrust, slots: range, miss_share: float, error: float = 0.5, seed: int = 1
) -> list[tuple[int, int]]:
    """Forecasts of 0 +- 1 whose truth lies outside in so many cases; returns (slot, tier) of every change."""
    draw, changes = random.Random(seed), []
    for slot in slots:
        value = 5.0 if draw.random() < miss_share else error
        moved = trust.observe(slot, value)
        if moved is not None:
            changes.append((slot, moved))
        trust.expect(Outlook(slot + AHEAD, -1.0, 0.0, 1.0, last=1.0 + error))
    return changes


def test_a_calibrated_forecast_is_left_alone() -> None:
    trust = ForecastTrust()
    assert _run(trust, range(2000), 0.08) == []
    assert trust.tier == NETWORK
    assert trust.factor < 1.15


def test_misses_widen_before_they_demote() -> None:
    trust = ForecastTrust()
    for slot in range(400):
        assert trust.observe(slot, 1.5 if slot % 4 == 0 else 0.5) is None
        trust.expect(Outlook(slot + AHEAD, -1.0, 0.0, 1.0, last=2.0))
    assert trust.factor > 2


def test_a_forecast_that_misses_on_is_demoted_step_by_step() -> None:
    trust = ForecastTrust()
    changes = _run(trust, range(200), 0.9)
    assert [tier for _, tier in changes] == [BASELINES, REACTIVE]
    assert trust.tier == REACTIVE


def test_a_median_worse_than_the_last_value_is_demoted() -> None:
    trust = ForecastTrust()
    for slot in range(120):
        trust.observe(slot, 10.0)
        trust.expect(Outlook(slot + AHEAD, 0.0, 2.0, 30.0, last=9.0))
    assert trust.tier > NETWORK


def test_a_trial_comes_after_a_pause_which_doubles_with_every_failure() -> None:
    trust = ForecastTrust()
    changes = _run(trust, range(6000), 0.9)
    trials = [slot for slot, tier in changes if tier == BASELINES and slot > 100]
    gaps = [b - a for a, b in pairwise(trials)]
    assert len(gaps) >= 2
    assert gaps == sorted(gaps)
    assert gaps[-1] > 1.5 * gaps[0]


def test_promotion_back_when_it_does_well_again() -> None:
    trust = ForecastTrust()
    _run(trust, range(200), 0.9)
    changes = _run(trust, range(200, 5000), 0.05)
    assert [tier for _, tier in changes] == [BASELINES, NETWORK]
    assert trust.tier == NETWORK


def test_a_slot_without_a_value_scores_nothing_and_keeps_nothing() -> None:
    trust = ForecastTrust()
    trust.expect(Outlook(4, -1.0, 0.0, 1.0, 0.0))
    trust.observe(4, None)
    trust.observe(5, 99.0)
    assert (trust.count, trust.waiting, trust.widening) == (0.0, [], 0.0)


def test_what_is_not_finite_is_not_waited_for() -> None:
    trust = ForecastTrust()
    trust.expect(Outlook(4, -1.0, float("nan"), 1.0, 0.0))
    assert trust.waiting == []


@pytest.mark.parametrize("miss_share", [0.05, 0.25, 0.9])
def test_a_restored_record_goes_on_as_if_nothing_had_happened(miss_share: float) -> None:
    whole, first = ForecastTrust(), ForecastTrust()
    _run(whole, range(300), miss_share)
    _run(first, range(150), miss_share)
    second = ForecastTrust.restore(json.loads(json.dumps(first.snapshot())))
    assert second == first
    draw = random.Random(1)
    for _ in range(150):
        draw.random()
    for trust in (first, second):
        state = draw.getstate()
        for slot in range(150, 300):
            trust.observe(slot, 5.0 if draw.random() < miss_share else 0.5)
            trust.expect(Outlook(slot + AHEAD, -1.0, 0.0, 1.0, last=1.5))
        draw.setstate(state)
    assert first == second == whole


def test_a_commit_without_a_record_starts_afresh() -> None:
    assert ForecastTrust.restore({}) == ForecastTrust()
