"""What a forecaster is told of windows: all that was observed, but for steps whose load no engine felt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.collate import WindowRow
from model.unfelt_steps import unfelt_steps
from streams.catalogue import ARRIVAL_RATE
from streams.window_table import Window

_TOLD = (ARRIVAL_RATE, "engine.running", "engine.waiting_max", "slo.miss_ratio")


def felt_rows(windows: Sequence[Window], origin_ts_ms: int, width: int, step_ms: int) -> list[WindowRow]:
    """The first `width` columns of windows of one catalogue; a step that is not felt counts as not observed."""
    if not windows:
        return []
    columns = np.array([windows[0].columns.get(name, -1) for name in _TOLD], np.int64)
    unfelt = np.empty(len(windows[0].values), np.bool_)
    rows = []
    for w in windows:
        observed = w.observed[:, :width]
        if unfelt_steps(w.values, w.observed, columns, step_ms / 1000, unfelt):
            observed = observed & ~unfelt[:, None]
        rows.append(WindowRow(w.workload, origin_ts_ms, w.values[:, :width], observed, *w.read_coarse()))
    return rows
