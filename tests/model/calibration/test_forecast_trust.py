"""Trust in a workload's forecasts: widened before demoted, demoted before planned by, tried again after a pause."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from model.calibration.trust import (
    BASELINES,
    NETWORK,
    REACTIVE,
    TIERS,
    ForecasterRecord,
    ForecastTrust,
    PendingForecast,
    tier_of,
)
from model.network.forecaster import baselines, combined, network_forecaster
from tests.model.batches import random_batch

AHEAD = 4
NET, POOL, NAIVE = "combined", "pool", "seasonal_naive"


def _asked(trust: ForecastTrust) -> str:
    """Who forecasts, as the engine asks."""
    return NET if trust.asks_network else POOL


def _run(
    trust: ForecastTrust, slots: range, miss_share: float, by: str | None = None, draw: random.Random | None = None
) -> list[tuple[int, int]]:
    """Forecasts of 0 +- 1 whose truth lies outside in so many cases; returns (slot, tier) of every change.

    They are made by whoever is asked, or by one forecaster throughout, which is what the baselines are to a workload
    that the network does not know well enough.
    """
    draw, changes = draw or random.Random(1), []
    for slot in slots:
        value = 5.0 if draw.random() < miss_share else 0.5
        changes += [(slot, tier) for tier in trust.observe(slot, value)]
        trust.expect(PendingForecast(slot + AHEAD, -1.0, 0.0, 1.0, last=1.5, source=by or _asked(trust)))
    return changes


def standing_of(trust: ForecastTrust, source: str) -> ForecasterRecord:
    (found,) = (known for known in trust.standings if known.source == source)
    return found


def test_a_calibrated_forecast_is_left_alone() -> None:
    trust = ForecastTrust()
    assert _run(trust, range(2000), 0.08) == []
    assert trust.trusts(NET)
    assert 1.0 <= trust.factor(NET) < 1.15


def test_misses_widen_before_they_demote() -> None:
    trust = ForecastTrust()
    for slot in range(400):
        assert trust.observe(slot, 1.5 if slot % 4 == 0 else 0.5) == []
        trust.expect(PendingForecast(slot + AHEAD, -1.0, 0.0, 1.0, last=2.0, source=NET))
    assert trust.factor(NET) > 2
    assert trust.factor(POOL) == 1.0


def test_a_forecast_that_misses_on_is_demoted_step_by_step() -> None:
    trust = ForecastTrust()
    changes = _run(trust, range(200), 0.9)
    assert [tier for _, tier in changes] == [BASELINES, REACTIVE]
    assert not trust.trusts(_asked(trust))


@pytest.mark.parametrize("by", [NET, POOL, NAIVE])
def test_nobody_pays_for_what_another_forecast(by: str) -> None:
    trust = ForecastTrust()
    changes = _run(trust, range(200), 0.9, by)
    assert not trust.trusts(by)
    assert trust.asks_network == (by != NET)
    for other in {NET, POOL, NAIVE} - {by}:
        assert trust.trusts(other)
        assert trust.factor(other) == 1.0
    assert [tier for _, tier in changes] == [tier_of(by) + 1]


def test_the_network_begins_with_a_clean_record_where_baselines_answered_before() -> None:
    trust = ForecastTrust()
    _run(trust, range(200), 0.45, POOL)
    before = standing_of(trust, POOL)
    assert before.misses > 0.35 * before.count  # which might have ended the network
    assert _run(trust, range(200, 400), 0.05, NET) == []
    assert standing_of(trust, NET).misses < 0.2 * standing_of(trust, NET).count


def test_a_median_worse_than_the_last_value_is_demoted() -> None:
    trust = ForecastTrust()
    for slot in range(120):
        trust.observe(slot, 10.0)
        trust.expect(PendingForecast(slot + AHEAD, 0.0, 2.0, 30.0, last=9.0, source=NET))
    assert not trust.trusts(NET)


def test_a_trial_comes_after_a_pause_which_doubles_with_every_failure() -> None:
    trust = ForecastTrust()
    changes = _run(trust, range(6000), 0.9)
    trials = [slot for slot, tier in changes if tier == NETWORK]
    gaps = [b - a for a, b in pairwise(trials)]
    assert len(gaps) >= 2
    assert gaps == sorted(gaps)
    assert gaps[-1] > 1.5 * gaps[0]


def test_promotion_back_when_it_does_well_again() -> None:
    trust = ForecastTrust()
    _run(trust, range(200), 0.9)
    changes = _run(trust, range(200, 5000), 0.05)
    assert [tier for _, tier in changes] == [NETWORK, BASELINES]
    assert trust.trusts(_asked(trust))


def test_a_slot_without_a_value_scores_nothing_and_keeps_nothing() -> None:
    trust = ForecastTrust()
    trust.expect(PendingForecast(4, -1.0, 0.0, 1.0, 0.0))
    trust.observe(4, None)
    trust.observe(5, 99.0)
    assert trust == ForecastTrust()


def test_what_is_not_finite_is_not_waited_for() -> None:
    trust = ForecastTrust()
    trust.expect(PendingForecast(4, -1.0, float("nan"), 1.0, 0.0))
    assert trust.waiting == []


@pytest.mark.parametrize("miss_share", [0.05, 0.25, 0.9])
def test_a_restored_record_goes_on_as_if_nothing_had_happened(miss_share: float) -> None:
    whole, first = ForecastTrust(), ForecastTrust()
    _run(whole, range(300), miss_share)
    _run(first, range(150), miss_share)
    second = ForecastTrust.restore(json.loads(json.dumps(first.snapshot())))
    assert second == first
    draws = random.Random(1), random.Random(1)
    for trust, draw in zip((first, second), draws, strict=True):
        for _ in range(150):
            draw.random()
        _run(trust, range(150, 300), miss_share, draw=draw)
    assert first == second == whole


def test_a_commit_without_a_record_starts_afresh() -> None:
    assert ForecastTrust.restore({}) == ForecastTrust()


def test_one_record_for_whoever_answered_is_not_laid_at_anybodys_door() -> None:
    before = {"tier": 1, "widening": 0.5, "count": 40.0, "misses": 30.0, "error": 9.0, "naive_error": 3.0}
    assert ForecastTrust.restore(before | {"changed": 9, "pause": 960, "waiting": []}) == ForecastTrust()


@pytest.mark.parametrize("length", [8, 128])
def test_every_forecaster_that_serves_is_known_for_what_it_is(length: int) -> None:
    batch, network = random_batch(2, 3, length=length, num_indicators=1), network_forecaster()
    for forecaster, tier in ((baselines(), BASELINES), (network, NETWORK), (combined(network), NETWORK)):
        if length > forecaster.min_context:
            sources = forecaster.forecast(batch, 4, 8).sources
            assert {tier_of(source) for source in sources} == {tier}, (TIERS[tier], sources)
