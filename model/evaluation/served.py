"""Forecasters of the contract (`model.contract`) as contestants of both protocols.

A row of the batch is one origin: the newest rows fine, the context's ten-minute means coarse, nothing beyond the L rows
that the protocol allows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch

from model.contract import COARSE_ROWS, COARSE_STEP_MS, ContextBatch, Forecaster
from model.evaluation.fisher import NUM_SAMPLES, FisherCase, FisherForecast, indicator_levels
from model.evaluation.rolling import Floats, Indicator, Paths, RollingCase, Rows, Task
from model.network.network import Network
from model.training.adapt import FleetOptions, TooShortError, adapt, adapt_head, adapt_together, fleet_rows
from model.training.examples import History
from model.training.loop import TrainingOptions

_BATCH_ROWS = 64


def context_batch(
    values: Floats,
    origins: Sequence[int] | Rows,
    *,
    item_id: str,
    start_ts_ms: int,
    step_ms: int,
    indicators: Sequence[Indicator],
    fine_rows: int,
    context_rows: int,
) -> ContextBatch:
    """The batch that a forecaster of the contract reads at each origin.

    Args:
        values: [T, N], NaN where missing; row k covers `[start + k step, start + (k + 1) step)`.
        origins: last rows that are read.
        fine_rows: L of the batch; earlier rows than the series has are unobserved.
        context_rows: rows before the origin that may be read at all, fine or coarse.
    """
    origins = np.asarray(origins, dtype=np.int64)
    rows = origins[:, None] + np.arange(1 - min(fine_rows, context_rows), 1)  # [B, L]
    fine = np.where((rows >= 0)[..., None], values[np.maximum(rows, 0)], np.nan)
    ends = start_ts_ms + (origins + 1) * step_ms
    coarse = _coarse(values, origins, ends, start_ts_ms, step_ms, context_rows)
    limits = np.finfo(np.float32).max
    return ContextBatch(
        item_ids=(item_id,) * len(origins),
        origin_ts_ms=torch.from_numpy(ends),
        step_ms=step_ms,
        values=torch.from_numpy(np.nan_to_num(fine, nan=0.0).clip(-limits, limits).astype(np.float32)),
        observed=torch.from_numpy(np.isfinite(fine)),
        coarse=torch.from_numpy(np.nan_to_num(coarse, nan=0.0).clip(-limits, limits).astype(np.float32)),
        coarse_observed=torch.from_numpy(np.isfinite(coarse)),
        levels=torch.tensor([indicator.level for indicator in indicators], dtype=torch.int64),
        indicators=tuple(indicator.name for indicator in indicators),
        lower=torch.tensor([indicator.lower for indicator in indicators], dtype=torch.float32),
        upper=torch.tensor([indicator.upper for indicator in indicators], dtype=torch.float32),
    )


def _coarse(values: Floats, origins: Rows, ends: Rows, start_ts_ms: int, step_ms: int, context_rows: int) -> Floats:
    """The week's ten-minute means before each origin, [B, 1008, N]; the last row is the newest complete one."""
    num, n = values.shape
    finite = np.isfinite(values)
    sums = np.concatenate((np.zeros((1, n)), np.where(finite, values, 0).cumsum(0)))
    counts = np.concatenate((np.zeros((1, n)), finite.cumsum(0)))
    newest = ends // COARSE_STEP_MS  # number of complete coarse rows since 1970
    blocks = newest[:, None] + np.arange(-COARSE_ROWS, 0)  # [B, 1008]
    begin, end = blocks * COARSE_STEP_MS - start_ts_ms, (blocks + 1) * COARSE_STEP_MS - start_ts_ms
    if step_ms > COARSE_STEP_MS:  # a row stands for every ten minutes that it covers
        first = begin // step_ms
        last = first + 1
    else:  # rows that begin within the block
        first, last = -(-begin // step_ms), -(-end // step_ms)
    earliest = (origins + 1 - context_rows)[:, None]
    complete = (first >= earliest) & (first >= 0) & (last <= (origins + 1)[:, None])
    first, last = np.clip(first, 0, num), np.clip(last, 0, num)
    count = counts[last] - counts[first]  # [B, 1008, N]
    mean = (sums[last] - sums[first]) / np.maximum(count, 1)
    return np.where(complete[..., None] & (count > 0), mean, np.nan)


def rolling_contestant(forecaster: Forecaster, fine_rows: int = 128) -> Callable[[RollingCase], Paths]:
    """A forecaster in the rolling protocol.

    Raises:
        ValueError: (from the contestant) the horizon is beyond the forecaster's, or it refuses the batch.
    """

    def forecast(case: RollingCase) -> Paths:
        parts = []
        for first in range(0, len(case.origins), _BATCH_ROWS):
            batch = context_batch(
                case.item.values,
                case.origins[first : first + _BATCH_ROWS],
                item_id=case.item.item_id,
                start_ts_ms=case.item.start_ts_ms,
                step_ms=round(1000 * case.task.step_s),
                indicators=case.task.indicators,
                fine_rows=fine_rows,
                context_rows=case.task.context_length,
            )
            parts.append(forecaster.forecast(batch, case.horizon, case.num_paths).paths.cpu().numpy())
        if not parts:
            return np.empty((0, case.num_paths, case.horizon, case.filled.shape[1]), dtype=np.float32)
        return np.concatenate(parts)

    return forecast


def fisher_contestant(forecaster: Forecaster) -> Callable[[FisherCase], FisherForecast]:
    """A forecaster in the Fisher protocol: the context is the L rows of the window, fine and coarse alike."""

    def forecast(case: FisherCase) -> FisherForecast:
        levels = indicator_levels(case.names)
        indicators = [Indicator(name, level=level) for name, level in zip(case.names, levels, strict=True)]
        samples = np.empty((len(case.test), NUM_SAMPLES, len(indicators)))
        for first in range(0, len(case.test), _BATCH_ROWS):
            targets = case.test[first : first + _BATCH_ROWS]
            batch = context_batch(
                case.scaled,
                targets - 1,
                item_id=case.name,
                start_ts_ms=case.start_ts_ms,
                step_ms=COARSE_STEP_MS,
                indicators=indicators,
                fine_rows=case.length,
                context_rows=case.length,
            )
            samples[first : first + len(targets)] = forecaster.forecast(batch, 1, NUM_SAMPLES).paths[:, :, 0].cpu()
        return FisherForecast(samples.mean(1), samples)

    return forecast


# The network adapted to the rows before the test part: a contestant of Fisher, and of the rolling protocol, local.


OPTIONS = TrainingOptions(steps=80, learning_rate=2e-4, validate_every=16, patience=3)
ONE_STEP = FleetOptions()
Serve = Callable[[Network], Forecaster]


def histories(task: Task) -> list[History]:
    """The rows of every item before its test part."""
    return [
        History(
            item_id=item.item_id,
            start_ts_ms=item.start_ts_ms,
            step_ms=round(1000 * task.step_s),
            values=item.values[: item.test_start],
            levels=np.array([indicator.level for indicator in task.indicators], dtype=np.int64),
            names=task.names,
            lower=task.lower,
            upper=task.upper,
        )
        for item in task.items
    ]


class AdaptedNetworks:
    """A network adapted once to each task, or to all containers and then with its head to each of them.

    Train rows train. Validation rows set the number of updates; the heads are then trained on both. Test rows are never
    read. Contestants that serve the network in different ways share the adapted networks.

    Args:
        network: start of the adaptation; not changed.
        fine_rows: rows of context in the rolling protocol, the same for learning and forecasting.
        options: of learning for the rolling protocol.
        one_step: of learning for Fisher's.
    """

    def __init__(
        self,
        network: Network,
        fine_rows: int,
        options: TrainingOptions = OPTIONS,
        one_step: FleetOptions = ONE_STEP,
    ) -> None:
        self._network = network
        self._fine_rows = fine_rows
        self._options = options
        self._one_step = one_step
        self._tasks: dict[str, Network] = {}
        self._containers: dict[tuple[str, int], Network] = {}

    def rolling_contestant(self, serve: Serve) -> Callable[[RollingCase], Paths]:
        """Forecasts of the network adapted to the round's task; `serve` makes a forecaster of a network.

        On track zeroshot, where nothing may be fitted, and where a task is too short, the network stays as it was.
        """
        contestants: dict[str, Callable[[RollingCase], Paths]] = {}

        def forecast(case: RollingCase) -> Paths:
            task = case.task.name
            if task not in contestants:
                contestants[task] = rolling_contestant(serve(self._task_network(case)), self._fine_rows)
            return contestants[task](case)

        return forecast

    def fisher_contestant(self, serve: Serve) -> Callable[[FisherCase], FisherForecast]:
        """Forecasts of the network adapted to the containers of the run at this input length, and to this one."""

        def forecast(case: FisherCase) -> FisherForecast:
            return fisher_contestant(serve(self._container_network(case)))(case)

        return forecast

    def _task_network(self, case: RollingCase) -> Network:
        name = case.task.name
        if name not in self._tasks:
            # A copy: serving a network freezes it, and the next adaptation could not train it.
            self._tasks[name] = self._adapt_to_task(case) or copy.deepcopy(self._network)
        return self._tasks[name]

    def _adapt_to_task(self, case: RollingCase) -> Network | None:
        task = case.task
        if case.track == "zeroshot":
            return None
        ends = [item.train_end for item in task.items]
        try:
            return adapt(self._network, histories(task), self._options, train_ends=ends, context=self._fine_rows)
        except TooShortError:
            return None

    def _container_network(self, case: FisherCase) -> Network:
        key = case.name, case.length
        if key not in self._containers:
            fleet = [other for other in case.fleet if other.names == case.names] or [case]
            rows = [
                fleet_rows(self._network, _history(one), one.num_train, one.length, self._one_step.together.horizon)
                for one in fleet
            ]
            together = adapt_together(self._network, rows, self._one_step)
            for one, of in zip(fleet, rows, strict=True):
                self._containers[one.name, one.length] = adapt_head(together, of, self._one_step)
        return self._containers[key]


def _history(case: FisherCase) -> History:
    """The rows of a container before its test part."""
    n = len(case.names)
    return History(
        item_id=case.name,
        start_ts_ms=case.start_ts_ms,
        step_ms=COARSE_STEP_MS,
        values=case.scaled[: case.num_train + len(case.validation)],
        levels=np.array(indicator_levels(case.names), dtype=np.int64),
        names=case.names,
        lower=np.full(n, -np.inf),
        upper=np.full(n, np.inf),
    )
