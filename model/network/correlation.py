"""How indicators move together: correlation of their changes in the context."""

from __future__ import annotations

import torch
from torch import Tensor

from model.network.inputs import ScaledContext
from model.network.rowwise import aligned

_ROWS = 256
LAGS = (1, 8)  # steps over which a change is measured: short and long
_SHRINK = 8.0  # changes worth of evidence for independence


def innovation_correlation(context: ScaledContext) -> Tensor:
    """Correlation matrices [B, 2, N, N], shrunk to the identity; changes are bounded, lest one burst rule."""
    z, known = context.z[..., -_ROWS:], context.known[..., -_ROWS:]
    out = []
    for lag in LAGS:
        change = z[..., lag:] - z[..., :-lag]
        both = known[..., lag:] & known[..., :-lag] & context.moving[..., None]
        count = both.sum(-1)
        size = ((change * both).square().sum(-1) / count.clamp(min=1)).sqrt().clamp(min=1e-6)
        change = (change / size[..., None]).clamp(-3, 3) * both  # [B, N, W]
        power = change.square().sum(-1) + _SHRINK * lag
        normed = change / power.sqrt()[..., None]
        normed = aligned(normed)
        matrix = normed @ normed.mT  # positive semidefinite, diagonal below 1
        out.append(matrix + torch.diag_embed(1 - matrix.diagonal(dim1=-2, dim2=-1)))
    return torch.stack(out, dim=1)
