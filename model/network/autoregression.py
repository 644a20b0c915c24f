"""Linear autoregressions fitted in context, one per indicator: least squares on recent rows, Yule-Walker on many."""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS, _ORDER = 384, 24
_LONG_ROWS, _LONG_ORDER = 1024, 64
PENALTIES = (0.003, 0.1)
_MIN_ROWS = 40


def least_squares(z: Tensor, known: Tensor, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """AR(24) on the last 384 rows by ridge, one per penalty, iterated over the horizon.

    Args:
        z: float32 [M, L], gaps filled.
        known: bool [M, L].

    Returns:
        Forecasts [P, M, H], one-step residual deviation [M] of the smallest penalty, and bool [M] where there were
        rows enough.
    """
    z, known = z[:, -_ROWS:], known[:, -_ROWS:]
    x, mean = _centred(z, known)
    length = x.shape[1]
    order = min(_ORDER, max(2, length // 6))
    lags = x.unfold(1, order, 1)[:, : length - order].flip(-1)  # [M, W, p], newest lag first
    seen = known.float().unfold(1, order, 1)[:, : length - order].mean(-1)
    weight = known[:, order:] & (seen > 0.8)  # [M, W]
    wide = (lags * weight[..., None]).double()
    target = (x[:, order:] * weight).double()
    gram = wide.mT @ wide  # [M, p, p]
    cross = wide.mT @ target[..., None]  # [M, p, 1]
    count = weight.sum(-1)
    power = gram.diagonal(dim1=-2, dim2=-1).mean(-1) + 1e-6
    unit = torch.eye(order, dtype=gram.dtype, device=gram.device)
    coefficients = torch.stack(
        [
            torch.cholesky_solve(cross, torch.linalg.cholesky_ex(gram + (penalty * power)[:, None, None] * unit)[0])
            for penalty in PENALTIES
        ]
    )[..., 0].float()  # [P, M, p]
    fitted = torch.einsum("mwp,mp->mw", lags, coefficients[0])
    residual = ((x[:, order:] - fitted) * weight).square().sum(-1) / count.clamp(min=1)
    forecasts = _iterate(x, coefficients, horizon, 0.5) + mean[:, None]
    return forecasts, residual.sqrt(), count >= _MIN_ROWS


def yule_walker(z: Tensor, known: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
    """AR(64) from the autocovariances of the last 1,024 rows: long memory and free periods at the cost of an FFT.

    Returns:
        Forecast [M, H] and bool [M] where there were rows enough.
    """
    z, known = z[:, -_LONG_ROWS:], known[:, -_LONG_ROWS:]
    x, mean = _centred(z, known)
    seen = x * known
    spectrum = torch.fft.rfft(seen, n=2 * _LONG_ROWS).abs().square()
    covariance = torch.fft.irfft(spectrum)[:, : _LONG_ORDER + 1].double()  # [M, p + 1]
    lag = torch.arange(_LONG_ORDER, device=z.device)
    toeplitz = covariance[:, (lag[:, None] - lag[None, :]).abs()]  # [M, p, p]
    power = covariance[:, :1, None] + 1e-6
    unit = torch.eye(_LONG_ORDER, dtype=toeplitz.dtype, device=z.device)
    factor = torch.linalg.cholesky_ex(toeplitz + 0.003 * power * unit)[0]
    coefficients = torch.cholesky_solve(covariance[:, 1:, None], factor)[..., 0].float()  # [M, p]
    if x.shape[1] < _LONG_ORDER:
        x = torch.nn.functional.pad(x, (_LONG_ORDER - x.shape[1], 0))
    forecast = _iterate(x, coefficients[None], horizon, 0.3)[0] + mean[:, None]
    return forecast, known.sum(-1) >= 3 * _LONG_ORDER


def _centred(z: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    mean = (z * known).sum(-1) / known.sum(-1).clamp(min=1)
    return z - mean[:, None], mean


def _iterate(x: Tensor, coefficients: Tensor, horizon: int, slack: float) -> Tensor:
    """Feed each forecast back; kept within the range seen and `slack` of it, so that an unstable fit cannot run away.

    Args:
        x: [M, L] centred.
        coefficients: [P, M, p], newest lag first.

    Returns:
        [P, M, H].
    """
    order = coefficients.shape[-1]
    low, high = x.amin(-1), x.amax(-1)
    room = slack * (high - low)
    low, high = low - room, high + room
    state = x[:, -order:].flip(-1).expand(coefficients.shape[0], -1, -1)  # [P, M, p]
    out = []
    for _ in range(horizon):
        step = (state * coefficients).sum(-1).clamp(low, high)
        out.append(step)
        state = torch.cat((step[..., None], state[..., :-1]), dim=-1)
    return torch.stack(out, dim=-1)
