"""Series on a regular grid, read from a wide or long CSV or Parquet file.

Wide: optional `item_id`, `timestamp`, then one column per indicator. Long: `item_id` (optional), `timestamp`,
`indicator`, `value`, sorted by time in each indicator. Absent and empty cells are missing (NaN). Columns that have no
name or are not asked for are not read. Errors name the line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.console.instants import Instant
from infra.console.tables import (
    TIME_NAMES,
    Cells,
    InstantColumn,
    Unreadable,
    cell_problem,
    is_nameless,
    missing_cell,
    number_cell,
    number_problem,
    open_table,
    time_column,
)

ITEM_NAMES = ("item_id", "workload", "unique_id")
_LONG_NAMES = ("indicator", "value")
_MAX_SLOTS = 20_000_000
_MAX_CELLS = 200_000_000  # of the grid of an item, 1.6 GB
_MAX_JITTER = 0.3  # largest distance from the grid in steps; beyond it the step of a row is ambiguous
_HOUR_MS: Final = 3_600_000  # what clocks go back by
# Forecasters answer in 32-bit floats, which end at 3.4e38 and 1.2e-38: ten times less leaves them room to grow.
_LARGEST: Final = 1e37
_SMALLEST: Final = 1e-37


@dataclass(frozen=True, slots=True)
class Table:
    """One item on its grid.

    Attributes:
        values: float64 [T, N], NaN where missing; row k is at `start_ts_ms + k * step_ms`.
        num_gaps: rows of the grid that the file does not have.
        jitter_ms: largest distance of a timestamp from its place on the grid.
        num_merged: rows that were averaged into a coarser step.
        unread: indicators of the file that were not asked for.
        num_nameless: columns that were passed over as they have no name.
    """

    item_id: str
    start_ts_ms: int
    step_ms: int
    indicators: tuple[str, ...]
    values: NDArray[np.float64]
    num_gaps: int = 0
    jitter_ms: int = 0
    num_merged: int = 0
    unread: tuple[str, ...] = ()
    num_nameless: int = 0

    @property
    def timestamps_ms(self) -> NDArray[np.int64]:
        return self.start_ts_ms + self.step_ms * np.arange(len(self.values), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """What the columns of a table hold.

    Attributes:
        time, item: positions.
        indicators: wide: position and name of each.
        long: positions of indicator and value.
        unread: indicators of a wide file that are not asked for.
        num_nameless: columns without a name.
    """

    names: tuple[str, ...]
    time: int
    item: int | None
    indicators: tuple[tuple[int, str], ...]
    long: tuple[int, int] | None = None
    unread: tuple[str, ...] = ()
    num_nameless: int = 0

    @property
    def read(self) -> set[int]:
        """Positions of all that are read."""
        item = () if self.item is None else (self.item,)
        return {self.time, *item, *(k for k, _ in self.indicators), *(self.long or ())}


@dataclass(slots=True)
class _Item:
    """Rows of one item: distinct times in ms with their lines, and per indicator (position of time, value)."""

    times: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    columns: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)  # long: time -> position

    def place_of(self, time_ms: int, line: int) -> int:
        """Position of a time, new or known."""
        place = self.places.setdefault(time_ms, len(self.times))
        if place == len(self.times):
            self.times.append(time_ms)
            self.lines.append(line)
        return place

    def sort(self) -> None:
        """Bring the times into order, for a long file that holds one indicator after the other."""
        order = sorted(range(len(self.times)), key=self.times.__getitem__)
        if order != list(range(len(order))):
            places = {old: new for new, old in enumerate(order)}
            self.times = [self.times[k] for k in order]
            self.lines = [self.lines[k] for k in order]
            self.columns = {n: [(places[k], v) for k, v in column] for n, column in self.columns.items()}


def read_series(
    where: Path,
    step_ms: int | None = None,
    default_item: str | None = None,
    indicators: Collection[str] | None = None,
) -> list[Table]:
    """The items of a file, in the order of their first row.

    Args:
        step_ms: sampling step; inferred per file from the most common distance of two rows where it is not given.
            A step coarser than the rows averages them.
        default_item: name of the item in a file without an item column; the file's name by default.
        indicators: those to read; all by default. Names that the file does not have are passed over.

    Raises:
        HarmonyError: the file cannot be read or understood; the sentence names the line.
    """
    table = open_table(where, _refusal)
    if table is None:
        raise HarmonyError(f"{where}: is empty; it needs a header and rows.", 2)
    columns = _columns(where, table.header, indicators)
    return tables_of(
        where, columns, table.rows(columns.read), step_ms, default_item or where.name.split(".")[0], indicators
    )


def tables_of(
    where: Path,
    columns: SeriesColumns,
    rows: Iterator[Cells],
    step_ms: int | None,
    default_item: str,
    indicators: Collection[str] | None = None,
) -> list[Table]:
    """The items of a table whose columns are known.

    Args:
        where: what errors call the table.
        columns: what each of them holds.
        rows: line number and cells.
        step_ms, default_item, indicators: as `read_series` has them.

    Raises:
        HarmonyError: as `read_series` does.
    """
    items, unread = _collect(where, columns, rows, default_item, indicators)
    if not items:
        problem = (
            f"no indicator {', '.join(indicators or ())}; it has {', '.join(unread)[:200]}" if unread else "no rows"
        )
        raise HarmonyError(f"{where}: has a header, but {problem}.", 2)
    for item in items.values():
        item.sort()
    if step_ms is None:
        step_ms = infer_step_ms(where, [item.times for item in items.values()])
    tables = [_on_grid(where, name, item, step_ms) for name, item in items.items()]
    return [replace(t, unread=(*columns.unread, *unread), num_nameless=columns.num_nameless) for t in tables]


def _refusal(sentence: str) -> HarmonyError:
    return HarmonyError(sentence + ".", 2)


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
    num_below = np.concatenate([[0], np.cumsum(counts)])
    support = (
        num_below[np.searchsorted(values, 1.1 * values, "right")] - num_below[np.searchsorted(values, 0.9 * values)]
    )
    near = np.abs(distances - values[int(np.argmax(support))]) <= 0.1 * values[int(np.argmax(support))]
    return max(1, round(float(np.median(distances[near]))))


def _columns(where: Path, header: tuple[int, list[str]], wanted: Collection[str] | None) -> SeriesColumns:
    line, names = header[0], [str(name).strip() for name in header[1]]
    time = time_column(names)
    nameless = [k for k, name in enumerate(names) if is_nameless(name)]
    if time is None:
        found = ", ".join(names)[:200] + (f"; column {nameless[0] + 1} has no name" if nameless else "")
        raise HarmonyError(
            f"{where}, line {line}: has no time column; call it one of {', '.join(TIME_NAMES)} (found: {found}).", 2
        )
    lowered = [name.lower() for name in names]
    item = next((lowered.index(name) for name in ITEM_NAMES if name in lowered), None)
    others = [k for k in range(len(names)) if k not in {time, item, *nameless}]
    is_long = sorted(lowered[k] for k in others) == sorted(_LONG_NAMES)
    chosen = [k for k in others if is_long or wanted is None or names[k] in wanted]
    read = [lowered[k] for k in {time, *chosen} | ({item} if item is not None else set())]
    doubled = sorted({name for name in read if lowered.count(name) > 1})
    if doubled:
        raise HarmonyError(f"{where}, line {line}: column {doubled[0][:60]!r} appears twice; rename one.", 2)
    if not others:
        raise HarmonyError(f"{where}, line {line}: has no column beside the time; add at least one indicator.", 2)
    return SeriesColumns(
        names=tuple(names),
        time=time,
        item=item,
        indicators=() if is_long else tuple((k, names[k]) for k in chosen),
        long=(lowered.index("indicator"), lowered.index("value")) if is_long else None,
        unread=() if is_long else tuple(names[k] for k in others if k not in chosen),
        num_nameless=len(nameless),
    )


def _collect(
    where: Path, columns: SeriesColumns, rows: Iterator[Cells], default: str, wanted: Collection[str] | None
) -> tuple[dict[str, _Item], tuple[str, ...]]:
    """The items, and the indicators of a long file that are not asked for."""
    items: dict[str, _Item] = {}
    unread: dict[str, None] = {}
    instants = InstantColumn(where, columns.names[columns.time], _refusal)
    for line, cells in rows:
        if len(cells) != len(columns.names):
            raise HarmonyError(
                f"{where}, line {line}: has {len(cells)} cells, the header {len(columns.names)}; correct it.", 2
            )
        name = default if columns.item is None else _item_name(where, line, columns, cells)
        if columns.long is not None:
            indicator = str(cells[columns.long[0]]).strip()
            if wanted is not None and indicator not in wanted:
                unread[indicator] = None
                continue
        instant = instants.read(line, cells[columns.time])
        item = items.setdefault(name, _Item())
        if columns.long is None:
            _add_row(where, line, name, item, instant, columns, cells)
        else:
            _add_value(where, line, name, item, instant, columns, cells)
    return items, tuple(unread)


def _item_name(where: Path, line: int, columns: SeriesColumns, cells: Sequence[object]) -> str:
    assert columns.item is not None
    cell = cells[columns.item]
    text = "" if cell is None or isinstance(cell, Unreadable) else str(cell).strip()
    if not text:
        raise _refusal(cell_problem(where, line, columns.names[columns.item], cell, "names no item; complete the row"))
    return text


def _add_row(
    where: Path, line: int, name: str, item: _Item, instant: Instant, columns: SeriesColumns, cells: Sequence[object]
) -> None:
    """A row of a wide file."""
    cell, time_ms = cells[columns.time], instant.ms
    if item.times and time_ms < item.times[-1]:
        raise _refusal(_back_in_time(where, line, f"item {name!r}", item.times[-1], item.lines[-1], instant, cell))
    if item.times and time_ms == item.times[-1]:
        or_utc = ", or write offsets or UTC where clocks go back" if _may_repeat(instant) else ""
        raise HarmonyError(
            f"{where}, line {line}: item {name!r} has the timestamp {cell} twice (also line {item.lines[-1]}); keep "
            f"one row per timestamp{or_utc}.",
            2,
        )
    item.times.append(time_ms)
    item.lines.append(line)
    for k, indicator in columns.indicators:
        column = item.columns.setdefault(indicator, [])
        number = _number(where, line, indicator, cells[k])
        if number is not None:
            column.append((len(item.times) - 1, number))


def _add_value(
    where: Path, line: int, name: str, item: _Item, instant: Instant, columns: SeriesColumns, cells: Sequence[object]
) -> None:
    """A row of a long file."""
    assert columns.long is not None
    indicator, cell = str(cells[columns.long[0]]).strip(), cells[columns.time]
    column = item.columns.setdefault(indicator, [])
    place = item.place_of(instant.ms, line)
    if column and item.times[place] < item.times[column[-1][0]]:
        before = column[-1][0]
        whose = f"{indicator!r} of item {name!r}"
        raise _refusal(_back_in_time(where, line, whose, item.times[before], item.lines[before], instant, cell))
    number = _number(where, line, columns.names[columns.long[1]], cells[columns.long[1]])
    if number is None:
        return
    if column and column[-1][0] == place:
        raise HarmonyError(
            f"{where}, line {line}: item {name!r} has two values of {indicator!r} at {cell}; keep one.", 2
        )
    column.append((place, number))


def _number(where: Path, line: int, column: str, cell: object) -> float | None:
    """The number in a cell, or None where it is missing."""
    if missing_cell(cell):
        return None
    number = number_cell(cell)
    if number is None:
        words = "is not a finite number; leave the cell empty where a value is missing, and leave out columns of text"
        problem = number_problem(cell, words)
        raise _refusal(cell_problem(where, line, column, cell, problem))
    if abs(number) > _LARGEST:
        problem = f"is beyond {_LARGEST:g}, more than a forecast can hold; correct it, or give a larger unit"
        raise _refusal(cell_problem(where, line, column, cell, problem))
    return number


def _back_in_time(
    where: Path, line: int, whose: str, before_ms: int, before_line: int, instant: Instant, cell: object
) -> str:
    if _may_repeat(instant) and before_ms - instant.ms <= _HOUR_MS:
        remedy = "a local time repeats an hour where clocks go back, so write offsets or UTC; else sort the rows"
    else:
        remedy = "sort the rows by timestamp"
    return f"{where}, line {line}: {whose} goes back in time ({cell}, after line {before_line}); {remedy}"


def _may_repeat(instant: Instant) -> bool:
    """A time without an offset in the first hours of a Sunday, when clocks are set back in most of the world."""
    days, in_day_ms = divmod(instant.ms, 24 * _HOUR_MS)
    return instant.zoned is False and (days + 4) % 7 == 0 and in_day_ms < 4 * _HOUR_MS


def _on_grid(where: Path, name: str, item: _Item, step_ms: int) -> Table:
    """Put rows on the grid of `step_ms`: snapped where they jitter, averaged where they are finer."""
    times, lines = np.array(item.times, dtype=np.int64), item.lines
    finer = len(times) > 1 and float(np.median(np.diff(times))) < 0.75 * step_ms
    origin = int(times[0]) // step_ms * step_ms if finer else int(times[0])
    position = (times - origin) / step_ms
    slots = np.floor(position).astype(np.int64) if finer else np.round(position).astype(np.int64)
    num = int(slots[-1]) + 1
    if num > _MAX_SLOTS or num * len(item.columns) > _MAX_CELLS:
        raise HarmonyError(f"{where}: item {name!r} spans {num:,} steps of {step_ms} ms; give the step with --step.", 2)
    jitter = 0.0 if finer else float(np.abs(position - slots).max())
    same = np.flatnonzero(np.diff(slots) == 0)
    if not finer and (len(same) or jitter > _MAX_JITTER):
        worst = int(same[0]) + 1 if len(same) else int(np.argmax(np.abs(position - slots)))
        raise HarmonyError(
            f"{where}, line {lines[worst]}: item {name!r} does not keep a step of {step_ms / 1000:g} s; resample the "
            "file, or give a coarser --step, within which rows are averaged.",
            2,
        )
    values = np.full((num, len(item.columns)), np.nan)
    for j, (indicator, column) in enumerate(item.columns.items()):
        if not column:
            continue
        largest = max(abs(v) for _, v in column)
        if 0 < largest < _SMALLEST:
            raise HarmonyError(
                f"{where}, column {indicator}: no value of item {name!r} reaches {_SMALLEST:g}, and a forecast cannot "
                "hold such ones; give a smaller unit.",
                2,
            )
        at = slots[np.array([k for k, _ in column])]
        total = np.bincount(at, weights=[v for _, v in column], minlength=num)
        count = np.bincount(at, minlength=num)
        values[:, j] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    present = len(np.unique(slots))
    return Table(
        item_id=name,
        start_ts_ms=origin,
        step_ms=step_ms,
        indicators=tuple(item.columns),
        values=values,
        num_gaps=num - present,
        jitter_ms=round(jitter * step_ms),
        num_merged=len(times) - present,
    )
