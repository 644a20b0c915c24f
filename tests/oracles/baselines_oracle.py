"""The baselines once more, as batches of tensors: what their compiled loops are held against.

Both speak of the same rows, seeds and options. Only the filling of gaps, the draws' uniforms and constants are shared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import FilledContext, empty_paths, fill, row_uniforms
from model.baselines.context_kernel import MIN_OBSERVED_RATIO, MIN_WINDOWS
from model.baselines.ridge import (
    FREEDOM_PER_WINDOW,
    MAX_WIDENING,
    MIN_CHI2_ROOT,
    MIN_FREEDOM,
    MIN_WIDENING,
    RidgeOptions,
    lag_order,
    normal_scores,
    probe_steps,
    reversal_factors,
)
from model.baselines.smoothing import DAY_ROWS, MIN_DAY_OBSERVED, RATE_TOLERANCE, RATES
from model.contract import COARSE_STEP_MS, ContextBatch, take_rows

# Every solve sees this many rows, padded: a row's bits cannot depend on the size of its batch.
_RIDGE_CHUNK_ROWS = 8
_SMOOTHING_CHUNK_ROWS = 16


# Windows of the context and their draws.


def valid_windows(observed: Tensor, order: int, horizon: int) -> Tensor:
    """Windows of `order` lags and `horizon` targets that are observed well enough to learn from.

    Args:
        observed: bool [..., L].

    Returns:
        bool [..., W], W = L - horizon - order + 1; window w has its origin at step w + order - 1.
    """
    num = observed.shape[-1] - horizon - order + 1
    seen = observed.to(torch.int64).cumsum(-1)
    seen = torch.cat((torch.zeros_like(seen[..., :1]), seen), dim=-1)  # [..., L + 1]
    lags = seen[..., order : order + num] - seen[..., :num]
    targets = seen[..., order + horizon : order + horizon + num] - seen[..., order : order + num]
    origin = observed[..., order - 1 : order - 1 + num]
    return origin & (lags >= MIN_OBSERVED_RATIO * order) & (targets >= MIN_OBSERVED_RATIO * horizon)


def window_weights(valid: Tensor, moving: Tensor, min_windows: int = MIN_WINDOWS) -> Tensor:
    """Weight of each window in the joint draw.

    Windows in which every moving column is valid weigh the same; where those are too few, a window weighs as many
    columns as are valid in it; where none is valid anywhere, all weigh the same.

    Args:
        valid: bool [B, N, W].
        moving: bool [B, N].

    Returns:
        float64 [B, W], every row with a positive sum.
    """
    count = (valid & moving[..., None]).sum(1)  # [B, W]
    full = count == moving.sum(-1, keepdim=True)
    enough = full.sum(-1, keepdim=True) >= min(min_windows, valid.shape[-1])
    weights = torch.where(enough, full.long(), count)
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1).to(torch.float64)


def window_draws(uniforms: NDArray[np.float64], weights: Tensor, num_paths: int) -> Tensor:
    """Which residual window each path takes: a systematic sample in random order.

    A systematic sample takes window w about `num_paths * weight_w` times, so that few paths already stand for all
    windows; the random order keeps the paths exchangeable.

    Args:
        uniforms: [B, num_paths + 1].
        weights: [B, W] non-negative, each row with a positive sum.

    Returns:
        int64 [B, num_paths] in [0, W), on the device of `weights`.
    """
    mass = weights.detach().cpu().to(torch.float64).cumsum(-1)
    mass = (mass / mass[:, -1:]).contiguous()
    ladder = (np.arange(num_paths)[None, :] + uniforms[:, :1]) / num_paths  # [B, S]
    last = (weights.detach().cpu() > 0).long().cumsum(-1).argmax(-1, keepdim=True)  # the last window with any weight
    chosen = torch.searchsorted(mass, torch.from_numpy(ladder), right=True).minimum(last)
    order = torch.from_numpy(np.argsort(uniforms[:, 1:], axis=1, kind="stable"))
    return chosen.gather(1, order).to(weights.device)


def take_paths(windows: Tensor, draws: Tensor) -> Tensor:
    """Paths float32 [B, S, H, N]: path s = window draws[s] of its row.

    Args:
        windows: float32 [B, W, H, N], possible futures.
        draws: int64 [B, S].
    """
    b, w, h, n = windows.shape
    flat = (draws + torch.arange(b, device=draws.device)[:, None] * w).reshape(-1)
    return windows.reshape(b * w, h * n).index_select(0, flat).view(b, draws.shape[1], h, n)


def _pad_rows(batch: ContextBatch, size: int) -> ContextBatch:
    """The batch with its last row repeated until there are `size`."""
    have = len(batch)
    return batch if have >= size else take_rows(batch, [min(r, have - 1) for r in range(size)])


# The ridge.


def ridge_paths(
    batch: ContextBatch, horizon: int, num_paths: int, options: RidgeOptions | None = None, seed: int = 0
) -> Tensor:
    """Paths [B, S, H, N] of `RidgeForecaster`."""
    options = options or RidgeOptions()
    order = lag_order(batch.values.shape[1], horizon, options)
    b, _, n = batch.values.shape
    out = empty_paths(b, num_paths, horizon, n, batch.values.device)
    uniforms = row_uniforms(batch.item_ids, batch.origin_ts_ms, seed, num_paths + 1)
    for start in range(0, b, _RIDGE_CHUNK_ROWS):
        stop = min(start + _RIDGE_CHUNK_ROWS, b)
        rows = torch.arange(start, start + _RIDGE_CHUNK_ROWS, device=out.device).clamp(max=stop - 1)
        context = fill(batch.values[rows], batch.observed[rows])
        futures, weights = _futures(context, order, horizon, options)  # [R, W, H, N], [R, W]
        futures = futures.clamp_(batch.lower, batch.upper)
        draws = window_draws(uniforms[start:stop], weights[: stop - start], num_paths)
        out[start:stop] = take_paths(futures[: stop - start], draws)
    return out


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
    residuals = shrink_drift(residuals, valid.reshape(r * n, num))
    spread = context.spread.float().reshape(r * n, 1, 1)  # 0 where constant
    start = newest.float().reshape(r * n, 1, 1) + point[:, None] * spread  # [M, 1, H]
    factor = _factors(residuals, free, valid.reshape(r * n, num), options.most_repeated)
    futures = torch.addcmul(start, residuals, spread * factor[..., None]).view(r, n, num, horizon)
    return futures.permute(0, 2, 3, 1).contiguous(), window_weights(valid, context.moving)


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
    probes = probe_steps(ahead.shape[-1])
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


def _inverse(gram: Tensor, penalty: Tensor) -> Tensor:
    """(gram + penalty)^-1 by Cholesky; a strictly positive penalty keeps it positive definite."""
    unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(gram + penalty[:, None, None] * unit)[0])


def shrink_drift(residuals: Tensor, known: Tensor) -> Tensor:
    """The residuals less parts of their mean over the windows, step by step; [M, W, H].

    That mean is how far the context drifted over so many steps. Whether it will go on nobody knows: it may be a trend
    or little more than one draw. So windows that went its way are taken back by parts of it, from nothing to twice as
    much, evenly spread, neighbours far apart, and no further than to where they began: an idle hour stays idle.
    """
    seen = known[..., None].to(residuals.dtype)
    mean = (residuals * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
    back = mean * reversal_factors(residuals.shape[1], residuals.device)[None, :, None]
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
    nu = (FREEDOM_PER_WINDOW * freedom).clamp(min=MIN_FREEDOM)[:, None]
    tail = 2 / (9 * nu)
    z = normal_scores(num_windows, freedom.device)
    chi2 = (1 - tail + z * tail.sqrt()).clamp(min=MIN_CHI2_ROOT) ** 3  # per degree of freedom
    return chi2.rsqrt().clamp(MIN_WIDENING, MAX_WIDENING).float()


# Exponential smoothing around the season.


def smoothing_paths(
    batch: ContextBatch, horizon: int, num_paths: int, seed: int = 0, rates: Sequence[float] = RATES
) -> Tensor:
    """Paths [B, S, H, N] of `SmoothingForecaster`, for rates (1,) of the seasonal naive."""
    b, _, n = batch.values.shape
    out = empty_paths(b, num_paths, horizon, n, batch.values.device)
    blocks = (_spans(batch) // 2).clamp(max=horizon)
    for block in sorted(set(blocks.tolist())):  # rows of equal windows together
        alike = (blocks == block).nonzero()[:, 0].tolist()
        for start in range(0, len(alike), _SMOOTHING_CHUNK_ROWS):
            rows = alike[start : start + _SMOOTHING_CHUNK_ROWS]
            # One shape: a row's sums are the same in any batch.
            part = _pad_rows(take_rows(batch, rows), _SMOOTHING_CHUNK_ROWS)
            out[rows] = _row_paths(part, horizon, num_paths, block, seed, rates)[: len(rows)]
    return out


def _row_paths(
    batch: ContextBatch, horizon: int, num_paths: int, block: int, seed: int, rates: Sequence[float]
) -> Tensor:
    """Paths of rows with windows of `block` steps; 0: at most one step is known, and nothing moves."""
    length = batch.values.shape[1]
    season, known = season_at(batch, horizon)
    usable = batch.observed & known[..., :length].transpose(1, 2)
    context = fill(batch.values - season[..., :length].transpose(1, 2), usable)
    levels = _levels(context, block, rates)
    ahead = (season[..., length:] + levels[..., -1:]).transpose(1, 2).float()[:, None]  # [B, 1, H, N]
    if block == 0:
        return ahead.expand(-1, num_paths, -1, -1).clamp(batch.lower, batch.upper)
    windows, onward = _windows(context, levels, block)
    weights = window_weights(valid_windows(context.observed, 1, block), context.moving)
    blocks = -(-horizon // block)
    uniforms = row_uniforms(batch.item_ids, batch.origin_ts_ms, seed, blocks * (num_paths + 1))
    level, parts = torch.zeros_like(ahead[:, :, :1]), []
    for part in np.split(uniforms, blocks, axis=1):
        draws = window_draws(part, weights, num_paths)
        parts.append(take_paths(windows, draws) + level)
        level = take_paths(onward, draws) + level
    return (torch.cat(parts, 2)[:, :, :horizon] + ahead).clamp_(batch.lower, batch.upper)


def _levels(context: FilledContext, block: int, rates: Sequence[float]) -> Tensor:
    """Levels [B, N, L] of the rate that each column's windows choose."""
    if block == 0:
        return context.filled
    tried = [levels_at(context, float(rate)) for rate in rates]
    if len(tried) == 1:
        return tried[0]
    valid = valid_windows(context.observed, 1, block)
    missed = torch.stack([_squared_errors(context.filled, levels, valid, block) for levels in tried])  # [K, B, N]
    fastest = (missed <= RATE_TOLERANCE * missed.amin(0)).long().argmax(0)  # the first of equals
    return torch.stack(tried).gather(0, fastest[None, ..., None].expand(1, *tried[0].shape))[0]


