"""Seasons: what the coarse ring held one day before each step of context and horizon, for batches of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from model.contract import COARSE_STEP_MS, ContextBatch
from model.season_rows import DAY_ROWS, MIN_DAY_OBSERVED


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
