"""What followed the stretches of the context that look most like its end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.network.token_forecasts import ANALOG_ROWS, MIN_FOLLOW, NEAREST, STRETCH


def analogs(z: Tensor, known: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted mean of the continuations of the six nearest stretches.

    Args:
        z: float32 [M, L], gaps filled.
        known: bool [M, L].

    Returns:
        Continuations at their own level [M, H], the same shifted to the present level, and bool [M, H] where any
        stretch reaches that step inside the context.
    """
    x, seen = z[:, -ANALOG_ROWS:], known[:, -ANALOG_ROWS:]
    m, length = x.shape
    num = length - STRETCH - min(MIN_FOLLOW, horizon) + 1
    if num < NEAREST:
        nothing = torch.zeros(m, horizon, device=z.device)
        return nothing, nothing, nothing.bool()
    distance = torch.zeros(m, num, device=z.device)
    for k in range(STRETCH):  # one lag at a time: no stretch is ever copied
        gap = x[:, k : k + num] - x[:, length - STRETCH + k, None]
        distance.addcmul_(gap, gap)
    distance /= STRETCH
    count = pad(seen.long().cumsum(-1), (1, 0))
    complete = count[:, STRETCH : STRETCH + num] - count[:, :num] > 0.8 * STRETCH
    distance = distance.masked_fill(~complete, torch.inf)
    near, start = distance.topk(NEAREST, dim=-1, largest=False)  # [M, 6]
    weight = torch.exp(-near / (2 * near[:, :1] + 1e-3)).nan_to_num(0.0)
    at = start[..., None] + STRETCH + torch.arange(horizon, device=z.device)  # [M, 6, H]
    reached = (at < length) & near.isfinite()[..., None]
    rows = torch.arange(m, device=z.device)[:, None, None]
    follow = x[rows, at.clamp(max=length - 1)]  # [M, 6, H]
    last = x[rows[..., 0], start + STRETCH - 1]  # [M, 6]
    share = weight[..., None] * reached
    total = share.sum(1)
    own = (share * follow).sum(1) / total.clamp(min=1e-9)
    shifted = (share * (follow - last[..., None])).sum(1) / total.clamp(min=1e-9) + x[:, -1:]
    return own, shifted, total > 1e-6
