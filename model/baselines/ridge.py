"""Direct multi-step ridge, fitted in context at each origin: the workhorse baseline.

Per row and indicator one regression serves all horizons: the change from the newest value over h steps, on the changes
that led to it (one Gram matrix, one factorisation). A large penalty thus means the last value, not the context's mean,
to which in-context fits revert too eagerly. Leave-one-out residuals, their mean drift doubted, are drawn by whole
windows and make the paths coherent over steps and indicators. Stateless: a forecast is a function of the row alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import (
    FilledContext,
    check_request,
    compiled_rows,
    empty_paths,
    fill,
    flat_paths,
    forecast_by,
    put_paths,
    row_uniforms,
    take_paths,
    valid_windows,
    window_draws,
    window_weights,
)
from model.baselines.ridge_kernel import (
    FREEDOM,
    LEAST_CHI2,
    LEAST_FREEDOM,
    NARROWEST,
    WIDEST,
    Settings,
    WindowTables,
    ridge_paths,
)
from model.contract import ContextBatch, ForecastBatch

# How wide the ridge's residual windows must be spread: what the context cannot show of its own tails.
#
# Overlapping windows are far fewer than they look: over H steps a context of L holds about L / H independent ones, and
# the largest of five is exceeded every sixth time. The residuals' scale is therefore itself uncertain, and each window
# is widened by its share of the law of that uncertainty (Student's law, as for any scale estimated from few values).


GOLDEN = 0.6180339887498949


def independent_windows(last: Tensor, known: Tensor, horizon: int) -> Tensor:
    """How many independent values the residuals of overlapping windows are worth.

    From the share of their variance that survives averaging over H neighbours: all of it for residuals that move
    together, 1 / H for independent ones.

    Args:
        last: float32 [M, W], residuals of the last step.
        known: bool [M, W].

    Returns:
        float64 [M], between W / H and W.
    """
    e = (last * known).to(torch.float64)
    num = e.shape[-1]
    span = min(horizon, num)
    sums = torch.cat((torch.zeros_like(e[:, :1]), e.cumsum(-1)), dim=-1)
    moving = (sums[:, span:] - sums[:, :-span]) / span
    share = moving.square().mean(-1) / e.square().mean(-1).clamp(min=torch.finfo(torch.float64).tiny)
    return known.sum(-1) / (share * span).clamp(1.0, float(span))


def widening(freedom: Tensor, num_windows: int) -> Tensor:
    """Factors sqrt(nu / chi^2_nu) at evenly spread probabilities, neighbours far apart.

    Source: E. Wilson, M. Hilferty, "The distribution of chi-square", PNAS 1931, for the quantiles.

    Args:
        freedom: float64 [M] independent values that the scale is estimated from.

    Returns:
        float32 [M, W].
    """
    nu = (FREEDOM * freedom).clamp(min=LEAST_FREEDOM)[:, None]
    tail = 2 / (9 * nu)
    z = _normal_scores(num_windows, freedom.device)
    chi2 = (1 - tail + z * tail.sqrt()).clamp(min=LEAST_CHI2) ** 3  # per degree of freedom
    return chi2.rsqrt().clamp(NARROWEST, WIDEST).float()


def taken_back(num_windows: int, device: torch.device) -> Tensor:
    """Parts of its drift that each window is taken back by, float32 [W]: from nothing to twice, evenly spread."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float32, device=device)
    return 2.0 * ((steps * GOLDEN) % 1.0)


@lru_cache(maxsize=64)
def window_tables(num_windows: int) -> WindowTables:
    """Both tables of that many windows, for the compiled loops."""
    here = torch.device("cpu")
    return WindowTables(taken_back(num_windows, here).numpy(), _normal_scores(num_windows, here).numpy())


