"""Live scores of the demand forecasts: coverage and pinball loss, by forecaster and target.

A forecast is offered when it is made and scored when its value is observed; without a value there is no score. Older
scores decay with the slots. A seasonal naive forecast of the same demand is scored beside it, made in a thread of its
own after the plans. The scores are measurements only: no plan reads them, and a restart begins without any.

Source: T. Gneiting, A. Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from agents.forecast.engine import WindowRow, collate
from agents.forecast.publish import Forecasts
from agents.records import BANDS
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import quantiles_of_paths
from streams.catalogue import Indicator
from streams.meter import Meter
from streams.windows.table import Window, WindowTable

SCORED_STEPS: Final = (1, 4, 16)
Rows = Sequence[Sequence[float]] | NDArray[np.float64]  # [steps][Q]
# Factor on the sums per slot, so that about the last 200 slots count.
_SCORE_DECAY: Final = 0.995


@dataclass(frozen=True, slots=True)
class Skill:
    """The scores of one forecaster and target.

    Attributes:
        coverage: band -> share of values within it.
        pinball: mean over levels and scores, as a share of the mean absolute value; None while all values are 0.
    """

    forecaster: str
    target: str
    coverage: dict[str, float]
    pinball: float | None


class SkillBoard:
    """Sums of scores of all partitions of a worker.

    Args:
        levels: ascending quantile levels of the forecasts; must hold the ends of every band.

    Raises:
        ValueError: levels that cannot be scored.
    """

    def __init__(self, levels: Sequence[float]) -> None:
        needed = {q for band in BANDS.values() for q in band}
        if not needed <= set(levels) or list(levels) != sorted(set(levels)):
            raise ValueError(f"levels must ascend and hold {sorted(needed)}, got {tuple(levels)}")
        self.levels = np.array(levels, np.float64)
        self._bands = [(list(levels).index(low), list(levels).index(high)) for low, high in BANDS.values()]
        # Per (forecaster, target): newest slot, and count, values within each band, pinball, |value|.
        self._sums: dict[tuple[str, str], tuple[int, NDArray[np.float64]]] = {}

    def add(self, slot: int, forecaster: str, target: str, quantiles: ArrayLike, values: ArrayLike) -> int:
        """Score quantiles [K, Q] against the values [K] of a slot; returns how many were finite, and so counted."""
        f, y = np.asarray(quantiles, np.float64), np.asarray(values, np.float64)
        finite = np.isfinite(f).all(axis=1) & np.isfinite(y)
        f, y = f[finite], y[finite, None]
        gap = y - f  # [K, Q]
        loss = np.maximum(self.levels * gap, (self.levels - 1.0) * gap).mean(axis=1)
        inside = [((f[:, a] <= y[:, 0]) & (y[:, 0] <= f[:, b])).sum() for a, b in self._bands]
        scores = np.array([len(y), *inside, loss.sum(), np.abs(y).sum()], np.float64)
        newest, sums = self._sums.get((forecaster, target), (slot, np.zeros(len(scores))))
        # Partitions may be some slots apart; what is late fades by its own age.
        ahead = slot - newest
        faded = sums * _SCORE_DECAY**ahead + scores if ahead >= 0 else sums + scores * _SCORE_DECAY**-ahead
        self._sums[forecaster, target] = max(slot, newest), faded
        return len(y)

    def skills(self) -> list[Skill]:
        """One entry per forecaster and target with a score."""
        skills = []
        for (forecaster, target), (_, sums) in sorted(self._sums.items()):
            count, *inside, loss, scale = sums.tolist()
            if count > 0:
                coverage = {band: n / count for band, n in zip(BANDS, inside, strict=True)}
                skills.append(Skill(forecaster, target, coverage, loss / scale if scale > 0 else None))
        return skills


@dataclass(frozen=True, slots=True, eq=False)
class _PublishedQuantiles:
    forecaster: str
    target: str
    workloads: tuple[str, ...]
    quantiles: NDArray[np.float64]  # [K, Q]


class UnscoredForecasts:
    """Forecasts of one partition whose values are not observed yet.

    Args:
        steps: slots ahead of the origin that are scored.
    """

    def __init__(self, board: SkillBoard, steps: Sequence[int] = SCORED_STEPS) -> None:
        self.board = board
        self._steps = tuple(steps)
        self._newest: int | None = None
        self._waiting: dict[int, list[_PublishedQuantiles]] = {}

    def __len__(self) -> int:
        return sum(len(offers) for offers in self._waiting.values())

    def offer(
        self,
        slot: int,
        forecaster: str,
        target: str,
        quantiles: Mapping[str, Rows],
    ) -> None:
        """Forecasts made at the end of `slot`: per workload, quantiles of slot + 1 + k, aligned with the levels.

        Steps beyond a forecast, and those whose value has been there before the forecast, are left out.
        """
        for step in self._steps:
            due = slot + step
            rows = {workload: steps[step - 1] for workload, steps in quantiles.items() if len(steps) >= step}
            if rows and (self._newest is None or due > self._newest):
                stacked = np.array(list(rows.values()), np.float64)
                self._waiting.setdefault(due, []).append(_PublishedQuantiles(forecaster, target, tuple(rows), stacked))

    def settle(self, slot: int, values: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], int]:
        """Score the forecasts of a closed slot with its values (target -> workload -> value); drop earlier ones.

        Returns:
            Number of scores per (forecaster, target).
        """
        self._newest = slot
        due = self._waiting.pop(slot, [])
        for missed in [s for s in self._waiting if s < slot]:
            del self._waiting[missed]
        scored: dict[tuple[str, str], int] = {}
        for offer in due:
            observed_values = values.get(offer.target, {})
            rows = [k for k, workload in enumerate(offer.workloads) if workload in observed_values]
            if not rows:
                continue
            observed = [observed_values[offer.workloads[k]] for k in rows]
            count = self.board.add(slot, offer.forecaster, offer.target, offer.quantiles[rows], observed)
            key = offer.forecaster, offer.target
            scored[key] = scored.get(key, 0) + count
        return scored


# Scoring of the published forecasts.
#
# A naive forecast that is not ready when its value arrives is not scored. In a large partition each slot scores some of
# the workloads in turn.


# Source of the naive forecasts.
NAIVE: Final = "seasonal_naive"
# Paths of a naive forecast.
_NAIVE_PATHS: Final = 64
# Most naive forecasts of a partition that wait for the thread.
_MAX_PENDING_NAIVE: Final = 4
# Most workloads of a partition that are scored in one slot; a part of them is as good a sample.
_MAX_SCORED_WORKLOADS: Final = 64

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
        self._pending = UnscoredForecasts(board)
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
        first = slot * _MAX_SCORED_WORKLOADS
        return [workloads[(first + k) % len(workloads)] for k in range(min(_MAX_SCORED_WORKLOADS, len(workloads)))]

    def offer(
        self, slot: int, origin_ts_ms: int, forecasts: Sequence[Forecasts], windows: Mapping[str, Window]
    ) -> None:
        """Forecasts just made at the end of `slot`, and the windows of the chosen workloads."""
        offered: dict[tuple[str, str], dict[str, Rows]] = {}
        rows = []
        for batch in forecasts:
            for b, workload in enumerate(batch.workloads):
                if workload in windows:
                    rows.append(windows[workload])
                    for column in batch.published[b]:
                        target = batch.indicators[column]
                        offered.setdefault((batch.sources[b], target), {})[workload] = batch.quantiles(b, column)
        if not rows:
            return
        for (source, target), quantiles in offered.items():
            if source != NAIVE:  # the baseline's own row says the same
                self._pending.offer(slot, source, target, quantiles)
        if len(self._naive) < _MAX_PENDING_NAIVE:  # a machine that is behind must not queue measurements
            pairs = {(workload, target) for (_, target), by_workload in offered.items() for workload in by_workload}
            horizon = min(max(SCORED_STEPS), max(batch.steps.shape[2] for batch in forecasts))
            self._naive.append((slot, pairs, self._baseline.start(rows, origin_ts_ms, horizon)))

    def _collect(self) -> None:
        """Take in the naive forecasts that are ready, of exactly the workloads and targets that were published."""
        waiting = []
        for slot, pairs, future in self._naive:
            if not future.done():
                waiting.append((slot, pairs, future))
                continue
            if future.exception() is not None:
                continue  # a measurement is never worth an outage; its missing scores show
            for target, by_workload in future.result().items():
                chosen = {w: steps for w, steps in by_workload.items() if (w, target) in pairs}
                self._pending.offer(slot, NAIVE, target, chosen)
        self._naive = waiting

    def _report(self) -> None:
        for skill in self._pending.board.skills():
            forecaster, target = skill.forecaster, skill.target
            for band, ratio in skill.coverage.items():
                self._meter.gauge("forecast_coverage_ratio", ratio, forecaster=forecaster, target=target, band=band)
            if skill.pinball is not None:
                self._meter.gauge("forecast_pinball", skill.pinball, forecaster=forecaster, target=target)
