"""The training loss: pinball loss of the marginals, CRPS of the mixture with atoms, likelihood of the joint law.

Source of the scores: T. Gneiting, A. Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor

from model.network.features import Features
from model.network.law import JointLaw, Marginal, one_sided_loss, tree

QUANTILES = (0.01, 0.025, *(k / 20 for k in range(1, 20)), 0.975, 0.99)
_CRPS_POINTS = 24
_MAX_SCALED_VALUE = 30.0  # of targets; where the candidates reach further, twice as far as they
_REACH_SHARE = 0.1  # of the farthest candidate: least difficulty of a window, so that one job does not drown a batch
_MAX_ATOM_GAIN = 1e3  # how much denser than the smooth law an atom may count
_PEAK_PATHS, _PEAK_TOKENS = 24, 64


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the parts of the loss.

    Attributes:
        pinball: of the spline alone, at 23 quantiles, in proportion to its mass.
        mixture: CRPS of spline and atoms together.
        peak: CRPS of the highest value over a stretch of the horizon, by joint paths: tails and dependence together.
        copula: likelihood of the dependence, given the marginals.
        likelihood: of the smooth marginals.
        atoms: likelihood of the mixture beyond the smooth law's: how much mass the atoms earn, and which of them.
    """

    pinball: float = 1.0
    mixture: float = 0.5
    peak: float = 0.3
    copula: float = 0.1
    likelihood: float = 0.02
    atoms: float = 0.2


def losses(
    law: JointLaw,
    features: Features,
    target: Tensor,
    observed: Tensor,
    steps: Tensor,
    unit: Tensor | None = None,
    *,
    paths: bool = True,
) -> dict[str, Tensor]:
    """All parts of the loss, each a mean over the observed cells.

    Args:
        target: [B, H, N] in the rows' units.
        observed: bool [B, H, N].
        steps: int64, steps at which the marginals are scored, every third of them with its atoms.
        unit: [B, N] in the rows' units, divisor of the errors; None is the difficulty of each window.
        paths: whether the peak is scored; with a single step the peak is that step.
    """
    context, marginal = law.context, law.marginal
    y = (target.transpose(1, 2).double() - context.center[..., None]) / context.scale[..., None]
    reach = features.candidates.z.abs().amax((-1, -2))  # [B, N]
    limit = (2 * reach).clamp(min=_MAX_SCALED_VALUE)[..., None]
    y = torch.minimum(torch.maximum(y.float(), -limit), limit)  # [B, N, H]
    scored = observed.transpose(1, 2) & context.moving[..., None]
    step = torch.arange(1, y.shape[-1] + 1, device=y.device)
    difficulty = features.candidates.scales[..., :3].log().mean(-1).exp().clamp(min=0.05)
    difficulty = torch.maximum(difficulty, _REACH_SHARE * reach)
    divisor = difficulty if unit is None else (unit / context.scale).float().clamp(min=0.05)
    weight = scored / step.sqrt() / divisor[..., None]
    smooth = 1 - marginal.mass.detach()
    parts = {
        "pinball": _pinball(law, y, weight * smooth, steps) / (scored / step.sqrt())[..., steps].sum().clamp(min=1),
        "mixture": _mixture_crps(law, y, weight, steps[::3])
        / (scored / step.sqrt())[..., steps[::3]].sum().clamp(min=1),
    }
    e, log_slope = marginal.spline.inverse(y)
    density = (0.5 * e.square().clamp(max=40) - log_slope) * smooth  # in scaled units
    density = density + difficulty.log()[..., None]
    parts["likelihood"] = (density.clamp(max=12) * scored).sum() / scored.sum().clamp(min=1)
    parts["atoms"] = _atoms(marginal, y, e, log_slope, scored, steps[::3])
    if paths:
        parts["peak"] = _peak_crps(law, y, scored, difficulty, steps)
    parts["copula"] = _copula(law, e.detach().clamp(-4, 4), scored)
    return parts


def _pinball(law: JointLaw, y: Tensor, weight: Tensor, steps: Tensor) -> Tensor:
    """Weighted sum over cells of the mean pinball loss of the splines, twice: the CRPS of the quantiles."""
    levels = torch.tensor(QUANTILES, device=y.device)
    quantiles = law.marginal.spline.steps(steps).at(torch.special.ndtri(levels.double()).float())  # [B, N, K, Q]
    gap = y[..., steps, None] - quantiles
    pinball = torch.maximum(levels * gap, (levels - 1) * gap).mean(-1)
    return 2 * (pinball * weight[..., steps]).sum()


