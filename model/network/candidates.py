"""Candidates: simple forecasts that the network weighs. It learns which to trust, not how to compute them.

Autoregressions, moving averages, analogs and seasonal values, each with its error inside the context.
On a CPU `model.network.candidates_kernel` computes the same by compiled loops.

Letters of shapes: M tokens, L rows of context, H steps, P origins or penalties, p order, K candidates.
Sources: ridge regression, A. Hoerl and R. Kennard, Technometrics 1970; Yule-Walker equations, G. Box and G. Jenkins,
"Time series analysis", 1970; analogs, E. Lorenz, Journal of the Atmospheric Sciences 1969.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from model.network.candidates_kernel import (
    ANALOG_ROWS,
    CHANGE_ORDER,
    CHANGE_PENALTY,
    JUDGED_ROWS,
    LONG_ORDER,
    LONG_PENALTY,
    LONG_ROWS,
    MIN_FOLLOW,
    MIN_ROWS,
    NEAREST,
    ORDER,
    ORIGINS,
    PENALTIES,
    ROWS,
    SHORT,
    STEPS,
    STRETCH,
    token_forecasts,
)
from model.network.inputs import BEFORE, RECENT, ScaledContext, Seasons
from model.network.layers import numbers

# Linear autoregressions fitted in context, one per indicator: least squares on recent rows, Yule-Walker on many.


@dataclass(frozen=True, slots=True)
class Autoregression:
    """One linear autoregression per token.

    Attributes:
        coefficients: float32 [M, p], newest lag first.
        mean: float32 [M], subtracted first; 0 where changes are regressed.
        low, high: float32 [M], bounds of the forecasts that are fed back: an unstable fit cannot diverge.
        enough: bool [M], whether there are enough rows to fit on.
        changes: whether the changes from row to row are regressed.
    """

    coefficients: Tensor
    mean: Tensor
    low: Tensor
    high: Tensor
    enough: Tensor
    changes: bool = False

    def forecast(self, z: Tensor, horizon: int) -> Tensor:
        """Forecasts [M, H] from the end of `z` [M, L]."""
        return self.from_ends(z, torch.full((1,), z.shape[1], device=z.device), horizon)[:, 0]

    def from_ends(self, z: Tensor, ends: Tensor, horizon: int) -> Tensor:
        """Forecasts [M, P, H] from the rows before each of `ends` [P]."""
        order = self.coefficients.shape[-1]
        x = torch.nn.functional.pad(z.diff(dim=-1), (1, 0)) if self.changes else z - self.mean[:, None]
        lags = ends[:, None] - 1 - torch.arange(order, device=z.device)  # [P, p]
        state = torch.where(lags >= 0, x[:, lags.clamp(min=0)], 0.0)  # [M, P, p]
        steps = _iterate(state, self.coefficients[:, None], horizon, self.low[:, None], self.high[:, None])
        if self.changes:
            return z[:, ends - 1][..., None] + steps.cumsum(-1)
        return steps + self.mean[:, None, None]


def least_squares(z: Tensor, observed: Tensor) -> tuple[tuple[Autoregression, ...], Tensor]:
    """AR(24) on the last 384 rows by ridge, one per penalty.

    Args:
        z: float32 [M, L], gaps filled.
        observed: bool [M, L].

    Returns:
        The fits, and the one-step residual deviation [M] of the smallest penalty.
    """
    z, observed = z[:, -ROWS:], observed[:, -ROWS:]
    x, mean = _center(z, observed)
    order = min(ORDER, max(2, x.shape[1] // 6))
    coefficients, lags, weight = _ridge(x, observed, order, PENALTIES)
    fitted = torch.einsum("mwp,mp->mw", lags, coefficients[0])
    residual = ((x[:, order:] - fitted) * weight).square().sum(-1) / weight.sum(-1).clamp(min=1)
    low, high = _feedback_bounds(x, 0.5)
    enough = weight.sum(-1) >= MIN_ROWS
    return tuple(Autoregression(c, mean, low, high, enough) for c in coefficients), residual.sqrt()


def fit_changes(z: Tensor, observed: Tensor) -> Autoregression:
    """AR(8) of the changes from row to row, which reverts to the last value instead of the mean."""
    z, observed = z[:, -ROWS:], observed[:, -ROWS:]
    x, both = z.diff(dim=-1), observed[:, 1:] & observed[:, :-1]
    coefficients, _, weight = _ridge(x, both, CHANGE_ORDER, (CHANGE_PENALTY,))
    low, high = _feedback_bounds(x, 0.0)
    return Autoregression(coefficients[0], torch.zeros_like(low), low, high, weight.sum(-1) >= MIN_ROWS, changes=True)


def yule_walker(z: Tensor, observed: Tensor) -> Autoregression:
    """AR(64) by the Yule-Walker equations on the last 1,024 rows: long memory and any period at the cost of an FFT."""
    z, observed = z[:, -LONG_ROWS:], observed[:, -LONG_ROWS:]
    x, mean = _center(z, observed)
    spectrum = torch.fft.rfft(x * observed, n=2 * LONG_ROWS).abs().square()
    covariance = torch.fft.irfft(spectrum)[:, : LONG_ORDER + 1].double()  # [M, p + 1]
    lag = torch.arange(LONG_ORDER, device=z.device)
    toeplitz = covariance[:, (lag[:, None] - lag[None, :]).abs()]  # [M, p, p]
    power = covariance[:, :1, None] + 1e-6
    unit = torch.eye(LONG_ORDER, dtype=toeplitz.dtype, device=z.device)
    system = toeplitz + LONG_PENALTY * power * unit
    coefficients = _solve_cholesky(system, covariance[:, 1:, None])[..., 0].float()  # [M, p]
    low, high = _feedback_bounds(x, 0.3)
    return Autoregression(coefficients, mean, low, high, observed.sum(-1) >= 3 * LONG_ORDER)


def _ridge(x: Tensor, observed: Tensor, order: int, penalties: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients [P, M, p], the lags of the windows [M, W, p], and which windows count, bool [M, W]."""
    num = x.shape[1] - order
    lags = x.unfold(1, order, 1)[:, :num].flip(-1)  # newest lag first
    present = observed.float().unfold(1, order, 1)[:, :num].mean(-1)
    weight = observed[:, order:] & (present > 0.8)
    wide = (lags * weight[..., None]).double()
    target = (x[:, order:] * weight).double()
    gram = wide.mT @ wide  # [M, p, p]
    cross = wide.mT @ target[..., None]  # [M, p, 1]
    power = gram.diagonal(dim1=-2, dim2=-1).mean(-1) + 1e-6
    unit = torch.eye(order, dtype=gram.dtype, device=gram.device)
    each = [_solve_cholesky(gram + (penalty * power)[:, None, None] * unit, cross) for penalty in penalties]
    return torch.stack(each)[..., 0].float(), lags, weight


