"""How wide the ridge's residual windows must be spread: what the context cannot show of its own tails.

Overlapping windows are far fewer than they look: over H steps a context of L holds about L / H independent ones, and
the largest of five is exceeded every sixth time. The residuals' scale is therefore itself uncertain, and each window is
widened by its share of the law of that uncertainty (Student's law, as for any scale estimated from few values).
"""

from __future__ import annotations

import torch
from torch import Tensor

_FREEDOM = 1.0  # degrees of freedom per independent window
_LEAST_FREEDOM = 2.0
_WIDEST, _NARROWEST = 4.0, 0.5
GOLDEN = 0.6180339887498949


def independent_windows(last: Tensor, known: Tensor, horizon: int) -> Tensor:
    """How many independent values the residuals of overlapping windows are worth.

    From the share of their variance that survives averaging over H neighbours: all of it for residuals that move
    together, 1 / H for independent ones.

    Args:
        last: float32 [M, W], residuals of the last step.
        known: bool [M, W].

    Returns:
        float64 [M], between W / H and W.
    """
    e = (last * known).to(torch.float64)
    num = e.shape[-1]
    span = min(horizon, num)
    sums = torch.cat((torch.zeros_like(e[:, :1]), e.cumsum(-1)), dim=-1)
    moving = (sums[:, span:] - sums[:, :-span]) / span
    share = moving.square().mean(-1) / e.square().mean(-1).clamp(min=torch.finfo(torch.float64).tiny)
    return known.sum(-1) / (share * span).clamp(1.0, float(span))


def widening(freedom: Tensor, num_windows: int) -> Tensor:
    """Factors sqrt(nu / chi^2_nu) at evenly spread probabilities, neighbours far apart.

    Source: E. Wilson, M. Hilferty, "The distribution of chi-square", PNAS 1931, for the quantiles.

    Args:
        freedom: float64 [M] independent values that the scale is estimated from.

    Returns:
        float32 [M, W].
    """
    nu = (_FREEDOM * freedom).clamp(min=_LEAST_FREEDOM)[:, None]
    steps = torch.arange(1, num_windows + 1, dtype=torch.float64, device=freedom.device)
    share = (steps * GOLDEN) % 1.0
    z = 2**0.5 * torch.erfinv((2 * share - 1).clamp(-0.999, 0.999))
    tail = 2 / (9 * nu)
    chi2 = (1 - tail + z * tail.sqrt()).clamp(min=0.05) ** 3  # per degree of freedom
    return chi2.rsqrt().clamp(_NARROWEST, _WIDEST).float()
