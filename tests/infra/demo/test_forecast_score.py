"""Scores of published forecasts, against sums written out one by one."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.records import ForecastRecord
from infra.demo.scores import Scorecard, score_of

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
STEP_MS = 1000


def forecast(
    origin_slot: int, rows: list[list[float]], source: str = "ridge", name: str = "gpu.power_w"
) -> ForecastRecord:
    targets = {name: tuple(map(tuple, rows))}
    origin_ts_ms = (origin_slot + 1) * STEP_MS
    return ForecastRecord(f"f{origin_slot}", "w", origin_ts_ms, STEP_MS, source, "m", LEVELS, targets, {}, 1.0)  # type: ignore[arg-type]


def band(low: float, middle: float, high: float) -> list[float]:
    return [low, (low + middle) / 2, middle, (middle + high) / 2, high]


def pinball(quantiles: list[float], value: float) -> float:
    losses = [q * (value - f) if value >= f else (1 - q) * (f - value) for q, f in zip(LEVELS, quantiles, strict=True)]
    return sum(losses) / len(losses)


def sample_quantile(numbers: list[float], q: float) -> float:
    """R type 6, written from its definition."""
    ordered = sorted(numbers)
    position = min(max(q * (len(ordered) + 1), 1), len(ordered))
    below = ordered[math.floor(position) - 1]
    above = ordered[math.ceil(position) - 1]
    return below + (above - below) * (position - math.floor(position))


numbers = st.floats(0, 100).map(lambda x: round(x, 3))
holed = st.one_of(st.none(), numbers)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(numbers, numbers, numbers).map(sorted), min_size=1, max_size=5),
    st.lists(holed, min_size=5, max_size=5),
    st.lists(holed, min_size=1, max_size=40),
)
def test_the_sums_are_those_of_the_definition(
    bands: list[list[float]], ahead: list[float | None], past: list[float | None]
) -> None:
    quantiles = [band(*b) for b in bands]
    ahead = ahead[: len(quantiles)]
    as_array = [np.array([math.nan if x is None else x for x in column]) for column in (ahead, past)]
    sums = score_of(LEVELS, np.array(quantiles), *as_array)

    last = next((x for x in reversed(past) if x is not None), None)
    seen = [(h, x) for h, x in enumerate(ahead) if x is not None]
    assert sums.scores == len(seen)
    assert sums.forecasts == (1 if seen else 0)
    assert sums.first_scores == (ahead[0] is not None)
    inside = [h for h, x in seen if quantiles[h][0] - 5e-6 * x <= x <= quantiles[h][-1] + 5e-6 * x]
    assert sums.inside == len(inside)
    assert sums.first_inside == (0 in inside)
    if last is None:
        assert astuple(sums)[5:] == (0, 0, 0, 0)
        return
    assert sums.error == pytest.approx(sum(abs(quantiles[h][2] - x) for h, x in seen))
    assert sums.last_error == pytest.approx(sum(abs(last - x) for _, x in seen))
    own = naive = 0.0
    for h, x in seen:
        pairs = zip(past, past[h + 1 :], strict=False)
        changes = [b - a for a, b in pairs if a is not None and b is not None]
        if len(changes) >= 16:
            own += pinball(quantiles[h], x)
            naive += pinball([last + sample_quantile(changes, q) for q in LEVELS], x)
    assert (sums.pinball, sums.last_pinball) == pytest.approx((own, naive))


def test_rounding_to_six_digits_is_not_a_miss_but_a_real_difference_is() -> None:
    exact = 0.22887012
    published = [[0.228870] * 5]
    past = np.array([exact])
    assert score_of(LEVELS, np.array(published), np.array([exact]), past).inside == 1
    assert score_of(LEVELS, np.array(published), np.array([0.228875]), past).inside == 0


def test_a_forecast_is_settled_only_when_its_last_step_is_closed() -> None:
    card = Scorecard(STEP_MS, 4)
    card.observe(10, {"gpu.power_w": 5.0})
    card.offer(forecast(10, [band(4, 5, 6), band(4, 5, 6)]))
    card.observe(11, {"gpu.power_w": 9.0})
    card.settle(11)
    assert card.indicators == {}
    card.observe(12, {"gpu.power_w": 5.5})
    card.settle(12)
    score = card.indicators["gpu.power_w"].total
    assert (score.forecasts, score.scores, score.inside, score.first_scores, score.first_inside) == (1, 2, 1, 1, 0)
    assert score.mae_ratio_to_last_value == pytest.approx(1.0)
    example = card.indicators["gpu.power_w"].example
    assert example is not None
    assert example.observed == (9.0, 5.5)


def test_what_the_recording_ends_before_is_scored_with_what_came() -> None:
    card = Scorecard(STEP_MS, 4)
    card.observe(10, {"gpu.power_w": 5.0})
    card.offer(forecast(10, [band(4, 5, 6)] * 3))
    card.observe(11, {"gpu.power_w": 5.0})
    card.settle(None)
    score = card.indicators["gpu.power_w"].total
    assert (score.forecasts, score.scores, score.coverage_90) == (1, 1, 1.0)
    assert score.mae_ratio_to_last_value is None


def test_repeats_count_once_and_the_first_word_on_a_slot_stands() -> None:
    card = Scorecard(STEP_MS, 4)
    card.observe(10, {"gpu.power_w": 5.0})
    for _ in range(2):
        card.offer(forecast(10, [band(4, 5, 6)]))
    card.observe(11, {"gpu.power_w": 5.0})
    card.observe(11, {"gpu.power_w": 50.0})
    card.settle(11)
    card.offer(forecast(10, [band(4, 5, 6)]))
    card.settle(None)
    assert card.forecasts_by_source == {"ridge": 1}
    assert card.indicators["gpu.power_w"].total.inside == card.indicators["gpu.power_w"].total.scores == 1


def test_sources_add_up_and_the_full_context_starts_with_its_last_step() -> None:
    card = Scorecard(STEP_MS, 3)
    for slot in range(10, 16):
        card.observe(slot, {"gpu.power_w": float(slot)})
        card.offer(forecast(slot, [band(0, 10, 13)], "ridge" if slot % 2 else "seasonal_naive"))
        card.settle(slot)
    card.settle(None)
    score = card.indicators["gpu.power_w"]
    assert {source: (s.forecasts, s.inside) for source, s in score.by_source.items()} == {
        "seasonal_naive": (3, 2), "ridge": (2, 1)
    }  # fmt: skip
    assert (score.total.forecasts, score.total.inside) == (5, 3)
    # Origins 12, 13 and 14 have three slots behind them and a value ahead.
    assert (score.full_context.forecasts, score.full_context.inside) == (3, 1)
    assert score.total.coverage_90 == 0.6


def test_values_that_no_forecast_can_need_are_forgotten() -> None:
    card = Scorecard(STEP_MS, 8)
    for slot in range(500):
        card.observe(slot, {"gpu.power_w": 1.0})
        card.offer(forecast(slot, [band(0, 1, 2)] * 4))
        card.settle(slot)
    assert len(card._values) <= 8 + 4
