"""DataFrames in and out: columns named as forecasting libraries name them, checked row by row like a file.

A table is read by the reader of telemetry files (`infra.lab.series`), so the rules are the same: holes are missing,
times without a zone are UTC, duplicates and rows out of order are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.api.errors import InputError
from infra.console.instants import Instant
from infra.console.tables import Cells, Unreadable
from infra.console.text import some

if TYPE_CHECKING:
    import pandas as pd

    from infra.lab.series import Table

DF: Final = Path("df")
"""What errors call the table."""
_MAX_LISTED: Final = 8
_SCALARS: Final = (str, int, float, bool)


def tables_of_frame(
    df: pd.DataFrame,
    id_column: str,
    timestamp_column: str,
    target: str | Sequence[str],
    step: str | float | timedelta | None,
) -> list[Table]:
    """The items of a frame on their grids.

    Raises:
        InputError: no DataFrame, a column that is missing or there twice, a cell that cannot be read.
        HarmonyError: whatever else the reader of files refuses, in its words.
    """
    from infra.lab.series import SeriesColumns, tables_of

    targets = [target] if isinstance(target, str) else list(target)
    check_frame(df, [timestamp_column, *targets])
    if not targets or len(set(targets)) < len(targets):
        raise InputError(f"target: {target!r} must name at least one column, each once.")
    has_items = id_column in df.columns
    names = [timestamp_column, *targets, *([id_column] if has_items else [])]
    if len(set(names)) < len(names):
        raise InputError("id_column, timestamp_column and target must name different columns.")
    if not len(df):
        raise InputError("df: has no rows; give a table with at least one item.")
    columns = SeriesColumns(
        names=tuple(names),
        time=0,
        item=len(names) - 1 if has_items else None,
        indicators=tuple((k + 1, name) for k, name in enumerate(targets)),
    )
    return tables_of(DF, columns, frame_cells(df, names), _step_ms(step), "df")


def check_frame(df: object, names: Sequence[str]) -> None:
    """Refuse what is no pandas DataFrame, and one that lacks a column or has it twice.

    Raises:
        InputError: with what there is instead, and what to do.
    """
    kind = f"{type(df).__module__.split('.')[0]}.{type(df).__qualname__}"
    if not kind.startswith("pandas.") or not hasattr(df, "columns"):
        by = "call its to_pandas()" if hasattr(df, "to_pandas") else "make one with pandas.DataFrame(...)"
        raise InputError(f"df must be a pandas DataFrame, got {kind}: {by}.")
    columns = [str(name) for name in df.columns]
    for name in names:
        if columns.count(name) > 1:
            raise InputError(f"df: column {name!r} is there twice; rename or drop one.")
        if name not in columns:
            raise InputError(f"df: has no column {name!r}; it has {some(columns, _MAX_LISTED)}. {_remedy(df, name)}")


def _remedy(df: Any, name: str) -> str:
    if name in [str(level) for level in df.index.names] or type(df.index).__name__ == "DatetimeIndex":
        return "Times and ids in the index become columns with df.reset_index()."
    return "Rename one, or name yours with timestamp_column, id_column or target."


def frame_cells(df: pd.DataFrame, names: Sequence[str]) -> Iterator[Cells]:
    """Position of each row, from 0, and its cells in the order of the names."""
    return ((row, list(cells)) for row, cells in enumerate(zip(*(_cells(df[name]) for name in names), strict=True)))


def _cells(column: pd.Series[Any]) -> list[object]:
    """Cells as the readers of files take them: instants, text, numbers; None where missing."""
    import pandas as pd

    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    missing = column.isna().tolist()
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        utc = column.dt.tz_convert("UTC").dt.tz_localize(None) if column.dt.tz is not None else column
        ns = utc.astype("datetime64[ns]").astype("int64").tolist()
        return [None if empty else Instant(n) for n, empty in zip(ns, missing, strict=True)]
    return [None if empty else _cell(cell) for cell, empty in zip(column.tolist(), missing, strict=True)]


def _cell(cell: object) -> object:
    from datetime import date
    from decimal import Decimal

    if hasattr(cell, "to_pydatetime"):
        return cell.to_pydatetime(warn=False)
    return cell if isinstance(cell, (*_SCALARS, date, Decimal)) else Unreadable(type(cell).__name__)


def _step_ms(step: str | float | timedelta | None) -> int | None:
    from infra.lab.forecast import parse_step_ms

    if step is None or isinstance(step, str):
        return parse_step_ms(step)
    seconds = step.total_seconds() if isinstance(step, timedelta) else float(step)
    return parse_step_ms(f"{seconds:f}s")


def times_like(df: pd.DataFrame, timestamp_column: str, instants_ms: Sequence[int]) -> pd.DatetimeIndex:
    """Instants in the zone of a column that has one, else in UTC without a zone."""
    import pandas as pd

    times = pd.to_datetime(list(instants_ms), unit="ms")
    zone = getattr(df[timestamp_column].dtype, "tz", None)
    return times if zone is None else times.tz_localize("UTC").tz_convert(zone)


def whole_number(name: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number within bounds.

    Raises:
        InputError: it is anything else.
    """
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type] # numpy's integers too
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        most = f" to {high}" if high is not None else " or more"
        raise InputError(f"{name}: {value!r} must be a whole number of {low}{most}.")
    return number
