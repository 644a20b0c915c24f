"""What a restart reads back is told from the newest records: enough for what is there, and soon after a fleet grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.topics import MIB, Topics
from streams.windows.coarse import COARSE_ROWS, EntrySizes, shortages


@given(st.lists(st.lists(st.integers(1, 1_000), min_size=1, max_size=4), min_size=1, max_size=40))
def test_the_largest_of_the_newest_is_known_whatever_came_before(entries: list[list[int]]) -> None:
    sizes = EntrySizes()
    for number, records in enumerate(entries):
        for num_bytes in records:
            sizes.add(number, bytes(num_bytes))
    assert sizes.largest == max(map(sum, entries[-8:]))
    assert EntrySizes().largest == 0


def test_a_log_that_keeps_too_little_is_named_and_one_without_a_bound_is_not() -> None:
    needed = {"a": 3 * MIB + 1, "b": 2 * MIB, "c": 9 * MIB}
    assert shortages(2, needed, {"a": 3 * MIB, "b": 2 * MIB}) == ["a/2 should keep 4 MiB and keeps 3"]


@pytest.mark.parametrize("workloads", [1, 10_000, 100_000])
def test_coarse_rows_of_a_week_fit_the_topic(workloads: int) -> None:
    topics = Topics(max_workloads=workloads)
    assert topics.retention_bytes()[topics.pages_coarse] >= COARSE_ROWS * 40 * workloads
    assert topics.retention_bytes()[topics.pages] == topics.pages_retention_bytes
