"""How well each simple forecast did in the context itself: the evidence by which the network chooses between them.

Two bands: the mean absolute error over the first two steps, and over the first twelve, from a few origins inside the
context. Autoregressions keep the coefficients fitted on all rows; seasonal forecasts are judged on the twelve rows
before the origin.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model.network.analogs import analogs
from model.network.autoregression import Fitted
from model.network.constants import numbers
from model.network.inputs import RECENT
from model.network.token_forecasts import JUDGED_ROWS, ORIGINS, SHORT, STEPS

NUM_BANDS = 2
_FLOOR = 1e-3
_LARGEST = 4.0


def errors_in_context(
    z: Tensor, known: Tensor, decays: Sequence[float], fitted: Sequence[Fitted]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Errors of what needs no season, [M, 2] each, NaN where nothing can be scored.

    Args:
        z: float32 [M, L], gaps filled, L at least 96.
        known: bool [M, L].
        decays: of the moving averages; 0 = the mean.
        fitted: autoregressions.

    Returns:
        Of the last value and the moving averages; of the autoregressions; of the analogs, at their own level and
        shifted.
    """
    length = z.shape[1]
    ends = numbers([length - d for d in ORIGINS], torch.int64, z.device)
    at = ends[:, None] + torch.arange(STEPS, device=z.device)  # [P, H]
    truth = z[:, at.clamp(max=length - 1)]  # [M, P, H]
    scored = known[:, at.clamp(max=length - 1)] & (at < length)

    def errors(forecast: Tensor) -> Tensor:
        return bands((forecast - truth).abs(), scored)

    windows = (ends[:, None] - RECENT + torch.arange(RECENT, device=z.device)).clamp(min=0)  # [P, R]
    past, seen = z[:, windows], known[:, windows].float()
    age = torch.arange(RECENT - 1, -1, -1, device=z.device, dtype=z.dtype)
    levels = [errors(z[:, ends - 1][..., None])]
    for decay in decays:
        weight = seen * (1 - decay) ** age
        levels.append(errors(((weight * past).sum(-1) / weight.sum(-1).clamp(min=1e-6))[..., None]))
    linear = [errors(fit.from_ends(z, ends, STEPS)) for fit in fitted]
    found = []
    for d in ORIGINS:
        first, stop = max(0, length - d - JUDGED_ROWS), length - d
        found.append(analogs(z[:, first:stop], known[:, first:stop], STEPS))
    reached = scored & torch.stack([part[2] for part in found], dim=1)
    alike = [bands((torch.stack([part[k] for part in found], dim=1) - truth).abs(), reached) for k in (0, 1)]
    return levels, linear, alike


def bands(error: Tensor, known: Tensor) -> Tensor:
    """Mean error over the short and the whole band, [M, 2], NaN where nothing is known.

    Args:
        error: [M, P, H].
        known: bool, same shape.
    """
    parts = []
    for steps in (SHORT, error.shape[-1]):
        count = known[..., :steps].sum((-1, -2))
        parts.append((error * known)[..., :steps].sum((-1, -2)) / count.where(count > 0, torch.nan))
    return torch.stack(parts, dim=-1)


def evidence(errors: Tensor, offered: Tensor) -> tuple[Tensor, Tensor]:
    """Log errors over the best one's, and the best one's error.

    Args:
        errors: [M, K, 2], NaN where not known.
        offered: bool [M, K].

    Returns:
        [M, K, 2] within 0..4, the mean of the others where a candidate has no score; and [M, 2], NaN where none has.
    """
    known = errors.isfinite() & offered[..., None]
    log = errors.nan_to_num(1.0).clamp(min=_FLOOR).log()
    best = log.masked_fill(~known, torch.inf).amin(1, keepdim=True)
    some = best.isfinite()
    relative = (log - best.where(some, 0.0)).clamp(0, _LARGEST)
    mean = (relative * known).sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp(min=1)
    relative = torch.where(known, relative, mean).where(some, 0.0)
    return relative, best.exp().where(some, torch.nan)[:, 0]
