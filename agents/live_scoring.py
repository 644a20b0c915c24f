"""Scores what the forecast stage publishes, and a seasonal naive forecast of the same demand beside it.

The naive forecast is made in a thread of its own after the plans, so that no command waits for it; one that is not
ready when its value arrives is not scored. Of a large partition some workloads are scored in each slot, the next ones
in the next. Nothing here can change a plan, and nothing of it survives a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from agents.collate import WindowRow, collate
from agents.forecast.publish import Forecasts
from agents.forecast.scoring import SCORED_STEPS, PendingForecasts, Rows, SkillBoard
from model.contract import quantiles_of_paths
from model.seasonal_naive import SeasonalNaiveForecaster
from streams.catalogue import Indicator
from streams.meter import Meter
from streams.windows.table import Window, WindowTable

NAIVE = "seasonal_naive"
_NAIVE_PATHS = 64
_MOST_WAITING = 4
_MOST_SCORED = 64  # workloads of a partition and slot: a share of them is as good a sample

# Target -> workload -> quantiles [steps][Q].
Quantiles = dict[str, dict[str, list[list[float]]]]


class NaiveBaseline:
    """Seasonal naive quantiles of demand, made in one background thread shared by a worker's partitions."""

    def __init__(self, catalogue: Sequence[Indicator], step_ms: int, levels: Sequence[float]) -> None:
        self._demand = tuple(indicator for indicator in catalogue if indicator.level == 1)
        self._step_ms = step_ms
        self._levels = torch.tensor(levels)
        self._forecaster = SeasonalNaiveForecaster()
        self._thread = ThreadPoolExecutor(1, "naive", initializer=torch.set_num_threads, initargs=(1,))

    def start(self, windows: Sequence[Window], origin_ts_ms: int, horizon: int) -> Future[Quantiles]:
        """Forecast these windows' demand in the background."""
        n = len(self._demand)
        rows = [
            WindowRow(w.workload, origin_ts_ms, w.values[:, :n], w.observed[:, :n], *w.read_coarse()) for w in windows
        ]
        return self._thread.submit(self._forecast, rows, horizon)

    def _forecast(self, rows: Sequence[WindowRow], horizon: int) -> Quantiles:
        with torch.inference_mode():
            batch = collate(rows, self._demand, self._step_ms)
            paths = self._forecaster.forecast(batch, horizon, _NAIVE_PATHS).paths.movedim(1, -1)  # [B, H, C, S]
            values = quantiles_of_paths(paths, self._levels).movedim(2, 0).tolist()  # [C][B][H][Q]
        names = [row.workload for row in rows]
        return {i.name: dict(zip(names, values[c], strict=True)) for c, i in enumerate(self._demand)}


class ForecastScorer:
    """Scores one partition's forecasts; reports through the meter after each slot.

    Args:
        board: shared by the partitions of a worker.
    """

    def __init__(self, board: SkillBoard, baseline: NaiveBaseline, meter: Meter) -> None:
        self._pending = PendingForecasts(board)
        self._baseline = baseline
        self._meter = meter
        self._naive: list[tuple[int, set[tuple[str, str]], Future[Quantiles]]] = []

    def settle(self, slot: int, table: WindowTable) -> None:
        """The slot's values are in the table: score the forecasts that spoke of them."""
        self._collect()
        demand = [indicator.name for indicator in table.catalogue if indicator.level == 1]
        scored = self._pending.settle(slot, {name: table.newest_values(name) for name in demand})
        for (forecaster, target), count in scored.items():
            self._meter.count("forecast_scores_total", count, forecaster=forecaster, target=target)
        if scored:
            self._report()

    def chosen(self, slot: int, workloads: Sequence[str]) -> list[str]:
        """Whose forecasts of a slot are scored."""
        first = slot * _MOST_SCORED
        return [workloads[(first + k) % len(workloads)] for k in range(min(_MOST_SCORED, len(workloads)))]

    def offer(
        self, slot: int, origin_ts_ms: int, forecasts: Sequence[Forecasts], windows: Mapping[str, Window]
    ) -> None:
        """Forecasts just made at the end of `slot`, and the windows of the chosen workloads."""
        offered: dict[tuple[str, str], dict[str, Rows]] = {}
        rows = []
        for its in forecasts:
            for b, workload in enumerate(its.workloads):
                if workload in windows:
                    rows.append(windows[workload])
                    for column in its.published[b]:
                        target = its.indicators[column]
                        offered.setdefault((its.sources[b], target), {})[workload] = its.told(b, column)
        if not rows:
            return
        for (source, target), quantiles in offered.items():
            if source != NAIVE:  # the baseline's own row says the same
                self._pending.offer(slot, source, target, quantiles)
        if len(self._naive) < _MOST_WAITING:  # a machine that is behind must not queue measurements
            wanted = {(workload, target) for (_, target), its in offered.items() for workload in its}
            horizon = min(max(SCORED_STEPS), max(its.steps.shape[2] for its in forecasts))
            self._naive.append((slot, wanted, self._baseline.start(rows, origin_ts_ms, horizon)))

    def _collect(self) -> None:
        """Take in the naive forecasts that are ready, of exactly the workloads and targets that were published."""
        waiting = []
        for slot, wanted, future in self._naive:
            if not future.done():
                waiting.append((slot, wanted, future))
                continue
            if future.exception() is not None:
                continue  # a measurement is never worth an outage; its missing scores show
            for target, by_workload in future.result().items():
                chosen = {w: steps for w, steps in by_workload.items() if (w, target) in wanted}
                self._pending.offer(slot, NAIVE, target, chosen)
        self._naive = waiting

    def _report(self) -> None:
        for skill in self._pending.board.skills():
            forecaster, target = skill.forecaster, skill.target
            for band, ratio in skill.coverage.items():
                self._meter.gauge("forecast_coverage_ratio", ratio, forecaster=forecaster, target=target, band=band)
            if skill.pinball is not None:
                self._meter.gauge("forecast_pinball", skill.pinball, forecaster=forecaster, target=target)
