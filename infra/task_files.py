"""Reading task folders of the rolling protocol: `task.json` and `data.csv[.gz]`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from infra.console.errors import HarmonyError
from infra.lab.series import Table, read_series
from model.evaluation.dataset import Indicator, SeriesItem, Task, before_test
from model.evaluation.rolling import split_rows

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
    wanted = list(folders) if names is None else list(names)
    unknown = [name for name in wanted if name not in folders]
    if unknown:
        raise HarmonyError(f"--tasks: {dataset} has no {', '.join(unknown)}; it has {', '.join(folders)}.", 2)
    tasks = [_read_task(folders[name]) for name in wanted]
    return [before_test(task) for task in tasks] if part == "validation" else tasks


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
    tables = {table.item_id: table for table in read_series(data, step_ms=round(1000 * spec["step_s"]))}
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
