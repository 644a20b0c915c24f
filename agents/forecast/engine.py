"""Turns the admitted workloads of a slot into forecasts and plans: collate, batch, infer, plan, publish.

The horizon of a row is a bucket of its own lead time, so its numbers never depend on the rest of the batch. Window rows
become tensors here, the only place where the arrays of `streams` meet `model`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.forecast.batcher import MicroBatcher
from agents.forecast.bursts import WidenedPaths, pending_forecasts, recent_levels, surge_times, with_jumps, with_surges
from agents.forecast.publish import QUANTILE_LEVELS, Forecasts
from agents.forecast.workloads import ForecastTask, PlannedSlot
from agents.planning.planner import horizon_steps
from agents.planning.rows import Proposer, RowPlanner, bare_plan, with_proposals
from agents.policy import Policy
from agents.records import WorkloadPlan
from agents.workload.state import Subject
from model.bursts.kernel import outlier_steps
from model.calibration.trust import REACTIVE, TIERS
from model.contract import (
    COARSE_ROWS,
    ContextBatch,
    ForecastBatch,
    Forecaster,
    quantiles_of_ordered,
    quantiles_of_paths,
)
from model.network.spec import REACH_S
from streams.catalogue import ARRIVAL_RATE, Indicator
from streams.meter import Meter
from streams.windows.table import Window

# Window rows to tensors.


@dataclass(frozen=True, slots=True, eq=False)
class WindowRow:
    """One workload's windows at one origin; columns in catalogue order.

    Attributes:
        origin_ts_ms: end of the last closed slot.
        values: float32 [L, N], oldest first, 0 where not observed.
        observed: bool [L, N].
        coarse: float32 [1008, C], 10-minute means of the C level-1 indicators, the newest complete ten minutes last.
        coarse_observed: bool [1008, C].
    """

    workload: str
    origin_ts_ms: int
    values: NDArray[np.float32]
    observed: NDArray[np.bool_]
    coarse: NDArray[np.float32]
    coarse_observed: NDArray[np.bool_]


def collate(rows: Sequence[WindowRow], catalogue: Sequence[Indicator], step_ms: int) -> ContextBatch:
    """One batch of all rows, in their order. Copies: the rings may move on.

    Raises:
        ValueError: no rows, a row of another shape than the catalogue and the first row, or a catalogue whose level-1
            indicators do not come first.
    """
    if not rows:
        raise ValueError("there are no rows to collate")
    levels = [indicator.level for indicator in catalogue]
    num_demand = levels.count(1)
    if any(level != 1 for level in levels[:num_demand]):
        raise ValueError("the catalogue must list its level-1 indicators first: the coarse ring holds those")
    fine = (rows[0].values.shape[0], len(levels))
    coarse = (COARSE_ROWS, num_demand)
    for row in rows:
        shapes = (row.values.shape, row.observed.shape, row.coarse.shape, row.coarse_observed.shape)
        if shapes != (fine, fine, coarse, coarse):
            raise ValueError(f"window of {row.workload!r} has shapes {shapes}, wanted {(fine, fine, coarse, coarse)}")
    bounds = [indicator_bounds(indicator) for indicator in catalogue]
    return ContextBatch(
        item_ids=tuple(row.workload for row in rows),
        origin_ts_ms=torch.tensor([row.origin_ts_ms for row in rows], dtype=torch.int64),
        step_ms=step_ms,
        values=torch.from_numpy(np.stack([row.values for row in rows]).astype(np.float32, copy=False)),
        observed=torch.from_numpy(np.stack([row.observed for row in rows]).astype(np.bool_, copy=False)),
        coarse=torch.from_numpy(np.stack([row.coarse for row in rows]).astype(np.float32, copy=False)),
        coarse_observed=torch.from_numpy(np.stack([row.coarse_observed for row in rows]).astype(np.bool_, copy=False)),
        levels=torch.tensor(levels, dtype=torch.int64),
        indicators=tuple(indicator.name for indicator in catalogue),
        lower=torch.tensor([low for low, _ in bounds], dtype=torch.float32),
        upper=torch.tensor([high for _, high in bounds], dtype=torch.float32),
    )


def indicator_bounds(indicator: Indicator) -> tuple[float, float]:
    """Physical bounds of the indicator, from those of the raw values and from how it is made of them."""
    if indicator.rule == "miss_ratio":
        return 0.0, 1.0
    lower = -np.inf if indicator.lower is None else indicator.lower
    upper = np.inf if indicator.upper is None else indicator.upper
    if indicator.rule == "ratio":
        lower, upper = max(lower, 0.0), min(upper, 1.0)
    if indicator.rule in ("rate", "p95"):
        lower, upper = max(lower, 0.0), np.inf  # made of increases, which no bound of a counter bounds
    if indicator.over_sources == "sum":
        lower, upper = (lower if lower >= 0 else -np.inf), (upper if upper <= 0 else np.inf)
    return float(lower), float(upper)


# Input masking: two kinds of steps are hidden from a forecaster.
#
# Outliers, whose load had no effect on the engines; and recurring surges, which are added to the paths when they are
# due.


# Columns that decide whether a step is an outlier.
_OUTLIER_INDICATORS = (ARRIVAL_RATE, "engine.running", "engine.waiting_max", "slo.miss_ratio")


def masked_rows(
    windows: Sequence[Window],
    explained: Sequence[Sequence[tuple[int, int]]],
    origin_ts_ms: int,
    width: int,
    step_ms: int,
    least: int,
) -> list[WindowRow]:
    """The first `width` columns of windows of one catalogue, with masked steps marked as not observed.

    Args:
        explained: of each window, the times of recurring surges, in ms.
        least: steps that a forecaster needs; surges are not masked where fewer would be left.
    """
    if not windows:
        return []
    columns = np.array([windows[0].columns.get(name, -1) for name in _OUTLIER_INDICATORS], np.int64)
    unfelt = np.empty(len(windows[0].values), np.bool_)
    rows = []
    for w, times in zip(windows, explained, strict=True):
        observed = w.observed[:, :width]
        if outlier_steps(w.values, w.observed, columns, step_ms / 1000, unfelt):
            observed = observed & ~unfelt[:, None]
        if times:
            again = _mask_of_times(times, origin_ts_ms, step_ms, len(observed))
            if int((observed[:, 0] & ~again).sum()) >= least:
                observed = observed & ~again[:, None]
        rows.append(WindowRow(w.workload, origin_ts_ms, w.values[:, :width], observed, *w.read_coarse()))
    return rows


def _mask_of_times(times: Sequence[tuple[int, int]], origin_ts_ms: int, step_ms: int, length: int) -> NDArray[np.bool_]:
    """Which of the steps before the origin lie in any of the times, [L]."""
    within = np.zeros(length, np.bool_)
    for start_ms, end_ms in times:
        first, after = length - (origin_ts_ms - start_ms) // step_ms, length - (origin_ts_ms - end_ms) // step_ms
        within[max(first, 0) : max(after, 0)] = True
    return within


# Horizons, padded to few shapes by the lead time of each row.


# Horizons in steps.
_BUCKETS: Final = (8, 16, 24, 32, 48, 64)


def padded_horizon(lead_p95_s: float, commit_s: float, step_ms: int, limit: int) -> int:
    """Steps of the smallest bucket that covers lead time and commit window; `limit` where none does.

    One bucket ends where the shipped network's reach does: with long steps a need within it would else be padded
    beyond it, and the network never be asked.
    """
    steps = horizon_steps(lead_p95_s, commit_s, step_ms, limit)
    if steps is None:
        return limit
    edges = sorted({*_BUCKETS, round(1000 * REACH_S) // step_ms})
    return next((edge for edge in edges if steps <= edge <= limit), limit)


_DEMAND = 0  # column of the arrival rate


@dataclass(frozen=True, slots=True, eq=False)
class UnpublishedPaths:
    """Widened paths of some workloads whose quantiles are still to be made.

    Attributes:
        columns: C columns of the catalogue.
        published: per workload, the columns that are published.
    """

    workloads: tuple[str, ...]
    published: list[list[int]]
    columns: list[int]
    sources: tuple[str, ...]
    fingerprint: str
    futures: WidenedPaths


class Engine:
    """Implements `ForecastEngine` for all partitions of one worker.

    Args:
        forecaster: for its fingerprint and limits; the batcher holds the thread that runs it.
        batcher: shared, so that one inference batch mixes all workloads of the worker.
        crowd: the most workloads of a partition that it forecasts, and what forecasts them all where there are more
            (their number decides, never the clock), and those whose trust it has lost (`model.calibration.trust`).
        proposer: a plug-in policy, asked after the planner.
        demand_alone: demand is forecast from demand, a fraction of the work of forecasting every indicator; only
            workloads without any are forecast in full.
        plan_threads: partitions that are planned at a time.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        batcher: MicroBatcher,
        policy: Policy,
        catalogue: tuple[Indicator, ...],
        step_ms: int,
        meter: Meter,
        crowd: tuple[int, MicroBatcher] | None = None,
        proposer: Proposer | None = None,
        demand_alone: bool = True,
        plan_threads: int = 1,
    ) -> None:
        self._forecaster = forecaster
        self._min_context = forecaster.min_context  # read for every workload, and costly for a chain of forecasters
        self._batcher = batcher
        self._crowd = crowd
        self._proposer = proposer
        self._policy = policy
        self._rows = RowPlanner(policy, step_ms)
        self._catalogue = catalogue
        self._num_demand = sum(indicator.level == 1 for indicator in catalogue)
        self._demand_alone = demand_alone
        self._step_ms = step_ms
        self._meter = meter
        # One torch thread each, as for inference, so that parallel work cannot change a number.
        self._threads = ThreadPoolExecutor(plan_threads, "plan", initializer=torch.set_num_threads, initargs=(1,))
        self._proposing = Lock()

    @property
    def fingerprint(self) -> str:
        return self._forecaster.fingerprint

    @property
    def min_context(self) -> int:
        return self._min_context

    async def plan(
        self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool, partition_size: int
    ) -> PlannedSlot:
        """Forecast and plan; between planning slots only the reactive rule looks at the load."""
        if not with_forecast:
            return PlannedSlot([self._rows.between(subject, origin_ts_ms) for subject in subjects])
        plans = [bare_plan(subject, subject.refused) for subject in subjects]
        groups: dict[tuple[int, bool, int], list[int]] = {}
        crowded = self._crowd is not None and partition_size > self._crowd[0]
        least, reach = self.min_context, min(self._policy.max_horizon, self._forecaster.max_horizon)
        targets = [self._target_columns(subject, least) for subject in subjects]
        for i, subject in enumerate(subjects):
            if targets[i]:
                simple = crowded or not subject.state.trust.asks_network
                groups.setdefault((self._horizon(subject, reach), simple, self._width(targets[i])), []).append(i)
        loop = asyncio.get_running_loop()
        forecasts: list[ForecastTask] = []
        for (horizon, simple, width), indices in sorted(groups.items()):
            batcher = self._crowd[1] if simple and self._crowd is not None else self._batcher
            group = [(subjects[i], targets[i]) for i in indices]
            group_plans, unpublished = await self._plan_group(group, origin_ts_ms, horizon, width, batcher)
            forecasts.append(partial(loop.run_in_executor, self._threads, self._forecasts, unpublished, origin_ts_ms))
            for i, answer in zip(indices, group_plans, strict=True):
                plans[i] = answer
        return PlannedSlot(plans, forecasts)

    def _target_columns(self, subject: Subject, least: int) -> list[int]:
        """The published columns: demand, or whatever is observed of a workload without request telemetry.

        An undeclared workload of which nothing was observed has none: made-up names must cost little once they are not
        heard any more.
        """
        if subject.refused == "silent" and not subject.state.declared and not subject.window.observed[-1].any():
            return []
        enough = [n for n, number in enumerate(subject.window.observed_steps) if number >= least]
        demand = [n for n in enough if self._catalogue[n].level == 1]
        return demand or [n for n in enough if self._catalogue[n].forecast]

    def _width(self, targets: Sequence[int]) -> int:
        """Number of catalogue columns that the forecaster gets; demand columns come first."""
        return self._num_demand if self._demand_alone and targets[0] < self._num_demand else len(self._catalogue)

    def _horizon(self, subject: Subject, limit: int) -> int:
        return padded_horizon(subject.state.lead.quantile(0.95), self._policy.commit_s, self._step_ms, limit)

    async def _plan_group(
        self, group: list[tuple[Subject, list[int]]], origin_ts_ms: int, horizon: int, width: int, batcher: MicroBatcher
    ) -> tuple[list[WorkloadPlan], UnpublishedPaths]:
        subjects, step_ms = [subject for subject, _ in group], self._step_ms
        again = [surge_times(s, origin_ts_ms, step_ms) if self._policy.recurring_surges else [] for s in subjects]
        windows = [subject.window for subject in subjects]
        rows = masked_rows(windows, again, origin_ts_ms, width, step_ms, self._min_context)
        batch = collate(rows, self._catalogue[:width], self._step_ms)
        forecast = await batcher.forecast(batch, horizon, self._policy.paths_screen)
        # Planning is numeric work of many milliseconds; the loop must keep fetching meanwhile.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._plans, group, forecast, batch, origin_ts_ms)

    def _plans(
        self,
        described: list[tuple[Subject, list[int]]],
        forecast: ForecastBatch,
        batch: ContextBatch,
        origin_ts_ms: int,
    ) -> tuple[list[WorkloadPlan], UnpublishedPaths]:
        started = perf_counter()
        group, targets = [subject for subject, _ in described], [columns for _, columns in described]
        plannable = [b for b, subject in enumerate(group) if subject.refused is None]
        with torch.inference_mode():
            trusts = [(subject.state.trust, source) for subject, source in zip(group, forecast.sources, strict=True)]
            distrusted = [not trust.trusts(source) for trust, source in trusts]
            plain = {b: forecast.paths[b].clone() for b, is_distrusted in enumerate(distrusted) if is_distrusted}
            expecting = self._policy.recurring_surges
            ahead = with_surges(forecast, group, batch, origin_ts_ms) if expecting else [None] * len(group)
            jumping = (
                with_jumps(forecast, group, batch, origin_ts_ms, recurring=expecting)
                if self._policy.jumps
                else [None] * len(group)
            )
            read = sorted({_DEMAND, *(n for columns in targets for n in columns)})
            factors = [trust.factor(source) for trust, source in trusts]
            futures = WidenedPaths(forecast.paths, factors, batch)
            bursts = {b: forecast.paths[b] - paths for b, paths in plain.items()}
            planned = PlanningPaths(futures, group, bursts, plannable, frozenset(read))
            row_plans = self._rows.results(
                [group[b] for b in plannable], planned.paths(_DEMAND), planned.others, origin_ts_ms
            )
            results = dict(zip(plannable, row_plans, strict=True))
            published_subjects = [subject if _DEMAND in columns else None for subject, columns in described]
            demand = futures.ordered(_DEMAND)
            outlooks = pending_forecasts(demand, published_subjects, forecast.sources, origin_ts_ms, self._step_ms)
        for source, number in sorted(Counter(forecast.sources).items()):
            self._meter.count("forecasts_total", number, source=source)
        self._meter.count("expected_bursts_total", sum(surge is not None for surge in ahead), kind="surge")
        self._meter.count("expected_bursts_total", sum(jumps is not None for jumps in jumping), kind="jumps")
        plans = []
        for b, (subject, source, outlook, surge, jumps) in enumerate(
            zip(group, forecast.sources, outlooks, ahead, jumping, strict=True)
        ):
            result = results.get(b)
            if result is not None:
                source = TIERS[REACTIVE] if distrusted[b] else source
                plans.append(self._rows.workload_plan(subject, result, source, outlook, surge, jumps))
            else:
                plans.append(bare_plan(subject, subject.refused, outlook=outlook, surge=surge, jumps=jumps))
        if self._proposer is not None:
            arrivals = futures.values(_DEMAND).transpose(1, 2)
            with self._proposing:  # a plug-in is asked one question at a time
                plans = with_proposals(self._proposer, plans, group, arrivals, origin_ts_ms, self._step_ms)
        self._meter.observe("plan_seconds", perf_counter() - started)
        at = {n: c for c, n in enumerate(read)}
        published = [[at[n] for n in columns] for columns in targets]
        return plans, UnpublishedPaths(batch.item_ids, published, read, forecast.sources, forecast.fingerprint, futures)

    def _forecasts(self, unpublished: UnpublishedPaths, origin_ts_ms: int) -> Forecasts:
        with torch.inference_mode():
            levels = torch.tensor(QUANTILE_LEVELS)
            ordered = [unpublished.futures.ordered(n) for n in unpublished.columns]
            steps = torch.stack([quantiles_of_ordered(paths, levels) for paths in ordered], dim=1)  # [B, C, H, Q]
            highest = torch.stack(
                [unpublished.futures.values(n).amax(dim=1) for n in unpublished.columns], dim=1
            )  # [B, C, S]
            peaks = quantiles_of_paths(highest, levels)  # [B, C, Q]
        return Forecasts(
            fleet=self._policy.fleet,
            workloads=unpublished.workloads,
            origin_ts_ms=origin_ts_ms,
            step_ms=self._step_ms,
            sources=unpublished.sources,
            model=unpublished.fingerprint,
            indicators=tuple(self._catalogue[n].name for n in unpublished.columns),
            published=unpublished.published,
            steps=steps.numpy(),
            peaks=peaks.numpy(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PlanningPaths:
    """Paths that plans use: forecasts, or the recent load where no forecaster is trusted.

    Expected surges and jumps are added to both: a forecaster is often distrusted because of them.

    Attributes:
        bursts: by row without a trusted forecaster, what they add to its paths, [S, H, N].
        plannable: rows of the group that are planned, B of them.
        read: columns of the catalogue that are forecast.
    """

    futures: WidenedPaths
    group: Sequence[Subject]
    bursts: Mapping[int, Tensor]
    plannable: Sequence[int]
    read: frozenset[int]

    def others(self, column: int) -> Tensor | None:
        """`paths`, where the column is read."""
        return self.paths(column) if column in self.read else None

    def paths(self, column: int) -> Tensor:
        """float32 [B, S, H]."""
        values = self.futures.values(column)  # [.., H, S]
        values = values if len(self.plannable) == len(self.group) else values[self.plannable]
        if self.bursts:
            values = values.clone()
            for b, row in [(b, row) for b, row in enumerate(self.plannable) if row in self.bursts]:
                levels = recent_levels(self.group[row].window, column, values.shape[2])
                if levels is not None:
                    values[b] = levels + self.bursts[row][..., column].transpose(0, 1).to("cpu", values.dtype)
        return values.transpose(1, 2)