def season_at(batch: ContextBatch, horizon: int) -> tuple[Tensor, Tensor]:
    """The coarse ring one day before every step of context and horizon.

    A column has a season when at least half of the newest day is observed and the ring reaches every step of the
    horizon one day earlier; columns without one get 0 and are everywhere known.

    Returns:
        float64 season [B, N, L + H], and bool [B, N, L + H] where it is known.
    """
    b, length, n = batch.values.shape
    ring, seen = batch.coarse.transpose(1, 2).to(torch.float64), batch.coarse_observed.transpose(1, 2)
    c, num = ring.shape[1:]
    season = torch.zeros(b, n, length + horizon, dtype=torch.float64, device=ring.device)
    known = torch.ones(b, n, length + horizon, dtype=torch.bool, device=ring.device)
    if c == 0 or num < DAY_ROWS + 2:
        return season, known
    seen = seen & ring.isfinite()
    ring = ring.where(seen, 0.0)
    steps = torch.arange(-length, horizon, dtype=torch.float64, device=ring.device) + 0.5
    # Centre of each step in coarse rows, counted from the centre of the newest row; the ring ends at the last full row.
    into_row = (batch.origin_ts_ms % COARSE_STEP_MS).to(torch.float64) / COARSE_STEP_MS
    ahead = into_row[:, None] + steps * (batch.step_ms / COARSE_STEP_MS) + 0.5  # [B, L + H]
    days = (ahead / DAY_ROWS).ceil().clamp(min=1)
    position = ahead - days * DAY_ROWS + (num - 1)
    low = position.floor()
    share = (position - low)[:, None]  # [B, 1, L + H]
    inside = (low >= 0)[:, None]
    below = low.clamp(0, num - 1).long()[:, None].expand(-1, c, -1)
    above = (below + 1).clamp(max=num - 1)
    has_below, has_above = seen.gather(2, below) & inside, seen.gather(2, above) & inside
    share = torch.where(has_below & has_above, share, has_above.to(torch.float64))
    shape = ring.gather(2, below) * (1 - share) + ring.gather(2, above) * share  # [B, C, L + H]
    reached = has_below | has_above
    enough = seen[..., -DAY_ROWS:].sum(-1) >= MIN_DAY_OBSERVED
    compared = (reached[..., :length] & batch.observed[:, :, :c].transpose(1, 2)).any(-1)
    enough &= reached[..., length:].all(-1) & compared
    season[:, :c] = torch.where(enough[..., None] & reached, shape, 0.0)
    known[:, :c] = reached | ~enough[..., None]
    return season, known


