"""Coupling layers over the horizon, coarse to fine: a step is drawn given the two steps around it.

Step h stands in the middle of two others, h - s and h + s, where s is the largest power of two that divides h. The
coarsest steps come first, then those between them (Levy's construction of Brownian motion): each layer is an affine
coupling of the steps between, conditioned on the steps around and on the tokens. The density needs one pass, a sample
one pass per power of two, and a forecast of any horizon uses the same steps. Step 0 is the origin, where e is 0.
Source of couplings: L. Dinh, J. Sohl-Dickstein, S. Bengio, "Density estimation using Real NVP", ICLR 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from model.network.law_kernel import MAX_LOG_SPREAD

NUM_COEFFICIENTS = 5
NUM_STRIDES = 7


@dataclass(frozen=True, slots=True)
class Tree:
    """Where each of the steps 1..H stands; index k is step k + 1.

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
    """The tree over `horizon` steps."""
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
    """From correlated to independent standard normals.

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
    """The inverse of `to_noise`.

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
