"""Live forecast skill: known coverage is found, nothing is scored that was not seen, what is old fades."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from agents.forecast.scoring import SkillBoard, UnscoredForecasts
from agents.records import BANDS

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
DEMAND = "request.arrival_rate"


def normal(mean: float, sigma: float) -> list[float]:
    return [NormalDist(mean, sigma).inv_cdf(q) for q in LEVELS]


def pinball(quantiles: list[float], value: float) -> float:
    """One by one, as the textbook has it."""
    losses = [q * (value - f) if value >= f else (1 - q) * (f - value) for q, f in zip(LEVELS, quantiles, strict=True)]
    return sum(losses) / len(losses)


def test_a_true_forecast_covers_as_it_says() -> None:
    rng = np.random.default_rng(0)
    board = SkillBoard(LEVELS)
    pending = UnscoredForecasts(board, (1,))
    names = [f"w{n}" for n in range(40)]
    for slot in range(300):
        pending.offer(slot, "ridge", DEMAND, {name: [normal(10.0, 2.0)] for name in names})
        values = dict(zip(names, 10.0 + 2.0 * rng.standard_normal(len(names)), strict=True))
        assert pending.settle(slot + 1, {DEMAND: values}) == {("ridge", DEMAND): len(names)}
    (skill,) = board.skills()
    assert (skill.forecaster, skill.target) == ("ridge", DEMAND)
    assert {band: pytest.approx(ratio, abs=0.02) for band, ratio in skill.coverage.items()} == {
        band: float(band) for band in BANDS
    }


def test_pinball_is_the_textbook_one_as_a_share_of_the_demand() -> None:
    board = SkillBoard(LEVELS)
    pending = UnscoredForecasts(board, (1,))
    forecasts = {"a": [normal(15.0, 1.0)], "b": [normal(40.0, 9.0)]}
    pending.offer(0, "ridge", DEMAND, forecasts)
    pending.settle(1, {DEMAND: {"a": 10.0, "b": 42.0}})
    (skill,) = board.skills()
    expected = (pinball(forecasts["a"][0], 10.0) + pinball(forecasts["b"][0], 42.0)) / 52.0
    assert skill.pinball == pytest.approx(expected)
    assert skill.coverage == {"0.5": 0.5, "0.8": 0.5, "0.9": 0.5}


def test_each_step_ahead_is_scored_against_its_own_slot() -> None:
    board = SkillBoard(LEVELS)
    pending = UnscoredForecasts(board, (1, 3))
    pending.offer(0, "ridge", DEMAND, {"a": [normal(1.0, 0.1), normal(2.0, 0.1), normal(3.0, 0.1)]})
    pending.offer(1, "ridge", DEMAND, {"a": [normal(2.0, 0.1)]})  # too short for the second step
    scored = [pending.settle(slot, {DEMAND: {"a": float(slot)}}) for slot in (1, 2, 3)]
    assert scored == [{("ridge", DEMAND): 1}] * 3
    (skill,) = board.skills()
    assert skill.coverage["0.5"] == 1.0


def test_what_is_not_observed_or_not_finite_scores_nothing() -> None:
    board = SkillBoard(LEVELS)
    pending = UnscoredForecasts(board, (1,))
    pending.offer(0, "ridge", DEMAND, {"a": [normal(1.0, 0.1)]})
    assert pending.settle(1, {DEMAND: {"b": 1.0}}) == {}
    pending.offer(1, "ridge", DEMAND, {"a": [[math.nan] * len(LEVELS)]})
    assert pending.settle(2, {DEMAND: {"a": 1.0}}) == {("ridge", DEMAND): 0}
    pending.offer(2, "ridge", DEMAND, {"a": [normal(1.0, 0.1)]})
    assert pending.settle(4, {DEMAND: {"a": 1.0}}) == {}  # slot 3 never came
    pending.offer(2, "ridge", DEMAND, {"a": [normal(1.0, 0.1)]})  # a forecast that is ready too late
    assert (board.skills(), len(pending)) == ([], 0)


def test_old_scores_fade_whatever_the_order_of_the_partitions() -> None:
    boards = [SkillBoard(LEVELS), SkillBoard(LEVELS)]
    good, bad = ([normal(10.0, 1.0)], [10.0]), ([normal(90.0, 1.0)], [10.0])
    for board, order in zip(boards, ((0, 400), (400, 0)), strict=True):
        for slot in order:
            board.add(slot, "ridge", DEMAND, *(bad if slot == 0 else good))
    first, second = (board.skills()[0] for board in boards)
    assert first.coverage["0.9"] == pytest.approx(1 / (1 + 0.995**400))
    assert second.coverage["0.9"] == pytest.approx(first.coverage["0.9"])
    assert second.pinball == pytest.approx(first.pinball)


def test_no_demand_at_all_has_no_share() -> None:
    board = SkillBoard(LEVELS)
    board.add(0, "ridge", DEMAND, [normal(1.0, 0.1)], [0.0])
    assert board.skills()[0].pinball is None


@pytest.mark.parametrize("levels", [(0.1, 0.5, 0.9), (*LEVELS, 0.5)])
def test_levels_that_cannot_be_scored_are_refused(levels: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="levels must ascend and hold"):
        SkillBoard(levels)
