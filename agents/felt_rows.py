"""What a forecaster is told of a window: all that was observed, but for steps whose load no engine felt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from agents.collate import WindowRow
from model.unfelt_steps import unfelt_steps
from streams.catalogue import ARRIVAL_RATE
from streams.window_table import Window

_TOLD = (ARRIVAL_RATE, "engine.running", "engine.waiting_max", "slo.miss_ratio")


def felt_row(window: Window, origin_ts_ms: int, width: int, step_ms: int) -> WindowRow:
    """The first `width` columns of a window; a step that is not felt counts as not observed."""
    observed, unfelt = window.observed[:, :width], np.empty(len(window.values), np.bool_)
    columns = _columns(window.columns)
    if unfelt_steps(window.values, window.observed, columns, step_ms / 1000, unfelt):
        observed = observed & ~unfelt[:, None]
    return WindowRow(window.workload, origin_ts_ms, window.values[:, :width], observed, *window.read_coarse())


def _columns(names: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array([names.get(name, -1) for name in _TOLD], np.int64)
