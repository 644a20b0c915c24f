"""The context in each row's own units: instance normalization over observed cells, undone inside the density."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.baselines.context import fill
from model.contract import ContextBatch

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