def _solve_cholesky(matrix: Tensor, right: Tensor) -> Tensor:
    """Solutions of positive definite systems by Cholesky factors; `cholesky_solve` may wait for the host."""
    factor = torch.linalg.cholesky_ex(matrix)[0]
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved


def _center(z: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    mean = (z * observed).sum(-1) / observed.sum(-1).clamp(min=1)
    return z - mean[:, None], mean


def _feedback_bounds(x: Tensor, slack: float) -> tuple[Tensor, Tensor]:
    """Bounds of the values, widened on both sides by the share `slack` of their range."""
    low, high = x.amin(-1), x.amax(-1)
    room = slack * (high - low)
    return low - room, high + room


def _iterate(state: Tensor, coefficients: Tensor, horizon: int, low: Tensor, high: Tensor) -> Tensor:
    """Iterated forecasts, each fed back as the newest lag.

    Args:
        state, coefficients: [M, P, p] or [M, 1, p], newest lag first.
        low, high: [M, 1].

    Returns:
        [M, P, H].
    """
    out = []
    for _ in range(horizon):
        step = (state * coefficients).sum(-1).clamp(low, high)
        out.append(step)
        state = torch.cat((step[..., None], state[..., :-1]), dim=-1)
    return torch.stack(out, dim=-1)


# Analogs: what followed the stretches of the context that are most similar to its end.


def analogs(z: Tensor, observed: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted mean of the continuations of the six nearest stretches.

    Args:
        z: float32 [M, L], gaps filled.
        observed: bool [M, L].

    Returns:
        Continuations at their own level [M, H], the same shifted to the present level, and bool [M, H] where any
        stretch reaches that step inside the context.
    """
    x, present = z[:, -ANALOG_ROWS:], observed[:, -ANALOG_ROWS:]
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
    count = pad(present.long().cumsum(-1), (1, 0))
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


# How well each simple forecast did in the context itself: the evidence by which the network chooses between them.
#
# Two bands: the mean absolute error over the first two steps, and over the first twelve, from a few origins inside the
# context. Autoregressions keep the coefficients fitted on all rows; seasonal forecasts are judged on the twelve rows
# before the origin.


NUM_BANDS = 2
_MIN_ERROR = 1e-3
_MAX_LOG_RATIO = 4.0
_MIN_HINDCAST_PAIRS = 2


def errors_in_context(
    z: Tensor, observed: Tensor, decays: Sequence[float], fitted: Sequence[Autoregression]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Errors of the candidates without a season, [M, 2] each, NaN where nothing can be scored.

    Args:
        z: float32 [M, L], gaps filled, L at least 96.
        observed: bool [M, L].
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
    scored = observed[:, at.clamp(max=length - 1)] & (at < length)

    def errors(forecast: Tensor) -> Tensor:
        return bands((forecast - truth).abs(), scored)

    windows = (ends[:, None] - RECENT + torch.arange(RECENT, device=z.device)).clamp(min=0)  # [P, R]
    past, present = z[:, windows], observed[:, windows].float()
    age = torch.arange(RECENT - 1, -1, -1, device=z.device, dtype=z.dtype)
    levels = [errors(z[:, ends - 1][..., None])]
    for decay in decays:
        weight = present * (1 - decay) ** age
        levels.append(errors(((weight * past).sum(-1) / weight.sum(-1).clamp(min=1e-6))[..., None]))
    linear = [errors(fit.from_ends(z, ends, STEPS)) for fit in fitted]
    analog_forecasts = []
    for d in ORIGINS:
        first, stop = max(0, length - d - JUDGED_ROWS), length - d
        analog_forecasts.append(analogs(z[:, first:stop], observed[:, first:stop], STEPS))
    reached = scored & torch.stack([part[2] for part in analog_forecasts], dim=1)
    alike = [bands((torch.stack([part[k] for part in analog_forecasts], dim=1) - truth).abs(), reached) for k in (0, 1)]
    return levels, linear, alike


def bands(error: Tensor, observed: Tensor) -> Tensor:
    """Mean error over the short and the whole band [M, 2], NaN where nothing is observed.

    Args:
        error: [M, P, H].
        observed: bool, same shape.
    """
    parts = []
    for steps in (SHORT, error.shape[-1]):
        count = observed[..., :steps].sum((-1, -2))
        parts.append((error * observed)[..., :steps].sum((-1, -2)) / count.where(count > 0, torch.nan))
    return torch.stack(parts, dim=-1)


def evidence(errors: Tensor, offered: Tensor) -> tuple[Tensor, Tensor]:
    """Log ratios of the errors to the best error, and the best error.

    Args:
        errors: [M, K, 2], NaN where not scored.
        offered: bool [M, K].

    Returns:
        [M, K, 2] within 0..4, the mean of the others where a candidate has no score; and [M, 2], NaN where none has.
    """
    observed = errors.isfinite() & offered[..., None]
    log = errors.nan_to_num(1.0).clamp(min=_MIN_ERROR).log()
    best = log.masked_fill(~observed, torch.inf).amin(1, keepdim=True)
    some = best.isfinite()
    relative = (log - best.where(some, 0.0)).clamp(0, _MAX_LOG_RATIO)
    mean = (relative * observed).sum(1, keepdim=True) / observed.sum(1, keepdim=True).clamp(min=1)
    relative = torch.where(observed, relative, mean).where(some, 0.0)
    return relative, best.exp().where(some, torch.nan)[:, 0]


_AVERAGES = (0.5, 0.2, 0.05, 0.0)  # decays of the moving averages; the last is the mean
NAMES = (
    "last", "ewma_.5", "ewma_.2", "ewma_.05", "mean", "ar", "ar_stiff", "yule_walker", "ar_changes", "analog",
    "analog_shifted", "day", "day_last", "day_recent", "days_recent", "day_ratio", "week", "week_recent",
)  # fmt: skip
NUM_CANDIDATES = len(NAMES)
NUM_UNSEASONAL = NAMES.index("day")
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
        hindcast: float32 [B, N, H], see `hindcast`; 0 without days to judge by.
    """

    z: Tensor
    offered: Tensor
    scales: Tensor
    evidence: Tensor
    hindcast: Tensor

    def row(self, r: int) -> Candidates:
        """One row, as a batch of one."""
        one = slice(r, r + 1)
        return Candidates(self.z[one], self.offered[one], self.scales[one], self.evidence[one], self.hindcast[one])


def candidates(context: ScaledContext, season: Seasons | None, horizon: int, *, loops: bool = True) -> Candidates:
    """All candidates of all tokens.

    Args:
        context: scaled context.
        season: values of earlier days, None without them.
        horizon: H.
        loops: whether compiled loops are used on a CPU.
    """
    b, n, length = context.z.shape
    z, observed = context.z.reshape(b * n, length), context.observed.reshape(b * n, length)
    recent = z[:, -RECENT:]
    present = observed[:, -RECENT:].float()
    plain = (_compiled if loops and z.device.type == "cpu" else _unseasonal)(z, observed, horizon)
    seasonal, seasonal_errors, season_residual = _seasonal(context, season, horizon)
    offers = [*plain.offers, *seasonal]
    values = torch.stack([torch.where(offered, value, 0.0) for value, offered in offers], dim=1)
    allowed = torch.stack([offered for _, offered in offers], dim=1)
    errors = torch.cat((plain.errors, torch.stack(seasonal_errors, dim=1)), dim=1)  # [M, K, 2]
    relative, best = evidence(errors, allowed[..., 0])
    steps = (recent.diff().abs() * present[:, 1:]).sum(-1) / present[:, 1:].sum(-1).clamp(min=1)
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
        hindcast(season) if season is not None else z.new_zeros(b, n, horizon),
    )


def hindcast(season: Seasons) -> Tensor:
    """How much better the day before forecast each step than no season, on the pairs of earlier days.

    The rows before the origin cannot tell a job that has not begun. The same time of earlier days can: there a level
    errs by the height of the job, and the day before by its noise.

    Args:
        season: one to seven days before.

    Returns:
        [B, N, H], log of the ratio of mean absolute errors within 0..4. It is 0 where the day before errs more, and
        where fewer than two pairs of days are observed.
    """
    z, observed = season.z, season.observed.to(season.z.dtype)
    before, present = z[..., :BEFORE], observed[..., :BEFORE]
    count = present.sum(-1, keepdim=True)
    level = (before * present).sum(-1, keepdim=True) / count.clamp(min=1)  # [B, N, 7, 1]
    rise, known = z[..., BEFORE:] - level, observed[..., BEFORE:] * (count >= BEFORE // 2)
    pairs = known[:, :, :-1] * known[:, :, 1:]
    num = pairs.sum(2)
    without = (rise[:, :, :-1].abs() * pairs).sum(2) / num.clamp(min=1)
    by_day = ((rise[:, :, :-1] - rise[:, :, 1:]).abs() * pairs).sum(2) / num.clamp(min=1)
    gain: Tensor = (without.clamp(min=_MIN_ERROR) / by_day.clamp(min=_MIN_ERROR)).log().clamp(0, _MAX_LOG_RATIO)
    return gain * (num >= _MIN_HINDCAST_PAIRS)


@dataclass(frozen=True, slots=True)
class _Unseasonal:
    """What needs no season: forecasts [M, H] with where they are offered, their errors [M, K, 2], and the one-step
    deviation [M] of the least squares, 1 where there are too few rows."""

    offers: list[tuple[Tensor, Tensor]]
    errors: Tensor
    residual: Tensor


def _unseasonal(z: Tensor, observed: Tensor, horizon: int) -> _Unseasonal:
    """In batches of tensors."""
    present = observed[:, -RECENT:].float()
    always = torch.ones(len(z), horizon, dtype=torch.bool, device=z.device)
    flat = [z[:, -1]]
    age = torch.arange(RECENT - 1, -1, -1, device=z.device, dtype=torch.float32)
    for decay in _AVERAGES:
        weight = present * (1 - decay) ** age
        flat.append((weight * z[:, -RECENT:]).sum(-1) / weight.sum(-1).clamp(min=1e-6))
    offers = [(value[:, None].expand(-1, horizon), always) for value in flat]
    linear, residual = least_squares(z, observed)
    fitted = (*linear, yule_walker(z, observed), fit_changes(z, observed))
    offers += [(fit.forecast(z, horizon), fit.enough[:, None] & always) for fit in fitted]
    own, shifted, reached = analogs(z, observed, horizon)
    offers += [(own, reached), (shifted, reached)]
    level_errors, linear_errors, alike = errors_in_context(z, observed, _AVERAGES, fitted)
    errors = torch.stack((*level_errors, *linear_errors, *alike), dim=1)
    return _Unseasonal(offers, errors, torch.where(linear[0].enough, residual, 1.0))


def _compiled(z: Tensor, observed: Tensor, horizon: int) -> _Unseasonal:
    """The same by compiled loops, one token after the other."""
    age = np.arange(RECENT - 1, -1, -1)
    weights = np.stack([(1 - decay) ** age for decay in _AVERAGES]).astype(np.float32)
    analog_forecasts = token_forecasts(z.numpy(), observed.numpy(), weights, horizon)
    levels, linear, enough, residual, alike, reached, errors = map(torch.from_numpy, analog_forecasts)
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
    z, observed = season.z.view(m, -1, BEFORE + horizon), season.observed.view(m, -1, BEFORE + horizon)
    days = observed.sum(1)
    profile = (z * observed).sum(1) / days.clamp(min=1)  # [M, P]
    now = context.z.view(m, -1)[:, -BEFORE:]
    present = context.observed.view(m, -1)[:, -BEFORE:]
    day, day_observed, week, week_observed = z[:, 0], observed[:, 0], z[:, -1], observed[:, -1]
    last_shift, has_last = (now - day[:, :BEFORE])[:, -1:], (present & day_observed[:, :BEFORE])[:, -1:]
    day_shift, has_day, residual = _shift(now, present, day, day_observed)
    profile_shift, has_profile, _ = _shift(now, present, profile, days >= 2)
    week_shift, has_week, _ = _shift(now, present, week, week_observed)
    center = (context.center / context.scale).float().view(m, 1)
    level = center + (now * present).sum(-1, keepdim=True) / present.sum(-1, keepdim=True).clamp(min=1)
    overlap = present & day_observed[:, :BEFORE]
    before = center + (day[:, :BEFORE] * overlap).sum(-1, keepdim=True) / overlap.sum(-1, keepdim=True).clamp(min=1)
    positive = (level > 0.05) & (before > 0.05) & has_day
    ratio = torch.where(positive, level / before.clamp(min=0.05), 1.0).clamp(0.2, 5.0)
    courses = [  # with what a course is moved by, and where it is offered
        (day, day_observed),
        (day + last_shift, day_observed & has_last),
        (day + day_shift, day_observed & has_day),
        (profile + profile_shift, (days >= 2) & has_profile),
        ((day + center) * ratio - center, day_observed & positive),
        (week, week_observed),
        (week + week_shift, week_observed & has_week),
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


def _shift(now: Tensor, present: Tensor, season: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean distance to the season before the origin [M, 1], whether six steps give it [M, 1], and its spread [M]."""
    both = present & observed[:, :BEFORE]
    count = both.sum(-1, keepdim=True)
    gap = (now - season[:, :BEFORE]) * both
    shift = gap.sum(-1, keepdim=True) / count.clamp(min=1)
    spread = (((gap - shift) * both).square().sum(-1) / count[:, 0].clamp(min=1)).sqrt()
    return shift, count >= BEFORE // 2, spread
