"""Context batches for the tests of `model`."""

from __future__ import annotations

import torch
from torch import Tensor

from model.contract import COARSE_ROWS, ContextBatch

ORIGIN_MS = 1_700_000_100_000
STEP_MS = 15_000


def context_batch(
    values: Tensor,
    observed: Tensor | None = None,
    *,
    coarse: Tensor | None = None,
    num_demand: int = 1,
    lower: float = -torch.inf,
    upper: float = torch.inf,
    step_ms: int = STEP_MS,
    origin_ms: int = ORIGIN_MS,
) -> ContextBatch:
    """A batch of the given values [B, L, N]; NaN means missing unless `observed` is given; no ring unless given."""
    b, _, n = values.shape
    seen = values.isfinite() if observed is None else observed
    ring = torch.full((b, COARSE_ROWS, num_demand), torch.nan) if coarse is None else coarse
    return ContextBatch(
        item_ids=tuple(f"ns/w{k}" for k in range(b)),
        origin_ts_ms=torch.full((b,), origin_ms, dtype=torch.int64),
        step_ms=step_ms,
        values=(values.nan_to_num(0.0) if observed is None else values).float(),
        observed=seen,
        coarse=ring.nan_to_num(0.0).float(),
        coarse_observed=ring.isfinite(),
        levels=torch.tensor([1] * num_demand + [2] * (n - num_demand)),
        indicators=tuple(f"i{k}" for k in range(n)),
        lower=torch.full((n,), lower),
        upper=torch.full((n,), upper),
    )


def random_batch(num_rows: int, seed: int, *, length: int = 128, num_indicators: int = 4) -> ContextBatch:
    """Levels, random walks and noise at different scales, 3 % missing, a constant and an unobserved column."""
    g = torch.Generator().manual_seed(seed)
    shape = (num_rows, length, num_indicators)
    values = torch.randn(shape, generator=g).cumsum(1) * 0.5 + torch.randn(shape, generator=g) + 30
    values = values * 10.0 ** torch.arange(num_indicators)
    values[torch.rand(shape, generator=g) < 0.03] = torch.nan
    if num_indicators > 2:
        values[:, :, -1] = torch.nan
        values[:, :, -2] = 7.25
    return context_batch(values, lower=0.0)


def autoregressive(num_rows: int, length: int, phi: float, seed: int, num_indicators: int = 1) -> Tensor:
    """Stationary AR(1) series of unit innovations [B, length, N]."""
    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(num_rows, length, num_indicators, generator=g, dtype=torch.float64)
    x = torch.empty_like(noise)
    x[:, 0] = noise[:, 0] / (1 - phi**2) ** 0.5
    for t in range(1, length):
        x[:, t] = phi * x[:, t - 1] + noise[:, t]
    return x
