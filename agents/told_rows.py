"""What a forecaster is told of windows: all that was observed, but for two kinds of steps.

Those whose load no engine felt, and those of surges that come again: these are added to its paths when they are due.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agents.collate import WindowRow
from model.unfelt_steps import unfelt_steps
from streams.catalogue import ARRIVAL_RATE
from streams.windows.table import Window

_TOLD = (ARRIVAL_RATE, "engine.running", "engine.waiting_max", "slo.miss_ratio")


def told_rows(
    windows: Sequence[Window],
    explained: Sequence[Sequence[tuple[int, int]]],
    origin_ts_ms: int,
    width: int,
    step_ms: int,
    least: int,
) -> list[WindowRow]:
    """The first `width` columns of windows of one catalogue; steps that a forecaster is not told of are not observed.

    Args:
        explained: of each window, times whose load is expected to come again.
        least: steps that a forecaster needs; where fewer would be left it is told of those times as well.
    """
    if not windows:
        return []
    columns = np.array([windows[0].columns.get(name, -1) for name in _TOLD], np.int64)
    unfelt = np.empty(len(windows[0].values), np.bool_)
    rows = []
    for w, times in zip(windows, explained, strict=True):
        observed = w.observed[:, :width]
        if unfelt_steps(w.values, w.observed, columns, step_ms / 1000, unfelt):
            observed = observed & ~unfelt[:, None]
        if times:
            again = _steps_of(times, origin_ts_ms, step_ms, len(observed))
            if int((observed[:, 0] & ~again).sum()) >= least:
                observed = observed & ~again[:, None]
        rows.append(WindowRow(w.workload, origin_ts_ms, w.values[:, :width], observed, *w.read_coarse()))
    return rows


def _steps_of(times: Sequence[tuple[int, int]], origin_ts_ms: int, step_ms: int, length: int) -> NDArray[np.bool_]:
    """Which of the steps before the origin lie in any of the times, [L]."""
    within = np.zeros(length, np.bool_)
    for start_ms, end_ms in times:
        first, after = length - (origin_ts_ms - start_ms) // step_ms, length - (origin_ts_ms - end_ms) // step_ms
        within[max(first, 0) : max(after, 0)] = True
    return within