def _normal_scores(num_windows: int, device: torch.device) -> Tensor:
    """Normal quantiles, float64 [W], evenly spread, neighbours far apart."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float64, device=device)
    share = (steps * GOLDEN) % 1.0
    return 2**0.5 * torch.erfinv((2 * share - 1).clamp(-0.999, 0.999))


_VERSION = 4
_CHUNK_ROWS = 8  # every solve sees this many rows, padded: a row's bits cannot depend on the size of its batch


@dataclass(frozen=True, slots=True)
class RidgeOptions:
    """Settings of the ridge.

    Attributes:
        max_order: most changes to regress on; fewer where the context is short.
        penalties: candidates, as shares of the number of windows fitted on, in units of the column's variance.
        min_windows: fewest valid windows for a fit; below, the indicator gets last value + differences.
        most_repeated: largest share of a window that is taken for repeated by the windows which overlap it; 0 leaves
            residuals as they are, for a mixture whose other members widen it.
    """

    max_order: int = 8
    penalties: tuple[float, ...] = (0.01, 0.3, 10.0)
    min_windows: int = 24
    most_repeated: float = 0.2


class RidgeForecaster:
    """Batched in-context ridge (see the module). A row's draws are fixed by (item id, origin, seed)."""

    def __init__(self, seed: int = 0, options: RidgeOptions | None = None) -> None:
        self._seed = seed
        self._options = options or RidgeOptions()
        body = f"ridge/{_VERSION}/{seed}/{sorted(asdict(self._options).items())}"
        self._fingerprint = "ridge-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return 64

    @property
    def min_context(self) -> int:
        return 64

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: horizon above `max_horizon`, inconsistent shapes, or a context too short for the horizon.
        """
        return forecast_by(self, batch, horizon, num_paths, "ridge")

    def write_paths(self, batch: ContextBatch, horizon: int, places: NDArray[np.int64], out: Tensor) -> None:
        """Write paths as `PathWriter` says; on a CPU by compiled loops, on an accelerator by tensors.

        Raises:
            ValueError: as `forecast`.
        """
        check_request(batch, horizon, len(places), self.max_horizon)
        length = batch.values.shape[1]
        order = lag_order(length, horizon, self._options)
        if out.device.type != "cpu":
            put_paths(self.paths_of_tensors(batch, horizon, len(places)), places, out)
            return
        settings = Settings(
            order,
            horizon,
            np.array(self._options.penalties, np.float64),
            np.array(_probe_steps(horizon)),
            self._options.min_windows,
            self._options.most_repeated,
        )
        tables = window_tables(length - horizon - order)
        ridge_paths(compiled_rows(batch, self._seed), settings, tables, places, flat_paths(out))

    def paths_of_tensors(self, batch: ContextBatch, horizon: int, num_paths: int) -> Tensor:
        """Paths [B, S, H, N] made by tensors, on any device: what the compiled loops are held against."""
        order = lag_order(batch.values.shape[1], horizon, self._options)
        b, _, n = batch.values.shape
        out = empty_paths(b, num_paths, horizon, n, batch.values.device)
        uniforms = row_uniforms(batch.item_ids, batch.origin_ts_ms, self._seed, num_paths + 1)
        for start in range(0, b, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, b)
            rows = torch.arange(start, start + _CHUNK_ROWS, device=out.device).clamp(max=stop - 1)
            context = fill(batch.values[rows], batch.observed[rows])
            futures, weights = _futures(context, order, horizon, self._options)  # [R, W, H, N], [R, W]
            futures = futures.clamp_(batch.lower, batch.upper)
            draws = window_draws(uniforms[start:stop], weights[: stop - start], num_paths)
            out[start:stop] = take_paths(futures[: stop - start], draws)
        return out


def lag_order(context_length: int, horizon: int, options: RidgeOptions) -> int:
    """Number of changes to regress on: a quarter of the steps that may serve as origins, within 4..max_order.

    Raises:
        ValueError: the context is too short for the horizon.
    """
    order = min(options.max_order, max(4, (context_length - horizon) // 4))
    if context_length - horizon - order < options.min_windows:
        needed = horizon + 4 + options.min_windows
        raise ValueError(f"horizon {horizon} needs a context of {needed} steps, this one has {context_length}")
    return order


def _futures(context: FilledContext, order: int, horizon: int, options: RidgeOptions) -> tuple[Tensor, Tensor]:
    """One possible future per window: forecast + that window's leave-one-out residuals.

    Returns:
        float32 [R, W, H, N] and the windows' weights [R, W].
    """
    r, n, length = context.filled.shape
    num = length - horizon - order
    newest = context.filled[..., -1:]
    scale = torch.where(context.moving, context.spread, 1.0)[..., None]
    z = ((context.filled - newest) / scale).reshape(r * n, length)  # [M, L]
    valid = valid_windows(context.observed, order + 1, horizon)  # [R, N, W]
    origins = z[:, order:]  # [M, L - order]
    changes = z.unfold(1, order + 1, 1)[..., :order] - origins[..., None]  # [M, L - order, p], oldest first
    narrow = z.float()
    ahead = narrow[:, order + 1 :].unfold(1, horizon, 1) - narrow[:, order : order + num, None]  # [M, W, H]
    point, residuals, free = fit_ridge(changes[:, :num], changes[:, -1], ahead, valid.reshape(r * n, num), options)
    residuals = drift_doubted(residuals, valid.reshape(r * n, num))
    spread = context.spread.float().reshape(r * n, 1, 1)  # 0 where constant
    start = newest.float().reshape(r * n, 1, 1) + point[:, None] * spread  # [M, 1, H]
    factor = _factors(residuals, free, valid.reshape(r * n, num), options.most_repeated)
    futures = torch.addcmul(start, residuals, spread * factor[..., None]).view(r, n, num, horizon)
    return futures.permute(0, 2, 3, 1).contiguous(), window_weights(valid, context.moving)


def drift_doubted(residuals: Tensor, known: Tensor) -> Tensor:
    """The residuals less parts of their mean over the windows, step by step; [M, W, H].

    That mean is how far the context drifted over so many steps. Whether it will go on nobody knows: it may be a trend
    or little more than one draw. So windows that went its way are taken back by parts of it, from nothing to twice as
    much, evenly spread, neighbours far apart, and no further than to where they began: an idle hour stays idle.
    """
    seen = known[..., None].to(residuals.dtype)
    mean = (residuals * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
    back = mean * taken_back(residuals.shape[1], residuals.device)[None, :, None]
    zero = torch.zeros_like(residuals)
    return residuals - torch.where(
        mean > 0, torch.minimum(residuals.maximum(zero), back), back.maximum(residuals.minimum(zero))
    )


def _factors(residuals: Tensor, free: Tensor, known: Tensor, most_repeated: float) -> Tensor:
    """What each window's residuals are multiplied by: left out with its neighbours, and widened; [M, W]."""
    num, horizon = residuals.shape[1:]
    freedom = independent_windows(residuals[..., -1], known, horizon)  # [M]
    # Windows that overlap share their targets: leaving one out leaves out what its neighbours say of it.
    repeats = known.sum(-1) / freedom.clamp(min=1.0)
    repeated = ((1 - free) * repeats.float()[:, None]).clamp(max=most_repeated)
    return widening(freedom, num) / (1 - repeated)


