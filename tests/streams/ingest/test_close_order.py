"""The order in which a slot's samples are closed, against the language's own sorting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.ingest.aggregate_kernel import sort_by


@given(
    keys=st.lists(st.integers(-(1 << 62), 1 << 62), max_size=70, unique=True),
    data=st.data(),
)
def test_numbers_are_sorted_by_their_keys(keys: list[int], data: st.DataObject) -> None:
    numbers = data.draw(st.permutations(range(len(keys))))
    num = data.draw(st.integers(0, len(keys)))
    found = np.array(numbers, np.int64)
    sort_by(np.array(keys, np.int64), found, num)
    assert found.tolist() == sorted(numbers[:num], key=keys.__getitem__) + list(numbers[num:])


def test_equal_keys_stay_as_they_came() -> None:
    found = np.array([3, 1, 2, 0])
    sort_by(np.array([5, 5, 4, 4]), found, 4)
    assert found.tolist() == [3, 2, 1, 0]
