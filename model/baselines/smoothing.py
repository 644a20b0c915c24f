"""Simple exponential smoothing around the season, with residual windows: it always answers.

The context less its season (`model.baselines.smoothing`) is smoothed by exponential averages, the rate of each column
chosen in the context (`model.baselines.smoothing_kernel`). A path is the season at the newest level, and what one
window of the context was beside the level at its beginning: one window for all steps and indicators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import (
    FilledContext,
    as_array,
    check_request,
    compiled_rows,
    empty_paths,
    fill,
    flat_paths,
    forecast_by,
    put_paths,
    row_uniforms,
    take_paths,
    valid_windows,
    window_draws,
    window_weights,
)
from model.baselines.smoothing_kernel import DAY_ROWS, MIN_DAY_OBSERVED, WITHIN, Ring, smoothing_paths
from model.contract import COARSE_STEP_MS, ContextBatch, ForecastBatch, pad_rows, take_rows

# Seasons: what the coarse ring held one day before each step of context and horizon, for batches of tensors.


def season_at(batch: ContextBatch, horizon: int) -> tuple[Tensor, Tensor]:
    """The coarse ring one day before every step of context and horizon.

    A column has a season when at least half of the newest day is observed and the ring reaches every step of the
    horizon one day earlier; columns without one get 0 and are everywhere known.

    Returns:
        float64 season [B, N, L + H], and bool [B, N, L + H] where it is known.
    """
    b, length, n = batch.values.shape
    ring, seen = batch.coarse.transpose(1, 2).to(torch.float64), batch.coarse_observed.transpose(1, 2)
    c, num = ring.shape[1:]
    season = torch.zeros(b, n, length + horizon, dtype=torch.float64, device=ring.device)
    known = torch.ones(b, n, length + horizon, dtype=torch.bool, device=ring.device)
    if c == 0 or num < DAY_ROWS + 2:
        return season, known
    seen = seen & ring.isfinite()
    ring = ring.where(seen, 0.0)
    steps = torch.arange(-length, horizon, dtype=torch.float64, device=ring.device) + 0.5
    # Centre of each step in coarse rows, counted from the centre of the newest row; the ring ends at the last full row.
    into_row = (batch.origin_ts_ms % COARSE_STEP_MS).to(torch.float64) / COARSE_STEP_MS
    ahead = into_row[:, None] + steps * (batch.step_ms / COARSE_STEP_MS) + 0.5  # [B, L + H]
    days = (ahead / DAY_ROWS).ceil().clamp(min=1)
    position = ahead - days * DAY_ROWS + (num - 1)
    low = position.floor()
    share = (position - low)[:, None]  # [B, 1, L + H]
    inside = (low >= 0)[:, None]
    below = low.clamp(0, num - 1).long()[:, None].expand(-1, c, -1)
    above = (below + 1).clamp(max=num - 1)
    has_below, has_above = seen.gather(2, below) & inside, seen.gather(2, above) & inside
    share = torch.where(has_below & has_above, share, has_above.to(torch.float64))
    shape = ring.gather(2, below) * (1 - share) + ring.gather(2, above) * share  # [B, C, L + H]
    reached = has_below | has_above
    enough = seen[..., -DAY_ROWS:].sum(-1) >= MIN_DAY_OBSERVED
    compared = (reached[..., :length] & batch.observed[:, :, :c].transpose(1, 2)).any(-1)
    enough &= reached[..., length:].all(-1) & compared
    season[:, :c] = torch.where(enough[..., None] & reached, shape, 0.0)
    known[:, :c] = reached | ~enough[..., None]
    return season, known


_VERSION: Final = 1
_CHUNK_ROWS: Final = 16
RATES: Final = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)


class SmoothingForecaster:
    """Season and smoothed level, per row and column. A row's draws are fixed by (item id, origin, seed).

    Args:
        seed: of the draws.
        rates: of the exponential averages that are tried, from the fastest to the slowest; rate 1 is the newest value.
        source: of its forecasts.

    Raises:
        ValueError: no rate, or one outside (0, 1].
    """

    def __init__(self, seed: int = 0, rates: Sequence[float] = RATES, source: str = "smoothing") -> None:
        if not rates or not all(0 < rate <= 1 for rate in rates):
            raise ValueError(f"rates must be above 0 and at most 1, got {tuple(rates)}")
        self._seed, self._rates, self._source = seed, np.array(rates, dtype=np.float64), source
        body = f"{source}/{_VERSION}/{seed}/{tuple(rates)}"
        self._fingerprint = f"{source}-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return 64

    @property
    def min_context(self) -> int:
        return 1

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says; a horizon beyond half of what is known is reached by several windows in a row.

        Raises:
            ValueError: horizon above `max_horizon`, or inconsistent shapes.
        """
        return forecast_by(self, batch, horizon, num_paths, self._source)

    def write_paths(self, batch: ContextBatch, horizon: int, places: NDArray[np.int64], out: Tensor) -> None:
        """Write paths as `PathWriter` says; on a CPU by compiled loops, on an accelerator by tensors.

        Raises:
            ValueError: as `forecast`.
        """
        check_request(batch, horizon, len(places), self.max_horizon)
        if out.device.type != "cpu":
            put_paths(self.paths_of_tensors(batch, horizon, len(places)), places, out)
            return
        ring = Ring(
            as_array(batch.coarse, torch.float32),
            as_array(batch.coarse_observed, torch.bool),
            as_array(batch.origin_ts_ms % COARSE_STEP_MS, torch.float64) / COARSE_STEP_MS,
            batch.step_ms / COARSE_STEP_MS,
        )
        smoothing_paths(compiled_rows(batch, self._seed), ring, horizon, self._rates, places, flat_paths(out))

    def paths_of_tensors(self, batch: ContextBatch, horizon: int, num_paths: int) -> Tensor:
        """Paths [B, S, H, N] made by tensors, on any device: what the compiled loops are held against."""
        b, _, n = batch.values.shape
        out = empty_paths(b, num_paths, horizon, n, batch.values.device)
        blocks = (_spans(batch) // 2).clamp(max=horizon)
        for block in sorted(set(blocks.tolist())):  # rows of equal windows together
            alike = (blocks == block).nonzero()[:, 0].tolist()
            for start in range(0, len(alike), _CHUNK_ROWS):
                rows = alike[start : start + _CHUNK_ROWS]
                # One shape: a row's sums are the same in any batch.
                part = pad_rows(take_rows(batch, rows), _CHUNK_ROWS)
                out[rows] = self._paths(part, horizon, num_paths, block)[: len(rows)]
        return out

    def _paths(self, batch: ContextBatch, horizon: int, num_paths: int, block: int) -> Tensor:
        """Paths of rows with windows of `block` steps; 0: at most one step is known, and nothing moves."""
        length = batch.values.shape[1]
        season, known = season_at(batch, horizon)
        usable = batch.observed & known[..., :length].transpose(1, 2)
        context = fill(batch.values - season[..., :length].transpose(1, 2), usable)
        levels = self._levels(context, block)
        ahead = (season[..., length:] + levels[..., -1:]).transpose(1, 2).float()[:, None]  # [B, 1, H, N]
        if block == 0:
            return ahead.expand(-1, num_paths, -1, -1).clamp(batch.lower, batch.upper)
        windows, onward = _windows(context, levels, block)
        weights = window_weights(valid_windows(context.observed, 1, block), context.moving)
        blocks = -(-horizon // block)
        uniforms = row_uniforms(batch.item_ids, batch.origin_ts_ms, self._seed, blocks * (num_paths + 1))
        level, parts = torch.zeros_like(ahead[:, :, :1]), []
        for part in np.split(uniforms, blocks, axis=1):
            draws = window_draws(part, weights, num_paths)
            parts.append(take_paths(windows, draws) + level)
            level = take_paths(onward, draws) + level
        return (torch.cat(parts, 2)[:, :, :horizon] + ahead).clamp_(batch.lower, batch.upper)

    def _levels(self, context: FilledContext, block: int) -> Tensor:
        """Levels [B, N, L] of the rate that each column's windows choose."""
        if block == 0:
            return context.filled
        tried = [levels_at(context, float(rate)) for rate in self._rates]
        if len(tried) == 1:
            return tried[0]
        valid = valid_windows(context.observed, 1, block)
        missed = torch.stack([_missed(context.filled, levels, valid, block) for levels in tried])  # [K, B, N]
        fastest = (missed <= WITHIN * missed.amin(0)).long().argmax(0)  # the first of equals
        return torch.stack(tried).gather(0, fastest[None, ..., None].expand(1, *tried[0].shape))[0]


def levels_at(context: FilledContext, rate: float) -> Tensor:
    """Level after each step [B, N, L], as `model.baselines.smoothing_kernel.levels_at` has it."""
    total = torch.zeros_like(context.filled[..., 0])
    weight, levels = torch.zeros_like(total), []
    for x, known in zip(context.filled.unbind(-1), context.observed.unbind(-1), strict=True):
        total = ((1.0 - rate) * total + rate * x).where(known, total)
        weight = ((1.0 - rate) * weight + rate).where(known, weight)
        levels.append((total / weight).where(weight > 0, x))
    return torch.stack(levels, -1)


def _spans(batch: ContextBatch) -> Tensor:
    """Steps since the first at which any column is known, int64 [B]."""
    known = (batch.observed & batch.values.isfinite()).any(-1)
    return torch.where(known.any(-1), known.shape[1] - known.long().argmax(-1), 0)


def _windows(context: FilledContext, levels: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """What each `block`-step window was beside the level at its beginning, and how far it brought the level.

    Returns:
        float32 [B, W, block, N] and [B, W, 1, N].
    """
    before = levels[..., :-block]
    windows = context.filled[..., 1:].unfold(-1, block, 1) - before[..., None]  # [B, N, W, block]
    onward = (levels[..., block:] - before)[..., None]
    return windows.permute(0, 2, 3, 1).float().contiguous(), onward.permute(0, 2, 3, 1).float().contiguous()


def _missed(x: Tensor, levels: Tensor, valid: Tensor, block: int) -> Tensor:
    """Squared distance [B, N] of the levels from four steps of their windows, summed in the order of the windows."""
    num = valid.shape[-1]
    total = torch.zeros_like(levels[..., :num])
    for quarter in (0, block // 4, block // 2, block - 1):
        error = x[..., 1 + quarter : 1 + quarter + num] - levels[..., :num]
        total = total + error * error
    return total.where(valid, 0.0).cumsum(-1)[..., -1]


# Last value, or the shape of one day ago where a day is known, with residual windows: it always answers.
#
# Season: the coarse ring (10-minute means, 144 to the day) one day before each step, interpolated between the rows'
# centres and shifted to the present level, which is the newest value: smoothing that forgets everything before it.
# Columns without a season are read as they are. The yardstick of every other forecaster.


NEWEST_VALUE = 1.0


class SeasonalNaiveForecaster(SmoothingForecaster):
    """Seasonal naive, or last value, per row and column. A row's draws are fixed by (item id, origin, seed)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, (NEWEST_VALUE,), "seasonal_naive")
