"""Turns the admitted workloads of a slot into forecasts and plans: collate, batch, infer, plan, describe.

A row's horizon is a bucket of its own lead time, so that its numbers never depend on what else is in the batch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from agents.collate import collate
from agents.forecast.batcher import MicroBatcher
from agents.forecast.bursts import Futures, outlooks_of
from agents.forecast.publish import QUANTILE_LEVELS, Forecasts
from agents.horizons import padded_horizon
from agents.jumps_ahead import with_jumps
from agents.planning.rows import RowPlanner, bare_plan
from agents.policy import Policy
from agents.proposal import Proposer, with_proposals
from agents.recent_levels import recent_levels
from agents.records import WorkloadPlan
from agents.surges_ahead import surge_times, with_surges
from agents.told_rows import told_rows
from agents.workload.subject import Answers, Making, Subject
from model.calibration.trust import REACTIVE, TIERS
from model.contract import ContextBatch, ForecastBatch, Forecaster, quantiles_of_ordered, quantiles_of_paths
from streams.catalogue import Indicator
from streams.meter import Meter

_DEMAND = 0  # column of the arrival rate


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """Futures of some workloads, from which their forecasts are still to be made.

    Attributes:
        columns: of the catalogue, C, in the order of the futures'.
        published: per workload, which of them people are told of.
    """

    workloads: tuple[str, ...]
    published: list[list[int]]
    columns: list[int]
    sources: tuple[str, ...]
    fingerprint: str
    futures: Futures


class Engine:
    """Implements `ForecastEngine` for all partitions of one worker.

    Args:
        forecaster: for its fingerprint and limits; the batcher holds the thread that runs it.
        batcher: shared, so that one inference batch mixes all workloads of the worker.
        crowd: the most workloads of a partition that it forecasts, and what forecasts them all where there are more
            (their number decides, never the clock), and those whose trust it has lost (`model.calibration.trust`).
        proposer: a policy of somebody's own, asked after the planner.
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
        self._min_context = forecaster.min_context  # asked for of every workload, and of many forecasters in one
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
        # Each with one torch thread, as for inference: nothing that runs beside it can change a number.
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
    ) -> Answers:
        """Forecast and plan; between planning slots only the reactive rule looks at the load."""
        if not with_forecast:
            return Answers([self._rows.between(subject, origin_ts_ms) for subject in subjects])
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
        forecasts: list[Making] = []
        for (horizon, simple, width), indices in sorted(groups.items()):
            batcher = self._crowd[1] if simple and self._crowd is not None else self._batcher
            group = [(subjects[i], targets[i]) for i in indices]
            done, told = await self._plan_group(group, origin_ts_ms, horizon, width, batcher)
            forecasts.append(partial(loop.run_in_executor, self._threads, self._forecasts, told, origin_ts_ms))
            for i, answer in zip(indices, done, strict=True):
                plans[i] = answer
        return Answers(plans, forecasts)

    def _target_columns(self, subject: Subject, least: int) -> list[int]:
        """What is forecast for people: demand, or whatever is observed of a workload without request telemetry."""
        enough = [n for n, number in enumerate(subject.window.observed_steps) if number >= least]
        return [n for n in enough if self._catalogue[n].level == 1] or enough

    def _width(self, targets: Sequence[int]) -> int:
        """How many columns of the catalogue the forecaster is told of: demand comes first in it."""
        return self._num_demand if self._demand_alone and targets[0] < self._num_demand else len(self._catalogue)

    def _horizon(self, subject: Subject, limit: int) -> int:
        return padded_horizon(subject.state.lead.quantile(0.95), self._policy.commit_s, self._step_ms, limit)

    async def _plan_group(
        self, group: list[tuple[Subject, list[int]]], origin_ts_ms: int, horizon: int, width: int, batcher: MicroBatcher
    ) -> tuple[list[WorkloadPlan], _Told]:
        subjects, step_ms = [subject for subject, _ in group], self._step_ms
        again = [surge_times(s, origin_ts_ms, step_ms) if self._policy.recurring_surges else [] for s in subjects]
        windows = [subject.window for subject in subjects]
        rows = told_rows(windows, again, origin_ts_ms, width, step_ms, self._min_context)
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
    ) -> tuple[list[WorkloadPlan], _Told]:
        started = perf_counter()
        group, targets = [subject for subject, _ in described], [columns for _, columns in described]
        plannable = [b for b, subject in enumerate(group) if subject.refused is None]
        with torch.inference_mode():
            expecting = self._policy.recurring_surges
            ahead = with_surges(forecast, group, batch, origin_ts_ms) if expecting else [None] * len(group)
            jumping = (
                with_jumps(forecast, group, batch, origin_ts_ms, recurring=expecting)
                if self._policy.jumps
                else [None] * len(group)
            )
            read = sorted({_DEMAND, *(n for columns in targets for n in columns)})
            said = [(subject.state.trust, source) for subject, source in zip(group, forecast.sources, strict=True)]
            factors = [trust.factor(source) for trust, source in said]
            distrusted = [not trust.trusts(source) for trust, source in said]
            futures = Futures(forecast.paths, factors, batch)
            planned = _Planned(futures, group, distrusted, plannable, frozenset(read))
            found = self._rows.results(
                [group[b] for b in plannable], planned.paths(_DEMAND), planned.others, origin_ts_ms
            )
            results = dict(zip(plannable, found, strict=True))
            spoken = [subject if _DEMAND in its else None for subject, its in described]
            demand = futures.ordered(_DEMAND)
            outlooks = outlooks_of(demand, spoken, forecast.sources, origin_ts_ms, self._step_ms)
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
        return plans, _Told(batch.item_ids, published, read, forecast.sources, forecast.fingerprint, futures)

    def _forecasts(self, told: _Told, origin_ts_ms: int) -> Forecasts:
        with torch.inference_mode():
            levels = torch.tensor(QUANTILE_LEVELS)
            ordered = [told.futures.ordered(n) for n in told.columns]
            steps = torch.stack([quantiles_of_ordered(paths, levels) for paths in ordered], dim=1)  # [B, C, H, Q]
            highest = torch.stack([told.futures.values(n).amax(dim=1) for n in told.columns], dim=1)  # [B, C, S]
            peaks = quantiles_of_paths(highest, levels)  # [B, C, Q]
        return Forecasts(
            fleet=self._policy.fleet,
            workloads=told.workloads,
            origin_ts_ms=origin_ts_ms,
            step_ms=self._step_ms,
            sources=told.sources,
            model=told.fingerprint,
            indicators=tuple(self._catalogue[n].name for n in told.columns),
            published=told.published,
            steps=steps.numpy(),
            peaks=peaks.numpy(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Planned:
    """What plans rest on, where the load of now stands in for forecasters that are not trusted.

    Attributes:
        plannable: rows of the group that are planned, B of them.
        read: columns of the catalogue that are forecast for somebody.
    """

    futures: Futures
    group: Sequence[Subject]
    distrusted: Sequence[bool]
    plannable: Sequence[int]
    read: frozenset[int]

    def others(self, column: int) -> Tensor | None:
        """`paths`, where the column is read."""
        return self.paths(column) if column in self.read else None

    def paths(self, column: int) -> Tensor:
        """float32 [B, S, H]."""
        values = self.futures.values(column)  # [.., H, S]
        values = values if len(self.plannable) == len(self.group) else values[self.plannable]
        if any(self.distrusted):
            values = values.clone()
            for b in [b for b, row in enumerate(self.plannable) if self.distrusted[row]]:
                levels = recent_levels(self.group[self.plannable[b]].window, column, values.shape[2])
                if levels is not None:
                    values[b] = levels
        return values.transpose(1, 2)
