"""The joint law of all steps and indicators: a normalizing flow with an exact density, and samples from it.

noise -> mixing between indicators -> couplings over the horizon -> marginals -> units of the row
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import log, pi

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.network.inputs import ScaledContext
from model.network.law_kernel import GRID, LEAST_RISE, MAX_E, MAX_LOG_SPREAD, SUBSLICES, Laws, Steps, joint_paths
from model.network.layers import numbers

# Monotone rational-quadratic splines with straight tails, both ways, with their log-derivatives.
#
# Source: C. Durkan, A. Bekasov, I. Murray, G. Papamakarios, "Neural Spline Flows", NeurIPS 2019 (arXiv 1906.04032).
# Parameters are knots instead of bin widths. Beyond the knots a straight line goes on at the slope of the last knot.


@dataclass(frozen=True, slots=True)
class Spline:
    """Monotone rational-quadratic splines, one per cell.

    Attributes:
        x: knots' positions [K], shared, strictly increasing.
        y: knots' values [..., K], strictly increasing.
        slope: derivatives at the knots [..., K], positive.
    """

    x: Tensor
    y: Tensor
    slope: Tensor

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Map x to y.

        Args:
            value: [..., *extra] matching the cells, or with one more trailing axis [..., S].

        Returns:
            y and log dy/dx, in the shape of `value`.
        """
        value, squeeze = _with_samples(value, self.y)
        bins = (torch.bucketize(value.detach().contiguous(), self.x) - 1).clamp(0, self.x.shape[0] - 2)
        x0, x1 = self.x[bins], self.x[bins + 1]
        y0, y1 = self.y.gather(-1, bins), self.y.gather(-1, bins + 1)
        d0, d1 = self.slope.gather(-1, bins), self.slope.gather(-1, bins + 1)
        s = (y1 - y0).clamp(min=LEAST_RISE) / (x1 - x0)
        t = ((value - x0) / (x1 - x0)).clamp(0, 1)
        u = t * (1 - t)
        below = s + (d1 + d0 - 2 * s) * u
        inside = y0 + (y1 - y0) * (s * t * t + d0 * u) / below
        log_inside = 2 * s.log() + (d1 * t * t + 2 * s * u + d0 * (1 - t) ** 2).log() - 2 * below.log()
        low, high = value < self.x[0], value > self.x[-1]
        y = torch.where(low, y0 + d0 * (value - x0), torch.where(high, y1 + d1 * (value - x1), inside))
        log_slope = torch.where(low, d0.log(), torch.where(high, d1.log(), log_inside))
        return (y[..., 0], log_slope[..., 0]) if squeeze else (y, log_slope)

    def value(self, x: Tensor) -> Tensor:
        """Values y of samples [..., S], without the derivative: sampling is most of the work of a forecast."""
        bins = (torch.bucketize(x, self.x) - 1).clamp_(0, self.x.shape[0] - 2)
        width, rise = self.x.diff(), self.y.diff().clamp(min=LEAST_RISE)
        s = rise / width
        bend = self.slope[..., 1:] + self.slope[..., :-1] - 2 * s
        t = (x - self.x[bins]) / width[bins]
        inner = t.clamp(0, 1)
        s_at, d0 = s.gather(-1, bins), self.slope.gather(-1, bins)
        u = inner * (1 - inner)
        share = (s_at * inner * inner + d0 * u) / (s_at + bend.gather(-1, bins) * u)
        y = self.y.gather(-1, bins) + rise.gather(-1, bins) * share
        ends = (x - x.clamp(self.x[0], self.x[-1])) * torch.where(x < 0, self.slope[..., :1], self.slope[..., -1:])
        return y + ends

    def at(self, points: Tensor) -> Tensor:
        """Values y [..., Q] of the same few x [Q] in every cell, with one look-up of bins for all cells."""
        bins = (torch.bucketize(points, self.x) - 1).clamp(0, self.x.shape[0] - 2)
        x0, x1 = self.x[bins], self.x[bins + 1]
        y0, y1, d0, d1 = self.y[..., bins], self.y[..., bins + 1], self.slope[..., bins], self.slope[..., bins + 1]
        s = (y1 - y0).clamp(min=LEAST_RISE) / (x1 - x0)
        t = ((points - x0) / (x1 - x0)).clamp(0, 1)
        u = t * (1 - t)
        inside = y0 + (y1 - y0) * (s * t * t + d0 * u) / (s + (d1 + d0 - 2 * s) * u)
        low, high = points < self.x[0], points > self.x[-1]
        return torch.where(low, y0 + d0 * (points - x0), torch.where(high, y1 + d1 * (points - x1), inside))

    def steps(self, chosen: Tensor) -> Spline:
        """The splines of some steps of the horizon, the last axis before the knots."""
        return Spline(self.x, self.y[..., chosen, :], self.slope[..., chosen, :])

    def inverse(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Map y to x.

        Returns:
            x and log dx/dy, in the shape of `value`.
        """
        value, squeeze = _with_samples(value, self.y)
        bins = (torch.searchsorted(self.y.detach().contiguous(), value.detach().contiguous()) - 1).clamp(
            0, self.x.shape[0] - 2
        )
        x0, x1 = self.x[bins], self.x[bins + 1]
        y0, y1 = self.y.gather(-1, bins), self.y.gather(-1, bins + 1)
        d0, d1 = self.slope.gather(-1, bins), self.slope.gather(-1, bins + 1)
        rise = (y1 - y0).clamp(min=LEAST_RISE)
        s = rise / (x1 - x0)
        low, high = value < y0, value > y1
        r = ((value - y0) / rise).clamp(0, 1)  # share of the bin's height
        bend = (d1 + d0 - 2 * s) * r
        a, b, c = (s - d0) + bend, d0 - bend, -s * r
        root = (b * b - 4 * a * c).clamp(min=0).sqrt()
        t = (2 * -c / (b + root).clamp(min=1e-30)).clamp(0, 1)
        u = t * (1 - t)
        below = s + (d1 + d0 - 2 * s) * u
        log_inside = 2 * below.log() - 2 * s.log() - (d1 * t * t + 2 * s * u + d0 * (1 - t) ** 2).log()
        x = torch.where(low, x0 + (value - y0) / d0, torch.where(high, x1 + (value - y1) / d1, x0 + t * (x1 - x0)))
        log_slope = torch.where(low, -d0.log(), torch.where(high, -d1.log(), log_inside))
        return (x[..., 0], log_slope[..., 0]) if squeeze else (x, log_slope)


def _with_samples(value: Tensor, y: Tensor) -> tuple[Tensor, bool]:
    """The value with a sample axis, and whether the axis was added."""
    if value.dim() == y.dim():
        return value, False
    return value[..., None], True


# The law of one step of one indicator: a spline of a standard normal, and mass on recently seen values.


_MIN_ATOM_MASS = 0.03  # tokens whose atoms have less mass at every step are treated as having none
LEVELS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
NUM_KNOTS = len(LEVELS)
MIDDLE = NUM_KNOTS // 2


def knot_positions(device: torch.device | None = None) -> Tensor:
    """Standard normal quantiles at which the splines have their knots."""
    quantiles: Tensor = torch.special.ndtri(numbers(LEVELS, torch.float64, device))
    return quantiles.float()


@dataclass(frozen=True, slots=True)
class Marginal:
    """Marginal law of each cell, in scaled units: a spline of a standard normal, mixed with atoms.

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
        """Whether the atoms of a token have mass at some step, bool [B, N]."""
        return self.mass.amax(-1) > _MIN_ATOM_MASS

    def to_normal(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Standard normals e of the values y [B, N, H], and log de/dy."""
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
        """Values of the standard normals e [B, N, H, S].

        Args:
            fixed: whether shapes must not depend on data; then atoms are looked up for all tokens.
        """
        y = self.spline.value(e)
        active = self.active()
        if fixed:
            mixed = _mixture_quantiles(self._tokens(torch.flatten), e.flatten(0, 1)).view_as(y)
            return torch.where(active[..., None, None], mixed, y)
        if bool(active.any()):
            y[active] = _mixture_quantiles(self._tokens(lambda part, *_: part[active]), e[active])
        return y

    def _tokens(self, select: Callable[[Tensor, int, int], Tensor]) -> Marginal:
        """The law of the selected tokens, [M] in place of [B, N]."""
        spline = Spline(self.spline.x, select(self.spline.y, 0, 1), select(self.spline.slope, 0, 1))
        mass, atoms, weights, width = (select(x, 0, 1) for x in (self.mass, self.atoms, self.weights, self.width))
        return Marginal(spline, mass, atoms, weights, width)


def _mixture_quantiles(law: Marginal, e: Tensor) -> Tensor:
    """Quantiles of the mixture, from a table of 96 quantiles of the spline and all edges of atoms.

    Args:
        law: of tokens, [M] in place of [B, N].
        e: standard normals [M, H, S].
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
    probability = torch.special.ndtr(e.double().clamp(-MAX_E, MAX_E))
    index = torch.searchsorted(level.contiguous(), probability.contiguous()).clamp(1, level.shape[-1] - 1)
    l0, l1 = level.gather(-1, index - 1), level.gather(-1, index)
    y0, y1 = points.gather(-1, index - 1), points.gather(-1, index)
    share = ((probability - l0) / (l1 - l0).clamp(min=1e-12)).clamp(0, 1).to(y0.dtype)
    values: Tensor = y0 + share * (y1 - y0)
    return values


def _log_normal(e: Tensor) -> Tensor:
    return -0.5 * e.square() - 0.9189385332046727


# Coupling layers over the horizon, coarse to fine: a step is drawn given the two steps around it.
#
# Step h stands in the middle of two others, h - s and h + s, where s is the largest power of two that divides h. The
# coarsest steps come first, then those between them (Levy's construction of Brownian motion): each layer is an affine
# coupling of the steps between, conditioned on the steps around and on the tokens. The density needs one pass, a sample
# one pass per power of two, and a forecast of any horizon uses the same steps. Step 0 is the origin, where e is 0.
# Source of couplings: L. Dinh, J. Sohl-Dickstein, S. Bengio, "Density estimation using Real NVP", ICLR 2017.


NUM_COEFFICIENTS = 5
NUM_STRIDES = 7


@dataclass(frozen=True, slots=True)
class Tree:
    """Neighbours of each of the steps 1 to H in the construction; index k is step k + 1.

    Attributes:
        left, right: int64 [H], steps around it, 0 = the origin (left) or none (right).
        stride: int64 [H], log2 of the distance to them.
        layers: the steps' indices, coarsest first.
    """

    left: Tensor
    right: Tensor
    stride: Tensor
    layers: tuple[Tensor, ...]


def tree(horizon: int, device: torch.device | None = None) -> Tree:
    """The tree over `horizon` steps.

    >>> [(layer + 1).tolist() for layer in tree(7).layers]
    [[4], [2, 6], [1, 3, 5, 7]]
    """
    step = torch.arange(1, horizon + 1, device=device)
    half = step & -step
    right = torch.where(step + half <= horizon, step + half, 0)
    stride = half.double().log2().round().long()
    distances = [1 << k for k in range(NUM_STRIDES - 1, -1, -1) if 1 << k <= horizon]
    layers = tuple(torch.arange(s - 1, horizon, 2 * s, device=device) for s in distances)
    return Tree(step - half, right, stride, layers)


def _moments(
    e_left: Tensor, e_right: Tensor, coefficients: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and log deviation of a step given the steps around it.

    Between two steps: a weighted mean, with a deviation that may grow with their distance. After a step without one
    behind it: what is left of it. The first of all: standard normal.
    """
    toward_left, toward_right, log_spread, widening, persistence = coefficients.unbind(-1)
    between = (right > 0).expand_as(e_left)
    alone = ((right == 0) & (left == 0)).expand_as(e_left)
    mean = 0.5 * (1 + toward_left) * e_left + 0.5 * (1 + toward_right) * e_right
    gap = (e_right - e_left).abs().log1p()
    log_between = (log_spread + widening.tanh() * gap - 0.5).clamp(-MAX_LOG_SPREAD, 1.0)
    rho = 0.999 * persistence.tanh()
    mean = torch.where(between, mean, torch.where(alone, 0.0, rho * e_left))
    log_after = 0.5 * torch.log1p(-rho * rho)
    return mean, torch.where(between, log_between, torch.where(alone, 0.0, log_after))


def to_noise(e: Tensor, coefficients: Tensor, where: Tree) -> tuple[Tensor, Tensor]:
    """Independent standard normals of correlated ones.

    Args:
        e: [..., H].
        coefficients: [..., H, 5].

    Returns:
        z and log |dz/de| per step, both [..., H].
    """
    padded = pad(e, (1, 0))
    mean, log_spread = _moments(
        padded[..., where.left], padded[..., where.right], coefficients, where.left, where.right
    )
    return (e - mean) * torch.exp(-log_spread), -log_spread


def from_noise(z: Tensor, coefficients: Tensor, where: Tree) -> Tensor:
    """Correlated standard normals of independent ones, the inverse of `to_noise`.

    Args:
        z: [..., H].
        coefficients: [..., H, 5], broadcast against z.
    """
    padded = pad(torch.zeros_like(z), (1, 0))
    for layer in where.layers:
        left, right = where.left[layer], where.right[layer]
        mean, log_spread = _moments(padded[..., left], padded[..., right], coefficients[..., layer, :], left, right)
        padded[..., layer + 1] = mean + log_spread.exp() * z[..., layer]
    return padded[..., 1:]


def one_sided_loss(e: Tensor, coefficients: Tensor, where: Tree) -> Tensor:
    """Negative log-likelihood of each step given only the step before it in the tree: teaches `persistence`.

    In a horizon of 64 hardly a step lacks its right neighbour, in a horizon of 12 a third do.
    """
    rho = 0.999 * coefficients[..., 4].tanh()
    variance = 1 - rho * rho
    inner = where.left > 0
    loss = 0.5 * ((e - rho * pad(e, (1, 0))[..., where.left]).square() / variance + variance.log())
    return loss * inner


_MIN_STRATIFIED_PATHS = 16  # fewer paths are not stratified


@dataclass(frozen=True, slots=True)
class JointLaw:
    """Joint law of B rows, N indicators and H steps.

    Attributes:
        marginal: law of each cell.
        coupling: [B, N, H, 5], coefficients of the couplings over the horizon.
        mixing: [B, 7, N, N], lower triangular Cholesky factors of the correlation of indicators, by distance of steps.
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
        """Exact log-density [B] of a future, over the columns that move.

        Args:
            values: [B, H, N], all observed.
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
        """Noise of correlated standard normals e [B, N, H], with the log-derivatives of couplings and mixing."""
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
            loops: whether compiled loops are used on a CPU.
            fixed: whether shapes must not depend on data, see `Marginal.from_normal`.

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
        inputs: tuple[Tensor, ...] = (*law, self.context.center, self.context.scale, noise)
        # The loops compare and count: a NaN would become an ordinary number, or an index outside of a table.
        sound = torch.stack([part.flatten(1).isfinite().all(-1) for part in (m.mass, *inputs)]).all(0)
        sound &= m.spline.x.isfinite().all()
        if not sound.all():
            inputs = tuple(part.where(_along(sound, part), 0.0) for part in inputs)
        *law_and_units, noise = inputs
        laws = Laws(*(part.contiguous().numpy() for part in (m.spline.x.nan_to_num(), *law_and_units)))
        order = torch.cat(where.layers)
        steps = Steps(*(part.numpy() for part in (order, where.left, where.right, where.stride)))
        paths = torch.from_numpy(
            joint_paths(laws, steps, noise.contiguous().numpy(), _cached_slices(noise.shape[-1]).numpy())
        )
        return paths if sound.all() else paths.where(_along(sound, paths), torch.nan)


def _along(rows: Tensor, part: Tensor) -> Tensor:
    """The rows [B] with trailing axes of size 1, so that they broadcast against `part` [B, ...]."""
    return rows.reshape(-1, *[1] * (part.dim() - 1))


def stratified(e: Tensor) -> Tensor:
    """Normals with one value in each of S equally likely slices per cell, in the order of the given paths.

    This is Latin hypercube sampling with dependence. Within its slice a value takes one of sixteen positions. The
    position is the same for the whole cell and is mirrored above the median, so that the mean is 0. It is read off the
    mean of the given normals, which is independent of their order.
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
def _cached_slices(paths: int) -> Tensor:
    return _slices(paths)


def _slices(paths: int, device: torch.device | None = None) -> Tensor:
    """A standard normal in each sixteenth of each slice, ascending [16 S]; empty for fewer than 16 paths."""
    if paths < _MIN_STRATIFIED_PATHS:
        return torch.empty(0, dtype=torch.float64, device=device)
    count = SUBSLICES * paths
    normals: Tensor = torch.special.ndtri((torch.arange(count, dtype=torch.float64, device=device) + 0.5) / count)
    return normals
