"""`harmony evaluate --protocol rolling`: asks the contestants, scores them, and says it as rows of the report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infra.console.errors import HarmonyError
from infra.console.progress import ReportProgress
from infra.lab.evaluate.models import RollingContestant
from infra.lab.series import Table, read_series
from model.evaluation.contestants import seasonal_naive
from model.evaluation.external import STATISTICAL_MODELS, subset_horizon, subset_origins
from model.evaluation.rolling import Indicator, RollingCase, SeriesItem, Task, Track, split_rows, without_test_rows
from model.evaluation.rolling_scores import (
    RATIOS,
    Cells,
    Pair,
    by_indicator,
    headline,
    join_cells,
    pooled_interval,
    relative,
    relative_interval,
    score_case,
    task_metric,
)

REFERENCE = "snaive"
_MAX_SUBSET_ITEMS = 5


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
    progress: ReportProgress,
) -> RollingRun:
    """Forecast and score all pairs.

    Args:
        limit: most origins per item, and items per task, for a quick look.
        horizons: prediction lengths to keep; all of the tasks' by default.
    """
    run = RollingRun()
    ordered_names = [REFERENCE, *(name for name in names if name != REFERENCE)]
    all_contestants: dict[str, RollingContestant] = {**contestants, REFERENCE: seasonal_naive}
    pairs = [(t, h) for t in tasks for h in t.prediction_lengths if horizons is None or h in horizons]
    for number, (task, horizon) in enumerate(pairs):
        _run_pair(
            run, task, horizon, all_contestants, ordered_names, track, limit,
            lambda text, done=None, first=number: progress(text, (first + (done or 0.0)) / len(pairs)),
        )  # fmt: skip
    return run


def _run_pair(
    run: RollingRun,
    task: Task,
    horizon: int,
    contestants: dict[str, RollingContestant],
    names: Sequence[str],
    track: Track,
    limit: int | None,
    progress: ReportProgress,
) -> None:
    pair: Pair = (task.name, horizon)
    parts: dict[str, list[Cells]] = {name: [] for name in [*names, "subset"]}
    seconds = dict.fromkeys(names, 0.0)
    items = task.items if limit is None else task.items[:limit]
    for number, item in enumerate(items):
        case = RollingCase(task, item, horizon, track, contestants, max_origins=limit)
        if len(case.origins) == 0:
            continue
        slow: RollingCase | None = None
        if horizon == subset_horizon(task) and number < _MAX_SUBSET_ITEMS:
            slow = RollingCase(task, item, horizon, track, contestants, max_origins=limit)
            slow.origins = subset_origins(slow.origins, len(items))
        for name in names:
            about = slow if name in STATISTICAL_MODELS else case
            if about is None:
                continue
            done = (number + names.index(name) / len(names)) / len(items)
            progress(f"{task.name}, {horizon} steps, {item.item_id}: {name}", done)
            started = time.perf_counter()
            paths = about.forecast_of(name)
            seconds[name] += time.perf_counter() - started
            parts[name].append(score_case(about, paths, number))
        if slow is not None and any(name in STATISTICAL_MODELS for name in names):
            parts["subset"].append(score_case(slow, slow.forecast_of(REFERENCE), number))
    for name in names:
        if parts[name]:
            run.cells.setdefault(name, {})[pair] = join_cells(parts[name])
            run.seconds.setdefault(name, {})[pair] = seconds[name]
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


# Reading task folders of the rolling protocol: `task.json` and `data.csv[.gz]`.


PARTS = ("test", "validation")


def check_part(part: str) -> None:
    """Before anything is read or trained.

    Raises:
        HarmonyError: the rows to score are neither the test nor the validation rows.
    """
    if part not in PARTS:
        raise HarmonyError(f"--part: {part!r} is neither {' nor '.join(PARTS)}.", 2)


def read_tasks(dataset: Path, names: Iterable[str] | None = None, part: str = "test") -> list[Task]:
    """The task folders in `dataset` (or `dataset` itself), sorted by name.

    Args:
        part: of the rows that are scored; with "validation" the test rows are left out altogether.

    Raises:
        HarmonyError: no such folder or task, or a file that cannot be understood.
    """
    if (dataset / "task.json").is_file():
        folders = {dataset.name: dataset}
    elif dataset.is_dir():
        folders = {path.parent.name: path.parent for path in sorted(dataset.glob("*/task.json"))}
    else:
        raise HarmonyError(f"--dataset: there is no directory {dataset}.", 2)
    if not folders:
        raise HarmonyError(f"{dataset} holds no task: a task is a folder with task.json and data.csv[.gz].", 2)
    selection = list(folders) if names is None else list(names)
    unknown = [name for name in selection if name not in folders]
    if unknown:
        raise HarmonyError(f"--tasks: {dataset} has no {', '.join(unknown)}; it has {', '.join(folders)}.", 2)
    tasks = [_read_task(folders[name]) for name in selection]
    return [without_test_rows(task) for task in tasks] if part == "validation" else tasks


def _read_task(folder: Path) -> Task:
    where = folder / "task.json"
    try:
        spec = json.loads(where.read_text(encoding="utf-8"))
        return _task(folder, spec)
    except OSError as error:
        raise HarmonyError(f"{where}: cannot be read ({error.strerror}); check the path.", 2) from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise HarmonyError(f"{where}: is not JSON ({error}); correct the file.", 2) from error
    except (KeyError, TypeError, ValueError) as error:
        raise HarmonyError(
            f"{where}: {error!r} is missing or wrong; see docs/evaluation.md for the format.", 2
        ) from error


def _task(folder: Path, spec: dict[str, Any]) -> Task:
    indicators = tuple(
        Indicator(
            name=row["name"],
            unit=row.get("unit", ""),
            level=int(row.get("level", 1)),
            lower=float("-inf") if row.get("lower") is None else float(row["lower"]),
            upper=float("inf") if row.get("upper") is None else float(row["upper"]),
        )
        for row in spec["indicators"]
    )
    data = next((folder / name for name in ("data.csv.gz", "data.csv") if (folder / name).is_file()), None)
    if data is None:
        raise HarmonyError(f"{folder} has a task.json, but no data.csv or data.csv.gz beside it.", 2)
    names = {indicator.name for indicator in indicators}
    series = read_series(data, step_ms=round(1000 * spec["step_s"]), indicators=names)
    tables = {table.item_id: table for table in series}
    lengths = tuple(int(h) for h in spec["prediction_lengths"])
    items = []
    for item_id, row in spec["items"].items():
        table = tables.get(item_id) or (next(iter(tables.values())) if len(tables) == len(spec["items"]) == 1 else None)
        if table is None:
            raise HarmonyError(f"{data}: has no item {item_id!r}, which task.json names.", 2)
        items.append(_item(item_id, row, table, indicators, spec, data))
    return Task(
        name=folder.name,
        step_s=float(spec["step_s"]),
        indicators=indicators,
        prediction_lengths=lengths,
        context_length=int(spec["context_length"]),
        season_lengths=tuple(int(m) for m in spec.get("season_lengths", ())),
        max_origins=int(spec.get("max_origins_per_item", 1 << 30)),
        mixed_units=bool(spec.get("mixed_units", False)),
        items=tuple(items),
    )


def _item(
    item_id: str, row: dict[str, Any], table: Table, indicators: tuple[Indicator, ...], spec: dict[str, Any], data: Path
) -> SeriesItem:
    missing = [indicator.name for indicator in indicators if indicator.name not in table.indicators]
    if missing:
        raise HarmonyError(f"{data}: has no column {', '.join(missing)}, which task.json names.", 2)
    order = [table.indicators.index(indicator.name) for indicator in indicators]
    longest = max(int(h) for h in spec["prediction_lengths"])
    train_end, test_start, zero_start = split_rows(
        len(table.values), int(spec["context_length"]), longest, row.get("test_start")
    )
    return SeriesItem(
        item_id=item_id,
        start_ts_ms=table.start_ts_ms,
        values=table.values[:, order],
        train_end=int(row.get("train_end", train_end)),
        test_start=test_start,
        zero_start=int(row.get("zero_start", zero_start)),
    )


_SEASONS_S = (3_600, 86_400, 604_800)  # an hour, a day, a week


def task_of_tables(
    name: str, tables: Sequence[Table], horizon: int, context_length: int, max_origins: int, lower: Sequence[float]
) -> Task:
    """A task of tables that share indicators and step, with the split that task folders have by default.

    Args:
        horizon: prediction length, steps.
        context_length: most rows that a forecaster reads before an origin.
        max_origins: most origins per table.
        lower: bound of each indicator.
    """
    first = tables[0]
    step_s = first.step_ms / 1000
    items = []
    for table in tables:
        train_end, test_start, zero_start = split_rows(len(table.values), context_length, horizon)
        items.append(SeriesItem(table.item_id, table.start_ts_ms, table.values, train_end, test_start, zero_start))
    return Task(
        name=name,
        step_s=step_s,
        indicators=tuple(Indicator(n, lower=bound) for n, bound in zip(first.indicators, lower, strict=True)),
        prediction_lengths=(horizon,),
        context_length=context_length,
        season_lengths=tuple(round(s / step_s) for s in _SEASONS_S if s % step_s == 0 and s / step_s >= 2),
        max_origins=max_origins,
        mixed_units=True,
        items=tuple(items),
    )
