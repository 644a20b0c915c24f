"""Forecasters of the contract (`model.contract`) as contestants of both protocols.

A row of the batch is one origin: the newest rows fine, the context's ten-minute means coarse, nothing beyond the L rows
that the protocol allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from model.contract import COARSE_ROWS, COARSE_STEP_MS, ContextBatch, Forecaster
from model.evaluation.dataset import Floats, Indicator
from model.evaluation.fisher import NUM_SAMPLES, Answer, Asked, indicator_levels
from model.evaluation.rolling import Paths, Round, Rows

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
    """What a forecaster of the contract is told at each origin.

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
    known = np.isfinite(values)
    sums = np.concatenate((np.zeros((1, n)), np.where(known, values, 0).cumsum(0)))
    counts = np.concatenate((np.zeros((1, n)), known.cumsum(0)))
    newest = ends // COARSE_STEP_MS  # number of complete coarse rows since 1970
    blocks = newest[:, None] + np.arange(-COARSE_ROWS, 0)  # [B, 1008]
    begin, end = blocks * COARSE_STEP_MS - start_ts_ms, (blocks + 1) * COARSE_STEP_MS - start_ts_ms
    if step_ms > COARSE_STEP_MS:  # a row stands for every ten minutes that it covers
        first = begin // step_ms
        last = first + 1
    else:  # rows that begin within the block
        first, last = -(-begin // step_ms), -(-end // step_ms)
    earliest = (origins + 1 - context_rows)[:, None]
    whole = (first >= earliest) & (first >= 0) & (last <= (origins + 1)[:, None])
    first, last = np.clip(first, 0, num), np.clip(last, 0, num)
    count = counts[last] - counts[first]  # [B, 1008, N]
    mean = (sums[last] - sums[first]) / np.maximum(count, 1)
    return np.where(whole[..., None] & (count > 0), mean, np.nan)


def rolling_contestant(forecaster: Forecaster, fine_rows: int = 128) -> Callable[[Round], Paths]:
    """A forecaster in the rolling protocol.

    Raises:
        ValueError: (from the contestant) the horizon is beyond the forecaster's, or it refuses the batch.
    """

    def answer(asked: Round) -> Paths:
        parts = []
        for first in range(0, len(asked.origins), _BATCH_ROWS):
            batch = context_batch(
                asked.item.values,
                asked.origins[first : first + _BATCH_ROWS],
                item_id=asked.item.item_id,
                start_ts_ms=asked.item.start_ts_ms,
                step_ms=round(1000 * asked.task.step_s),
                indicators=asked.task.indicators,
                fine_rows=fine_rows,
                context_rows=asked.task.context_length,
            )
            parts.append(forecaster.forecast(batch, asked.horizon, asked.num_paths).paths.cpu().numpy())
        if not parts:
            return np.empty((0, asked.num_paths, asked.horizon, asked.filled.shape[1]), dtype=np.float32)
        return np.concatenate(parts)

    return answer


def fisher_contestant(forecaster: Forecaster) -> Callable[[Asked], Answer]:
    """A forecaster in the Fisher protocol: the context is the L rows of the window, fine and coarse alike."""

    def answer(asked: Asked) -> Answer:
        levels = indicator_levels(asked.names)
        indicators = [Indicator(name, level=level) for name, level in zip(asked.names, levels, strict=True)]
        samples = np.empty((len(asked.test), NUM_SAMPLES, len(indicators)))
        for first in range(0, len(asked.test), _BATCH_ROWS):
            targets = asked.test[first : first + _BATCH_ROWS]
            batch = context_batch(
                asked.scaled,
                targets - 1,
                item_id=asked.name,
                start_ts_ms=asked.start_ts_ms,
                step_ms=COARSE_STEP_MS,
                indicators=indicators,
                fine_rows=asked.length,
                context_rows=asked.length,
            )
            samples[first : first + len(targets)] = forecaster.forecast(batch, 1, NUM_SAMPLES).paths[:, :, 0].cpu()
        return Answer(samples.mean(1), samples)

    return answer
