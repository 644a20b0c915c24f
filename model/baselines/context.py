"""The context as baselines read it: gaps filled with the last value, columns scaled by their own mean and spread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.baselines.context_kernel import CONSTANT_RATIO, MIN_OBSERVED_RATIO, MIN_WINDOWS
from model.contract import ContextBatch


@dataclass(frozen=True, slots=True)
class FilledContext:
    """Columns first, in float64.

    Attributes:
        filled: [B, N, L], gaps filled with the last observed value, leading gaps with the first.
        observed: bool [B, N, L], finite and observed.
        count: int64 [B, N], observed cells.
        mean, spread: [B, N] over the observed cells; `spread` is the standard deviation, 0 for a constant column.
    """

    filled: Tensor
    observed: Tensor
    count: Tensor
    mean: Tensor
    spread: Tensor

    @property
    def moving(self) -> Tensor:
        """bool [B, N]: columns that are neither unobserved nor constant."""
        return self.spread > 0


def seen_range(values: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest value that was observed over the steps [B, L, ...]; inf and -inf where none was."""
    unknown = ~(observed & values.isfinite())
    return values.masked_fill(unknown, torch.inf).amin(1), values.masked_fill(unknown, -torch.inf).amax(1)


def check_request(batch: ContextBatch, horizon: int, num_paths: int, max_horizon: int) -> None:
    """Refuse what no forecaster can answer.

    Raises:
        ValueError: horizon or paths out of range, or tensors of inconsistent shape.
    """
    if not 1 <= horizon <= max_horizon:
        raise ValueError(f"horizon {horizon} is not within 1..{max_horizon}")
    if num_paths < 1:
        raise ValueError(f"num_paths {num_paths} must be at least 1")
    if batch.values.dim() != 3:
        raise ValueError(f"values must be [B, L, N], got {tuple(batch.values.shape)}")
    b, _, n = batch.values.shape
    wanted = {
        "observed": (batch.observed, tuple(batch.values.shape)),
        "coarse_observed": (batch.coarse_observed, tuple(batch.coarse.shape)),
        "origin_ts_ms": (batch.origin_ts_ms, (b,)),
        "levels": (batch.levels, (n,)),
        "lower": (batch.lower, (n,)),
        "upper": (batch.upper, (n,)),
    }
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")
    if len(batch.item_ids) != b or len(batch.indicators) != n or batch.coarse.dim() != 3 or batch.coarse.shape[0] != b:
        raise ValueError(f"item_ids, indicators and coarse must match values {tuple(batch.values.shape)}")
    if batch.coarse.shape[2] > n:
        raise ValueError(f"coarse holds {batch.coarse.shape[2]} indicators, values {n}")


def fill(values: Tensor, observed: Tensor) -> FilledContext:
    """Fill gaps and measure each column; what stands in a masked cell has no influence.

    Args:
        values: [B, L, N].
        observed: bool [B, L, N].
    """
    known = (observed & values.isfinite()).transpose(1, 2).contiguous()  # [B, N, L]
    x = values.transpose(1, 2).to(torch.float64).where(known, 0.0)
    steps = torch.arange(x.shape[-1], device=x.device).expand_as(x)
    newest = torch.where(known, steps, -1).cummax(-1).values
    first = known.long().argmax(-1, keepdim=True)
    filled = x.gather(-1, torch.where(newest < 0, first, newest))
    count = known.sum(-1)
    cells = count.clamp(min=1)
    mean = x.sum(-1) / cells
    deviation = torch.where(known, x - mean[..., None], 0.0)
    spread = ((deviation * deviation).sum(-1) / cells).sqrt()
    spread = torch.where(spread > CONSTANT_RATIO * mean.abs(), spread, 0.0)
    return FilledContext(filled, known, count, mean, spread)


def valid_windows(observed: Tensor, order: int, horizon: int) -> Tensor:
    """Windows of `order` lags and `horizon` targets that are observed well enough to learn from.

    Args:
        observed: bool [..., L].

    Returns:
        bool [..., W], W = L - horizon - order + 1; window w has its origin at step w + order - 1.
    """
    num = observed.shape[-1] - horizon - order + 1
    seen = observed.to(torch.int64).cumsum(-1)
    seen = torch.cat((torch.zeros_like(seen[..., :1]), seen), dim=-1)  # [..., L + 1]
    lags = seen[..., order : order + num] - seen[..., :num]
    targets = seen[..., order + horizon : order + horizon + num] - seen[..., order : order + num]
    origin = observed[..., order - 1 : order - 1 + num]
    return origin & (lags >= MIN_OBSERVED_RATIO * order) & (targets >= MIN_OBSERVED_RATIO * horizon)


def window_weights(valid: Tensor, moving: Tensor, min_windows: int = MIN_WINDOWS) -> Tensor:
    """Weight of each window in the joint draw.

    Windows in which every moving column is valid weigh the same; where those are too few, a window weighs as many
    columns as are valid in it; where none is valid anywhere, all weigh the same.

    Args:
        valid: bool [B, N, W].
        moving: bool [B, N].

    Returns:
        float64 [B, W], every row with a positive sum.
    """
    count = (valid & moving[..., None]).sum(1)  # [B, W]
    full = count == moving.sum(-1, keepdim=True)
    enough = full.sum(-1, keepdim=True) >= min(min_windows, valid.shape[-1])
    weights = torch.where(enough, full.long(), count)
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1).to(torch.float64)
