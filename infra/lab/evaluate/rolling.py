"""`harmony evaluate --protocol rolling`: asks the contestants, scores them, and says it as rows of the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from infra.lab.evaluate.models import RollingContestant
from model.evaluation.bootstrap import pooled_interval, relative_interval
from model.evaluation.contestants import seasonal_naive
from model.evaluation.dataset import Task, Track
from model.evaluation.external import STATISTICAL_MODELS, subset_horizon, subset_origins
from model.evaluation.rolling import Round
from model.evaluation.rolling_scores import (
    RATIOS,
    Cells,
    Pair,
    by_indicator,
    headline,
    join_cells,
    relative,
    score_round,
    task_metric,
)

REFERENCE = "snaive"
_SUBSET_ITEMS = 5


@dataclass(slots=True)
class RollingRun:
    """What was measured.

    Attributes:
        cells: per contestant and pair. The reference has an entry for every pair.
        subset_reference: the reference on the reduced origins of the slow contestants.
        seconds: spent by each contestant on each pair, members of averages counted where they were first asked.
    """

    cells: dict[str, dict[Pair, Cells]] = field(default_factory=dict)
    subset_reference: dict[Pair, Cells] = field(default_factory=dict)
    seconds: dict[str, dict[Pair, float]] = field(default_factory=dict)
    indicators: dict[Pair, tuple[str, ...]] = field(default_factory=dict)
    context: dict[Pair, int] = field(default_factory=dict)


def run_rolling(
    tasks: Sequence[Task],
    contestants: dict[str, RollingContestant],
    names: Sequence[str],
    *,
    track: Track,
    limit: int | None,
    horizons: Sequence[int] | None,
    progress: Callable[[str], None],
) -> RollingRun:
    """Forecast and score all pairs.

    Args:
        limit: most origins per item, and items per task, for a quick look.
        horizons: prediction lengths to keep; all of the tasks' by default.
    """
    run = RollingRun()
    asked_for = [REFERENCE, *(name for name in names if name != REFERENCE)]
    known: dict[str, RollingContestant] = {**contestants, REFERENCE: seasonal_naive}
    for task in tasks:
        for horizon in task.prediction_lengths:
            if horizons is not None and horizon not in horizons:
                continue
            _run_pair(run, task, horizon, known, asked_for, track, limit, progress)
    return run


def _run_pair(
    run: RollingRun,
    task: Task,
    horizon: int,
    contestants: dict[str, RollingContestant],
    names: Sequence[str],
    track: Track,
    limit: int | None,
    progress: Callable[[str], None],
) -> None:
    pair: Pair = (task.name, horizon)
    parts: dict[str, list[Cells]] = {name: [] for name in [*names, "subset"]}
    spent = dict.fromkeys(names, 0.0)
    items = task.items if limit is None else task.items[:limit]
    for number, item in enumerate(items):
        asked = Round(task, item, horizon, track, contestants, max_origins=limit)
        if len(asked.origins) == 0:
            continue
        slow: Round | None = None
        if horizon == subset_horizon(task) and number < _SUBSET_ITEMS:
            slow = Round(task, item, horizon, track, contestants, max_origins=limit)
            slow.origins = subset_origins(slow.origins, len(items))
        for name in names:
            about = slow if name in STATISTICAL_MODELS else asked
            if about is None:
                continue
            progress(f"{task.name}, {horizon} steps, {item.item_id}: {name}")
            started = time.perf_counter()
            paths = about.ask(name)
            spent[name] += time.perf_counter() - started
            parts[name].append(score_round(about, paths, number))
        if slow is not None and any(name in STATISTICAL_MODELS for name in names):
            parts["subset"].append(score_round(slow, slow.ask(REFERENCE), number))
    for name in names:
        if parts[name]:
            run.cells.setdefault(name, {})[pair] = join_cells(parts[name])
            run.seconds.setdefault(name, {})[pair] = spent[name]
    if parts["subset"]:
        run.subset_reference[pair] = join_cells(parts["subset"])
    run.indicators[pair] = task.names
    run.context[pair] = task.context_length


def reference_of(run: RollingRun, name: str) -> dict[Pair, Cells]:
    """The seasonal naive on the origins that the contestant was asked."""
    return run.subset_reference if name in STATISTICAL_MODELS else run.cells[REFERENCE]


def result_rows(run: RollingRun, names: Sequence[str], *, draws: int, seed: int) -> list[dict[str, Any]]:
    """One row per task, prediction length and contestant."""
    rows = []
    for name in names:
        reference = reference_of(run, name)
        for pair, cells in run.cells.get(name, {}).items():
            low, high = relative_interval(cells, reference[pair], "wql", draws=draws, seed=seed)
            per = {metric: by_indicator(cells, metric) for metric in ("wql", "crps", "coverage9", "exceed95")}
            rows.append(
                {
                    "series": pair[0],
                    "model": name,
                    "input_length": run.context[pair],
                    "prediction_length": pair[1],
                    "mse": task_metric(cells, "mse"),
                    "mae": task_metric(cells, "mae"),
                    "crps": task_metric(cells, "crps"),
                    "coverage_50": task_metric(cells, "coverage5"),
                    "coverage_80": task_metric(cells, "coverage8"),
                    "coverage_90": task_metric(cells, "coverage9"),
                    "coverage_98": task_metric(cells, "coverage98"),
                    "width_90": task_metric(cells, "width90"),
                    "energy_score": task_metric(cells, "energy"),
                    "wql": task_metric(cells, "wql"),
                    "mase": task_metric(cells, "mase"),
                    "peak_pinball_95": task_metric(cells, "peak95"),
                    "peak_exceedance_95": task_metric(cells, "exceed95"),
                    "relative": {metric: relative(cells, reference[pair], metric) for metric in RATIOS},
                    "relative_wql_interval_90": [low, high],
                    "num_origins": cells.num_origins,
                    "fit_seconds": round(run.seconds[name][pair], 3),
                    "per_indicator": {
                        indicator: {metric: float(values[k]) for metric, values in per.items()}
                        for k, indicator in enumerate(run.indicators[pair])
                    },
                    "skill_by_step": [1 - relative(cells, reference[pair], "wql", step=h) for h in range(pair[1])],
                }
            )
    return rows


def summary_rows(run: RollingRun, names: Sequence[str], *, draws: int, seed: int) -> list[dict[str, Any]]:
    """One row per contestant over all pairs."""
    rows = []
    for name in names:
        cells, reference = run.cells.get(name, {}), reference_of(run, name)
        if not cells:
            continue
        line = headline(cells, reference)
        low, high = pooled_interval(cells, reference, "wql", draws=draws, seed=seed)
        rows.append(
            {
                "model": name,
                "relative": line.ratios,
                "relative_wql_interval_90": [low, high],
                "coverage_90": line.coverage_90,
                "coverage_90_error": line.coverage_error,
                "peak_exceedance_95": line.exceedance,
                "worst_peak_exceedance_95": line.worst_exceedance,
                "pairs": line.num_pairs,
                "pairs_forecast": line.num_forecast,
                "conditional_coverage_90": conditional_coverage(list(cells.values())),
                "fit_seconds": round(sum(run.seconds[name].values()), 3),
            }
        )
    return rows


def conditional_coverage(cells: Sequence[Cells]) -> dict[str, Any]:
    """Coverage of the 90 % interval by decile of the load at the origin, and by its ramp, every pair alike."""
    deciles, ramps = np.full((len(cells), 10), np.nan), np.full((len(cells), 3), np.nan)
    for k, part in enumerate(cells):
        inside = part.inside[2]  # [R, H, N]
        decile = np.minimum((part.load * 10).astype(int), 9)
        ramp = np.digitize(np.nan_to_num(part.ramp), [-0.5, 0.5])
        for out, group in ((deciles, decile), (ramps, ramp)):
            for value in range(out.shape[1]):
                chosen = inside.transpose(0, 2, 1)[group == value]
                if np.isfinite(chosen).any():
                    out[k, value] = np.nanmean(chosen)

    def means(values: np.ndarray[Any, Any]) -> list[float | None]:
        return [float(np.nanmean(c)) if np.isfinite(c).any() else None for c in values.T]

    return {
        "load_decile": means(deciles),
        "ramp": dict(zip(("falling", "steady", "rising"), means(ramps), strict=True)),
    }
