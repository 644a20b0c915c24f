"""Last value, or the shape of one day ago where a day is known, with residual windows: it always answers.

Season: the coarse ring (10-minute means, 144 to the day) one day before each step, interpolated between the rows'
centres and shifted to the present level. Columns without a season are read as they are. The residuals are H-step
differences of what is left, drawn with one window for all steps and indicators.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.contract import COARSE_STEP_MS, ContextBatch, ForecastBatch
from model.draws import row_uniforms, window_draws
from model.naive_paths import DAY_ROWS, MIN_DAY_OBSERVED, Ring, naive_paths
from model.paths import as_array, compiled_rows, empty_paths, flat_paths, forecast_by, put_paths, take_paths
from model.windows import FilledContext, check_request, fill, valid_windows, window_weights

_VERSION = 1
_CHUNK_ROWS = 16


class SeasonalNaiveForecaster:
    """Seasonal naive, or last value, per row and column. A row's draws are fixed by (item id, origin, seed)."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        body = f"seasonal_naive/{_VERSION}/{seed}"
        self._fingerprint = "seasonal_naive-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

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
        """Forecast as the contract says; a horizon beyond half of the context is reached by several windows in a row.

        Raises:
            ValueError: horizon above `max_horizon`, or inconsistent shapes.
        """
        return forecast_by(self, batch, horizon, num_paths, "seasonal_naive")

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
        block = _block(horizon, batch.values.shape[1])
        naive_paths(compiled_rows(batch, self._seed), ring, horizon, block, places, flat_paths(out))

    def paths_of_tensors(self, batch: ContextBatch, horizon: int, num_paths: int) -> Tensor:
        """Paths [B, S, H, N] made by tensors, on any device: what the compiled loops are held against."""
        b, length, n = batch.values.shape
        block = _block(horizon, length)
        blocks = -(-horizon // block)
        out = empty_paths(b, num_paths, horizon, n, batch.values.device)
        uniforms = row_uniforms(batch.item_ids, batch.origin_ts_ms, self._seed, blocks * (num_paths + 1))
        for start in range(0, b, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, b)
            rows = torch.arange(start, start + _CHUNK_ROWS, device=out.device).clamp(max=stop - 1)
            season, known = season_at(batch, rows, horizon)  # [R, N, L + H] both
            usable = batch.observed[rows] & known[..., :length].transpose(1, 2)
            context = fill(batch.values[rows] - season[..., :length].transpose(1, 2), usable)
            windows, weights = _differences(context, block)  # [R, W, block, N]
            ahead = (season[..., length:] + context.filled[..., -1:]).transpose(1, 2).float()  # [R, H, N]
            take = stop - start
            draws = [
                window_draws(part, weights[:take], num_paths) for part in np.split(uniforms[start:stop], blocks, axis=1)
            ]
            if blocks == 1:  # bounds are then kept window by window, at a fraction of the work
                futures = (windows + ahead[:, None]).clamp_(batch.lower, batch.upper)
                out[start:stop] = take_paths(futures[:take], draws[0])
            else:
                _chain(windows[:take], draws, out[start:stop])
                out[start:stop] += ahead[:take, None]
                out[start:stop].clamp_(batch.lower, batch.upper)
        return out


def _block(horizon: int, length: int) -> int:
    """Steps that one window of the context answers for."""
    return min(horizon, max(1, length // 2))


def season_at(batch: ContextBatch, rows: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
    """The coarse ring one day before every step of context and horizon.

    A column has a season when at least half of the newest day is observed and the ring reaches every step of the
    horizon one day earlier; columns without one get 0 and are everywhere known.

    Returns:
        float64 season [R, N, L + H], and bool [R, N, L + H] where it is known.
    """
    length, n = batch.values.shape[1:]
    ring, seen = batch.coarse[rows].transpose(1, 2).to(torch.float64), batch.coarse_observed[rows].transpose(1, 2)
    c, num = ring.shape[1:]
    r = rows.shape[0]
    season = torch.zeros(r, n, length + horizon, dtype=torch.float64, device=ring.device)
    known = torch.ones(r, n, length + horizon, dtype=torch.bool, device=ring.device)
    if c == 0 or num < DAY_ROWS + 2:
        return season, known
    seen = seen & ring.isfinite()
    ring = ring.where(seen, 0.0)
    steps = torch.arange(-length, horizon, dtype=torch.float64, device=ring.device) + 0.5
    # Centre of each step in coarse rows, counted from the centre of the newest row; the ring ends at the last full row.
    into_row = (batch.origin_ts_ms[rows] % COARSE_STEP_MS).to(torch.float64) / COARSE_STEP_MS
    ahead = into_row[:, None] + steps * (batch.step_ms / COARSE_STEP_MS) + 0.5  # [R, L + H]
    days = (ahead / DAY_ROWS).ceil().clamp(min=1)
    position = ahead - days * DAY_ROWS + (num - 1)
    low = position.floor()
    share = (position - low)[:, None]  # [R, 1, L + H]
    inside = (low >= 0)[:, None]
    below = low.clamp(0, num - 1).long()[:, None].expand(-1, c, -1)
    above = (below + 1).clamp(max=num - 1)
    has_below, has_above = seen.gather(2, below) & inside, seen.gather(2, above) & inside
    share = torch.where(has_below & has_above, share, has_above.to(torch.float64))
    shape = ring.gather(2, below) * (1 - share) + ring.gather(2, above) * share  # [R, C, L + H]
    reached = has_below | has_above
    enough = seen[..., -DAY_ROWS:].sum(-1) >= MIN_DAY_OBSERVED
    compared = (reached[..., :length] & batch.observed[rows, :, :c].transpose(1, 2)).any(-1)
    enough &= reached[..., length:].all(-1) & compared
    season[:, :c] = torch.where(enough[..., None] & reached, shape, 0.0)
    known[:, :c] = reached | ~enough[..., None]
    return season, known


def _differences(context: FilledContext, block: int) -> tuple[Tensor, Tensor]:
    """Every `block`-step course of the context relative to its start.

    Returns:
        float32 [R, W, block, N] and the windows' weights [R, W]; one window of zeros for a context of one step.
    """
    x = context.filled
    r, n, length = x.shape
    if length == 1:
        return torch.zeros(r, 1, block, n, device=x.device), torch.ones(r, 1, dtype=torch.float64, device=x.device)
    courses = x[..., 1:].unfold(-1, block, 1) - x[..., : length - block, None]  # [R, N, W, block]
    weights = window_weights(valid_windows(context.observed, 1, block), context.moving)
    return courses.permute(0, 2, 3, 1).float().contiguous(), weights


def _chain(windows: Tensor, draws: list[Tensor], out: Tensor) -> None:
    """Write paths that take one window after the other, each from where the one before it ended."""
    horizon, block = out.shape[2], windows.shape[2]
    for k, chosen in enumerate(draws):
        first, last = k * block, min((k + 1) * block, horizon)
        part = take_paths(windows, chosen)
        before = out[:, :, first - 1 : first] if first else 0.0
        out[:, :, first:last] = part[:, :, : last - first] + before
