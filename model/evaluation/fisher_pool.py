"""Laws for the Fisher protocol: neighbours, atoms, the choice among laws, and their pool.

Laws are fitted on the train rows; which of them is used per indicator, and with which weight, on the validation rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model.evaluation.contestants import rolling_std
from model.evaluation.dataset import Floats
from model.evaluation.fisher import (
    FISHER_BASELINES_LEVELS,
    NUM_SAMPLES,
    FisherCase,
    FisherForecast,
    ewma_point,
    joint,
    last_point,
    recent_unit,
    residual_quantiles,
    ridge_point,
    window_unit,
)
from model.evaluation.rolling import Rows

Law = Callable[[FisherCase, Rows, Floats], Floats]  # targets and the ridge's points there -> sorted samples [T, S, N]
_NEIGHBOURS = 120
_GAP = 0.02  # values further apart than this belong to different devices
_RANK_SHARE = 0.9
_STEPS, _RATE = 300, 0.5


def knn_law(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    """Residuals, in units of the window's std, of the train windows that look most like this one.

    Alike in volatility and in where the window stands: ratios of short to long spread, the distance of the newest
    values from the window's mean, and the ridge's move.
    """
    train = case.train[max(0, 36 - case.length) :]
    fitted = ridge_point(case, train)
    unit_train, unit = window_unit(case, train), window_unit(case, targets)
    ratio = (case.scaled[train] - fitted) / unit_train
    known, query = _features(case, train, fitted), _features(case, targets, points)  # [R, N, F]
    out = np.empty((len(targets), NUM_SAMPLES, points.shape[1]))
    for j in range(points.shape[1]):
        spread = known[:, j].std(0) + 1e-9
        a, b = known[:, j] / spread, query[:, j] / spread
        distance = (b**2).sum(1)[:, None] + (a**2).sum(1)[None] - 2 * b @ a.T
        near = np.argpartition(distance, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
        drawn = np.quantile(ratio[near, j], FISHER_BASELINES_LEVELS, axis=1).T  # [T, S]
        out[:, :, j] = points[:, None, j] + drawn * unit[:, None, j]
    return out


def _features(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    x = case.scaled
    rows = targets - 1
    long = window_unit(case, targets)
    short, middle = (np.sqrt(rolling_std(x, w)[rows] ** 2 + 1e-6) for w in (6, 18))
    sums = np.concatenate((np.zeros((1, x.shape[1])), x.cumsum(0)))
    mean = (sums[rows + 1] - sums[rows + 1 - case.length]) / case.length
    newest, before = x[rows], x[rows - 1]
    columns = (
        np.log(short / long),
        np.log(middle / long),
        np.log(long),
        (newest - mean) / long,
        (newest - before) / long,
        (points - newest) / long,
    )
    return np.stack(columns, axis=-1)


def atom_law(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    """For indicators that hop between a few slowly moving values: an atom at the last value seen near each.

    The window's values are cut at gaps; a cluster's weight is how often, on the train rows with as many clusters, the
    next value fell into the cluster of that rank (90 %), and how often it did in this window (10 %).
    """
    del points
    train = case.train[:: max(1, len(case.train) // 1500)]
    out = np.empty((len(targets), NUM_SAMPLES, case.scaled.shape[1]))
    for j in range(case.scaled.shape[1]):
        counts: dict[int, Floats] = {}
        for row in train:
            ordered, cuts, _ = _clusters(case, row, j)
            value = case.scaled[row, j]
            centres = np.array([part.mean() for part in np.split(ordered, cuts)])
            tally = counts.setdefault(len(centres), np.full(len(centres), 0.5))
            tally[int(np.argmin(np.abs(centres - value)))] += 1
        for k, row in enumerate(targets):
            ordered, cuts, last = _clusters(case, row, j)
            share = np.diff(np.concatenate(([0], cuts, [len(ordered)]))) / len(ordered)
            if len(share) in counts:
                seen = counts[len(share)]
                share = _RANK_SHARE * seen / seen.sum() + (1 - _RANK_SHARE) * share
            edges = share.cumsum()
            out[k, :, j] = last[np.minimum(np.searchsorted(edges, FISHER_BASELINES_LEVELS), len(last) - 1)]
    return np.sort(out, axis=1)


def _clusters(case: FisherCase, row: int, j: int) -> tuple[Floats, Rows, Floats]:
    """The window's values in order, where they are cut, and the newest value of each cluster."""
    window = case.scaled[row - case.length : row, j]
    order = np.argsort(window, kind="stable")
    ordered = window[order]
    cuts = np.flatnonzero(np.diff(ordered) > _GAP) + 1
    last = np.array([window[part.max()] for part in np.split(order, cuts)])
    return ordered, cuts, last


