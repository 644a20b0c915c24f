"""Jumps that no forecast has in it, between what was learned of them, forecasts and plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agents.demand_units import INDICATOR_OF
from agents.records import JumpsAhead
from agents.subject import Subject
from model.contract import ContextBatch, ForecastBatch
from model.jumps import Jump, jump_paths

_SECONDS_PER_HOUR = 3600.0


def with_jumps(
    forecast: ForecastBatch, subjects: Sequence[Subject], batch: ContextBatch, origin_ts_ms: int, *, recurring: bool
) -> list[JumpsAhead | None]:
    """Let as many of the paths jump as of late, in place; returns what is said of it, row by row.

    A request more is as many tokens more as one had in the context; without any in it, none.

    Args:
        recurring: surges that come again are in the paths already, and are no jumps.
    """
    if INDICATOR_OF["requests"] not in batch.indicators:
        return [None] * len(subjects)
    columns = [batch.indicators.index(name) for name in INDICATOR_OF.values() if name in batch.indicators]
    demand = batch.indicators.index(INDICATOR_OF["requests"])
    ahead: list[JumpsAhead | None] = []
    for b, subject in enumerate(subjects):
        jumps, added = subject.state.jumps, None
        expected: tuple[Jump, ...] = ()
        per_s = 0.0
        if len(jumps) > 1:
            again = subject.state.surges.explained(origin_ts_ms, 0, batch.step_ms) if recurring else ()
            expected, per_s = jumps.expected(origin_ts_ms, again)
        if expected:
            values, observed = batch.values[b].cpu(), batch.observed[b].cpu()
            seen = values[observed[:, demand], demand]
            highest = float(seen.max()) if len(seen) else 0.0
            paths = forecast.paths[b, :, :, demand].cpu().numpy()
            item_id = subject.window.workload
            added = jump_paths(expected, per_s, paths, highest, item_id, origin_ts_ms, batch.step_ms)
        if added is None:
            ahead.append(None)
            continue
        more = torch.from_numpy(added).to(forecast.paths.device)
        for column in columns:
            forecast.paths[b, :, :, column] += more * _per_request(values, observed, column, demand)
        ends = added[:, -1]
        ahead.append(JumpsAhead(per_s * _SECONDS_PER_HOUR, float(np.median(ends[ends > 0.0])), len(expected) + 1))
    return ahead


def _per_request(values: Tensor, observed: Tensor, column: int, demand: int) -> float:
    """How much of a column came with each request, where both were observed; 0 without any."""
    both = observed[:, column] & observed[:, demand]
    requests = float(values[both, demand].sum())
    return float(values[both, column].sum()) / requests if requests > 0.0 else float(column == demand)
