"""How wide the ridge's residual windows must be spread: what the context cannot show of its own tails.

Overlapping windows are far fewer than they look: over H steps a context of L holds about L / H independent ones, and
the largest of five is exceeded every sixth time. The residuals' scale is therefore itself uncertain, and each window is
widened by its share of the law of that uncertainty (Student's law, as for any scale estimated from few values).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from model.ridge_residuals import FREEDOM, LEAST_CHI2, LEAST_FREEDOM, NARROWEST, WIDEST, WindowTables

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
    nu = (FREEDOM * freedom).clamp(min=LEAST_FREEDOM)[:, None]
    tail = 2 / (9 * nu)
    z = _normal_scores(num_windows, freedom.device)
    chi2 = (1 - tail + z * tail.sqrt()).clamp(min=LEAST_CHI2) ** 3  # per degree of freedom
    return chi2.rsqrt().clamp(NARROWEST, WIDEST).float()


def taken_back(num_windows: int, device: torch.device) -> Tensor:
    """Parts of its drift that each window is taken back by, float32 [W]: from nothing to twice, evenly spread."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float32, device=device)
    return 2.0 * ((steps * GOLDEN) % 1.0)


@lru_cache(maxsize=64)
def window_tables(num_windows: int) -> WindowTables:
    """Both tables of that many windows, for the compiled loops."""
    here = torch.device("cpu")
    return WindowTables(taken_back(num_windows, here).numpy(), _normal_scores(num_windows, here).numpy())


def _normal_scores(num_windows: int, device: torch.device) -> Tensor:
    """Normal quantiles, float64 [W], evenly spread, neighbours far apart."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float64, device=device)
    share = (steps * GOLDEN) % 1.0
    return 2**0.5 * torch.erfinv((2 * share - 1).clamp(-0.999, 0.999))