def fit_ridge(
    changes: Tensor, query: Tensor, ahead: Tensor, known: Tensor, options: RidgeOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Ridge without intercept of all horizons on the same changes, the penalty chosen by leave-one-out error.

    Columns with fewer than `min_windows` known windows get no change as forecast and plain differences as residuals.

    Args:
        changes: float64 [M, W, p].
        query: float64 [M, p], the changes at the origin.
        ahead: float32 [M, W, H].
        known: bool [M, W], windows to fit on.

    Returns:
        float32 forecast [M, H], residuals [M, W, H] and 1 - leverage [M, W] (1 for the windows not fitted on): the
        leave-one-out residual of a window is their ratio.
    """
    wide = changes * known[..., None]
    gram = wide.mT @ wide  # [M, p, p]
    x = wide.float()  # the factorisation needs the digits, what is built on it does not
    cross = x.mT @ ahead  # [M, p, H]
    count = known.sum(-1)
    probes = _probe_steps(ahead.shape[-1])
    probe_ahead = torch.stack([ahead[..., h] for h in probes], dim=-1) * known[..., None]  # [M, W, K]
    probe_cross = torch.stack([cross[..., h] for h in probes], dim=-1)  # [M, p, K]
    inverses, frees, losses = [], [], []
    for penalty in options.penalties:
        inverse = _inverse(gram, penalty * count.clamp(min=1)).float()
        free = 1 - ((x @ inverse) * x).sum(-1)  # [M, W]
        error = (probe_ahead - x @ (inverse @ probe_cross)) / free[..., None]  # [M, W, K]
        inverses.append(inverse)
        frees.append(free)
        losses.append(error.square().sum((1, 2)))
    best = torch.stack(losses).argmin(0)  # [M]
    each = torch.arange(best.shape[0], device=best.device)
    fitted = count >= options.min_windows  # [M]
    weights = (torch.stack(inverses)[best, each] @ cross).where(fitted[:, None, None], 0.0)  # [M, p, H]
    free = torch.stack(frees)[best, each].where(fitted[:, None], 1.0)
    point = (query.float()[:, None] @ weights)[:, 0]  # [M, H]
    residuals = torch.baddbmm(ahead, changes.float(), weights, alpha=-1)  # [M, W, H]
    return point, residuals, free


def _probe_steps(horizon: int) -> list[int]:
    """A few steps that stand for all in the choice of the penalty: first, last and two between."""
    return sorted({0, horizon // 4, horizon // 2, horizon - 1})


def _inverse(gram: Tensor, penalty: Tensor) -> Tensor:
    """(gram + penalty)^-1 by Cholesky; a strictly positive penalty keeps it positive definite."""
    unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(gram + penalty[:, None, None] * unit)[0])
