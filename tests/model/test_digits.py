"""Six significant digits, to the bit as numpy rounds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.numerics import six_digits


def by_numpy(values: NDArray[np.float64]) -> NDArray[np.float64]:
    size = np.abs(values)
    with np.errstate(all="ignore"):
        magnitude = np.floor(np.log10(np.where(size > 0, size, 1.0)))
        scale = np.power(10.0, 5 - magnitude)
        return np.asarray(np.rint(values * scale) / scale)


POWERS = 10.0 ** np.arange(-300, 300)


@given(st.lists(st.floats(), max_size=20))
def test_any_numbers(numbers: list[float]) -> None:
    values = np.array(numbers, np.float64)
    assert np.array_equal(six_digits(values), by_numpy(values), equal_nan=True)


@pytest.mark.parametrize("towards", [-np.inf, 0.0, np.inf])
def test_beside_powers_of_ten(towards: float) -> None:
    values = np.nextafter(POWERS, towards).reshape(-1, 3)
    assert six_digits(values).tolist() == by_numpy(values).tolist()
    assert six_digits(-values).tolist() == by_numpy(-values).tolist()


def test_what_people_read() -> None:
    said = six_digits(np.array([0.0, 1234567.0, 0.00123456789, -2.5, np.inf, np.nan])).tolist()
    assert said[:4] == [0.0, 1234570.0, 0.00123457, -2.5]
    assert np.isnan(said[4:]).all()
