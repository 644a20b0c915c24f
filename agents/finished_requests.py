"""What a workload's window says of requests that finished: the evidence that stated risks are judged by."""

from __future__ import annotations

from model.calibration.risk import Finished
from streams.windows.table import Window


def finished_requests(window: Window, end_ts_ms: int, step_ms: int, delay_s: float) -> Finished:
    """The slots of a window whose newest slot ends at `end_ts_ms`."""
    rates, ratios = (window.columns.get(name) for name in ("request.arrival_rate", "slo.miss_ratio"))
    columns = None if rates is None or ratios is None else (rates, ratios)
    return Finished(window.values, window.observed, columns, end_ts_ms, step_ms, delay_s)