def _mixture_crps(law: JointLaw, y: Tensor, weight: Tensor, steps: Tensor) -> Tensor:
    """Weighted sum over cells of the CRPS of (1 - mass) spline + mass atoms, the spline by 24 quantiles."""
    marginal = law.marginal
    levels = (torch.arange(_CRPS_POINTS, device=y.device) + 0.5).double() / _CRPS_POINTS
    points = torch.special.ndtri(levels).float()
    x = marginal.spline.steps(steps).at(points)  # [B, N, K, P]
    truth, mass = y[..., steps], marginal.mass[..., steps]
    a, w = marginal.atoms, marginal.weights
    to_truth_atoms = (w[:, :, None] * (a[:, :, None] - truth[..., None]).abs()).sum(-1)
    among_atoms = (w[..., :, None] * w[..., None, :] * (a[..., :, None] - a[..., None, :]).abs()).sum((-1, -2))[
        ..., None
    ]
    to_truth = (x - truth[..., None]).abs().mean(-1)
    position = 2 * torch.arange(_CRPS_POINTS, device=y.device) - _CRPS_POINTS + 1  # of ordered points
    among = 2 * (x * position).mean(-1) / _CRPS_POINTS
    across = (w[:, :, None, :, None] * (a[:, :, None, :, None] - x[..., None, :]).abs()).mean(-1).sum(-1)
    rest = 1 - mass
    crps = mass * to_truth_atoms + rest * to_truth
    crps = crps - 0.5 * (mass.square() * among_atoms + 2 * mass * rest * across + rest.square() * among)
    return (crps * weight[..., steps]).sum()


def _atoms(marginal: Marginal, y: Tensor, e: Tensor, log_slope: Tensor, scored: Tensor, steps: Tensor) -> Tensor:
    """Negative log-density of spline and atoms relative to the spline alone, which gets no gradient from it.

    The CRPS hardly tells an atom from a steep spline around it; the density does.
    """
    smooth = (-0.5 * (e.square() + log(2 * pi)) + log_slope)[..., steps].detach()
    truth, mass, weight = y[..., steps], marginal.mass[..., steps], scored[..., steps]
    hit = (truth[..., None] - marginal.atoms[:, :, None]).abs() < marginal.width[:, :, None, None]  # [B, N, K, A]
    log_width = (2 * marginal.width[..., None]).log()
    gain = torch.exp((-log_width - smooth).clamp(max=log(_MAX_ATOM_GAIN))) * (hit * marginal.weights[:, :, None]).sum(
        -1
    )
    loss: Tensor = -(((1 - mass) + mass * gain).log() * weight).sum() / weight.sum().clamp(min=1)
    return loss


def _peak_crps(law: JointLaw, y: Tensor, scored: Tensor, difficulty: Tensor, steps: Tensor) -> Tensor:
    """CRPS of the peak over the first steps, estimated without bias by 24 paths of some of the rows.

    The stretch, the rows and the noise follow from `steps`, which are drawn anew for every batch. Tokens with a gap in
    the truth, or with much mass on atoms, are left out.
    """
    b, n, horizon = y.shape
    seed = int((steps * (steps + 1)).sum())
    count = min(b, max(1, _PEAK_TOKENS // n))
    first = seed % (b - count + 1)
    stretch = int(steps[seed % len(steps)]) + 1
    some = law.rows(first, first + count)
    noise = torch.randn((count, n, horizon, _PEAK_PATHS), generator=torch.Generator().manual_seed(seed)).to(y.device)
    spline = some.marginal.spline.steps(torch.arange(stretch, device=y.device))
    paths = spline.value(some.normals(noise)[:, :, :stretch].contiguous())
    peak = paths.amax(2).sort(dim=-1).values  # [R, N, S]
    truth = y[first : first + count, :, :stretch].amax(-1)
    position = 2 * torch.arange(_PEAK_PATHS, device=y.device) - _PEAK_PATHS + 1
    crps = (peak - truth[..., None]).abs().mean(-1) - (peak * position).sum(-1) / (_PEAK_PATHS * (_PEAK_PATHS - 1))
    mask = scored[first : first + count, :, :stretch].all(-1)
    mask &= some.marginal.mass.detach()[:, :, :stretch].amax(-1) < 0.1
    weight = mask / difficulty[first : first + count] / stretch**0.5
    loss: Tensor = (crps * weight).sum() / mask.sum().clamp(min=1)
    return loss


def _copula(law: JointLaw, e: Tensor, scored: Tensor) -> Tensor:
    """Negative log-likelihood of the dependence, per cell, beyond independence; 0 for independent cells.

    Rows with a gap in the truth and channels with much mass on atoms are left out: they have no normal scores.
    """
    context = law.context
    complete = (scored | ~context.moving[..., None]).all(-1) & (law.marginal.mass.detach().amax(-1) < 0.1)  # [B, N]
    rows = (complete | ~context.moving).all(-1)
    if not bool(rows.any()):
        return e.new_zeros(())
    mask = (context.moving & rows[:, None]).float()[..., None]
    noise, log_coupling, log_mixing = law.decorrelate(e)
    joint = 0.5 * noise.square().clamp(max=40) - log_coupling - log_mixing - 0.5 * e.square()
    joint = joint + 0.25 * one_sided_loss(e, law.coupling, tree(e.shape[-1], e.device))
    return (joint * mask).sum() / (mask.sum() * e.shape[-1]).clamp(min=1)
