"""The joint law of all steps and indicators: exact density, and samples.

noise -> mixing between indicators -> couplings over the horizon -> marginals -> units of the row
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log, pi

import torch
from torch import Tensor

from model.network.inputs import ScaledContext
from model.network.law_kernel import SUBSLICES, Laws, Steps, joint_paths
from model.network.lifting import from_noise, to_noise, tree
from model.network.marginal import Marginal
from model.network.spline import Spline

_FEWEST = 16  # paths that are stratified


@dataclass(frozen=True, slots=True)
class JointLaw:
    """Of B rows, N indicators and H steps.

    Attributes:
        marginal: law of each cell.
        coupling: [B, N, H, 5], coefficients of the couplings over the horizon.
        mixing: [B, 7, N, N], lower triangular: the part of the noise that indicators share, by distance of the steps.
        context: units of the rows.
    """

    marginal: Marginal
    coupling: Tensor
    mixing: Tensor
    context: ScaledContext

    @property
    def horizon(self) -> int:
        """Steps H."""
        return self.coupling.shape[2]

    def row(self, r: int) -> JointLaw:
        """The law of one row, as a batch of one."""
        return self.rows(r, r + 1)

    def rows(self, start: int, stop: int) -> JointLaw:
        """The law of the rows from `start` up to `stop`."""
        m, some = self.marginal, slice(start, stop)
        spline = Spline(m.spline.x, m.spline.y[some], m.spline.slope[some])
        return JointLaw(
            Marginal(spline, m.mass[some], m.atoms[some], m.weights[some], m.width[some]),
            self.coupling[some],
            self.mixing[some],
            self.context.rows(start, stop),
        )

    def log_prob(self, values: Tensor) -> Tensor:
        """Exact log-density of a future, of the columns that move.

        Args:
            values: [B, H, N], all observed.

        Returns:
            [B].
        """
        moving = self.context.moving
        scale = self.context.scale[..., None]
        z = (values.transpose(1, 2) - self.context.center[..., None]) / scale  # [B, N, H]
        e, log_marginal = self.marginal.to_normal(z.to(self.coupling.dtype))
        noise, log_coupling, log_mixing = self.decorrelate(e)
        base = -0.5 * noise.square() - 0.5 * log(2 * pi)
        cell = base + log_marginal + log_coupling + log_mixing - scale.log()
        return torch.where(moving[..., None], cell, 0.0).sum((1, 2))

    def decorrelate(self, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From correlated standard normals [B, N, H] to noise, with the log-derivatives of couplings and mixing."""
        where = tree(self.horizon, e.device)
        z, log_coupling = to_noise(e, self.coupling, where)
        mixing = self.mixing[:, where.stride]  # [B, H, N, N]
        noise = torch.linalg.solve_triangular(mixing, z.transpose(1, 2)[..., None], upper=False)[..., 0]
        log_mixing = -mixing.diagonal(dim1=-2, dim2=-1).log()
        return noise.transpose(1, 2), log_coupling, log_mixing.transpose(1, 2)

    def normals(self, noise: Tensor) -> Tensor:
        """Correlated standard normals [B, N, H, S] from independent ones."""
        where = tree(self.horizon, noise.device)
        mixing = self.mixing[:, where.stride]  # [B, H, N, N]
        z = torch.zeros_like(noise)
        for j in range(noise.shape[1]):  # lower triangular: indicator j reaches those from j on
            z[:, j:] = z[:, j:] + mixing[:, :, j:, j].transpose(1, 2)[..., None] * noise[:, j, None]
        return from_noise(z.transpose(2, 3), self.coupling[:, :, None], where).transpose(2, 3)

    def sample(self, noise: Tensor, *, loops: bool = True, fixed: bool = False) -> Tensor:
        """Futures in the rows' units, from independent standard normals.

        Args:
            noise: [B, N, H, S].
            loops: on a CPU by compiled loops, not in batches of tensors.
            fixed: no shape may depend on data, see `Marginal.from_normal`.

        Returns:
            [B, N, H, S].
        """
        if loops and noise.device.type == "cpu":
            return self._compiled(noise)
        values = self.marginal.from_normal(stratified(self.normals(noise)).contiguous(), fixed=fixed)
        return values.double() * self.context.scale[..., None, None] + self.context.center[..., None, None]

    def _compiled(self, noise: Tensor) -> Tensor:
        m, where = self.marginal, tree(self.horizon)
        mass = torch.where(m.active()[..., None], m.mass, 0.0)
        law = (m.spline.y, m.spline.slope, mass, m.atoms, m.weights, m.width, self.coupling, self.mixing)
        told: tuple[Tensor, ...] = (*law, self.context.center, self.context.scale, noise)
        # Loops compare, clamp and count: what is no number would become an ordinary one, or a place outside of a table.
        sound = torch.stack([part.flatten(1).isfinite().all(-1) for part in (m.mass, *told)]).all(0)
        sound &= m.spline.x.isfinite().all()
        if not sound.all():
            told = tuple(part.where(_along(sound, part), 0.0) for part in told)
        *law_and_units, noise = told
        laws = Laws(*(part.contiguous().numpy() for part in (m.spline.x.nan_to_num(), *law_and_units)))
        order = torch.cat(where.layers)
        steps = Steps(*(part.numpy() for part in (order, where.left, where.right, where.stride)))
        paths = torch.from_numpy(
            joint_paths(laws, steps, noise.contiguous().numpy(), _known_slices(noise.shape[-1]).numpy())
        )
        return paths if sound.all() else paths.where(_along(sound, paths), torch.nan)


def _along(rows: Tensor, part: Tensor) -> Tensor:
    """[B] to the dimensions of a part [B, ...]."""
    return rows.reshape(-1, *[1] * (part.dim() - 1))


def stratified(e: Tensor) -> Tensor:
    """Give the paths of each cell one value in each of as many slices of its law, in the order that they had.

    What few paths cannot know better than the law itself is left to the law: Latin hypercube sampling with dependence.
    Where in its slice a value lies is one of sixteen places, the same for all of a cell and mirrored above its median,
    so that the paths' mean is 0. It is read off the mean of the given normals, which says nothing about their order.
    Source: N. Packham, W. M. Schmidt, "Latin hypercube sampling with dependence and applications in finance", Journal
    of Computational Finance 2010.

    Args:
        e: standard normals [..., S], independent over paths; fewer than 16 stay as they are.
    """
    paths = e.shape[-1]
    normals = _slices(paths, e.device).to(e)
    if not len(normals):
        return e
    rank = e.argsort(dim=-1, stable=True).argsort(dim=-1)
    within = torch.special.ndtr(e.double().mean(-1, keepdim=True) * paths**0.5)
    place = (within * SUBSLICES).long().clamp(max=SUBSLICES - 1)
    return normals[SUBSLICES * rank + torch.where(2 * rank < paths, place, SUBSLICES - 1 - place)]


@lru_cache(maxsize=8)
def _known_slices(paths: int) -> Tensor:
    return _slices(paths)


def _slices(paths: int, device: torch.device | None = None) -> Tensor:
    """A standard normal in each sixteenth of each slice, ascending [16 S]; empty for fewer than 16 paths."""
    if paths < _FEWEST:
        return torch.empty(0, dtype=torch.float64, device=device)
    count = SUBSLICES * paths
    normals: Tensor = torch.special.ndtri((torch.arange(count, dtype=torch.float64, device=device) + 0.5) / count)
    return normals
