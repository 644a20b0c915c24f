"""Series on a regular grid, read from a wide or long CSV or Parquet file.

Wide: optional `item_id`, `timestamp`, then one column per indicator. Long: `item_id` (optional), `timestamp`,
`indicator`, `value`. Absent and empty cells are missing (NaN). Errors name the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.console.tables import missing_cell, number_cell, table_rows, timestamp_ms

TIME_NAMES = ("timestamp", "ts_ms", "time", "datetime", "date", "ds", "ts")
ITEM_NAMES = ("item_id", "workload", "unique_id")
_LONG_NAMES = ("indicator", "value")
_MAX_SLOTS = 20_000_000
_MAX_JITTER = 0.3  # largest distance from the grid in steps; beyond it the step of a row is ambiguous


@dataclass(frozen=True, slots=True)
class Table:
    """One item on its grid.

    Attributes:
        values: float64 [T, N], NaN where missing; row k is at `start_ts_ms + k * step_ms`.
        num_gaps: rows of the grid that the file does not have.
        jitter_ms: largest distance of a timestamp from its place on the grid.
        num_merged: rows that were averaged into a coarser step.
    """

    item_id: str
    start_ts_ms: int
    step_ms: int
    indicators: tuple[str, ...]
    values: NDArray[np.float64]
    num_gaps: int = 0
    jitter_ms: int = 0
    num_merged: int = 0

    @property
    def timestamps_ms(self) -> NDArray[np.int64]:
        return self.start_ts_ms + self.step_ms * np.arange(len(self.values), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Positions of the columns in a row."""

    time: int
    item: int | None
    indicators: tuple[tuple[int, str], ...]  # wide: column and name
    long: tuple[int, int] | None  # columns of indicator and value


Row = tuple[int, list[object]]  # line number, cells


def read_series(where: Path, step_ms: int | None = None, default_item: str | None = None) -> list[Table]:
    """The items of a file, in the order of their first row.

    Args:
        step_ms: sampling step; inferred per file from the most common distance of two rows where it is not given.
            A step coarser than the rows averages them.
        default_item: name of the item in a file without an item column; the file's name by default.

    Raises:
        HarmonyError: the file cannot be read or understood; the sentence names the line.
    """
    rows = table_rows(where, lambda sentence: HarmonyError(sentence + ".", 2))
    first = next(rows, None)
    if first is None:
        raise HarmonyError(f"{where}: is empty; it needs a header and rows.", 2)
    header = [str(name).strip() for name in first[1]]
    columns = _columns(where, header)
    collected = _collect(where, header, columns, rows, default_item or where.name.split(".")[0])
    if not collected:
        raise HarmonyError(f"{where}: has a header, but no rows.", 2)
    if step_ms is None:
        step_ms = infer_step_ms(where, [times for times, _, _ in collected.values()])
    return [
        _on_grid(where, item, np.array(times), lines, names, step_ms)
        for item, (times, lines, names) in collected.items()
    ]


def infer_step_ms(where: Path, times: Iterable[Sequence[int]]) -> int:
    """The most common distance between neighbouring rows; of equally common ones the shortest.

    Raises:
        HarmonyError: no item has two rows.
    """
    distances = np.concatenate([np.diff(np.asarray(t, dtype=np.int64)) for t in times])
    if len(distances) == 0:
        raise HarmonyError(f"{where}: no item has two rows, so there is no step to infer; give one with --step.", 2)
    values, counts = np.unique(distances, return_counts=True)
    # Scrapes jitter: a distance counts for all within a tenth of it.
    support = [counts[np.abs(values - v) <= 0.1 * v].sum() for v in values]
    near = np.abs(distances - values[int(np.argmax(support))]) <= 0.1 * values[int(np.argmax(support))]
    return max(1, round(float(np.median(distances[near]))))


def _columns(where: Path, header: list[str]) -> _Columns:
    lowered = [name.lower() for name in header]
    doubled = sorted({name for name in lowered if lowered.count(name) > 1})
    if doubled:
        raise HarmonyError(f"{where}, line 1: column {doubled[0]!r} appears twice; rename one.", 2)
    time = next((lowered.index(name) for name in TIME_NAMES if name in lowered), None)
    if time is None:
        raise HarmonyError(
            f"{where}, line 1: has no time column; name one of {', '.join(TIME_NAMES)} (found: {', '.join(header)}).", 2
        )
    item = next((lowered.index(name) for name in ITEM_NAMES if name in lowered), None)
    others = [k for k in range(len(header)) if k not in {time, item}]
    if sorted(lowered[k] for k in others) == sorted(_LONG_NAMES):
        return _Columns(time, item, (), (lowered.index("indicator"), lowered.index("value")))
    if not others:
        raise HarmonyError(f"{where}, line 1: has no column beside the time; add at least one indicator.", 2)
    return _Columns(time, item, tuple((k, header[k]) for k in others), None)


