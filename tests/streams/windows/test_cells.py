"""Two bytes per mean: what is read is what was written, within 1/2048, and nothing is told from zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.windows.cells import half_observed, half_values, pack_half

LEAST, MOST = 2.0**-30, 2.0**33


def kept(value: float) -> float:
    cell = pack_half(np.array([value], np.float32), np.array([True]))
    assert half_observed(cell).all()
    return float(half_values(cell)[0])


@given(st.floats(LEAST, MOST / 2, width=32))
def test_a_mean_is_kept_within_half_of_the_last_bit(value: float) -> None:
    assert kept(value) == pytest.approx(value, rel=1 / 2048)
    assert kept(kept(value)) == kept(value)


@given(st.floats(0, MOST / 2, width=32), st.floats(0, MOST / 2, width=32))
def test_order_is_kept(one: float, other: float) -> None:
    assert kept(min(one, other)) <= kept(max(one, other))


@pytest.mark.parametrize(
    ("value", "read"),
    [(0.0, 0.0), (-0.0, 0.0), (-5.0, 0.0), (1e-20, 0.0), (1.0, 1.0), (4.5, 4.5), (2047.0, 2047.0), (65536.0, 65536.0)],
)
def test_zero_and_small_whole_numbers_are_exact(value: float, read: float) -> None:
    assert kept(value) == read


@pytest.mark.parametrize("value", [1e20, np.inf])
def test_what_is_too_large_is_the_largest(value: float) -> None:
    assert kept(value) == pytest.approx(MOST, rel=1e-3)


def test_what_was_not_observed_reads_as_nothing() -> None:
    rng = np.random.default_rng(1)
    values, observed = rng.lognormal(size=(7, 5)).astype(np.float32), rng.random((7, 5)) > 0.5
    cells = pack_half(values, observed)
    assert cells.dtype == np.uint16
    assert (half_observed(cells) == observed).all()
    np.testing.assert_allclose(half_values(cells), values * observed, rtol=1 / 2048)
    assert not half_observed(np.zeros((3, 2), np.uint16)).any()


def test_a_mean_that_is_not_a_number_is_not_observed_and_does_no_harm() -> None:
    cells = pack_half(np.array([np.nan, 1.0], np.float32), np.array([False, True]))
    assert half_values(cells).tolist() == [0.0, 1.0]
