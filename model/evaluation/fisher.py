"""The Fisher protocol: one step ahead on ten containers of a cluster, 70 / 10 / 20, min-max scaled by the train rows.

All test windows are the primary figure. The published table scored whole batches of 32 only; that subset is scored
beside it. Source: Y. Luo et al., "HARMONY", arXiv 2408.01000, and its public code.

Letters of shapes: T test rows, L rows of a window, N indicators, S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from model.evaluation.contestants import rolling_std, smoothed
from model.evaluation.rolling import Floats, Rows
from model.evaluation.scores import COVERAGES, central_intervals, crps_of_paths, energy_score, probability_integral

NUM_SAMPLES = 100
PUBLISHED = {72: (0.04529, 0.09953), 144: (0.04576, 0.09399), 288: (0.04741, 0.10965)}  # mse, crps
_BATCH = 32
# Levels by meaning: load 1, processor and memory 2, input and output 3.
LEVELS = {
    "load": 1,
    "blkio.throttle.io_service_bytes_Async": 3,
    "blkio.throttle.io_service_bytes_Read": 3,
    "container_cpu_usage_seconds_total": 2,
    "container_memory_active_file": 2,
    "container_memory_hierarchical_memory_limit": 2,
    "container_memory_rss": 2,
    "container_network_tcp_TimeWait": 3,
    "cpu.busy": 2,
    "mem.memused": 2,
    "net.if.in.bytes": 3,
}


def indicator_levels(names: Sequence[str]) -> list[int]:
    """Level of each indicator, 1 for indicators that the protocol does not name."""
    return [LEVELS.get(name, 1) for name in names]


@dataclass(frozen=True, slots=True)
class FisherForecast:
    """One contestant's forecasts of the test rows.

    Attributes:
        point: float64 [T, N], scored by mse and mae.
        samples: float64 [T, S, N], scored by CRPS and coverage; joint over the indicators.
    """

    point: Floats
    samples: Floats


@dataclass(eq=False)
class FisherCase:
    """One container and input length.

    Attributes:
        scaled: float64 [T, N], all rows, min-max scaled by the train rows, not clipped.
        length: L; inputs of target t are rows t-L..t-1.
        low, spread: [N], so that raw = low + scaled * spread.
        fleet: all containers of the run at this input length, with this one; empty for this one alone.
        forecasts, scratch: forecasts made so far, and arrays that contestants share.
    """

    name: str
    scaled: Floats
    low: Floats
    spread: Floats
    names: tuple[str, ...]
    start_ts_ms: int
    length: int
    contestants: dict[str, Callable[[FisherCase], FisherForecast]]
    max_targets: int | None = None
    fleet: list[FisherCase] = field(default_factory=list, repr=False)
    num_train: int = field(init=False)
    num_test: int = field(init=False)
    forecasts: dict[str, FisherForecast] = field(init=False, default_factory=dict)
    scratch: dict[str, Floats] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.num_train, _, self.num_test = split_counts(len(self.scaled))

    @property
    def train(self) -> Rows:
        return np.arange(self.length, self.num_train)

    @property
    def validation(self) -> Rows:
        return np.arange(self.num_train, len(self.scaled) - self.num_test)

    @property
    def test(self) -> Rows:
        rows = np.arange(len(self.scaled) - self.num_test, len(self.scaled))
        return rows if self.max_targets is None else rows[: self.max_targets]

    def windows(self, targets: Rows) -> Floats:
        """Inputs of the targets, [T, L, N]."""
        result: Floats = self.scaled[targets[:, None] + np.arange(-self.length, 0)]
        return result

    def forecast_of(self, name: str) -> FisherForecast:
        """The forecast of a contestant, computed once.

        Raises:
            KeyError: there is no contestant of that name.
        """
        if name not in self.forecasts:
            self.forecasts[name] = self.contestants[name](self)
        return self.forecasts[name]


@dataclass(frozen=True, slots=True)
class FisherScores:
    """Scores of one contestant on one container, [T, N] unless said.

    Attributes:
        inside: {level: [T, N]} 1 where the central interval holds y.
        width_90: width of the 90 % interval.
        energy: [T], over the indicators that move.
        moving: bool [N], not constant in the container.
    """

    squared: Floats
    absolute: Floats
    crps: Floats
    inside: dict[float, Floats]
    width_90: Floats
    integral: Floats
    energy: Floats
    moving: Floats


def split_counts(num_rows: int) -> tuple[int, int, int]:
    """Numbers of train, validation and test rows.

    >>> split_counts(100)
    (70, 10, 20)
    """
    train, test = int(num_rows * 0.7), int(num_rows * 0.2)
    return train, num_rows - train - test, test


def scale(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Min-max scaling fitted on the train rows: scaled rows, minimum, spread (1 where constant)."""
    train = values[: split_counts(len(values))[0]]
    low, high = train.min(0), train.max(0)
    spread = np.where(high > low, high - low, 1.0)
    return (values - low) / spread, low, spread


