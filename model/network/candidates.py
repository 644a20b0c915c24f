"""Simple forecasts that the network chooses between: it learns which to trust, not how to compute them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.network.analogs import analogs
from model.network.autoregression import least_squares, of_changes, yule_walker
from model.network.backtest import bands, errors_in_context, evidence
from model.network.inputs import RECENT, ScaledContext
from model.network.seasons import BEFORE, Seasons
from model.network.token_forecasts import token_forecasts

_AVERAGES = (0.5, 0.2, 0.05, 0.0)  # decays of the moving averages; the last is the mean
NAMES = (
    "last", "ewma_.5", "ewma_.2", "ewma_.05", "mean", "ar", "ar_stiff", "yule_walker", "ar_changes", "analog",
    "analog_shifted", "day", "day_last", "day_recent", "days_recent", "day_ratio", "week", "week_recent",
)  # fmt: skip
NUM_CANDIDATES = len(NAMES)
SCALE_NAMES = ("steps", "recent", "context", "ar_residual", "season_residual", "best_short", "best_long")
NUM_SCALES = len(SCALE_NAMES)
_MIN_SCALE = 2e-3


@dataclass(frozen=True, slots=True)
class Candidates:
    """Per token, in scaled units.

    Attributes:
        z: float32 [B, N, K, H], 0 where not offered.
        offered: bool, same shape; the last value is always offered.
        scales: float32 [B, N, 7], positive: candidates for the size of the error.
        evidence: float32 [B, N, K, 2], log error in context over the best candidate's, in a short and a long band.
    """

    z: Tensor
    offered: Tensor
    scales: Tensor
    evidence: Tensor

    def row(self, r: int) -> Candidates:
        """One row, as a batch of one."""
        one = slice(r, r + 1)
        return Candidates(self.z[one], self.offered[one], self.scales[one], self.evidence[one])


def candidates(context: ScaledContext, season: Seasons | None, horizon: int, *, loops: bool = True) -> Candidates:
    """All candidates of all tokens; `loops`: on a CPU by compiled loops, not in batches of tensors."""
    b, n, length = context.z.shape
    z, known = context.z.reshape(b * n, length), context.known.reshape(b * n, length)
    recent = z[:, -RECENT:]
    seen = known[:, -RECENT:].float()
    plain = (_compiled if loops and z.device.type == "cpu" else _unseasonal)(z, known, horizon)
    seasonal, seasonal_errors, season_residual = _seasonal(context, season, horizon)
    offers = [*plain.offers, *seasonal]
    values = torch.stack([torch.where(offered, value, 0.0) for value, offered in offers], dim=1)
    allowed = torch.stack([offered for _, offered in offers], dim=1)
    errors = torch.cat((plain.errors, torch.stack(seasonal_errors, dim=1)), dim=1)  # [M, K, 2]
    relative, best = evidence(errors, allowed[..., 0])
    steps = (recent.diff().abs() * seen[:, 1:]).sum(-1) / seen[:, 1:].sum(-1).clamp(min=1)
    scales = torch.stack(
        (
            steps,
            recent[:, -24:].std(-1),
            recent.std(-1),
            plain.residual,
            season_residual,
            *torch.where(best.isfinite(), best, steps[:, None]).unbind(-1),
        ),
        dim=-1,
    )
    return Candidates(
        values.view(b, n, NUM_CANDIDATES, horizon),
        allowed.view(b, n, NUM_CANDIDATES, horizon),
        scales.clamp(min=_MIN_SCALE).view(b, n, NUM_SCALES),
        relative.view(b, n, NUM_CANDIDATES, -1),
    )


@dataclass(frozen=True, slots=True)
class _Unseasonal:
    """What needs no season: forecasts [M, H] with where they are offered, their errors [M, K, 2], and the one-step
    deviation [M] of the least squares, 1 where there are too few rows."""

    offers: list[tuple[Tensor, Tensor]]
    errors: Tensor
    residual: Tensor


def _unseasonal(z: Tensor, known: Tensor, horizon: int) -> _Unseasonal:
    """In batches of tensors."""
    seen = known[:, -RECENT:].float()
    always = torch.ones(len(z), horizon, dtype=torch.bool, device=z.device)
    flat = [z[:, -1]]
    age = torch.arange(RECENT - 1, -1, -1, device=z.device, dtype=torch.float32)
    for decay in _AVERAGES:
        weight = seen * (1 - decay) ** age
        flat.append((weight * z[:, -RECENT:]).sum(-1) / weight.sum(-1).clamp(min=1e-6))
    offers = [(value[:, None].expand(-1, horizon), always) for value in flat]
    linear, residual = least_squares(z, known)
    fitted = (*linear, yule_walker(z, known), of_changes(z, known))
    offers += [(fit.forecast(z, horizon), fit.enough[:, None] & always) for fit in fitted]
    own, shifted, reached = analogs(z, known, horizon)
    offers += [(own, reached), (shifted, reached)]
    level_errors, linear_errors, alike = errors_in_context(z, known, _AVERAGES, fitted)
    errors = torch.stack((*level_errors, *linear_errors, *alike), dim=1)
    return _Unseasonal(offers, errors, torch.where(linear[0].enough, residual, 1.0))


def _compiled(z: Tensor, known: Tensor, horizon: int) -> _Unseasonal:
    """The same by compiled loops, one token after the other."""
    age = np.arange(RECENT - 1, -1, -1)
    weights = np.stack([(1 - decay) ** age for decay in _AVERAGES]).astype(np.float32)
    found = token_forecasts(z.numpy(), known.numpy(), weights, horizon)
    levels, linear, enough, residual, alike, reached, errors = map(torch.from_numpy, found)
    always = torch.ones(len(z), horizon, dtype=torch.bool)
    offers = [(level[:, None].expand(-1, horizon), always) for level in levels.unbind(1)]
    pairs = zip(linear.unbind(1), enough.unbind(1), strict=True)
    offers += [(steps, fitted[:, None] & always) for steps, fitted in pairs]
    offers += [(steps, reached) for steps in alike.unbind(1)]
    return _Unseasonal(offers, errors, torch.where(enough[:, 0], residual, 1.0))


def _seasonal(
    context: ScaledContext, season: Seasons | None, horizon: int
) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor], Tensor]:
    """The day before, the mean of up to seven days, the week before: as they were, and moved to the present level.

    Returns:
        Seven forecasts [M, H] with where they are offered; their errors on the rows before the origin, [M, 2] each;
        and the spread of the day's [M].
    """
    b, n, _ = context.z.shape
    m = b * n
    if season is None:
        nothing = torch.zeros(m, horizon, device=context.z.device)
        unknown = nothing.new_full((m, 2), torch.nan)
        return [(nothing, nothing.bool())] * 7, [unknown] * 7, torch.ones(m, device=context.z.device)
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
    courses = [  # with what a course is moved by, and where it is offered
        (day, day_known),
        (day + last_shift, day_known & has_last),
        (day + day_shift, day_known & has_day),
        (profile + profile_shift, (days >= 2) & has_profile),
        ((day + center) * ratio - center, day_known & positive),
        (week, week_known),
        (week + week_shift, week_known & has_week),
    ]
    offers = [(course[:, BEFORE:], offered[:, BEFORE:]) for course, offered in courses]
    errors = []
    for k, (course, offered) in enumerate(courses):
        gap = now - course[:, :BEFORE]
        both = present & offered[:, :BEFORE]
        if k == 1:  # moved to the last value: what counts is how the distance changes from row to row
            gap, both = gap.diff(dim=-1, prepend=gap[:, :1]), both & torch.nn.functional.pad(both, (1, -1))
        errors.append(bands(gap.abs()[:, None], both[:, None])[:, 1:].expand(-1, 2))
    return offers, errors, torch.where(has_day[:, 0], residual, 1.0)


def _shift(now: Tensor, present: Tensor, season: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean distance to the season before the origin [M, 1], whether six steps give it [M, 1], and its spread [M]."""
    both = present & known[:, :BEFORE]
    count = both.sum(-1, keepdim=True)
    gap = (now - season[:, :BEFORE]) * both
    shift = gap.sum(-1, keepdim=True) / count.clamp(min=1)
    spread = (((gap - shift) * both).square().sum(-1) / count[:, 0].clamp(min=1)).sqrt()
    return shift, count >= BEFORE // 2, spread
