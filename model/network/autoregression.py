"""Linear autoregressions fitted in context, one per indicator: least squares on recent rows, Yule-Walker on many.

In batches of tensors, for accelerators; on a CPU `model.network.candidates_kernel` does the same by compiled loops.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model.network.candidates_kernel import (
    CHANGE_ORDER,
    CHANGE_PENALTY,
    LONG_ORDER,
    LONG_PENALTY,
    LONG_ROWS,
    MIN_ROWS,
    ORDER,
    PENALTIES,
    ROWS,
)


@dataclass(frozen=True, slots=True)
class Fitted:
    """One autoregression per token.

    Attributes:
        coefficients: float32 [M, p], newest lag first.
        mean: float32 [M], taken off first; 0 where changes are regressed.
        low, high: float32 [M], bounds of what is fed back: an unstable fit cannot run away.
        enough: bool [M], rows enough to fit on.
        changes: whether it speaks of changes from row to row.
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
        """Forecasts [M, P, H] that read the rows before each of `ends` [P]."""
        order = self.coefficients.shape[-1]
        x = torch.nn.functional.pad(z.diff(dim=-1), (1, 0)) if self.changes else z - self.mean[:, None]
        lags = ends[:, None] - 1 - torch.arange(order, device=z.device)  # [P, p]
        state = torch.where(lags >= 0, x[:, lags.clamp(min=0)], 0.0)  # [M, P, p]
        steps = _iterate(state, self.coefficients[:, None], horizon, self.low[:, None], self.high[:, None])
        if self.changes:
            return z[:, ends - 1][..., None] + steps.cumsum(-1)
        return steps + self.mean[:, None, None]


def least_squares(z: Tensor, known: Tensor) -> tuple[tuple[Fitted, ...], Tensor]:
    """AR(24) on the last 384 rows by ridge, one per penalty.

    Args:
        z: float32 [M, L], gaps filled.
        known: bool [M, L].

    Returns:
        The fits, and the one-step residual deviation [M] of the smallest penalty.
    """
    z, known = z[:, -ROWS:], known[:, -ROWS:]
    x, mean = _centred(z, known)
    order = min(ORDER, max(2, x.shape[1] // 6))
    coefficients, lags, weight = _ridge(x, known, order, PENALTIES)
    fitted = torch.einsum("mwp,mp->mw", lags, coefficients[0])
    residual = ((x[:, order:] - fitted) * weight).square().sum(-1) / weight.sum(-1).clamp(min=1)
    low, high = _bounds(x, 0.5)
    enough = weight.sum(-1) >= MIN_ROWS
    return tuple(Fitted(c, mean, low, high, enough) for c in coefficients), residual.sqrt()


def of_changes(z: Tensor, known: Tensor) -> Fitted:
    """AR(8) of the changes from row to row: reverts to the last value instead of the mean."""
    z, known = z[:, -ROWS:], known[:, -ROWS:]
    x, both = z.diff(dim=-1), known[:, 1:] & known[:, :-1]
    coefficients, _, weight = _ridge(x, both, CHANGE_ORDER, (CHANGE_PENALTY,))
    low, high = _bounds(x, 0.0)
    return Fitted(coefficients[0], torch.zeros_like(low), low, high, weight.sum(-1) >= MIN_ROWS, changes=True)


def yule_walker(z: Tensor, known: Tensor) -> Fitted:
    """AR(64) from the autocovariances of the last 1,024 rows: long memory and free periods at the cost of an FFT."""
    z, known = z[:, -LONG_ROWS:], known[:, -LONG_ROWS:]
    x, mean = _centred(z, known)
    spectrum = torch.fft.rfft(x * known, n=2 * LONG_ROWS).abs().square()
    covariance = torch.fft.irfft(spectrum)[:, : LONG_ORDER + 1].double()  # [M, p + 1]
    lag = torch.arange(LONG_ORDER, device=z.device)
    toeplitz = covariance[:, (lag[:, None] - lag[None, :]).abs()]  # [M, p, p]
    power = covariance[:, :1, None] + 1e-6
    unit = torch.eye(LONG_ORDER, dtype=toeplitz.dtype, device=z.device)
    coefficients = _solved(toeplitz + LONG_PENALTY * power * unit, covariance[:, 1:, None])[..., 0].float()  # [M, p]
    low, high = _bounds(x, 0.3)
    return Fitted(coefficients, mean, low, high, known.sum(-1) >= 3 * LONG_ORDER)


def _ridge(x: Tensor, known: Tensor, order: int, penalties: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients [P, M, p], the lags they are fitted on [M, W, p], and which windows counted, bool [M, W]."""
    num = x.shape[1] - order
    lags = x.unfold(1, order, 1)[:, :num].flip(-1)  # newest lag first
    seen = known.float().unfold(1, order, 1)[:, :num].mean(-1)
    weight = known[:, order:] & (seen > 0.8)
    wide = (lags * weight[..., None]).double()
    target = (x[:, order:] * weight).double()
    gram = wide.mT @ wide  # [M, p, p]
    cross = wide.mT @ target[..., None]  # [M, p, 1]
    power = gram.diagonal(dim1=-2, dim2=-1).mean(-1) + 1e-6
    unit = torch.eye(order, dtype=gram.dtype, device=gram.device)
    each = [_solved(gram + (penalty * power)[:, None, None] * unit, cross) for penalty in penalties]
    return torch.stack(each)[..., 0].float(), lags, weight


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """Of positive definite systems, by their factors: `cholesky_solve` may wait for the host between them."""
    factor = torch.linalg.cholesky_ex(matrix)[0]
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved


def _centred(z: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    mean = (z * known).sum(-1) / known.sum(-1).clamp(min=1)
    return z - mean[:, None], mean


def _bounds(x: Tensor, slack: float) -> tuple[Tensor, Tensor]:
    """The range seen and `slack` of it."""
    low, high = x.amin(-1), x.amax(-1)
    room = slack * (high - low)
    return low - room, high + room


def _iterate(state: Tensor, coefficients: Tensor, horizon: int, low: Tensor, high: Tensor) -> Tensor:
    """Feed each forecast back.

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