def published_rows(num_test: int) -> int:
    """Number of the first test windows that the published table scored: whole batches of 32.

    >>> published_rows(100)
    96
    """
    return num_test // _BATCH * _BATCH


def score(case: FisherCase, forecast: FisherForecast) -> FisherScores:
    """All figures of the protocol, per cell."""
    y = case.scaled[case.test]
    truth = torch.from_numpy(y)
    sample = torch.from_numpy(forecast.samples).permute(0, 2, 1).to(torch.float64)  # [T, N, S]
    inside, width = (values.numpy().astype(float) for values in central_intervals(sample, truth))
    moving = case.scaled.std(0) > 0
    joint = torch.from_numpy(forecast.samples[..., moving])
    return FisherScores(
        squared=(forecast.point - y) ** 2,
        absolute=np.abs(forecast.point - y),
        crps=crps_of_paths(sample, truth).numpy(),
        inside={level: inside[..., k] for k, level in enumerate(COVERAGES)},
        width_90=width[..., COVERAGES.index(0.9)],
        integral=probability_integral(sample, truth).numpy(),
        energy=energy_score(joint, truth[:, torch.from_numpy(moving)]).numpy() / np.sqrt(max(1, moving.sum())),
        moving=moving,
    )


# Contestants of the Fisher protocol: points fitted on the train rows, laws from held-out residuals.


