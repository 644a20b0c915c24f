"""Live forecast skill: known coverage and bias are found, nothing is scored that was not seen."""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from agents.scoring import ForecastScore

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)


def normal(mean: float, sigma: float) -> list[float]:
    return [NormalDist(mean, sigma).inv_cdf(q) for q in LEVELS]


def test_a_true_forecast_covers_as_it_says() -> None:
    rng = np.random.default_rng(0)
    score, last = ForecastScore(LEVELS, (1,)), 10.0
    for slot in range(3000):
        value = 10.0 + 2.0 * float(rng.standard_normal())
        score.offer(slot, [normal(10.0, 2.0)], last)
        score.observe(slot + 1, value)
        last = value
    (skill,) = score.skill()
    assert skill.count == pytest.approx(200, abs=1)
    assert skill.coverage_80_ratio == pytest.approx(0.8, abs=0.08)
    assert skill.coverage_90_ratio == pytest.approx(0.9, abs=0.06)
    assert abs(skill.bias_ratio) < 0.05
    # Against the last value of white noise the mean is better by 1 - 1/sqrt(2).
    assert skill.skill_ratio == pytest.approx(1 - 0.5**0.5, abs=0.1)


def test_bias_has_the_sign_of_the_forecast() -> None:
    score = ForecastScore(LEVELS, (1,))
    score.offer(0, [normal(15.0, 1.0)], 10.0)
    score.observe(1, 10.0)
    (skill,) = score.skill()
    assert skill.bias_ratio == pytest.approx(0.5)
    assert skill.coverage_90_ratio == 0.0
    assert skill.skill_ratio is None
    expected = np.mean([(1 - q) * (f - 10.0) for q, f in zip(LEVELS, normal(15.0, 1.0), strict=True)])
    assert skill.pinball == pytest.approx(expected)


def test_each_step_ahead_is_scored_against_its_own_slot() -> None:
    score = ForecastScore(LEVELS, (1, 3))
    score.offer(0, [normal(1.0, 0.1), normal(2.0, 0.1), normal(3.0, 0.1)], 1.0)
    score.offer(1, [normal(2.0, 0.1)], 1.0)  # too short for the second step
    for slot, value in ((1, 1.0), (2, 2.0), (3, 3.0)):
        score.observe(slot, value)
    assert [(s.step, round(s.count, 2), s.coverage_80_ratio) for s in score.skill()] == [(1, 2.0, 1.0), (3, 1.0, 1.0)]


def test_what_is_not_observed_or_not_finite_scores_nothing() -> None:
    score = ForecastScore(LEVELS, (1,))
    score.offer(0, [normal(1.0, 0.1)], 1.0)
    score.observe(1, None)
    score.offer(1, [[math.nan] * 5], 1.0)
    score.observe(2, 1.0)
    score.offer(2, [normal(1.0, 0.1)], 1.0)
    score.observe(4, 1.0)  # slot 3 never came
    assert score.skill() == ()
    assert score.snapshot()["waiting"] == []


def test_a_restored_score_goes_on_as_the_same() -> None:
    rng = np.random.default_rng(1)
    score = ForecastScore(LEVELS)
    for slot in range(40):
        score.offer(slot, [normal(float(m), 1.0) for m in rng.uniform(5, 15, 20)], 10.0)
        score.observe(slot + 1, float(rng.uniform(5, 15)))
        score = ForecastScore.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(score.snapshot())))
    again = ForecastScore.restore(score.snapshot())
    for s in (score, again):
        s.observe(41, 7.5)
    assert again.snapshot() == score.snapshot()
    assert [s.step for s in again.skill()] == [1, 4, 16]


def test_what_cannot_be_scored_is_named() -> None:
    with pytest.raises(ValueError, match="levels must ascend and hold"):
        ForecastScore((0.1, 0.5, 0.9))
    with pytest.raises(ValueError, match="steps must be at least 1"):
        ForecastScore(LEVELS, (0,))
    with pytest.raises(ValueError, match="version 3"):
        ForecastScore.restore({"v": 3})
