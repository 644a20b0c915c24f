"""Figures of the rolling protocol read off the cells: per task and prediction length, ratios, and over all pairs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.evaluation.dataset import Floats
from model.evaluation.rolling_scores import PEAK_LEVELS, Cells
from model.evaluation.scores import COVERAGES

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