Point = Callable[[FisherCase, Rows], Floats]
Unit = Callable[[FisherCase, Rows], Floats]
_PENALTIES = (0.01, 1.0, 10.0, 100.0, 1e3, 1e4)
_EWMA_WEIGHTS = np.linspace(0.05, 1.0, 20)
_DAY_ROWS = 144
# The middle of each of 100 equal slices of probability.
FISHER_BASELINES_LEVELS = (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES


def last_point(case: FisherCase, targets: Rows) -> Floats:
    """The newest value, [T, N]."""
    return np.asarray(case.scaled[targets - 1])


def daily_point(case: FisherCase, targets: Rows) -> Floats:
    """The value one day before."""
    return np.asarray(case.scaled[targets - _DAY_ROWS])


def ewma_point(case: FisherCase, targets: Rows) -> Floats:
    """Exponential smoothing, its weight per indicator by the squared error on the train rows."""
    level = smoothed(case.scaled, _EWMA_WEIGHTS)  # [T, A, N]
    train = case.train
    error = ((level[train - 1] - case.scaled[train][:, None]) ** 2).mean(0)  # [A, N]
    best = np.argmin(error, axis=0)
    return np.asarray(np.take_along_axis(level[targets - 1], best[None, None], axis=1)[:, 0])


def ridge_point(case: FisherCase, targets: Rows) -> Floats:
    """Per indicator a ridge on the L values of the window less their mean; the penalty by validation error."""
    return np.stack([_ridge_column(case, targets, j) for j in range(case.scaled.shape[1])], axis=-1)


def _ridge_column(case: FisherCase, targets: Rows, j: int) -> Floats:
    x = case.scaled[:, j]

    def centred(rows: Rows) -> tuple[Floats, Floats]:
        window = x[rows[:, None] + np.arange(-case.length, 0)]
        mean = window.mean(1, keepdims=True)
        return window - mean, mean[:, 0]

    train, mean = centred(case.train)
    gram, cross = train.T @ train, train.T @ (x[case.train] - mean)
    # One decomposition serves all penalties.
    energy, directions = np.linalg.eigh(gram)
    validation, validation_mean = centred(case.validation)
    query, query_mean = centred(targets)
    best: tuple[float, Floats] | None = None
    for penalty in _PENALTIES:
        weights = directions @ ((directions.T @ cross) / (np.maximum(energy, 0) + penalty))
        error = float(np.square(validation @ weights + validation_mean - x[case.validation]).mean())
        if best is None or error < best[0]:
            best = error, query @ weights + query_mean
    assert best is not None
    return best[1]


def window_unit(case: FisherCase, targets: Rows) -> Floats:
    """Std of each input window, sqrt(variance + 1e-5), [T, N]."""
    spread = rolling_std(case.scaled, case.length)[targets - 1]
    return np.asarray(np.sqrt(spread**2 + 1e-5))


def recent_unit(case: FisherCase, targets: Rows) -> Floats:
    """Std of the last 36 rows, [T, N]."""
    spread = rolling_std(case.scaled, 36)[targets - 1]
    return np.asarray(np.sqrt(spread**2 + 1e-5))


def residual_ensemble(point: Point, unit: Unit | None = None) -> Callable[[FisherCase], FisherForecast]:
    """Point + quantiles of the validation residuals, divided and multiplied by a unit where one is given."""

    def forecast(case: FisherCase) -> FisherForecast:
        holdout = case.validation
        residual = case.scaled[holdout] - point(case, holdout)
        centre = point(case, case.test)
        if unit is None:
            samples = centre[:, None] + residual_quantiles(residual)[None]
        else:
            ratio = residual_quantiles(residual / unit(case, holdout))
            samples = centre[:, None] + ratio[None] * unit(case, case.test)[:, None]
        return FisherForecast(centre, joint(case, samples))

    return forecast


def climatology(case: FisherCase) -> FisherForecast:
    """The L values of the window as the law, their mean as the point."""
    window = case.windows(case.test)  # [T, L, N]
    samples = np.quantile(window, FISHER_BASELINES_LEVELS, axis=1).transpose(1, 0, 2)
    return FisherForecast(window.mean(1), joint(case, samples))


def point_only(point: Point) -> Callable[[FisherCase], FisherForecast]:
    """A contestant whose law is its point forecast: the CRPS is then the absolute error."""

    def forecast(case: FisherCase) -> FisherForecast:
        centre = point(case, case.test)
        return FisherForecast(centre, np.repeat(centre[:, None], NUM_SAMPLES, axis=1))

    return forecast


def residual_quantiles(residual: Floats) -> Floats:
    """Mid-quantiles per indicator, [S, N]."""
    return np.asarray(np.quantile(residual, FISHER_BASELINES_LEVELS, axis=0))


def joint(case: FisherCase, samples: Floats) -> Floats:
    """Sorted samples [T, S, N] in the order of the changes of the validation rows, which makes them joint.

    Source: M. Clark et al., "The Schaake shuffle", Journal of Hydrometeorology 2004.
    """
    holdout = case.validation
    rows = holdout[np.linspace(0, len(holdout) - 1, samples.shape[1]).astype(int)]
    change = case.scaled[rows] - case.scaled[rows - 1]  # [S, N]
    ranks = np.argsort(np.argsort(change, axis=0, kind="stable"), axis=0)
    return np.asarray(np.take_along_axis(np.sort(samples, axis=1), ranks[None], axis=1))


# Laws of the Fisher protocol: neighbours, atoms, the choice among laws, and their pool.
#
# Laws are fitted on the train rows. The validation rows choose among them per indicator, and weigh them in the pool.


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
    train_features, query = _features(case, train, fitted), _features(case, targets, points)  # [R, N, F]
    out = np.empty((len(targets), NUM_SAMPLES, points.shape[1]))
    for j in range(points.shape[1]):
        spread = train_features[:, j].std(0) + 1e-9
        a, b = train_features[:, j] / spread, query[:, j] / spread
        distance = (b**2).sum(1)[:, None] + (a**2).sum(1)[None] - 2 * b @ a.T
        near = np.argpartition(distance, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
        quantiles = np.quantile(ratio[near, j], FISHER_BASELINES_LEVELS, axis=1).T  # [T, S]
        out[:, :, j] = points[:, None, j] + quantiles * unit[:, None, j]
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
                atom_counts = counts[len(share)]
                share = _RANK_SHARE * atom_counts / atom_counts.sum() + (1 - _RANK_SHARE) * share
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
    cache: dict[str, Floats] = case.scratch
    if key not in cache:
        points = ridge_point(case, targets)
        cache[key] = np.stack([np.sort(law(case, targets, points), axis=1) for law in LAWS.values()])
    return cache[key]


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
