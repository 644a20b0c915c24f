"""How sure a difference between two policies is: windows add up to runs, and intervals cover what is true."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.lab.replay.policies.catalogue import controller_of
from infra.lab.replay.results import Window, paired_windows, windows_of
from infra.lab.replay.run import tune
from infra.lab.replay.setting import ScoredLoad
from infra.lab.replay.simulation import simulate
from tests.infra.lab.replay.replay_setting import KNOWN, poisson, setting

WINDOWS = st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1), st.floats(1, 1e5)), min_size=2, max_size=30)


def windows(facts: list[tuple[int, float, float]]) -> list[Window]:
    return [Window(requests, round(requests * share), gpu_s) for requests, share, gpu_s in facts]


@pytest.mark.parametrize("end_s", [600.0, 1_270.0, 1_800.0])
def test_windows_add_up_to_what_a_run_has_kept_and_held(end_s: float) -> None:
    s = setting(max_replicas=4).with_load(ScoredLoad("any", poisson(3.0, end_s, 1), (60.0, end_s)))
    choice, _ = tune("hpa", s, s, KNOWN, 0, tuned=False)
    lived = simulate(s, controller_of(choice, KNOWN), 0)
    told = windows_of(lived)
    assert len(told) == int(np.ceil((end_s - 60.0) / 600.0))
    assert sum(w.good for w in told) / sum(w.requests for w in told) == pytest.approx(lived.attainment)
    assert sum(w.gpu_s for w in told) / 3600.0 == pytest.approx(lived.gpu_hours)
    whole = [w.good / w.requests for w in told]
    assert len(told) > 1 or whole[0] == pytest.approx(lived.worst_window_attainment)


@settings(max_examples=50, deadline=None)
@given(WINDOWS)
def test_a_policy_does_not_differ_from_itself(facts: list[tuple[int, float, float]]) -> None:
    mine = windows(facts)
    found = paired_windows([mine], [mine])
    assert found is not None
    assert found.attainment == found.gpu_hours_ratio == (0.0, 0.0)


@settings(max_examples=50, deadline=None)
@given(WINDOWS, WINDOWS)
def test_the_other_way_round_the_difference_has_the_other_sign(
    facts: list[tuple[int, float, float]], others: list[tuple[int, float, float]]
) -> None:
    num = min(len(facts), len(others))
    one, two = windows(facts[:num]), windows(others[:num])
    here, there = paired_windows([one], [two]), paired_windows([two], [one])
    assert here is not None
    assert there is not None
    assert here.attainment == pytest.approx((-there.attainment[1], -there.attainment[0]))


def test_intervals_cover_a_known_difference_about_as_often_as_they_say() -> None:
    """Landslides: a window in twenty loses half of its requests, whoever serves; one policy loses three points more."""
    rng, covered = np.random.default_rng(7), 0
    for _ in range(200):
        slides = np.where(rng.random(60) < 0.05, 0.5, 0.0)
        lost = np.clip(slides + 0.03 + 0.02 * rng.standard_normal(60), 0.0, 1.0)
        mine = [Window(1000, round(1000 * (1 - share)), 1.2) for share in lost]
        other = [Window(1000, round(1000 * (1 - share)), 1.0) for share in slides]
        found = paired_windows([mine[:30], mine[30:]], [other[:30], other[30:]], draws=400)
        assert found is not None
        covered += found.attainment[0] <= -0.03 <= found.attainment[1]
        assert found.gpu_hours_ratio == pytest.approx((0.2, 0.2))
    assert 0.88 * 200 <= covered <= 0.99 * 200


@settings(max_examples=30, deadline=None)
@given(WINDOWS, WINDOWS, st.integers(2, 5))
def test_a_day_that_is_run_again_with_the_same_end_makes_nothing_surer(
    facts: list[tuple[int, float, float]], others: list[tuple[int, float, float]], times: int
) -> None:
    num = min(len(facts), len(others))
    one, two = windows(facts[:num]), windows(others[:num])
    once, again = paired_windows([one], [two]), paired_windows([one] * times, [two] * times)
    assert once is not None
    assert again is not None
    assert again.attainment == pytest.approx(once.attainment)
    assert again.gpu_hours_ratio == pytest.approx(once.gpu_hours_ratio)


def test_of_less_than_two_windows_nothing_is_known() -> None:
    one = [Window(10, 9, 1.0)]
    assert paired_windows([one], [one]) is None
    assert paired_windows([], []) is None
    empty = [Window(0, 0, 1.0)] * 3
    assert paired_windows([empty], [empty]) is None
