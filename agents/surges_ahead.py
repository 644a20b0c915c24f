"""Surges that come again, between windows, forecasts and plans: what of a window is theirs, and what is yet to come."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch

from agents.records import SurgeAhead
from agents.workload.subject import Subject
from agents.workload.units import demand_columns
from model.bursts.recurring import ExpectedSurge
from model.contract import ContextBatch, ForecastBatch
from model.surge_paths import surge_paths


def surge_times(subject: Subject, origin_ts_ms: int, step_ms: int) -> list[tuple[int, int]]:
    """Times within the window whose load held a surge that is expected to come again."""
    from_ms = origin_ts_ms - len(subject.window.values) * step_ms
    return subject.state.surges.explained(origin_ts_ms, from_ms, step_ms)


def with_surges(
    forecast: ForecastBatch, subjects: Sequence[Subject], batch: ContextBatch, origin_ts_ms: int
) -> list[SurgeAhead | None]:
    """Add to the paths of a forecast, in place, what comes again within its horizon; returns the first of each row."""
    num_paths, horizon, width = forecast.paths.shape[1:]
    until_ms = origin_ts_ms + horizon * batch.step_ms
    columns = demand_columns(batch.columns)
    ahead: list[SurgeAhead | None] = []
    for b, subject in enumerate(subjects):
        expected = subject.state.surges.expected(origin_ts_ms, until_ms, batch.step_ms)
        ahead.append(_told(expected[0]) if expected else None)
        if expected:
            shape = num_paths, horizon, width
            added = surge_paths(expected, subject.window.workload, origin_ts_ms, batch.step_ms, columns, shape)
            forecast.paths[b] += torch.from_numpy(added).to(forecast.paths.device)
    return ahead


def _told(surge: ExpectedSurge) -> SurgeAhead:
    seen = surge.recurrence.surges
    return SurgeAhead(
        start_ts_ms=surge.start_ms,
        begun=surge.begun,
        chance=surge.chance,
        period_s=surge.recurrence.period_ms / 1000,
        length_s=median(one.length_ms for one in seen) / 1000,
        arrival_rate=median(one.extra[0] for one in seen),
        seen=len(seen),
        due=surge.recurrence.due + 1,
    )
