"""Recorded telemetry: the ridge is at least as good as last value, on the rows before the test part."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.evaluation.scores import crps_of_paths
from tests.model.batches import context_batch

LENGTH, HORIZON = 120, 12


def _items(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Rows before `test_start` of every item, [T, N], NaN where missing."""
    task = json.loads((folder / "task.json").read_text())
    names = [indicator["name"] for indicator in task["indicators"]]
    rows: dict[str, list[list[float]]] = {}
    with gzip.open(folder / "data.csv.gz", "rt") as lines:
        for row in csv.DictReader(lines):
            item = row.get("item_id") or next(iter(task["items"]))
            rows.setdefault(item, []).append([float(row[name] or "nan") for name in names])
    return {item: np.array(cells)[: task["items"][item]["test_start"]] for item, cells in rows.items()}


@pytest.mark.parametrize("task", ["azure-conv-10s", "h100-dcgm-1s"])
def test_ridge_is_no_worse_than_last_value(data_dir: Path, task: str) -> None:
    folder = data_dir / "forecast-tasks" / task
    if not folder.is_dir():
        pytest.skip(f"HARMONY_DATA_DIR has no forecast-tasks/{task}")
    windows, scales = [], []
    for cells in _items(folder).values():
        for origin in range(LENGTH, len(cells) - HORIZON + 1, HORIZON // 2):
            windows.append(cells[origin - LENGTH : origin + HORIZON])
            scales.append(np.nanstd(cells, axis=0))
    series, scale = torch.from_numpy(np.stack(windows)), torch.from_numpy(np.stack(scales))
    batch, target = context_batch(series[:, :LENGTH], lower=0.0), series[:, LENGTH:]
    counted = target.isfinite() & (scale > 0)[:, None]
    scores = []
    for forecaster in (RidgeForecaster(), SeasonalNaiveForecaster()):
        paths = forecaster.forecast(batch, HORIZON, 200).paths.permute(0, 2, 3, 1)
        crps = crps_of_paths(paths, target) / scale[:, None]
        scores.append(crps[counted].mean().item())
    print(f"{task}: {len(windows)} origins, scaled CRPS ridge {scores[0]:.4f}, last value {scores[1]:.4f}")
    assert scores[0] <= scores[1]
