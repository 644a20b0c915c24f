"""Post-processing of forecasts: pending forecasts, widening, jumps, recurring surges, and the recent load.

Jumps and recurring surges are learned apart from the forecaster and are added to its paths here.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.records import JumpsAhead, SurgeAhead
from agents.workload.signals import ratio_of_sums
from agents.workload.state import Subject
from agents.workload.units import demand_columns
from model.baselines.context import observed_range
from model.bursts.jumps import jump_paths
from model.bursts.recurring import ExpectedSurge, surge_paths
from model.calibration.trust import INTERVAL_LEVELS, STEPS_AHEAD, PendingForecast
from model.contract import ContextBatch, ForecastBatch, ordered_paths, quantiles_of_ordered
from model.numerics import six_digits, widen
from streams.windows.table import Window

DEMAND: Final = "request.arrival_rate"
_MID: Final = 0.5


def pending_forecasts(
    ordered: Tensor, subjects: Sequence[Subject | None], sources: Sequence[str], origin_ts_ms: int, step_ms: int
) -> list[PendingForecast | None]:
    """Pending forecasts of demand `STEPS_AHEAD` steps ahead, or at the last step of a shorter horizon.

    Args:
        ordered: float32 [B, H, S], demand of each step, ascending along the last axis.
        subjects: B subjects, None where no demand is published; subjects without demand in the newest slot yield None.
    """
    ahead = min(STEPS_AHEAD, ordered.shape[1])
    interval = quantiles_of_ordered(ordered[:, ahead - 1], torch.tensor(INTERVAL_LEVELS))  # [B, 3]
    numbers = six_digits(interval.numpy().astype(np.float64)).tolist()
    due = origin_ts_ms // step_ms - 1 + ahead
    lasts = [None if subject is None else subject.window.newest(DEMAND) for subject in subjects]
    return [
        None if last is None else PendingForecast(due, low, mid, high, last, source)
        for (low, mid, high), last, source in zip(numbers, lasts, sources, strict=True)
    ]


class WidenedPaths:
    """The joint paths of a batch, widened by the factor of each row and sorted, one indicator at a time on demand.

    Every path is moved away from the median of its step by that factor, within the indicator's bounds; rows with factor
    1 keep their bits. Most indicators are read only after the plan, so the plan does not wait for them.

    Args:
        paths: [B, S, H, N]; not changed.
        factors: B of them.
        batch: what they were forecast from.
    """

    def __init__(self, paths: Tensor, factors: Sequence[float], batch: ContextBatch) -> None:
        self._paths = paths
        self._factors = np.array(factors, np.float32)
        self._batch = batch
        self._bounds = batch.lower.cpu().numpy(), batch.upper.cpu().numpy()
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    def values(self, indicator: int) -> Tensor:
        """float32 [B, H, S]; with those of other indicators, path s is one joint future."""
        return self._of(indicator)[0]

    def ordered(self, indicator: int) -> Tensor:
        """float32 [B, H, S], ascending along the last axis."""
        return self._of(indicator)[1]

    def _of(self, indicator: int) -> tuple[Tensor, Tensor]:
        pair = self._cache.get(indicator)
        if pair is None:
            pair = self._cache[indicator] = self._widened(indicator)
        return pair

    def _widened(self, indicator: int) -> tuple[Tensor, Tensor]:
        paths = self._paths[..., indicator].detach().to("cpu", torch.float32)
        values = paths.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        ordered = ordered_paths(values)
        if (self._factors != 1.0).any():
            middle = quantiles_of_ordered(ordered, torch.tensor([_MID]))[..., 0].numpy()
            lower, upper = (bounds[indicator] for bounds in self._bounds)
            reach = _context_span(self._batch, indicator)
            for numbers in (values, ordered):
                widen(numbers.numpy(), middle, self._factors, reach, lower, upper)
        return values, ordered


def _context_span(batch: ContextBatch, indicator: int) -> NDArray[np.float32]:
    """Highest less lowest value of one indicator in the fine rows of each context, [B]; 0 where none is known."""
    low, high = observed_range(batch.values[..., indicator], batch.observed[..., indicator])
    return (high - low).clamp(min=0.0).to("cpu", torch.float32).numpy()


# Jumps.


_SECONDS_PER_HOUR = 3600.0


def with_jumps(
    forecast: ForecastBatch, subjects: Sequence[Subject], batch: ContextBatch, origin_ts_ms: int, *, recurring: bool
) -> list[JumpsAhead | None]:
    """Add jumps to the paths, in place, as often as the load jumped recently; returns what a plan says of each row.

    Each added request adds the tokens per request of the context, or none where it has no requests.

    Args:
        recurring: whether recurring surges are in the paths already and are not jumps.
    """
    columns = demand_columns(batch.columns)
    return [
        _add_jumps(forecast, batch, b, subject, columns, origin_ts_ms, recurring) for b, subject in enumerate(subjects)
    ]


def _add_jumps(
    forecast: ForecastBatch,
    batch: ContextBatch,
    row: int,
    subject: Subject,
    columns: Sequence[int],
    origin_ts_ms: int,
    recurring: bool,
) -> JumpsAhead | None:
    """Add jumps to the paths of one row."""
    state, requests = subject.state, columns[0]
    if requests < 0 or len(state.jumps) < 2:
        return None
    again = state.surges.explained(origin_ts_ms, 0, batch.step_ms) if recurring else ()
    expected, per_s = state.jumps.expected(origin_ts_ms, again)
    if not expected:
        return None
    paths, values, observed = forecast.paths[row], batch.values[row].cpu(), batch.observed[row].cpu()
    _, highest = observed_range(values[None, :, requests], observed[None, :, requests])
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


# Recurring surges.


def surge_times(subject: Subject, origin_ts_ms: int, step_ms: int) -> list[tuple[int, int]]:
    """Times within the window, in ms, whose load held a recurring surge."""
    from_ms = origin_ts_ms - len(subject.window.values) * step_ms
    return subject.state.surges.explained(origin_ts_ms, from_ms, step_ms)


def with_surges(
    forecast: ForecastBatch, subjects: Sequence[Subject], batch: ContextBatch, origin_ts_ms: int
) -> list[SurgeAhead | None]:
    """Add the recurring surges within the horizon to the paths, in place; returns the first surge of each row."""
    num_paths, horizon, width = forecast.paths.shape[1:]
    until_ms = origin_ts_ms + horizon * batch.step_ms
    columns = demand_columns(batch.columns)
    ahead: list[SurgeAhead | None] = []
    for b, subject in enumerate(subjects):
        expected = subject.state.surges.expected(origin_ts_ms, until_ms, batch.step_ms)
        ahead.append(_surge_ahead(expected[0]) if expected else None)
        if expected:
            shape = num_paths, horizon, width
            added = surge_paths(expected, subject.window.workload, origin_ts_ms, batch.step_ms, columns, shape)
            forecast.paths[b] += torch.from_numpy(added).to(forecast.paths.device)
    return ahead


def _surge_ahead(surge: ExpectedSurge) -> SurgeAhead:
    surges = surge.recurrence.surges
    return SurgeAhead(
        start_ts_ms=surge.start_ms,
        begun=surge.begun,
        chance=surge.chance,
        period_s=surge.recurrence.period_ms / 1000,
        length_s=median(one.length_ms for one in surges) / 1000,
        arrival_rate=median(one.extra[0] for one in surges),
        seen=len(surges),
        due=surge.recurrence.due + 1,
    )


# The recent load, which plans use when no forecaster is trusted: each path is constant at the load of one recent slot.

# Newest slots whose loads become paths.
_RECENT_SLOTS: Final = 32
# Column of the arrival rate.
_ARRIVALS: Final = 0


def recent_levels(window: Window, column: int, num_paths: int) -> Tensor | None:
    """The levels of constant paths of a column, float32 [S]; None where arrivals were never observed.

    They are of slots in which arrivals were; a value that such a slot lacks is the one before it. The newest slots come
    again where there are more paths.
    """
    slots = np.flatnonzero(window.observed[:, _ARRIVALS])[-_RECENT_SLOTS:]
    if not len(slots):
        return None
    filled = np.where(window.observed[:, column], window.values[:, column], np.nan)
    for at in range(1, len(filled)):
        filled[at] = filled[at - 1] if np.isnan(filled[at]) else filled[at]
    levels = np.nan_to_num(filled[slots[::-1]]).astype(np.float32)  # newest first
    return torch.from_numpy(levels)[torch.arange(num_paths) % len(levels)]
