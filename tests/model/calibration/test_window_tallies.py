"""The compiled sums and counts say what numpy says, bit for bit, of any window."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.calibration import risk as window_tallies

Window = tuple[NDArray[np.float32], NDArray[np.bool_]]


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """A few columns over up to forty rows, often still, zero, falling or unobserved at the end."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(3, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.gamma(2.0, draw(st.sampled_from((0.1, 3.0, 50.0))), (rows, columns)).astype(np.float32)
    observed = rng.random((rows, columns)) < draw(st.sampled_from((0.5, 0.95, 1.0)))
    still = draw(st.integers(0, rows))
    if still:
        values[-still:] = values[-1]
        observed[-still:] |= draw(st.booleans())
    values[-1] *= draw(st.sampled_from((0.0, 0.2, 1.0)))
    values[~observed] = 0.0
    return values, observed


@given(windows(), st.integers(1, 50))
def test_sums_over_the_rows_that_are_whole(window: Window, slots: int) -> None:
    values, observed = window
    rows = values[-slots:][:, [0, 1]][observed[-slots:][:, [0, 1]].all(axis=1)].astype(np.float64)
    assert window_tallies.sums_of_two(values, observed, 0, 1, slots) == tuple(rows.sum(axis=0))


@given(windows(), st.sampled_from((0.3, 0.9)), st.sampled_from((-1, 2)))
def test_signals_are_each_of_them(window: Window, cliff_ratio: float, running: int) -> None:
    values, observed = window
    assert window_tallies.signals(values, observed, 2, running, 5.0, cliff_ratio) == (
        window_tallies.is_flat(values, observed, 2, running),
        window_tallies.is_cliff(values, observed, 5.0, cliff_ratio),
        window_tallies.is_sudden_zero(values, observed, 5.0),
    )


@given(st.integers(0, 700), st.integers(0, 2**32 - 1))
def test_a_sum_is_numpys(count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).gamma(0.3, 1e3, count)
    assert window_tallies.pairwise_sum(numbers) == float(numbers.sum())


@given(windows(), st.integers(-3, 50), st.integers(0, 50))
def test_requests_that_finished_within_a_time(window: Window, begin: int, slots: int) -> None:
    values, observed = window
    newest, step = 41_000, 1_000
    times = newest, step, begin * step, (begin + slots) * step
    ends = newest - (len(values) - 1 - np.arange(len(values))) * step
    inside = (ends > times[2]) & (ends <= times[3]) & observed[:, 0] & observed[:, 2]
    requests = values[inside, 0].astype(np.float64) * (step / 1000)
    expected = float(requests.sum()), float((requests * values[inside, 2]).sum())
    assert window_tallies.finished_within(values, observed, (0, 2), times) == expected


@given(windows(), st.sampled_from((0.3, 0.5, 0.9)))
def test_falls_and_zeros_as_the_words_have_it(window: Window, cliff_ratio: float) -> None:
    values, observed = window
    step_s, rate, seen = 5.0, values[:, 0].astype(np.float64), observed[:, 0]
    before = rate[:-1][-4:][seen[:-1][-4:]]
    expected = float(before.mean()) * step_s if len(before) else 0.0
    falls = len(before) > 0 and bool(seen[-1]) and before.mean() > 0
    sure = falls and expected - rate[-1] * step_s > 3.0 * math.sqrt(expected)
    cliff = sure and rate[-1] < (1 - cliff_ratio) * before.mean()
    assert window_tallies.is_cliff(values, observed, step_s, cliff_ratio) == bool(cliff)
    minute = rate[:-1][-12:][seen[:-1][-12:]]
    sudden = bool(seen[-1]) and rate[-1] == 0 and bool((minute * step_s > 3.0).any())
    assert window_tallies.is_sudden_zero(values, observed, step_s) == sudden


@pytest.mark.parametrize(
    ("rate", "running", "flat"),
    [
        ([4.0] * 20, [3.0] * 20, True),
        ([0.0] * 20, [3.0] * 20, True),  # counters repeat, and so does what is being served
        ([0.0] * 20, [0.0] * 20, False),  # nothing goes on
        ([0.0] * 20, [3.0, 2.0] * 10, False),
        ([4.0] * 19 + [5.0], [3.0] * 20, False),
        ([4.0] * 11, [3.0] * 11, False),  # too short to say
    ],
)
def test_a_frozen_reporter_is_flat(rate: list[float], running: list[float], flat: bool) -> None:
    values = np.column_stack([rate, rate, running]).astype(np.float32)
    observed = np.ones(values.shape, np.bool_)
    assert window_tallies.is_flat(values, observed, 2, 2) == flat
    observed[-3, 0] = False
    assert not window_tallies.is_flat(values, observed, 2, 2)
