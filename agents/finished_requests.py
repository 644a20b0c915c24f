"""What a workload's window says of requests that finished: the evidence that stated risks are judged by."""

from __future__ import annotations

import numpy as np

from model.risk_calibration import Finished
from streams.window_table import Window


def finished_requests(window: Window, end_ts_ms: int, step_ms: int, delay_s: float) -> Finished:
    """The observed slots of a window whose newest slot ends at `end_ts_ms`; on the whole as many finish as arrive."""
    rates, ratios = (window.columns.get(name) for name in ("request.arrival_rate", "slo.miss_ratio"))
    if rates is None or ratios is None:
        none = np.zeros(0)
        return Finished(none.astype(np.int64), none, none, delay_s)
    (known,) = np.nonzero(window.observed[:, rates] & window.observed[:, ratios])
    requests = window.values[known, rates].astype(np.float64) * (step_ms / 1000)
    ends = end_ts_ms - (len(window.values) - 1 - known) * step_ms
    return Finished(ends, requests, requests * window.values[known, ratios], delay_s)
