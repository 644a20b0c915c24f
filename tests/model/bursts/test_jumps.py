"""Jumps that no forecast had in it: what is remembered, how often they are expected, and what they add to paths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.bursts.jumps import Jump, Jumps, jump_paths

STEP_MS, PATHS, HORIZON = 15_000, 8_000, 16
START_MS = 1_763_636_400_000
HOUR = 240  # steps


class Service:
    """What is remembered of one, and when it is."""

    def __init__(self) -> None:
        self.jumps = Jumps()
        self.now_ms = START_MS

    def goes_on(self, *values: float, mid: float = 2.0, high: float = 3.0) -> Service:
        """With values of which forecasts all said the same."""
        for value in values:
            self.now_ms += STEP_MS
            self.jumps.observe(mid, high, value, self.now_ms, STEP_MS, STEP_MS)
        return self

    @property
    def ends(self) -> list[tuple[float, float]]:
        """From where to where those remembered went."""
        return [(start, end) for _, start, end in self.jumps.snapshot()[1:]]

    @property
    def expected(self) -> list[tuple[float, float]]:
        """From where to where those went like which another may come."""
        return [(jump.start, jump.end) for jump in self.jumps.expected(self.now_ms)[0]]

    @property
    def per_s(self) -> float:
        return self.jumps.expected(self.now_ms)[1]

    def added(self, level: float = 2.0, highest: float = 3.0, item: str = "w") -> NDArray[np.float32] | None:
        return self.paths(np.full((PATHS, HORIZON), level, np.float32), highest, item)

    def paths(self, demand: NDArray[np.float32], highest: float, item: str = "w") -> NDArray[np.float32] | None:
        expected, per_s = self.jumps.expected(self.now_ms)
        return jump_paths(expected, per_s, demand, highest, item, self.now_ms, STEP_MS)


def after(*values: float, mid: float = 2.0, high: float = 3.0) -> Service:
    return Service().goes_on(*values, mid=mid, high=high)


def jumping(*ends: float, calm: int = HOUR) -> Service:
    """A service that jumps to each of these for a minute, after so many calm steps."""
    service = Service()
    for end in ends:
        service.goes_on(*[2.0] * calm, *[end] * 4)
    return service


def test_two_in_a_row_far_beyond_the_forecast_are_a_jump_from_its_median_to_the_less_of_two() -> None:
    assert after(2.0, 9.0, 8.0, 2.0, 4.5, 6.0, 2.0).expected == [(2.0, 4.5)]  # the larger one is 2 to 8


@pytest.mark.parametrize(
    "values",
    [
        (9.0, 2.0, 9.0, 2.0),  # one step is noise, or a counter that jumped
        (4.0, 4.0, 4.0),  # no further beyond the upper end than that is from the median
        (1.0, 0.0, 0.0),  # a fall is no risk
    ],
)
def test_what_is_no_jump(values: tuple[float, ...]) -> None:
    assert after(*values, *values).ends == []


def test_a_forecast_that_is_sure_to_the_last_digit_needs_a_quarter_more() -> None:
    assert after(2.4, 2.4, 2.4, mid=2.0, high=2.0).ends == []
    assert after(2.6, 2.6, 2.6, mid=2.0, high=2.0).ends == [(2.0, 2.6)]


def test_a_jump_that_goes_on_is_one_and_goes_as_far_as_it_went() -> None:
    assert after(6.0, 7.0, 9.0, 9.0, 8.0).ends == [(2.0, 9.0)]


def test_one_jump_says_nothing_and_the_largest_is_left_out() -> None:
    assert jumping(9.0).expected == []
    assert jumping(9.0, 30.0, 6.0).expected == [(2.0, 9.0), (2.0, 6.0)]


def test_those_of_surges_that_come_again_are_not_counted() -> None:
    service = jumping(9.0, 8.0, 7.0)
    times = [int(row[0]) for row in service.jumps.snapshot()[1:]]
    expected, per_s = service.jumps.expected(service.now_ms, [(times[0] - STEP_MS, times[0] + 3 * STEP_MS)])
    assert [jump.end for jump in expected] == [7.0]
    assert 0.0 < per_s < service.per_s
    assert service.jumps.expected(service.now_ms, [(at, at) for at in times[:2]]) == ((), 0.0)


def test_they_are_expected_as_often_as_they_came() -> None:
    service = jumping(*[9.0] * 20, calm=HOUR // 4)
    # 19 of 20 in five hours and a third, and an hour that is taken to have been before; all within a day's forgetting.
    faded_s = 86_400.0 * (1.0 - math.exp(-20 * 64 * STEP_MS / 86_400_000.0))
    assert service.per_s == pytest.approx(19 / (faded_s + 3600.0), rel=0.12)
    paths = service.added()
    assert paths is not None
    holding = paths[:, -1] > 0.0
    expected = 1.0 - (1.0 - service.per_s * STEP_MS / 1000) ** HORIZON
    assert holding.mean() == pytest.approx(expected, abs=4 * math.sqrt(expected / PATHS))
    starts = (paths[holding] == 0.0).sum(axis=1)
    assert starts.mean() == pytest.approx((HORIZON - 1) / 2, abs=0.4)
    assert np.isin(paths, (0.0, 7.0)).all()
    assert (np.diff(paths, axis=1) >= 0.0).all()  # it stays


def test_time_without_one_makes_them_rarer_and_a_day_forgets() -> None:
    service = jumping(9.0, 9.0, 9.0)
    before = service.per_s
    service.goes_on(*[2.0] * 4 * HOUR)
    assert 0.0 < service.per_s < before / 1.5
    service.goes_on(*[2.0] * 48 * HOUR)
    assert service.per_s == 0.0
    assert service.added() is None


def test_time_in_which_forecasts_had_it_in_them_says_nothing_of_it() -> None:
    calm = jumping(9.0, 9.0, 9.0).goes_on(*[2.0] * 4 * HOUR)
    wide = jumping(9.0, 9.0, 9.0).goes_on(*[2.0] * 4 * HOUR, high=8.0)
    assert wide.per_s > 1.4 * calm.per_s


def test_paths_that_have_it_in_them_get_none() -> None:
    wide = np.tile(np.linspace(0.0, 16.0, PATHS, dtype=np.float32)[:, None], (1, HORIZON))
    assert jumping(9.0, 9.0, 9.0).paths(wide, 16.0) is None


def test_it_goes_as_much_further_and_as_many_times_as_far_at_most() -> None:
    jump, few = Jump(START_MS, 2.0, 8.0), 4.0 / 15.0
    assert jump.reach(2.0, few) == pytest.approx(8.0)
    assert jump.reach(10.0, few) == 16.0
    assert jump.reach(0.5, few) == pytest.approx((0.5 + few) * (8.0 + few) / (2.0 + few) - few)
    assert Jump(START_MS, 0.0, 8.0).reach(0.0, few) == pytest.approx(8.0)


def test_no_path_goes_beyond_what_was_seen() -> None:
    service = jumping(6.0, 6.0, 6.0)
    low, high = service.added(level=5.0, highest=8.0), service.added(level=5.0, highest=40.0)
    assert low is not None
    assert high is not None
    assert low.max() == 3.0
    assert high.max() == 4.0
    assert service.added(level=8.0, highest=8.0) is None


def test_draws_are_of_the_workload_and_the_origin() -> None:
    service = jumping(9.0, 9.0, 9.0)
    first, again, other = service.added(), service.added(), service.added(item="v")
    assert first is not None
    assert other is not None
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


loads = st.lists(st.floats(0.0, 50.0, width=32), max_size=60)


@given(before=loads, then=loads)
def test_a_snapshot_gives_back_every_bit_wherever_it_is_taken(before: list[float], then: list[float]) -> None:
    lasting, again = after(*before), after(*before)
    again.jumps = Jumps.restore(lasting.jumps.snapshot())
    assert again.goes_on(*then).jumps.snapshot() == lasting.goes_on(*then).jumps.snapshot()
    assert again.jumps.expected(again.now_ms) == lasting.jumps.expected(lasting.now_ms)


def test_the_newest_are_remembered() -> None:
    ends = [9.0 + k for k in range(60)]
    assert jumping(*ends, calm=4).ends == [(2.0, end) for end in ends[12:]]


@given(values=loads, mid=st.floats(0.0, 20.0), wide=st.floats(0.0, 20.0))
def test_what_is_remembered_lay_far_beyond_and_one_alone_is_not_expected(
    values: list[float], mid: float, wide: float
) -> None:
    service = after(*values, mid=mid, high=mid + wide)
    assert all(end > max(mid + 2.0 * wide, 1.25 * mid) for _, end in service.ends)
    assert len(service.expected) == max(len(service.ends) - 1, 0)
    assert (service.per_s > 0.0) == (len(service.ends) >= 2)


@pytest.mark.parametrize("state", [[[1.0]], [[1.0, 0.0], [1.0, 2.0]], [[1.0, 0.0, 1.0]]])
def test_a_damaged_snapshot_is_refused(state: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="jumps are not stored"):
        Jumps.restore(state)