Collected = dict[str, tuple[list[int], list[int], dict[str, list[tuple[int, float]]]]]


def _collect(where: Path, header: list[str], columns: _Columns, rows: Iterator[Row], default: str) -> Collected:
    """Per item: times in order, their lines, and per indicator (index of time, value) of what is observed."""
    series: Collected = {}
    for line, cells in rows:
        if len(cells) != len(header):
            raise HarmonyError(
                f"{where}, line {line}: has {len(cells)} cells, the header {len(header)}; correct it.", 2
            )
        item = default if columns.item is None else str(cells[columns.item]).strip()
        moment = timestamp_ms(cells[columns.time], number_is_ms=header[columns.time].lower() == "ts_ms")
        if moment is None:
            raise HarmonyError(
                f"{where}, line {line}, column {header[columns.time]!r}: {_cell_text(cells[columns.time])} is not a "
                "time; write 2026-01-31 12:00:00 (UTC), with an offset, or seconds or milliseconds since 1970.",
                2,
            )
        times, lines, values = series.setdefault(item, ([], [], {}))
        if not times or moment != times[-1]:
            if times and moment < times[-1]:
                raise HarmonyError(
                    f"{where}, line {line}: item {item!r} goes back in time ({cells[columns.time]}, after line "
                    f"{lines[-1]}); sort the rows by timestamp.",
                    2,
                )
            times.append(moment)
            lines.append(line)
        elif columns.long is None:
            raise HarmonyError(
                f"{where}, line {line}: item {item!r} has the timestamp {cells[columns.time]} twice (also line "
                f"{lines[-1]}); keep one row per timestamp.",
                2,
            )
        pairs = columns.indicators
        if columns.long is not None:
            pairs = ((columns.long[1], str(cells[columns.long[0]]).strip()),)
        for k, name in pairs:
            column = values.setdefault(name, [])
            cell = cells[k]
            if missing_cell(cell):
                continue
            number = number_cell(cell)
            if number is None:
                raise HarmonyError(
                    f"{where}, line {line}, column {header[k]!r}: {_cell_text(cell)} is not a finite number; leave the "
                    "cell empty where a value is missing, and drop columns of text.",
                    2,
                )
            if column and column[-1][0] == len(times) - 1:
                raise HarmonyError(
                    f"{where}, line {line}: item {item!r} has two values of {name!r} at {cells[columns.time]}; "
                    "keep one.",
                    2,
                )
            column.append((len(times) - 1, number))
    return series


def _on_grid(
    where: Path,
    item: str,
    times: NDArray[np.int64],
    lines: list[int],
    columns: dict[str, list[tuple[int, float]]],
    step_ms: int,
) -> Table:
    """Put rows on the grid of `step_ms`: snapped where they jitter, averaged where they are finer."""
    finer = len(times) > 1 and float(np.median(np.diff(times))) < 0.75 * step_ms
    origin = int(times[0]) // step_ms * step_ms if finer else int(times[0])
    position = (times - origin) / step_ms
    slots = np.floor(position).astype(np.int64) if finer else np.round(position).astype(np.int64)
    num = int(slots[-1]) + 1
    if num > _MAX_SLOTS:
        raise HarmonyError(f"{where}: item {item!r} spans {num:,} steps of {step_ms} ms; give the step with --step.", 2)
    jitter = 0.0 if finer else float(np.abs(position - slots).max())
    same = np.flatnonzero(np.diff(slots) == 0)
    if not finer and (len(same) or jitter > _MAX_JITTER):
        worst = int(same[0]) + 1 if len(same) else int(np.argmax(np.abs(position - slots)))
        raise HarmonyError(
            f"{where}, line {lines[worst]}: item {item!r} does not keep a step of {step_ms / 1000:g} s; resample the "
            "file, or give a coarser --step, within which rows are averaged.",
            2,
        )
    values = np.full((num, len(columns)), np.nan)
    for j, column in enumerate(columns.values()):
        if not column:
            continue
        at = slots[np.array([k for k, _ in column])]
        total = np.bincount(at, weights=[v for _, v in column], minlength=num)
        count = np.bincount(at, minlength=num)
        values[:, j] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    present = len(np.unique(slots))
    return Table(
        item_id=item,
        start_ts_ms=origin,
        step_ms=step_ms,
        indicators=tuple(columns),
        values=values,
        num_gaps=num - present,
        jitter_ms=round(jitter * step_ms),
        num_merged=len(times) - present,
    )


def _cell_text(cell: object) -> str:
    text = repr(cell) if isinstance(cell, str) else str(cell)
    return text if len(text) <= 40 else text[:37] + "..."
