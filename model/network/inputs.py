"""The context in each row's own units: instance normalization over observed cells, undone inside the density."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.baselines.context import fill
from model.contract import COARSE_STEP_MS, ContextBatch

RECENT = 96  # rows that set the units and are read one by one
_WIDER = 288
_LIMIT = 1e4  # of a scaled value; beyond, the units say nothing


@dataclass(frozen=True, slots=True)
class ScaledContext:
    """Columns first, one token per indicator.

    Attributes:
        z: float32 [B, N, L], (value - center) / scale, gaps filled with the last value; L at least 96.
        known: bool [B, N, L].
        center, scale: float64 [B, N]; scale is 1 where the column does not move.
        moving: bool [B, N]: neither unobserved nor constant.
        newest: float64 [B, N], newest observed value, 0 where there is none.
    """

    z: Tensor
    known: Tensor
    center: Tensor
    scale: Tensor
    moving: Tensor
    newest: Tensor

    def row(self, r: int) -> ScaledContext:
        """One row, as a batch of one."""
        return self.rows(r, r + 1)

    def rows(self, start: int, stop: int) -> ScaledContext:
        """The rows from `start` up to `stop`."""
        some = slice(start, stop)
        return ScaledContext(
            self.z[some], self.known[some], self.center[some], self.scale[some], self.moving[some], self.newest[some]
        )


def rescale(batch: ContextBatch) -> ScaledContext:
    """Center by the mean of the recent rows, scale by their standard deviation.

    A stretch that happens to be still must not blow up the units: the scale is at least a fifth of the deviation over
    three times as many rows, and a thousandth of the level.
    """
    filled = fill(batch.values, batch.observed)
    missing = max(0, RECENT - filled.filled.shape[-1])
    x, known = pad(filled.filled, (missing, 0)), pad(filled.observed, (missing, 0))
    mean, _ = _moments(x[..., -RECENT:], known[..., -RECENT:])
    newest = filled.filled[..., -1]
    center = torch.where(known[..., -RECENT:].any(-1), mean, newest)
    _, spread = _moments(x[..., -RECENT:], known[..., -RECENT:])
    _, wider = _moments(x[..., -_WIDER:], known[..., -_WIDER:])
    scale = torch.maximum(torch.maximum(spread, 0.2 * wider), 1e-3 * center.abs())
    scale = torch.maximum(scale, 0.02 * filled.spread)
    moving = filled.moving & (scale > 0)
    scale = torch.where(moving, scale, 1.0)
    z = ((x - center[..., None]) / scale[..., None]).clamp(-_LIMIT, _LIMIT).float()
    if missing:
        first = z[..., missing : missing + 1]
        z = torch.cat((first.expand(*z.shape[:2], missing), z[..., missing:]), dim=-1)
    return ScaledContext(z.where(moving[..., None], 0.0), known, center, scale, moving, newest)


def _moments(x: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the known cells of the last axis."""
    count = known.sum(-1).clamp(min=1)
    mean = torch.where(known, x, 0.0).sum(-1) / count
    deviation = torch.where(known, x - mean[..., None], 0.0)
    return mean, (deviation.square().sum(-1) / count).sqrt()


# The same time of earlier days: read from the fine rows where they reach back, else from the coarse ring.


DAYS = 7
BEFORE = 12  # steps before the origin at which the season is compared with what came
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Seasons:
    """In scaled units, at steps -12..horizon-1 around the origin, 1 to 7 days earlier.

    Attributes:
        z: float32 [B, N, 7, 12 + H], 0 where not known.
        known: bool, same shape.
    """

    z: Tensor
    known: Tensor


def seasons(batch: ContextBatch, context: ScaledContext, horizon: int) -> Seasons:
    """Look up every step one to seven days earlier; a step beyond one day ahead is looked up a day more."""
    device = batch.values.device
    ahead = torch.arange(-BEFORE, horizon, device=device)
    day_rows = _DAY_MS / batch.step_ms
    extra = ((ahead + 1) / day_rows).ceil().clamp(min=1) - 1  # whole days by which the horizon passes the first
    days = torch.arange(1, DAYS + 1, device=device)[:, None] + extra  # [7, P]
    z, known = _from_rows(context, ahead, days * day_rows)
    if batch.coarse.shape[2] and batch.coarse.shape[1]:
        ring, in_ring = _from_ring(batch, context, ahead, days)
        c = ring.shape[1]
        z = torch.cat((torch.where(known[:, :c], z[:, :c], ring), z[:, c:]), dim=1)
        known = torch.cat((known[:, :c] | in_ring, known[:, c:]), dim=1)
    return Seasons(z, known & context.moving[..., None, None])


def _from_rows(context: ScaledContext, ahead: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest fine row; [B, N, 7, P] both."""
    length = context.z.shape[-1]
    at = length + ahead - rows.round().long()  # [7, P]
    inside = (at >= 0) & (at < length)
    index = at.clamp(0, length - 1)
    known = context.known[..., index] & inside
    return torch.where(known, context.z[..., index], 0.0), known


def _from_ring(batch: ContextBatch, context: ScaledContext, ahead: Tensor, days: Tensor) -> tuple[Tensor, Tensor]:
    """Interpolated between the centres of the ring's rows; [B, C, 7, P] both."""
    num, c = batch.coarse.shape[1:]
    seen = (batch.coarse_observed & batch.coarse.isfinite()).transpose(1, 2)  # [B, C, K]
    raw = batch.coarse.transpose(1, 2).to(torch.float64).where(seen, 0.0)
    ring = ((raw - context.center[:, :c, None]) / context.scale[:, :c, None]).clamp(-1e4, 1e4).float().where(seen, 0.0)
    into_row = (batch.origin_ts_ms % COARSE_STEP_MS).to(torch.float64) / COARSE_STEP_MS  # [B]
    steps = (ahead + 0.5) * (batch.step_ms / COARSE_STEP_MS) - days * (_DAY_MS / COARSE_STEP_MS)  # [7, P]
    position = into_row[:, None, None] + steps + (num - 0.5)  # in rows, from the centre of the oldest
    low = position.floor()
    share = (position - low).float()[:, None]  # [B, 1, 7, P]
    inside = ((low >= 0) & (low < num))[:, None]
    b, _, d, p = share.shape
    below = low.clamp(0, num - 1).long().reshape(b, 1, d * p).expand(-1, c, -1)
    above = (below + 1).clamp(max=num - 1)
    has_below = seen.gather(2, below).view(b, c, d, p) & inside
    has_above = seen.gather(2, above).view(b, c, d, p) & inside & (share > 0)  # a whole row away it says another time
    share = torch.where(has_below & has_above, share, has_above.float())
    value = ring.gather(2, below).view(b, c, d, p) * (1 - share) + ring.gather(2, above).view(b, c, d, p) * share
    known = has_below | has_above
    return torch.where(known, value, 0.0), known
