"""Scores of probabilistic forecasts: CRPS, energy score, coverage, pinball loss, probability integral transform.

Letters of shapes: S sample paths, Q quantiles, C coverage levels, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.contract import quantiles_of_paths

COVERAGES = (0.5, 0.8, 0.9, 0.98)


def crps_of_paths(paths: Tensor, y: Tensor) -> Tensor:
    """Continuous ranked probability score of the empirical law of the paths.

    (1/S) sum |x_j - y| - (1/(2 S^2)) sum sum |x_j - x_k|, the second sum read off the sorted sample. Source: T.
    Gneiting, A. Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.

    >>> crps_of_paths(torch.tensor([0.0, 2.0]), torch.tensor(1.0)).item()
    0.5

    Args:
        paths: [..., S].
        y: [...].

    Returns:
        float64 [...].
    """
    x = paths.to(torch.float64)
    num = x.shape[-1]
    distance = (x - y.to(torch.float64)[..., None]).abs().mean(-1)
    ordered, _ = x.sort(dim=-1)
    rank = torch.arange(1, num + 1, dtype=torch.float64, device=x.device)
    spread = (ordered * (2 * rank - num - 1)).sum(-1) / num**2
    return distance - spread


def central_intervals(paths: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The central intervals of the levels `COVERAGES` (0.9: from the 5 % to the 95 % quantile).

    Args:
        paths: [..., S].
        y: [...].

    Returns:
        Whether y lies in them, both ends included, bool [..., C], and how wide they are, [..., C].
    """
    tails = [(1 - level) / 2 for level in COVERAGES] + [(1 + level) / 2 for level in COVERAGES]
    low, high = quantiles_of_paths(paths, torch.tensor(tails, dtype=torch.float64)).tensor_split(2, dim=-1)
    return (y[..., None] >= low) & (y[..., None] <= high), high - low


def pinball(quantiles: Tensor, levels: Tensor, y: Tensor) -> Tensor:
    """Pinball loss max(q (y - f), (q - 1)(y - f)) of each quantile.

    Source: R. Koenker, G. Bassett, "Regression quantiles", Econometrica 1978.

    >>> pinball(torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor(2.0)).item()
    0.5

    Args:
        quantiles: [..., Q].
        levels: [Q] in (0, 1).
        y: [...].

    Returns:
        float64 [..., Q].
    """
    error = y.to(torch.float64)[..., None] - quantiles.to(torch.float64)
    q = levels.to(error.device, torch.float64)
    return torch.maximum(q * error, (q - 1) * error)


def energy_score(paths: Tensor, y: Tensor) -> Tensor:
    """Energy score of the joint law of the paths: the CRPS with the distance of vectors in place of |.|.

    (1/S) sum ||x_j - y|| - (1/(2 S^2)) sum sum ||x_j - x_k||. Source: T. Gneiting, A. Raftery, "Strictly proper
    scoring rules, prediction, and estimation", JASA 2007.

    >>> energy_score(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1.0, 0.0])).item()
    0.5

    Args:
        paths: [..., S, D].
        y: [..., D].

    Returns:
        float64 [...].
    """
    x = paths.to(torch.float64)
    distance: Tensor = torch.linalg.vector_norm(x - y.to(torch.float64)[..., None, :], dim=-1).mean(-1)
    # The product form of cdist is fast, and wrong where paths agree in most digits.
    between = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").mean((-2, -1))
    return distance - between / 2


def probability_integral(paths: Tensor, y: Tensor) -> Tensor:
    """Probability integral transform: the rank of the outcome among the paths, uniform on (0, 1) when calibrated.

    Ties count half, so that an atom in the law gives its middle and a constant series gives 1/2. Source: A. Dawid,
    "Present position and potential developments: the prequential approach", JRSS A 1984.

    Args:
        paths: [..., S].
        y: [...].

    Returns:
        float64 [...], (#below + #equal / 2 + 1/2) / (S + 1).
    """
    truth = y[..., None]
    below = (paths < truth).sum(-1).to(torch.float64)
    equal = (paths == truth).sum(-1).to(torch.float64)
    return (below + equal / 2 + 0.5) / (paths.shape[-1] + 1)
