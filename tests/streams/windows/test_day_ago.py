"""What was seen a day ago: the same cells that the whole week's ring shows, and nothing of another week."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.windows.coarse import COARSE_ROWS, COARSE_STEP_MS, DAY_ROWS, CoarseRow
from streams.windows.table import WindowTable
from tests.streams.windows.test_window_table import CATALOGUE, STEP_MS, page

SLOTS = COARSE_STEP_MS // STEP_MS


def seen(index: int, mean: float) -> CoarseRow:
    return CoarseRow(index, ("w",), ("a", "b"), np.array([[mean, 0.0]], np.float32), np.array([[True, False]]))


@given(
    told=st.dictionaries(st.integers(0, 2 * COARSE_ROWS), st.integers(0, 2_000), max_size=30),
    at=st.integers(0, 3 * COARSE_ROWS),
    within=st.integers(0, SLOTS - 1),
    rows=st.integers(0, 8),
)
def test_means_are_those_of_the_same_time_yesterday_or_unknown(
    told: dict[int, int], at: int, within: int, rows: int
) -> None:
    """However long nothing was told before: a ring's cell a week older is no yesterday."""
    table = WindowTable(CATALOGUE, 4, STEP_MS)
    slot = at * SLOTS + within
    table.advance(slot)
    table.write(page("requests", slot, {"w": {"a": 1.0}}))
    for index, mean in sorted(told.items()):
        table.write_coarse(seen(index, mean))
    read, end_row = table["w"].read_day_ago, (slot + 1) // SLOTS
    held = [index for index in told if index > max(told) - COARSE_ROWS]
    wanted = range(end_row - DAY_ROWS, end_row - DAY_ROWS + rows)
    assert read(0, rows) == tuple([float(told[index]) if index in held else None for index in wanted])
    assert read(1, rows) == (None,) * rows
