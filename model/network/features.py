"""Inputs of the network, in units of each row, so that scaling a series scales its forecast.

Letters of shapes: B rows, N indicators, F features, H steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from model.contract import ContextBatch
from model.network.atoms import NUM_SUMMARY, Atoms, atoms
from model.network.candidates import NAMES, NUM_BANDS, NUM_CANDIDATES, NUM_SCALES, Candidates, candidates
from model.network.inputs import BEFORE, DAYS, RECENT, ScaledContext, Seasons, normalize_context, seasons
from model.network.layers import aligned
from model.network.spec import MAX_HORIZON, NetworkSpec

# How indicators move together: correlation of their changes in the context.


_ROWS = 256
LAGS = (1, 8)  # steps over which a change is measured: short and long
_SHRINKAGE_CHANGES = 8.0  # changes worth of evidence for independence


def innovation_correlation(context: ScaledContext) -> Tensor:
    """Correlation matrices of the changes over 1 and 8 steps [B, 2, N, N], shrunk towards the identity.

    Changes are clamped to three deviations, so that one burst does not dominate.
    """
    z, observed = context.z[..., -_ROWS:], context.observed[..., -_ROWS:]
    out = []
    for lag in LAGS:
        change = z[..., lag:] - z[..., :-lag]
        both = observed[..., lag:] & observed[..., :-lag] & context.moving[..., None]
        count = both.sum(-1)
        size = ((change * both).square().sum(-1) / count.clamp(min=1)).sqrt().clamp(min=1e-6)
        change = (change / size[..., None]).clamp(-3, 3) * both  # [B, N, W]
        power = change.square().sum(-1) + _SHRINKAGE_CHANGES * lag
        normed = change / power.sqrt()[..., None]
        normed = aligned(normed)
        matrix = normed @ normed.mT  # positive semidefinite, diagonal below 1
        out.append(matrix + torch.diag_embed(1 - matrix.diagonal(dim1=-2, dim2=-1)))
    return torch.stack(out, dim=1)


_BLOCK, _BLOCKS = 12, 24
_PROBES = (0, 1, 3, 7, 11, 17, 23, 35, 47, 63)  # steps at which candidates are read as inputs
_PROBED = tuple(
    NAMES.index(name)
    for name in (
        "ar", "ar_stiff", "yule_walker", "ar_changes", "analog", "analog_shifted", "day_recent", "days_recent",
        "day_ratio", "week_recent",
    )
)  # fmt: skip
_OFFERED = tuple(NAMES.index(name) for name in ("ar", "yule_walker", "analog", "day", "week"))
_DAY_AND_WEEK = slice(None, None, DAYS - 1)  # the first and the last of one to seven days ago
_EXTREMES = (0.0, 0.02, 0.1, 0.9, 0.98, 1.0)
_RISE_STEPS, _EXTREME_ROWS = 12, 384
NUM_STATISTICS = 2 * NUM_SCALES + len(_OFFERED) + 13
NUM_EXTREMES = len(_EXTREMES) + 4
NUM_FEATURES = (
    2 * RECENT + 2 * _BLOCKS + 2 * 2 * BEFORE + len(_PROBED) * len(_PROBES) + NUM_STATISTICS + NUM_SUMMARY
    + NUM_EXTREMES + NUM_BANDS * NUM_CANDIDATES
)  # fmt: skip
NUM_CALENDAR = 6
_DAY_MS = 86_400_000
_EPOCH_WEEKDAY = 4  # 1970-01-01 was a Thursday


@dataclass(frozen=True, slots=True)
class Features:
    """Inputs of the network.

    Attributes:
        context: the scaled context.
        tokens: float32 [B, N, F].
        calendar: float32 [B, 6].
        candidates: over the longest horizon.
        atoms: recently seen values.
        correlation: float32 [B, 2, N, N], of short and of long changes between indicators.
        levels: int64 [N].
    """

    context: ScaledContext
    tokens: Tensor
    calendar: Tensor
    candidates: Candidates
    atoms: Atoms
    correlation: Tensor
    levels: Tensor

    def row(self, r: int) -> Features:
        """One row, as a batch of one."""
        one = slice(r, r + 1)
        return Features(
            self.context.row(r),
            self.tokens[one],
            self.calendar[one],
            self.candidates.row(r),
            self.atoms.row(r),
            self.correlation[one],
            self.levels,
        )


def extract_features(
    batch: ContextBatch, spec: NetworkSpec, horizon: int = MAX_HORIZON, *, loops: bool = True
) -> Features:
    """The features of a batch.

    Args:
        batch: contexts.
        spec: of the network.
        horizon: steps of the candidates; fewer take less memory.
        loops: whether compiled loops are used on a CPU.
    """
    context = normalize_context(batch)
    season = seasons(batch, context, horizon) if spec.seasons else None
    offered = candidates(context, season, horizon, loops=loops)
    recent_atoms = atoms(context, spec.num_atoms, loops=loops)
    parts = [_recent(context), _blocks(context), _around_season(context, season), _probes(offered, horizon)]
    parts += [_statistics(batch, context, offered, season), recent_atoms.summary, _extremes(context)]
    parts.append(offered.evidence.flatten(2))
    tokens = torch.cat(parts, dim=-1)
    return Features(
        context, tokens, _calendar(batch), offered, recent_atoms, innovation_correlation(context), batch.levels
    )


def _recent(context: ScaledContext) -> Tensor:
    z, observed = context.z[..., -RECENT:], context.observed[..., -RECENT:]
    return torch.cat((torch.asinh(z), observed.float()), dim=-1)


def _blocks(context: ScaledContext) -> Tensor:
    """Means of 24 blocks of 12 rows and the observed share of each: the context before the recent rows."""
    b, n, _ = context.z.shape
    rows = _BLOCK * _BLOCKS
    z, observed = context.z[..., -rows:], context.observed[..., -rows:]
    missing = rows - z.shape[-1]
    if missing > 0:
        z = torch.nn.functional.pad(z, (missing, 0))
        observed = torch.nn.functional.pad(observed, (missing, 0))
    z, observed = z.reshape(b, n, _BLOCKS, _BLOCK), observed.reshape(b, n, _BLOCKS, _BLOCK)
    count = observed.sum(-1)
    return torch.cat((torch.asinh((z * observed).sum(-1) / count.clamp(min=1)), count / _BLOCK), dim=-1)


def _around_season(context: ScaledContext, season: Seasons | None) -> Tensor:
    """The twelve steps before the origin, a day and a week earlier."""
    b, n, _ = context.z.shape
    if season is None:
        return context.z.new_zeros(b, n, 2 * 2 * BEFORE)
    days = season.z[:, :, _DAY_AND_WEEK, :BEFORE].reshape(b, n, -1)
    observed = season.observed[:, :, _DAY_AND_WEEK, :BEFORE].reshape(b, n, -1)
    return torch.cat((torch.asinh(days), observed.float()), dim=-1)


def _probes(offered: Candidates, horizon: int) -> Tensor:
    read = torch.stack([offered.z[:, :, k] for k in _PROBED], dim=2)
    steps = [read[..., min(step, horizon - 1)] * (step < horizon) for step in _PROBES]
    return torch.asinh(torch.stack(steps, dim=-1)).flatten(2)


def _statistics(batch: ContextBatch, context: ScaledContext, offered: Candidates, season: Seasons | None) -> Tensor:
    z, observed = context.z, context.observed
    recent = z[..., -RECENT:]
    total = observed.sum(-1).float()
    log_scales = offered.scales.log()
    ratios = log_scales - log_scales[..., 2:3]
    center = (context.center / context.scale).float()
    wide = z[..., -384:]
    spread = wide.std(-1).clamp(min=1e-3)
    centred = recent - recent.mean(-1, keepdim=True)
    autocorrelation = [
        (centred[..., lag:] * centred[..., :-lag]).sum(-1) / centred.square().sum(-1).clamp(min=1e-6)
        for lag in (1, 4, 12)
    ]
    kurtosis = centred.pow(4).mean(-1) / centred.square().mean(-1).square().clamp(min=1e-6)
    day = season.observed[:, :, 0].float().mean(-1) if season is not None else torch.zeros_like(center)
    week = season.observed[:, :, -1].float().mean(-1) if season is not None else torch.zeros_like(center)
    low = ((batch.lower - context.center) / context.scale).float().clamp(-20, 20)
    high = ((batch.upper - context.center) / context.scale).float().clamp(-20, 20)
    singles = (
        torch.asinh(center), spread.log(), *autocorrelation, kurtosis.log1p(), (total + 1).log() / 4,
        observed[..., -RECENT:].float().mean(-1), observed[..., -1].float(), day, week, low / 10, high / 10,
    )  # fmt: skip
    offered_share = torch.stack([offered.offered[:, :, k, 0] for k in _OFFERED], dim=-1).float()
    return torch.cat((log_scales, ratios, offered_share, torch.stack(singles, dim=-1)), dim=-1)


def _extremes(context: ScaledContext) -> Tensor:
    """Order statistics of values, rises and changes in the context, by which the tails are scaled."""
    z = context.z[..., -_EXTREME_ROWS:]
    highest = max_pool1d(z, _RISE_STEPS, stride=1)  # of rows t..t+11
    rises = (highest - z[..., : highest.shape[-1]]).sort(dim=-1).values
    steps = z.diff(dim=-1).sort(dim=-1).values
    reach = z.sort(dim=-1).values
    parts = [_order_statistic(reach, q) for q in _EXTREMES] + [
        _order_statistic(rises, 0.9),
        _order_statistic(rises, 1.0),
        _order_statistic(steps, 0.02),
        _order_statistic(steps, 0.98),
    ]
    return torch.asinh(torch.stack(parts, dim=-1))


def _order_statistic(ordered: Tensor, level: float) -> Tensor:
    return ordered[..., round(level * (ordered.shape[-1] - 1))]


def _calendar(batch: ContextBatch) -> Tensor:
    """Time of day, day of week, and the length of a step."""
    day = (batch.origin_ts_ms % _DAY_MS).double() / _DAY_MS
    week = ((batch.origin_ts_ms // _DAY_MS + _EPOCH_WEEKDAY) % 7).double() / 7 + day / 7
    step = torch.full_like(day, batch.step_ms / 1000).log()
    angles = (2 * pi * day, 2 * pi * week)
    parts = [f(angle) for angle in angles for f in (torch.sin, torch.cos)]
    return torch.stack((*parts, step / 8, (step - 5) / 4), dim=-1).float()
