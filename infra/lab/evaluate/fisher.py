"""`harmony evaluate --protocol fisher`: asks the contestants, scores them, and says it as rows of the report."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infra.console.errors import HarmonyError
from infra.console.progress import ReportProgress
from infra.lab.evaluate.models import FisherContestant
from infra.lab.series import Table, read_series
from model.evaluation.fisher import PUBLISHED, FisherCase, FisherScores, published_rows, scale, score
from model.evaluation.rolling_scores import mean_interval

LOAD = "load"


@dataclass(slots=True)
class FisherRun:
    """Scores per contestant, container and input length."""

    scores: dict[tuple[str, str, int], FisherScores] = field(default_factory=dict)
    seconds: dict[tuple[str, str, int], float] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)


def run_fisher(
    containers: Sequence[tuple[str, Table]],
    contestants: dict[str, FisherContestant],
    names: Sequence[str],
    *,
    lengths: Sequence[int],
    limit: int | None,
    progress: ReportProgress,
) -> FisherRun:
    """Forecast and score every container; `limit` keeps the first test windows of each."""
    run = FisherRun()
    for length in lengths:
        fleet: list[FisherCase] = []
        for container, table in containers:
            scaled, low, spread = scale(table.values)
            settings = (table.indicators, table.start_ts_ms, length, contestants, limit)
            fleet.append(FisherCase(container, scaled, low, spread, *settings, fleet=fleet))
            run.names[container] = table.indicators
        for case in fleet:
            for name in names:
                part = (lengths.index(length), fleet.index(case), names.index(name))
                done = ((part[0] * len(fleet) + part[1]) * len(names) + part[2]) / (
                    len(lengths) * len(fleet) * len(names)
                )
                progress(f"{case.name}, {length} rows: {name}", done)
                started = time.perf_counter()
                forecast = case.forecast_of(name)
                key = (name, case.name, length)
                run.seconds[key] = time.perf_counter() - started
                run.scores[key] = score(case, forecast)
    return run


def result_rows(run: FisherRun) -> list[dict[str, Any]]:
    """One row per container, input length and contestant."""
    rows = []
    for (name, container, length), scores in run.scores.items():
        num_published = published_rows(len(scores.crps))
        rows.append(
            {
                "series": container,
                "model": name,
                "input_length": length,
                "prediction_length": 1,
                "mse": float(scores.squared.mean()),
                "mae": float(scores.absolute.mean()),
                "crps": float(scores.crps.mean()),
                "coverage_50": _coverage(scores, 0.5),
                "coverage_80": _coverage(scores, 0.8),
                "coverage_90": _coverage(scores, 0.9),
                "coverage_98": _coverage(scores, 0.98),
                "width_90": float(scores.width_90[:, scores.moving].mean()),
                "energy_score": float(scores.energy.mean()),
                "mse_published_rows": float(scores.squared[:num_published].mean()) if num_published else None,
                "crps_published_rows": float(scores.crps[:num_published].mean()) if num_published else None,
                "num_windows": len(scores.crps),
                "fit_seconds": round(run.seconds[name, container, length], 3),
                "per_indicator": {
                    indicator: {
                        "mse": float(scores.squared[:, k].mean()),
                        "mae": float(scores.absolute[:, k].mean()),
                        "crps": float(scores.crps[:, k].mean()),
                        "coverage_90": float(scores.inside[0.9][:, k].mean()),
                    }
                    for k, indicator in enumerate(run.names[container])
                },
            }
        )
    return rows


def summary_rows(rows: Sequence[dict[str, Any]], *, draws: int, seed: int) -> list[dict[str, Any]]:
    """One row per contestant and input length: the mean over containers, with an interval over them."""
    summary = []
    for name, length in dict.fromkeys((row["model"], row["input_length"]) for row in rows):
        of = [row for row in rows if (row["model"], row["input_length"]) == (name, length)]
        crps = np.array([row["crps"] for row in of])
        low, high = mean_interval(crps, draws=draws, seed=seed)
        mean: dict[str, Any] = {
            key: _mean([row[key] for row in of])
            for key in (
                "mse", "mae", "crps", "coverage_50", "coverage_80", "coverage_90", "coverage_98", "width_90",
                "energy_score", "mse_published_rows", "crps_published_rows",
            )
        }  # fmt: skip
        load = [row["per_indicator"][LOAD] for row in of if LOAD in row["per_indicator"]]
        mean |= {
            "model": name,
            "input_length": length,
            "crps_interval_90": [low, high],
            "load_mse": _mean([cell["mse"] for cell in load]),
            "load_crps": _mean([cell["crps"] for cell in load]),
            "published_mse": PUBLISHED.get(length, (None, None))[0],
            "published_crps": PUBLISHED.get(length, (None, None))[1],
            "containers": len(of),
            "fit_seconds": round(sum(row["fit_seconds"] for row in of), 3),
        }
        summary.append(mean)
    return summary


def _coverage(scores: FisherScores, level: float) -> float:
    return float(scores.inside[level][:, scores.moving].mean())


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


# Reading the Fisher containers: `container*.csv[.gz]`, a date and eleven indicators.


def read_containers(dataset: Path, names: Iterable[str] | None = None) -> list[tuple[str, Table]]:
    """Name and table of each container, in the order of their numbers.

    Raises:
        HarmonyError: no such folder or container, or a container with gaps.
    """
    if not dataset.is_dir():
        raise HarmonyError(f"--dataset: there is no directory {dataset}.", 2)
    paths = {path.name.split(".")[0]: path for path in dataset.glob("container*.csv*")}
    if not paths:
        raise HarmonyError(f"{dataset} holds no container*.csv or container*.csv.gz.", 2)
    ordered = sorted(paths, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    selection = ordered if names is None else list(names)
    missing = [name for name in selection if name not in paths]
    if missing:
        raise HarmonyError(f"--tasks: {dataset} has no {', '.join(missing)}; it has {', '.join(ordered)}.", 2)
    tables = []
    for name in selection:
        table = read_series(paths[name])[0]
        if not np.isfinite(table.values).all():
            raise HarmonyError(f"{paths[name]}: has gaps; the Fisher protocol knows none.", 2)
        tables.append((name, table))
    return tables