def levels_at(context: FilledContext, rate: float) -> Tensor:
    """Level after each step [B, N, L], as `model.baselines.smoothing.levels_at` has it."""
    total = torch.zeros_like(context.filled[..., 0])
    weight, levels = torch.zeros_like(total), []
    for x, known in zip(context.filled.unbind(-1), context.observed.unbind(-1), strict=True):
        total = ((1.0 - rate) * total + rate * x).where(known, total)
        weight = ((1.0 - rate) * weight + rate).where(known, weight)
        levels.append((total / weight).where(weight > 0, x))
    return torch.stack(levels, -1)


def _squared_errors(x: Tensor, levels: Tensor, valid: Tensor, block: int) -> Tensor:
    """Squared distance [B, N] of the levels from four steps of their windows, summed in the order of the windows."""
    num = valid.shape[-1]
    total = torch.zeros_like(levels[..., :num])
    for quarter in (0, block // 4, block // 2, block - 1):
        error = x[..., 1 + quarter : 1 + quarter + num] - levels[..., :num]
        total = total + error * error
    return total.where(valid, 0.0).cumsum(-1)[..., -1]


def _windows(context: FilledContext, levels: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """What each `block`-step window was beside the level at its beginning, and how far it brought the level.

    Returns:
        float32 [B, W, block, N] and [B, W, 1, N].
    """
    before = levels[..., :-block]
    windows = context.filled[..., 1:].unfold(-1, block, 1) - before[..., None]  # [B, N, W, block]
    onward = (levels[..., block:] - before)[..., None]
    return windows.permute(0, 2, 3, 1).float().contiguous(), onward.permute(0, 2, 3, 1).float().contiguous()


def _spans(batch: ContextBatch) -> Tensor:
    """Steps since the first at which any column is known, int64 [B]."""
    known = (batch.observed & batch.values.isfinite()).any(-1)
    return torch.where(known.any(-1), known.shape[1] - known.long().argmax(-1), 0)
