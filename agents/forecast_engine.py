"""Turns the admitted workloads of a slot into forecasts and plans: collate, batch, infer, plan, describe.

A row's horizon is a bucket of its own lead time, so that its numbers never depend on what else is in the batch.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import msgspec
import numpy as np
import torch
from torch import Tensor

from agents.collate import WindowRow, collate
from agents.hindsight import Futures, outlook_of, widened_futures
from agents.micro_batcher import MicroBatcher
from agents.plan_rows import RowPlanner, bare_plan
from agents.planner import horizon_steps
from agents.policy import Policy
from agents.proposal import Proposer, with_proposals
from agents.recent_levels import recent_levels
from agents.records import ForecastRecord
from agents.subject import Planned, Subject
from model.contract import ContextBatch, ForecastBatch, Forecaster, quantiles_of_ordered, quantiles_of_paths
from model.forecast_trust import REACTIVE, TIERS
from streams.catalogue import Indicator
from streams.meter import Meter

QUANTILE_LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
_HORIZON_BUCKETS = (8, 16, 24, 32, 48, 64)
_SIGNIFICANT_DIGITS = 6
_DEMAND = 0  # column of the arrival rate


class Engine:
    """Implements `ForecastEngine` for all partitions of one worker.

    Args:
        forecaster: for its fingerprint and limits; the batcher holds the thread that runs it.
        batcher: shared, so that one inference batch mixes all workloads of the worker.
        crowd: the most workloads of a partition that it forecasts, and what forecasts them all where there are more
            (their number decides, never the clock), and those whose trust it has lost (`model.forecast_trust`).
        proposer: a policy of somebody's own, asked after the planner.
        demand_alone: demand is forecast from demand, a fraction of the work of forecasting every indicator; only
            workloads without any are forecast in full.
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
    ) -> None:
        self._forecaster = forecaster
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
        # One thread with one torch thread, as for inference: nothing that runs beside it can change a number.
        self._thread = ThreadPoolExecutor(1, "plan", initializer=torch.set_num_threads, initargs=(1,))

    @property
    def fingerprint(self) -> str:
        return self._forecaster.fingerprint

    @property
    def min_context(self) -> int:
        return self._forecaster.min_context

    async def plan(self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool) -> list[Planned]:
        """Forecast and plan; between planning slots only the reactive rule looks at the load."""
        if not with_forecast:
            return [Planned(self._rows.between(subject, origin_ts_ms), None) for subject in subjects]
        answers = [Planned(bare_plan(subject, subject.refused), None) for subject in subjects]
        groups: dict[tuple[int, bool, int], list[int]] = {}
        crowded = self._crowd is not None and len(subjects) > self._crowd[0]
        targets = [self._target_columns(subject) for subject in subjects]
        for i, subject in enumerate(subjects):
            if targets[i]:
                simple = crowded or not subject.state.trust.asks_network
                groups.setdefault((self._horizon(subject), simple, self._width(targets[i])), []).append(i)
        for (horizon, simple, width), indices in sorted(groups.items()):
            batcher = self._crowd[1] if simple and self._crowd is not None else self._batcher
            group = [(subjects[i], targets[i]) for i in indices]
            done = await self._plan_group(group, origin_ts_ms, horizon, width, batcher)
            for i, answer in zip(indices, done, strict=True):
                answers[i] = answer
        return answers

    def _target_columns(self, subject: Subject) -> list[int]:
        """What is forecast for people: demand, or whatever is observed of a workload without request telemetry."""
        enough = np.flatnonzero(subject.window.observed.sum(axis=0) >= self.min_context).tolist()
        return [n for n in enough if self._catalogue[n].level == 1] or enough

    def _width(self, targets: Sequence[int]) -> int:
        """How many columns of the catalogue the forecaster is told of: demand comes first in it."""
        return self._num_demand if self._demand_alone and targets[0] < self._num_demand else len(self._catalogue)

    def _horizon(self, subject: Subject) -> int:
        limit = min(self._policy.max_horizon, self._forecaster.max_horizon)
        steps = horizon_steps(subject.state.lead.quantile(0.95), self._policy.commit_s, self._step_ms, limit)
        return limit if steps is None else next((b for b in _HORIZON_BUCKETS if steps <= b <= limit), limit)

    async def _plan_group(
        self, group: list[tuple[Subject, list[int]]], origin_ts_ms: int, horizon: int, width: int, batcher: MicroBatcher
    ) -> list[Planned]:
        rows = [_window_row(subject, origin_ts_ms, width) for subject, _ in group]
        batch = collate(rows, self._catalogue[:width], self._step_ms)
        forecast = await batcher.forecast(batch, horizon, self._policy.paths_screen)
        # Planning and describing are numeric work of many milliseconds; the loop must keep fetching meanwhile.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._describe, group, forecast, batch, origin_ts_ms)

    def _describe(
        self,
        described: list[tuple[Subject, list[int]]],
        forecast: ForecastBatch,
        batch: ContextBatch,
        origin_ts_ms: int,
    ) -> list[Planned]:
        started = perf_counter()
        group, targets = [subject for subject, _ in described], [columns for _, columns in described]
        plannable = [b for b, subject in enumerate(group) if subject.refused is None]
        with torch.inference_mode():
            # Nobody reads the other columns.
            read = sorted({_DEMAND, *(n for columns in targets for n in columns)})
            columns = slice(read[0], read[-1] + 1) if read[-1] - read[0] < len(read) else read
            said = [(subject.state.trust, source) for subject, source in zip(group, forecast.sources, strict=True)]
            factors = [trust.factor(source) for trust, source in said]
            distrusted = [not trust.trusts(source) for trust, source in said]
            futures = widened_futures(forecast.paths[..., columns], factors, batch.lower[read], batch.upper[read])
            arrivals = futures.paths[..., _DEMAND]  # [B, S, H]
            paths = _without_distrusted(futures.paths, group, distrusted, read)
            paths = paths if len(plannable) == len(group) else paths[plannable]
            found = self._rows.results([group[b] for b in plannable], paths, read, origin_ts_ms)
            results = dict(zip(plannable, found, strict=True))
            records = self._records(described, read, forecast, futures, origin_ts_ms)
        planned = []
        for b, (subject, source, record) in enumerate(zip(group, forecast.sources, records, strict=True)):
            self._meter.count("forecasts_total", source=source)
            result = results.get(b)
            if result is not None:
                done = self._rows.workload_plan(subject, result, TIERS[REACTIVE] if distrusted[b] else source)
            else:
                done = bare_plan(subject, subject.refused)
            planned.append(Planned(msgspec.structs.replace(done, outlook=outlook_of(record, subject.window)), record))
        if self._proposer is not None:
            planned = with_proposals(self._proposer, planned, group, arrivals, origin_ts_ms, self._step_ms)
        self._meter.observe("plan_seconds", perf_counter() - started)
        return planned

    def _records(
        self,
        described: list[tuple[Subject, list[int]]],
        columns: list[int],
        forecast: ForecastBatch,
        futures: Futures,
        origin_ts_ms: int,
    ) -> list[ForecastRecord]:
        """What is published of a forecast, whose futures have these columns of the catalogue."""
        levels = torch.tensor(QUANTILE_LEVELS)
        horizon = futures.values.shape[1]
        at = {n: c for c, n in enumerate(columns)}
        steps = _rounded(quantiles_of_ordered(futures.ordered, levels)).movedim(2, 1).tolist()  # [B, C, H, Q]
        peaks = _rounded(quantiles_of_paths(futures.values.amax(dim=1), levels)).tolist()  # [B, C, Q]
        records = []
        for (subject, targets), source, rows, peak in zip(described, forecast.sources, steps, peaks, strict=True):
            workload = subject.window.workload
            names = {self._catalogue[n].name: at[n] for n in targets}
            records.append(
                ForecastRecord(
                    forecast_id=_forecast_id(self._policy.fleet, workload, origin_ts_ms, forecast.fingerprint),
                    workload=workload,
                    origin_ts_ms=origin_ts_ms,
                    step_ms=self._step_ms,
                    source=source,
                    model=forecast.fingerprint,
                    quantile_levels=QUANTILE_LEVELS,
                    targets={name: tuple(map(tuple, rows[c])) for name, c in names.items()},
                    peaks={name: tuple(peak[c]) for name, c in names.items()},
                    peak_window_s=horizon * self._step_ms / 1000,
                )
            )
        return records