def ridge_law(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    """The ridge with train residuals in units of the window's std."""
    train = case.train
    ratio = residual_quantiles((case.scaled[train] - ridge_point(case, train)) / window_unit(case, train))
    return np.asarray(points[:, None] + ratio[None] * window_unit(case, targets)[:, None])


def ewma_law(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    """Exponential smoothing with train residuals in units of the recent std."""
    del points
    train = case.train
    ratio = residual_quantiles((case.scaled[train] - ewma_point(case, train)) / recent_unit(case, train))
    return np.asarray(ewma_point(case, targets)[:, None] + ratio[None] * recent_unit(case, targets)[:, None])


def last_law(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    """The newest value with the train rows' changes."""
    del points
    train = case.train
    change = residual_quantiles(case.scaled[train] - last_point(case, train))
    return np.asarray(last_point(case, targets)[:, None] + change[None])


def window_law(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    """The values of the last 72 rows."""
    del points
    window = case.scaled[targets[:, None] + np.arange(-72, 0)]
    return np.asarray(np.quantile(window, FISHER_BASELINES_LEVELS, axis=1).transpose(1, 0, 2))


def train_law(case: FisherCase, targets: Rows, points: Floats) -> Floats:
    """The train rows' values."""
    del points
    return np.repeat(
        np.quantile(case.scaled[: case.num_train], FISHER_BASELINES_LEVELS, axis=0)[None], len(targets), axis=0
    )


LAWS: dict[str, Law] = {
    "knn": knn_law,
    "atoms": atom_law,
    "ridge": ridge_law,
    "ewma": ewma_law,
    "last": last_law,
    "window": window_law,
    "train": train_law,
}


def _laws(case: FisherCase, targets: Rows) -> Floats:
    """Sorted samples of all laws, [K, T, S, N]; computed once per container."""
    key = "validation" if len(targets) and targets[0] < case.test[0] else "test"
    kept: dict[str, Floats] = case.scratch
    if key not in kept:
        points = ridge_point(case, targets)
        kept[key] = np.stack([np.sort(law(case, targets, points), axis=1) for law in LAWS.values()])
    return kept[key]


def _distances(samples: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Mean |x_k - y| [T, N, K] and mean |x_k - x_l| [N, K, K], whose quadratic form is the CRPS of a linear pool."""
    num = samples.shape[0]
    own = np.abs(samples - y[None, :, None]).mean(2).transpose(1, 2, 0)  # [T, N, K]
    between = np.empty((samples.shape[3], num, num))
    for a in range(num):
        for b in range(a, num):
            both = np.sort(np.concatenate((samples[a], samples[b]), axis=1), axis=1)  # [T, 2S, N]
            between[:, a, b] = between[:, b, a] = _gini(both)
    inner = np.einsum("naa->na", between).copy()
    # E|a - b| from the joint sample: its own mean difference holds a quarter of each law's.
    for a in range(num):
        for b in range(num):
            if a != b:
                between[:, a, b] = 2 * between[:, a, b] - (inner[:, a] + inner[:, b]) / 2
    return own, between


def _gini(ordered: Floats) -> Floats:
    """Mean |x_i - x_j| of sorted samples [T, S, N], averaged over T: [N]."""
    s = ordered.shape[1]
    weight = (2 * np.arange(1, s + 1) - s - 1)[None, :, None]
    return np.asarray((ordered * weight).sum(1).mean(0) * 2 / s**2)


def pool_weights(samples: Floats, y: Floats) -> Floats:
    """Weights of the linear pool with the least CRPS, [N, K], by exponentiated gradient."""
    own, between = _distances(samples, y)
    loss = own.mean(0)  # [N, K]
    unit = np.maximum(loss.min(1, keepdims=True), 1e-9)
    weights = np.full(loss.shape, 1 / loss.shape[1])
    for _ in range(_STEPS):
        slope = (loss - np.einsum("nkl,nl->nk", between, weights)) / unit
        weights = weights * np.exp(-_RATE * (slope - slope.mean(1, keepdims=True)))
        weights /= weights.sum(1, keepdims=True)
    return weights


def pool(case: FisherCase) -> FisherForecast:
    """Linear pool of all laws, its weights per indicator by the CRPS on the validation rows."""
    holdout = case.validation
    weights = pool_weights(_laws(case, holdout), case.scaled[holdout])  # [N, K]
    samples = _laws(case, case.test)  # [K, T, S, N]
    k, t, s, n = samples.shape
    out = np.empty((t, s, n))
    for j in range(n):
        flat = samples[..., j].transpose(1, 0, 2).reshape(t, k * s)
        order = np.argsort(flat, axis=1)
        mass = np.repeat(weights[j] / s, s)[order].cumsum(1)
        for row in range(t):
            at = np.minimum(np.searchsorted(mass[row], FISHER_BASELINES_LEVELS), k * s - 1)
            out[row, :, j] = flat[row, order[row, at]]
    return FisherForecast(out.mean(1), joint(case, out))


def choice(case: FisherCase) -> FisherForecast:
    """Per indicator the one law with the least CRPS on the validation rows."""
    holdout = case.validation
    own, between = _distances(_laws(case, holdout), case.scaled[holdout])
    crps = own.mean(0) - np.einsum("nkk->nk", between) / 2
    best = np.argmin(crps, axis=1)
    samples = _laws(case, case.test)
    out = np.stack([samples[best[j], :, :, j] for j in range(len(best))], axis=-1)
    return FisherForecast(out.mean(1), joint(case, out))


def single(name: str) -> Callable[[FisherCase], FisherForecast]:
    """One law alone."""

    def forecast(case: FisherCase) -> FisherForecast:
        out = _laws(case, case.test)[list(LAWS).index(name)]
        return FisherForecast(out.mean(1), joint(case, out))

    return forecast


POOLS: dict[str, Callable[[FisherCase], FisherForecast]] = {
    "knn": single("knn"),
    "atoms": single("atoms"),
    "choice": choice,
    "pool": pool,
}
