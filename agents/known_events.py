"""The load just before known events: what an event's factor multiplies, also when the load has begun to rise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from agents.schedule import Schedule
from streams.windows.table import Window

_AHEAD_MS: Final = 7_200_000  # before this the load of an event is not looked at yet; longer than any lead time
_SLOTS: Final = 40  # whose mean is the load


def loads_before_events(
    loads: Mapping[str, float], schedule: Schedule, window: Window, end_ts_ms: int, column: int = 0
) -> dict[str, float]:
    """Mean load by event, renewed with each slot until the event begins, kept until it is over.

    Args:
        loads: as of the slot before.
        window: whose newest slot ends at `end_ts_ms`.
        column: of the load.
    """
    renewed = {}
    for event in schedule.events:
        if event.load_factor is None or not event.start_ts_ms - _AHEAD_MS <= end_ts_ms < event.end_ts_ms:
            continue
        rate = _mean_rate(window, column) if end_ts_ms <= event.start_ts_ms else None
        rate = loads.get(event.name) if rate is None else rate
        if rate is not None:
            renewed[event.name] = rate
    return renewed


def _mean_rate(window: Window, column: int) -> float | None:
    seen = window.observed[-_SLOTS:, column]
    return float(window.values[-_SLOTS:, column][seen].astype(np.float64).mean()) if seen.any() else None
