"""A forecast of one item as a value, and how it is written: CSV or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

import numpy as np

from infra.lab.series import Table
from model.evaluation.dataset import Floats


@dataclass(frozen=True, slots=True)
class ItemForecast:
    """One item's forecast.

    Attributes:
        origin: the last row read.
        timestamps_ms: [H], start of each forecast step.
        quantiles: [Q, H, N].
        mean: [H, N].
        peak: [Q, N], quantiles of the largest value over the horizon.
        truth: [H, N] or None; NaN where the file has no value.
    """

    table: Table
    origin: int
    timestamps_ms: list[int]
    levels: tuple[float, ...]
    quantiles: Floats
    mean: Floats
    peak: Floats
    truth: Floats | None
    source: str


def write_csv(stream: TextIO, answers: Sequence[ItemForecast]) -> None:
    """One row per item, step and indicator: mean and quantiles."""
    writer = csv.writer(stream, lineterminator="\n")
    levels = [f"{level:g}" for level in answers[0].levels]
    writer.writerow(["item_id", "timestamp", "indicator", "mean", *levels])
    for answer in answers:
        for h, moment in enumerate(answer.timestamps_ms):
            for n, name in enumerate(answer.table.indicators):
                cells = [answer.mean[h, n], *answer.quantiles[:, h, n]]
                writer.writerow([answer.table.item_id, _iso(moment), name, *(_cell(value) for value in cells)])


def write_json(stream: TextIO, answers: Sequence[ItemForecast]) -> None:
    """One object, with the quantiles of the peak and, where rows were held out, the truth."""
    json.dump({"forecasts": [_as_dict(answer) for answer in answers]}, stream)
    stream.write("\n")


def _as_dict(answer: ItemForecast) -> dict[str, Any]:
    table = answer.table
    return {
        "item_id": table.item_id,
        "source": answer.source,
        "step_s": table.step_ms / 1000,
        "origin": _iso(table.start_ts_ms + answer.origin * table.step_ms),
        "prediction_length": len(answer.timestamps_ms),
        "quantile_levels": list(answer.levels),
        "timestamps": [_iso(moment) for moment in answer.timestamps_ms],
        "indicators": {
            name: {
                "mean": _numbers(answer.mean[:, n]),
                "quantiles": [_numbers(row) for row in answer.quantiles[:, :, n]],
                "peak_quantiles": _numbers(answer.peak[:, n]),
                **({"truth": _numbers(answer.truth[:, n])} if answer.truth is not None else {}),
            }
            for n, name in enumerate(table.indicators)
        },
    }


def _numbers(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _cell(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""


def _iso(moment_ms: int) -> str:
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds" if moment_ms % 1000 else "seconds").replace("+00:00", "Z")
