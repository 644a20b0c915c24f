"""The law of one step of one indicator: a spline of a standard normal, and mass on recently seen values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.network.atom_quantiles import GRID, MAX_E
from model.network.constants import numbers
from model.network.spline import Spline

_ATOMS_MATTER = 0.03  # below this mass atoms are left out altogether
LEVELS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
NUM_KNOTS = len(LEVELS)
MIDDLE = NUM_KNOTS // 2


def knot_positions(device: torch.device | None = None) -> Tensor:
    """Standard normal quantiles at which the splines have their knots."""
    quantiles: Tensor = torch.special.ndtri(numbers(LEVELS, torch.float64, device))
    return quantiles.float()


@dataclass(frozen=True, slots=True)
class Marginal:
    """Per cell, in scaled units.

    Attributes:
        spline: over cells [B, N, H].
        mass: [B, N, H] in [0, 1), of the atoms together.
        atoms: [B, N, A].
        weights: [B, N, A], sum 1 where there is an atom.
        width: [B, N], half the width over which an atom's mass is spread: a density stays a density.
    """

    spline: Spline
    mass: Tensor
    atoms: Tensor
    weights: Tensor
    width: Tensor

    def active(self) -> Tensor:
        """bool [B, N]: tokens whose atoms matter at some step."""
        return self.mass.amax(-1) > _ATOMS_MATTER

    def to_normal(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """From values [B, N, H] to standard normals, with log de/dy."""
        e, log_slope = self.spline.inverse(y)
        mass = torch.where(self.active()[..., None], self.mass, 0.0)
        if not bool((mass > 0).any()):
            return e, log_slope
        near = (y[..., None] - self.atoms[:, :, None]) / (2 * self.width[:, :, None, None])  # [B, N, H, A]
        below = (self.weights[:, :, None] * (near + 0.5).clamp(0, 1)).sum(-1)
        inside = (near.abs() < 0.5).float() * self.weights[:, :, None]
        density = (1 - mass) * torch.exp(_log_normal(e) + log_slope) + mass * inside.sum(-1) / (
            2 * self.width[..., None]
        )
        level = (1 - mass) * torch.special.ndtr(e.double()) + mass * below.double()
        mixed = torch.special.ndtri(level.clamp(1e-12, 1 - 1e-12)).to(e.dtype)
        has = mass > 0
        return torch.where(has, mixed, e), torch.where(
            has, density.clamp(min=1e-30).log() - _log_normal(mixed), log_slope
        )

    def from_normal(self, e: Tensor, *, fixed: bool = False) -> Tensor:
        """From standard normals [B, N, H, S] to values.

        Args:
            fixed: no shape may depend on data: atoms are looked up for all tokens, not for those alone where they
                matter.
        """
        y = self.spline.value(e)
        active = self.active()
        if fixed:
            mixed = _mixed(self._tokens(torch.flatten), e.flatten(0, 1)).view_as(y)
            return torch.where(active[..., None, None], mixed, y)
        if bool(active.any()):
            y[active] = _mixed(self._tokens(lambda part, *_: part[active]), e[active])
        return y

    def _tokens(self, taken: Callable[[Tensor, int, int], Tensor]) -> Marginal:
        """Some of the tokens, [M] in the place of [B, N]."""
        spline = Spline(self.spline.x, taken(self.spline.y, 0, 1), taken(self.spline.slope, 0, 1))
        mass, atoms, weights, width = (taken(x, 0, 1) for x in (self.mass, self.atoms, self.weights, self.width))
        return Marginal(spline, mass, atoms, weights, width)


def _mixed(law: Marginal, e: Tensor) -> Tensor:
    """The inverse distribution function of the mixture, by a table of 96 quantiles and all edges of atoms.

    Args:
        law: of tokens, [M] in the place of [B, N].
        e: [M, H, S].
    """
    grid = torch.linspace(-MAX_E, MAX_E, GRID, device=e.device)
    m, h, _ = e.shape
    spline, atoms, weights, width = law.spline, law.atoms, law.weights, law.width[:, None]
    curve = spline.forward(grid.expand(m, h, GRID))[0]
    edges = torch.cat((atoms - width, atoms + width), dim=-1)[:, None].expand(-1, h, -1)
    points = torch.cat((curve, edges), dim=-1).sort(dim=-1).values  # [M, H, G]
    smooth = torch.special.ndtr(spline.inverse(points)[0].double())
    near = (points[..., None] - atoms[:, None, None]) / (2 * width[:, None, :, None])
    below = (weights[:, None, None] * (near + 0.5).clamp(0, 1)).sum(-1)
    mass = law.mass[..., None]
    level = ((1 - mass) * smooth + mass * below).cummax(-1).values  # [M, H, G]
    wanted = torch.special.ndtr(e.double().clamp(-MAX_E, MAX_E))
    index = torch.searchsorted(level.contiguous(), wanted.contiguous()).clamp(1, level.shape[-1] - 1)
    l0, l1 = level.gather(-1, index - 1), level.gather(-1, index)
    y0, y1 = points.gather(-1, index - 1), points.gather(-1, index)
    share = ((wanted - l0) / (l1 - l0).clamp(min=1e-12)).clamp(0, 1).to(y0.dtype)
    values: Tensor = y0 + share * (y1 - y0)
    return values


def _log_normal(e: Tensor) -> Tensor:
    return -0.5 * e.square() - 0.9189385332046727
