"""Scores of the rolling protocol per cell, from which every table and interval is computed.

Letters of shapes: R origins, H steps, N indicators, C coverage levels, K peak levels, O origins of one item, S paths.
Source of the scaled errors: R. Hyndman, A. Koehler, "Another look at measures of forecast accuracy", International
Journal of Forecasting 2006.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from model.contract import quantiles_of_paths
from model.evaluation.rolling import Floats, Paths, RollingCase, item_scales
from model.evaluation.scores import (
    COVERAGES,
    central_intervals,
    crps_of_paths,
    energy_score,
    pinball,
    probability_integral,
)

WQL_LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
PEAK_LEVELS = (0.9, 0.95, 0.99)
_ENERGY_PATHS = 100


@dataclass(frozen=True, slots=True)
class Cells:
    """Scores of one contestant on one (task, H). R rows are the origins of all items; NaN marks what is not scored.

    Attributes:
        item: [R] number of the item.
        wql: [R, H, N] mean over the levels of 2 rho_q(y, f_q), in WQL units.
        magnitude: [R, H, N] |y| in the same units.
        crps: [R, H, N], divided by the item's std.
        error: [R, H, N] |y - median| divided by the item's mean seasonal difference.
        absolute, squared: [R, H, N] error of the median and squared error of the mean, divided by the std (squared).
        inside: [C, R, H, N] 1 where the central interval holds y.
        width: [R, H, N] of the 90 % interval, divided by the std.
        integral: [R, H, N] probability integral.
        energy: [R].
        peak: [K, R, N] 2 rho_q of the peak divided by the std.
        exceeded: [K, R, N] 1 where the peak lies above its quantile.
        load: [R, N] rank of the newest value within the item, 0..1.
        ramp: [R, N] move over the last max(1, H // 2) rows, divided by the std.
    """

    item: NDArray[np.int64]
    wql: Floats
    magnitude: Floats
    crps: Floats
    error: Floats
    absolute: Floats
    squared: Floats
    inside: Floats
    width: Floats
    integral: Floats
    energy: Floats
    peak: Floats
    exceeded: Floats
    load: Floats
    ramp: Floats

    @property
    def num_origins(self) -> int:
        return len(self.item)


def score_case(case: RollingCase, paths: Paths, item: int) -> Cells:
    """Score the joint paths [O, S, H, N] of one item."""
    season = case.season
    std, difference, magnitude = item_scales(case.item.values, season)
    y = case.targets()
    scored = np.isfinite(y) & np.isfinite(std)
    truth = torch.from_numpy(np.where(scored, y, 0.0))
    sample = torch.from_numpy(paths).to(torch.float64).permute(0, 2, 3, 1).contiguous()  # [O, H, N, S]
    ordered = sample.sort(dim=-1).values
    levels = torch.tensor(WQL_LEVELS, dtype=torch.float64)
    quantiles = quantiles_of_paths(ordered, levels)
    unit = np.where(magnitude > 0, magnitude, 1.0) if case.task.mixed_units else np.ones_like(magnitude)
    inside, width = central_intervals(ordered, truth)

    def cells(values: torch.Tensor | Floats, per: Floats | float = 1.0) -> Floats:
        return np.where(scored, np.asarray(values) / per, np.nan)

    peak, exceeded = _peaks(paths, y, scored, std)
    rows = case.filled[case.origins]
    past = case.filled[np.maximum(case.origins - max(1, case.horizon // 2), 0)]
    below = np.stack([(case.filled < row).mean(0) for row in rows])
    median = quantiles[..., len(WQL_LEVELS) // 2]
    return Cells(
        item=np.full(len(case.origins), item, dtype=np.int64),
        wql=cells((2 * pinball(quantiles, levels, truth)).mean(-1), unit),
        magnitude=cells(truth.abs(), unit),
        crps=cells(crps_of_paths(ordered, truth), std),
        error=cells((truth - median).abs(), np.where(difference > 0, difference, np.nan)),
        absolute=cells((truth - median).abs(), std),
        squared=cells((truth - sample.mean(-1)).square(), std**2),
        inside=np.stack([cells(inside[..., c].to(torch.float64)) for c in range(len(COVERAGES))]),
        width=cells(width[..., COVERAGES.index(0.9)], std),
        integral=cells(probability_integral(ordered, truth)),
        energy=_energy(paths, y, scored, std),
        peak=peak,
        exceeded=exceeded,
        load=below,
        ramp=(rows - past) / std,
    )


def join_cells(parts: Sequence[Cells]) -> Cells:
    """All origins of all items."""
    axis = {"inside": 1, "peak": 1, "exceeded": 1}
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=axis.get(field.name, 0))
        for field in fields(Cells)
    }
    return Cells(**joined)


def _energy(paths: Paths, y: Floats, scored: NDArray[np.bool_], std: Floats) -> Floats:
    """Energy score of each origin over its observed steps and indicators, in units of their std."""
    out = np.full(len(y), np.nan)
    safe = np.where(np.isfinite(std), std, 1.0)
    for k in range(len(y)):
        chosen = scored[k].ravel()
        if chosen.any():
            x = (paths[k, :_ENERGY_PATHS] / safe).reshape(min(len(paths[k]), _ENERGY_PATHS), -1)[:, chosen]
            truth = (y[k] / safe).ravel()[chosen]
            score = energy_score(torch.from_numpy(x), torch.from_numpy(truth))
            out[k] = float(score) / np.sqrt(chosen.sum())
    return out


def _peaks(paths: Paths, y: Floats, scored: NDArray[np.bool_], std: Floats) -> tuple[Floats, Floats]:
    """Pinball loss and exceedance of the peak over the observed steps, [K, O, N] each."""
    some: NDArray[np.bool_] = np.asarray(scored.any(axis=1))  # [O, N]
    outcome = np.where(some, np.where(scored, y, -np.inf).max(1), 0.0)
    highest = np.where(scored[:, None], paths, -np.inf).max(2)  # [O, S, N]
    highest = np.where(some[:, None], highest, 0.0)
    levels = torch.tensor(PEAK_LEVELS, dtype=torch.float64)
    quantiles = quantiles_of_paths(torch.from_numpy(highest).to(torch.float64).permute(0, 2, 1), levels)
    loss = 2 * pinball(quantiles, levels, torch.from_numpy(outcome)).numpy() / std[:, None]
    above = (outcome[..., None] > quantiles.numpy()).astype(np.float64)
    missing = ~some[..., None]
    loss[missing.repeat(len(PEAK_LEVELS), -1)] = np.nan
    above[missing.repeat(len(PEAK_LEVELS), -1)] = np.nan
    return loss.transpose(2, 0, 1), above.transpose(2, 0, 1)


# Figures of the rolling protocol: per task and prediction length, relative to a reference, and over all pairs.


RATIO_LIMITS = (0.01, 100.0)
RATIOS = ("wql", "mase", "crps", "energy", "peak95")
Pair = tuple[str, int]  # task, prediction length


def by_indicator(cells: Cells, metric: str, rows: NDArray[np.int64] | None = None) -> Floats:
    """A metric per indicator, [N] ([1] for the energy score, which is joint); NaN for an indicator not scored.

    Args:
        rows: the origins to count, with repetitions; all of them by default.
    """
    take = np.arange(cells.num_origins) if rows is None else rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an indicator that is nowhere scored has no mean
        if metric == "wql":
            return np.asarray(np.nansum(cells.wql[take], (0, 1)) / np.nansum(cells.magnitude[take], (0, 1)))
        if metric == "energy":
            return np.atleast_1d(np.nanmean(cells.energy[take]))
        if metric.startswith("peak"):
            return np.asarray(np.nanmean(cells.peak[PEAK_LEVELS.index(float(f"0.{metric[4:]}")), take], 0))
        if metric.startswith("exceed"):
            return np.asarray(np.nanmean(cells.exceeded[PEAK_LEVELS.index(float(f"0.{metric[6:]}")), take], 0))
        if metric.startswith("coverage"):
            return np.asarray(np.nanmean(cells.inside[COVERAGES.index(float(f"0.{metric[8:]}")), take], (0, 1)))
        name = {"mase": "error", "mae": "absolute", "mse": "squared", "width90": "width"}.get(metric, metric)
        return np.asarray(np.nanmean(getattr(cells, name)[take], (0, 1)))


def task_metric(cells: Cells, metric: str) -> float:
    """Mean over the scored indicators."""
    values = by_indicator(cells, metric)
    return float(values[np.isfinite(values)].mean()) if np.isfinite(values).any() else float("nan")


def relative(
    cells: Cells, reference: Cells, metric: str, rows: NDArray[np.int64] | None = None, step: int | None = None
) -> float:
    """Geometric mean over indicators of metric(contestant) / metric(reference), clipped to [.01, 100].

    Args:
        rows: origins to count, the same for both.
        step: one step ahead (0-based) instead of all; WQL only.
    """
    if step is None:
        own, other = by_indicator(cells, metric, rows), by_indicator(reference, metric, rows)
    else:
        own, other = (np.nansum(c.wql[:, step], 0) for c in (cells, reference))
    scored = np.isfinite(own) & np.isfinite(other) & ((own > 0) | (other > 0))
    if not scored.any():
        return 1.0
    with np.errstate(divide="ignore"):
        ratio = np.clip(own[scored] / other[scored], *RATIO_LIMITS)
    return float(np.exp(np.log(ratio).mean()))


@dataclass(frozen=True, slots=True)
class Headline:
    """One contestant over all pairs.

    Attributes:
        ratios: per metric the geometric mean of the relative metric over the pairs; a pair not forecast counts as 1.
        coverage_error: mean |coverage of the 90 % interval - .9| over the pairs that were forecast.
        coverage_90: its mean.
        exceedance: mean exceedance of the .95 quantile of the peak; `worst_exceedance` among pairs of >= 100 origins.
        num_pairs, num_forecast: pairs counted, pairs forecast.
    """

    ratios: dict[str, float]
    coverage_error: float
    coverage_90: float
    exceedance: float
    worst_exceedance: float
    num_pairs: int
    num_forecast: int


def headline(cells: Mapping[Pair, Cells], reference: Mapping[Pair, Cells]) -> Headline:
    """Summary of a contestant against the reference over the reference's pairs."""
    forecast = [pair for pair in reference if pair in cells]
    ratios = {
        metric: float(
            np.exp(sum(np.log(relative(cells[pair], reference[pair], metric)) for pair in forecast) / len(reference))
        )
        for metric in RATIOS
    }
    coverages = np.array([task_metric(cells[pair], "coverage9") for pair in forecast])
    exceed = np.array([task_metric(cells[pair], "exceed95") for pair in forecast])
    large = [value for pair, value in zip(forecast, exceed, strict=True) if cells[pair].num_origins >= 100]
    return Headline(
        ratios=ratios,
        coverage_error=float(np.nanmean(np.abs(coverages - 0.9))) if forecast else float("nan"),
        coverage_90=float(np.nanmean(coverages)) if forecast else float("nan"),
        exceedance=float(np.nanmean(exceed)) if forecast else float("nan"),
        worst_exceedance=max(large, default=float("nan")),
        num_pairs=len(reference),
        num_forecast=len(forecast),
    )


# Bootstrap intervals of the figures: origins resampled in blocks within items, tasks for figures over all pairs.
#
# The moving-block bootstrap with percentile intervals. Source: H. Künsch, "The jackknife and the bootstrap for general
# stationary observations", Annals of Statistics 1989.


_BLOCK = 5  # neighbouring origins overlap in their targets; a block keeps them together


def resampled_rows(item: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Origins drawn with repetition: items first, then blocks of neighbouring origins in each.

    Args:
        item: [R] number of the item of each origin, the origins of an item in order.
    """
    items = np.unique(item)
    sample = items if len(items) == 1 else rng.choice(items, len(items))
    parts = []
    for number in sample:
        rows = np.flatnonzero(item == number)
        block = min(_BLOCK, len(rows))
        starts = rng.integers(0, len(rows) - block + 1, -(-len(rows) // block))
        parts.append(rows[(starts[:, None] + np.arange(block)).ravel()[: len(rows)]])
    return np.concatenate(parts)


def relative_interval(
    cells: Cells, reference: Cells, metric: str, *, draws: int, seed: int, level: float = 0.9
) -> tuple[float, float]:
    """Percentile interval of a relative metric on one pair; contestant and reference share the draws."""
    values = _draws(cells, reference, metric, draws, np.random.default_rng(seed))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def pooled_interval(
    cells: Mapping[Pair, Cells],
    reference: Mapping[Pair, Cells],
    metric: str,
    *,
    draws: int,
    seed: int,
    level: float = 0.9,
) -> tuple[float, float]:
    """Interval of the geometric mean over all pairs: tasks are resampled with all their pairs, origins within them."""
    rng = np.random.default_rng(seed)
    tasks = sorted({task for task, _ in reference})
    logs: dict[str, NDArray[np.float64]] = {}
    counts = {task: sum(pair[0] == task for pair in reference) for task in tasks}
    for task in tasks:
        total = np.zeros(draws)
        for pair in reference:
            if pair[0] == task and pair in cells:
                total += np.log(_draws(cells[pair], reference[pair], metric, draws, rng))
        logs[task] = total
    means = np.empty(draws)
    for k in range(draws):
        sample = rng.choice(len(tasks), len(tasks))
        means[k] = sum(logs[tasks[t]][k] for t in sample) / sum(counts[tasks[t]] for t in sample)
    low, high = np.exp(np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    return float(low), float(high)


def mean_interval(values: NDArray[np.float64], *, draws: int, seed: int, level: float = 0.9) -> tuple[float, float]:
    """Percentile interval of the mean of a few figures, such as one per container."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _draws(cells: Cells, reference: Cells, metric: str, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.array([relative(cells, reference, metric, resampled_rows(reference.item, rng)) for _ in range(draws)])
