"""Simple forecasts that the network chooses between: it learns which to trust, not how to compute them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.network.analogs import analogs
from model.network.autoregression import least_squares, yule_walker
from model.network.scaled import RECENT, ScaledContext
from model.network.seasons import BEFORE, Seasons

_DECAYS = (0.5, 0.2, 0.05)
NAMES = (
    "last", "ewma_.5", "ewma_.2", "ewma_.05", "mean", "ar", "ar_stiff", "yule_walker", "analog", "analog_shifted",
    "day", "day_last", "day_recent", "days_recent", "day_ratio", "week", "week_recent",
)  # fmt: skip
NUM_CANDIDATES = len(NAMES)
SCALE_NAMES = ("steps", "recent", "context", "ar_residual", "season_residual")
NUM_SCALES = len(SCALE_NAMES)
_MIN_SCALE = 2e-3


@dataclass(frozen=True, slots=True)
class Candidates:
    """Per token, in scaled units.

    Attributes:
        z: float32 [B, N, K, H], 0 where not offered.
        offered: bool, same shape; the last value is always offered.
        scales: float32 [B, N, 5], positive: candidates for the size of the error.
    """

    z: Tensor
    offered: Tensor
    scales: Tensor

    def row(self, r: int) -> Candidates:
        """One row, as a batch of one."""
        return Candidates(self.z[r : r + 1], self.offered[r : r + 1], self.scales[r : r + 1])


def candidates(context: ScaledContext, season: Seasons | None, horizon: int) -> Candidates:
    """All candidates of all tokens."""
    b, n, length = context.z.shape
    z, known = context.z.reshape(b * n, length), context.known.reshape(b * n, length)
    last = z[:, -1]
    recent = z[:, -RECENT:]
    seen = known[:, -RECENT:].float()
    always = torch.ones(b * n, horizon, dtype=torch.bool, device=z.device)
    flat = [last]
    age = torch.arange(RECENT - 1, -1, -1, device=z.device, dtype=torch.float32)
    for decay in _DECAYS:
        weight = seen * (1 - decay) ** age
        flat.append((weight * recent).sum(-1) / weight.sum(-1).clamp(min=1e-6))
    flat.append((seen * recent).sum(-1) / seen.sum(-1).clamp(min=1))
    offers = [(value[:, None].expand(-1, horizon), always) for value in flat]
    linear, residual, enough = least_squares(z, known, horizon)
    offers += [(forecast, enough[:, None] & always) for forecast in linear]
    long, enough_long = yule_walker(z, known, horizon)
    offers.append((long, enough_long[:, None] & always))
    own, shifted, reached = analogs(z, known, horizon)
    offers += [(own, reached), (shifted, reached)]
    seasonal, season_residual = _seasonal(context, season, horizon)
    offers += seasonal
    values = torch.stack([torch.where(offered, value, 0.0) for value, offered in offers], dim=1)
    scales = torch.stack(
        (
            (recent.diff().abs() * seen[:, 1:]).sum(-1) / seen[:, 1:].sum(-1).clamp(min=1),
            recent[:, -24:].std(-1),
            recent.std(-1),
            torch.where(enough, residual, 1.0),
            season_residual,
        ),
        dim=-1,
    )
    return Candidates(
        values.view(b, n, NUM_CANDIDATES, horizon),
        torch.stack([offered for _, offered in offers], dim=1).view(b, n, NUM_CANDIDATES, horizon),
        scales.clamp(min=_MIN_SCALE).view(b, n, NUM_SCALES),
    )


def _seasonal(
    context: ScaledContext, season: Seasons | None, horizon: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """The day before, the mean of up to seven days, the week before: as they were, and moved to the present level."""
    b, n, _ = context.z.shape
    m = b * n
    if season is None:
        nothing = torch.zeros(m, horizon, device=context.z.device)
        return [(nothing, nothing.bool())] * 7, torch.ones(m, device=context.z.device)
    z, known = season.z.view(m, -1, BEFORE + horizon), season.known.view(m, -1, BEFORE + horizon)
    days = known.sum(1)
    profile = (z * known).sum(1) / days.clamp(min=1)  # [M, P]
    now = context.z.view(m, -1)[:, -BEFORE:]
    present = context.known.view(m, -1)[:, -BEFORE:]
    day, day_known, week, week_known = z[:, 0], known[:, 0], z[:, -1], known[:, -1]
    last_shift, has_last = (now - day[:, :BEFORE])[:, -1:], (present & day_known[:, :BEFORE])[:, -1:]
    day_shift, has_day, residual = _shift(now, present, day, day_known)
    profile_shift, has_profile, _ = _shift(now, present, profile, days >= 2)
    week_shift, has_week, _ = _shift(now, present, week, week_known)
    center = (context.center / context.scale).float().view(m, 1)
    level = center + (now * present).sum(-1, keepdim=True) / present.sum(-1, keepdim=True).clamp(min=1)
    overlap = present & day_known[:, :BEFORE]
    before = center + (day[:, :BEFORE] * overlap).sum(-1, keepdim=True) / overlap.sum(-1, keepdim=True).clamp(min=1)
    positive = (level > 0.05) & (before > 0.05) & has_day
    ratio = torch.where(positive, level / before.clamp(min=0.05), 1.0).clamp(0.2, 5.0)
    ahead, ahead_known = day[:, BEFORE:], day_known[:, BEFORE:]
    offers = [
        (ahead, ahead_known),
        (ahead + last_shift, ahead_known & has_last),
        (ahead + day_shift, ahead_known & has_day),
        (profile[:, BEFORE:] + profile_shift, (days >= 2)[:, BEFORE:] & has_profile),
        ((ahead + center) * ratio - center, ahead_known & positive),
        (week[:, BEFORE:], week_known[:, BEFORE:]),
        (week[:, BEFORE:] + week_shift, week_known[:, BEFORE:] & has_week),
    ]
    return offers, torch.where(has_day[:, 0], residual, 1.0)


def _shift(now: Tensor, present: Tensor, season: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean distance to the season before the origin [M, 1], whether six steps give it [M, 1], and its spread [M]."""
    both = present & known[:, :BEFORE]
    count = both.sum(-1, keepdim=True)
    gap = (now - season[:, :BEFORE]) * both
    shift = gap.sum(-1, keepdim=True) / count.clamp(min=1)
    spread = (((gap - shift) * both).square().sum(-1) / count[:, 0].clamp(min=1)).sqrt()
    return shift, count >= BEFORE // 2, spread
