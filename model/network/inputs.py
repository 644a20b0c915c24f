"""The context in units of each row, and the same time of earlier days.

Instance normalization over the observed cells of a row; the law undoes it. It is RevIN without learned parameters.
Source: T. Kim et al., "Reversible instance normalization for accurate time-series forecasting against distribution
shift", ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.baselines.context import fill
from model.contract import COARSE_STEP_MS, ContextBatch

RECENT = 96  # rows that set the units and are read one by one
_WIDE_ROWS = 288
_MAX_SCALED_VALUE = 1e4  # of a scaled value; beyond, the units say nothing


@dataclass(frozen=True, slots=True)
class ScaledContext:
    """The context, indicators before rows: one token per indicator.

    Attributes:
        z: float32 [B, N, L], (value - center) / scale, gaps filled with the last value; L at least 96.
        observed: bool [B, N, L].
        center, scale: float64 [B, N]; scale is 1 where the column does not move.
        moving: bool [B, N], whether the column is observed and not constant.
        newest: float64 [B, N], newest observed value, 0 where there is none.
    """

    z: Tensor
    observed: Tensor
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
            self.z[some], self.observed[some], self.center[some], self.scale[some], self.moving[some], self.newest[some]
        )


def normalize_context(batch: ContextBatch) -> ScaledContext:
    """The context, centred by the mean of the recent rows and scaled by their standard deviation.

    A quiet stretch must not blow up the units. The scale is therefore at least a fifth of the deviation over three
    times as many rows, and at least a thousandth of the level.
    """
    filled = fill(batch.values, batch.observed)
    missing = max(0, RECENT - filled.filled.shape[-1])
    x, observed = pad(filled.filled, (missing, 0)), pad(filled.observed, (missing, 0))
    mean, _ = _moments(x[..., -RECENT:], observed[..., -RECENT:])
    newest = filled.filled[..., -1]
    center = torch.where(observed[..., -RECENT:].any(-1), mean, newest)
    _, spread = _moments(x[..., -RECENT:], observed[..., -RECENT:])
    _, wider = _moments(x[..., -_WIDE_ROWS:], observed[..., -_WIDE_ROWS:])
    scale = torch.maximum(torch.maximum(spread, 0.2 * wider), 1e-3 * center.abs())
    scale = torch.maximum(scale, 0.02 * filled.spread)
    moving = filled.moving & (scale > 0)
    scale = torch.where(moving, scale, 1.0)
    z = ((x - center[..., None]) / scale[..., None]).clamp(-_MAX_SCALED_VALUE, _MAX_SCALED_VALUE).float()
    if missing:
        first = z[..., missing : missing + 1]
        z = torch.cat((first.expand(*z.shape[:2], missing), z[..., missing:]), dim=-1)
    return ScaledContext(z.where(moving[..., None], 0.0), observed, center, scale, moving, newest)


def _moments(x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the observed cells along the last axis."""
    count = observed.sum(-1).clamp(min=1)
    mean = torch.where(observed, x, 0.0).sum(-1) / count
    deviation = torch.where(observed, x - mean[..., None], 0.0)
    return mean, (deviation.square().sum(-1) / count).sqrt()


# The same time of earlier days: read from the fine rows where they reach back, else from the coarse ring.


DAYS = 7
BEFORE = 12  # steps before the origin at which the season is compared with what came
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Seasons:
    """Values in scaled units at the steps -12 to H - 1 around the origin, 1 to 7 days earlier.

    Attributes:
        z: float32 [B, N, 7, 12 + H], 0 where nothing is observed.
        observed: bool, same shape.
    """

    z: Tensor
    observed: Tensor


def seasons(batch: ContextBatch, context: ScaledContext, horizon: int) -> Seasons:
    """The values one to seven days before every step; steps beyond one day ahead are looked up one day earlier."""
    device = batch.values.device
    ahead = torch.arange(-BEFORE, horizon, device=device)
    day_rows = _DAY_MS / batch.step_ms
    extra = ((ahead + 1) / day_rows).ceil().clamp(min=1) - 1  # whole days by which the horizon passes the first
    days = torch.arange(1, DAYS + 1, device=device)[:, None] + extra  # [7, P]
    z, observed = _from_rows(context, ahead, days * day_rows)
    if batch.coarse.shape[2] and batch.coarse.shape[1]:
        ring, in_ring = _from_ring(batch, context, ahead, days)
        c = ring.shape[1]
        z = torch.cat((torch.where(observed[:, :c], z[:, :c], ring), z[:, c:]), dim=1)
        observed = torch.cat((observed[:, :c] | in_ring, observed[:, c:]), dim=1)
    return Seasons(z, observed & context.moving[..., None, None])


def _from_rows(context: ScaledContext, ahead: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the nearest fine rows and whether they are observed, both [B, N, 7, P]."""
    length = context.z.shape[-1]
    at = length + ahead - rows.round().long()  # [7, P]
    inside = (at >= 0) & (at < length)
    index = at.clamp(0, length - 1)
    observed = context.observed[..., index] & inside
    return torch.where(observed, context.z[..., index], 0.0), observed


def _from_ring(batch: ContextBatch, context: ScaledContext, ahead: Tensor, days: Tensor) -> tuple[Tensor, Tensor]:
    """Values reconstructed from the ring's means and whether they are observed, both [B, C, 7, P].

    Within a row the course is a line through its mean. The slope is the smaller of the changes to the rows before and
    after, and 0 where they differ in sign. A course that rises or falls steadily is interpolated. A job that starts
    and ends with a row keeps its edges, which interpolation between centres would smear over ten minutes.
    Source: B. van Leer, "Towards the ultimate conservative difference scheme V", Journal of Computational Physics 1979.
    """
    num, c = batch.coarse.shape[1:]
    present = (batch.coarse_observed & batch.coarse.isfinite()).transpose(1, 2)  # [B, C, K]
    raw = batch.coarse.transpose(1, 2).to(torch.float64).where(present, 0.0)
    ring = (
        ((raw - context.center[:, :c, None]) / context.scale[:, :c, None]).clamp(-1e4, 1e4).float().where(present, 0.0)
    )
    change = pad(ring.diff(dim=-1).where(present[..., 1:] & present[..., :-1], 0.0), (1, 1))
    before, after = change[..., :-1], change[..., 1:]
    slope = torch.where(before * after > 0, torch.where(before.abs() < after.abs(), before, after), 0.0)
    into_row = (batch.origin_ts_ms % COARSE_STEP_MS).to(torch.float64) / COARSE_STEP_MS  # [B]
    steps = (ahead + 0.5) * (batch.step_ms / COARSE_STEP_MS) - days * (_DAY_MS / COARSE_STEP_MS)  # [7, P]
    position = into_row[:, None, None] + steps + num  # in rows, from the beginning of the oldest
    row = position.floor()
    from_centre = (position - row - 0.5).float()[:, None]  # [B, 1, 7, P]
    inside = ((row >= 0) & (row < num))[:, None]
    b, _, d, p = from_centre.shape
    index = row.clamp(0, num - 1).long().reshape(b, 1, d * p).expand(-1, c, -1)
    observed = present.gather(2, index).view(b, c, d, p) & inside
    value = ring.gather(2, index).view(b, c, d, p) + slope.gather(2, index).view(b, c, d, p) * from_centre
    return torch.where(observed, value, 0.0), observed
