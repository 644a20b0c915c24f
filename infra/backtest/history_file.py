"""A history as a CSV file: what `harmony replay --rate` reads, with replicas and attainment beside it."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from infra.console.errors import HarmonyError
from infra.console.files import csv_rows
from infra.lab.backtest.history import BIN_S, History

COLUMNS = ("start_s", "rate_rps", "prompt_tokens", "output_tokens", "replicas", "good_ratio")
_LONGEST_S = 10 * 366 * 86_400
_LATEST_S = 1e11  # the year 5138
_REQUIRED = ("start_s", "rate_rps", "replicas")


class HistoryError(HarmonyError):
    """A history file that cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rstrip(".") + ".", 2)


def write_history(path: Path, history: History) -> None:
    """Write the file; `start_s` is Unix time. An empty cell was not recorded."""
    with path.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(COLUMNS)
        columns = (
            history.rate_rps, history.prompt_tokens, history.output_tokens, history.replicas, history.good_ratio
        )  # fmt: skip
        for k, row in enumerate(zip(*columns, strict=True)):
            start_s = history.start_ms // 1000 + k * BIN_S
            lines.writerow([start_s, *("" if math.isnan(v) else f"{v:.6g}" for v in row)])


def read_history(path: Path, workload: str) -> History:
    """Read such a file, plain or gzip; columns but start_s, rate_rps and replicas may be missing.

    Raises:
        HistoryError: not such a file; names line and column.
    """
    rows = csv_rows(path, HistoryError)
    header = next(rows, None)
    names = [name.strip() for name in header[1]] if header else []
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise HistoryError(f"{path}, line 1: the header must hold {', '.join(_REQUIRED)}; {missing[0]} is missing")
    place = {name: names.index(name) for name in COLUMNS if name in names}
    times: list[float] = []
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS[1:]}
    for line, cells in rows:
        times.append(_number(path, line, "start_s", cells[place["start_s"]], needed=True))
        for name, column in columns.items():
            column.append(_number(path, line, name, cells[place[name]]) if name in place else math.nan)
    if len(times) < 2:
        raise HistoryError(f"{path}: holds {len(times)} rows; at least two are needed")
    return _binned(path, workload, np.asarray(times), {name: np.asarray(c) for name, c in columns.items()})


def _binned(path: Path, workload: str, times: np.ndarray, columns: dict[str, np.ndarray]) -> History:
    if (np.diff(times) <= 0).any():
        row = int(np.flatnonzero(np.diff(times) <= 0)[0]) + 3
        raise HistoryError(f"{path}, line {row}: start_s must ascend")
    if times[-1] > _LATEST_S or times[-1] - times[0] > _LONGEST_S:
        raise HistoryError(
            f"{path}: reaches from start_s {times[0]:g} to {times[-1]:g}; ten years is the most, in seconds since 1970"
        )
    # A row holds until the next one begins; the last one as long as the one before it.
    end_s = times[-1] + (times[-1] - times[-2])
    grid = np.arange(times[0], end_s, BIN_S)
    rows = np.searchsorted(times, grid, side="right") - 1
    start_ms = round(float(times[0])) * 1000
    c = {name: column[rows] for name, column in columns.items()}
    return History(
        workload, start_ms, c["rate_rps"], c["prompt_tokens"], c["output_tokens"], c["replicas"], c["good_ratio"]
    )


def _number(path: Path, line: int, column: str, text: str, *, needed: bool = False) -> float:
    if not text.strip() and not needed:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise HistoryError(f"{path}, line {line}, column {column}: {text[:40]!r} is not a number >= 0; correct it")
    return value
