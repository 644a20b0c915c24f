"""Jumps that no forecast has in it, between what was learned of them, forecasts and plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from agents.records import JumpsAhead
from agents.signals import ratio_of_sums
from agents.workload.subject import Subject
from agents.workload.units import demand_columns
from model.baselines.context import seen_range
from model.bursts.jumps import jump_paths
from model.contract import ContextBatch, ForecastBatch

_SECONDS_PER_HOUR = 3600.0


def with_jumps(
    forecast: ForecastBatch, subjects: Sequence[Subject], batch: ContextBatch, origin_ts_ms: int, *, recurring: bool
) -> list[JumpsAhead | None]:
    """Let as many of the paths jump as of late, in place; returns what is said of it, row by row.

    A request more is as many tokens more as one had in the context; without any in it, none.

    Args:
        recurring: surges that come again are in the paths already, and are no jumps.
    """
    columns = demand_columns(batch.columns)
    return [
        _let_jump(forecast, batch, b, subject, columns, origin_ts_ms, recurring) for b, subject in enumerate(subjects)
    ]


def _let_jump(
    forecast: ForecastBatch,
    batch: ContextBatch,
    row: int,
    subject: Subject,
    columns: Sequence[int],
    origin_ts_ms: int,
    recurring: bool,
) -> JumpsAhead | None:
    """One row."""
    state, requests = subject.state, columns[0]
    if requests < 0 or len(state.jumps) < 2:
        return None
    again = state.surges.explained(origin_ts_ms, 0, batch.step_ms) if recurring else ()
    expected, per_s = state.jumps.expected(origin_ts_ms, again)
    if not expected:
        return None
    paths, values, observed = forecast.paths[row], batch.values[row].cpu(), batch.observed[row].cpu()
    _, highest = seen_range(values[None, :, requests], observed[None, :, requests])
    demand, item_id = paths[..., requests].cpu().numpy(), subject.window.workload
    added = jump_paths(expected, per_s, demand, float(highest), item_id, origin_ts_ms, batch.step_ms)
    if added is None:
        return None
    more = torch.from_numpy(added).to(paths.device)
    paths[..., requests] += more
    for column in [column for column in columns[1:] if column >= 0]:
        each = ratio_of_sums(values.numpy(), observed.numpy(), column, requests, len(values))
        paths[..., column] += more * (each or 0.0)
    ends = added[:, -1]
    return JumpsAhead(per_s * _SECONDS_PER_HOUR, float(np.median(ends[ends > 0.0])), len(expected) + 1)