def _without_distrusted(
    paths: Tensor, subjects: Sequence[Subject], distrusted: Sequence[bool], columns: Sequence[int]
) -> Tensor:
    """Paths [B, S, H, C] in which the load of now stands in for forecasters that are not trusted."""
    if any(distrusted):
        paths = paths.clone()
    for b in np.flatnonzero(distrusted).tolist():
        levels = recent_levels(subjects[b].window, columns, paths.shape[1], paths.shape[2])
        if levels is not None:
            paths[b] = levels
    return paths


def _window_row(subject: Subject, origin_ts_ms: int, width: int) -> WindowRow:
    w = subject.window
    return WindowRow(w.workload, origin_ts_ms, w.values[:, :width], w.observed[:, :width], *w.read_coarse())


def _forecast_id(fleet: str, workload: str, origin_ts_ms: int, model: str) -> str:
    text = "\x1f".join((fleet, workload, str(origin_ts_ms), model))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _rounded(values: Tensor) -> Tensor:
    """Six significant digits: what a reader can use, in half the bytes."""
    exact = values.to(torch.float64)
    magnitude = torch.where(exact == 0, torch.ones_like(exact), exact.abs()).log10().floor()
    scale = torch.pow(10.0, _SIGNIFICANT_DIGITS - 1 - magnitude)
    return torch.round(exact * scale) / scale
