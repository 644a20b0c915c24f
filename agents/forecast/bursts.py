"""What a forecast is held to afterwards, and how it is widened by what was learned from that."""

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
from agents.workload.subject import Subject
from agents.workload.units import demand_columns
from model.baselines.context import seen_range
from model.bursts.jumps import jump_paths
from model.bursts.recurring import ExpectedSurge, surge_paths
from model.calibration.trust import SAID, STEPS_AHEAD, Outlook
from model.contract import ContextBatch, ForecastBatch, ordered_paths, quantiles_of_ordered
from model.numerics import six_digits, widen
from streams.windows.table import Window

DEMAND: Final = "request.arrival_rate"
_MID: Final = 0.5


def outlooks_of(
    ordered: Tensor, spoken: Sequence[Subject | None], sources: Sequence[str], origin_ts_ms: int, step_ms: int
) -> list[Outlook | None]:
    """What each forecast says of demand four steps ahead, as it is published (fewer steps where it ends before).

    Args:
        ordered: float32 [B, H, S], demand of each step, ascending along the last axis.
        spoken: B of them, None where nothing is published of demand; None comes of those without demand in the newest
            slot, too.
    """
    ahead = min(STEPS_AHEAD, ordered.shape[1])
    said = quantiles_of_ordered(ordered[:, ahead - 1], torch.tensor(SAID))  # [B, 3]
    numbers = six_digits(said.numpy().astype(np.float64)).tolist()
    due = origin_ts_ms // step_ms - 1 + ahead
    lasts = [None if subject is None else subject.window.newest(DEMAND) for subject in spoken]
    return [
        None if last is None else Outlook(due, low, mid, high, last, source)
        for (low, mid, high), last, source in zip(numbers, lasts, sources, strict=True)
    ]


class Futures:
    """The joint paths of a batch, indicator by indicator, each widened by the row's factor and put in order when asked.

    Every path is moved away from the median of its step by that factor, within the indicator's bounds; rows with factor
    1 keep their bits. Most indicators are only read once the plan is out, which therefore does not wait for them.

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
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def values(self, indicator: int) -> Tensor:
        """float32 [B, H, S]; with those of other indicators, path s is one joint future."""
        return self._of(indicator)[0]

    def ordered(self, indicator: int) -> Tensor:
        """float32 [B, H, S], ascending along the last axis."""
        return self._of(indicator)[1]

    def _of(self, indicator: int) -> tuple[Tensor, Tensor]:
        known = self._known.get(indicator)
        if known is None:
            known = self._known[indicator] = self._widened(indicator)
        return known

    def _widened(self, indicator: int) -> tuple[Tensor, Tensor]:
        paths = self._paths[..., indicator].detach().to("cpu", torch.float32)
        values = paths.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        ordered = ordered_paths(values)
        if (self._factors != 1.0).any():
            middle = quantiles_of_ordered(ordered, torch.tensor([_MID]))[..., 0].numpy()
            lower, upper = (bounds[indicator] for bounds in self._bounds)
            reach = _range_seen(self._batch, indicator)
            for numbers in (values, ordered):
                widen(numbers.numpy(), middle, self._factors, reach, lower, upper)
        return values, ordered


def _range_seen(batch: ContextBatch, indicator: int) -> NDArray[np.float32]:
    """Highest less lowest value of one indicator in the fine rows of each context, [B]; 0 where none is known."""
    low, high = seen_range(batch.values[..., indicator], batch.observed[..., indicator])
    return (high - low).clamp(min=0.0).to("cpu", torch.float32).numpy()


# Jumps that no forecast has in it, between what was learned of them, forecasts and plans.


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


# Surges that come again, between windows, forecasts and plans: what of a window is theirs, and what is yet to come.


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


# What a plan rests on when no forecaster is trusted: the load of the newest slots, each of them taken to go on.
#
# Such paths foresee nothing, but they follow the load up and down, and their spread is that of the slots themselves.


_SLOTS: Final = 32
_ARRIVALS: Final = 0


def recent_levels(window: Window, column: int, num_paths: int) -> Tensor | None:
    """The levels of constant paths of a column, float32 [S]; None where arrivals were never observed.

    They are of slots in which arrivals were; a value that such a slot lacks is the one before it. The newest slots come
    again where there are more paths.
    """
    seen = np.flatnonzero(window.observed[:, _ARRIVALS])[-_SLOTS:]
    if not len(seen):
        return None
    known = np.where(window.observed[:, column], window.values[:, column], np.nan)
    for at in range(1, len(known)):
        known[at] = known[at - 1] if np.isnan(known[at]) else known[at]
    levels = np.nan_to_num(known[seen[::-1]]).astype(np.float32)  # newest first
    return torch.from_numpy(levels)[torch.arange(num_paths) % len(levels)]
