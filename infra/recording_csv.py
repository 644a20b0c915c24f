"""Columns of a recording's CSV files, cell by cell; a mistake is named with file, line, column and remedy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.console.errors import HarmonyError
from infra.console.files import csv_rows, named_cells
from infra.series_cells import missing_cell
from streams.records.limits import is_plain
from streams.records.schema import MAX_LABEL_CHARS

# Seconds beyond this are the year 2286; a file in milliseconds would lie there.
_LAST_S = 1e10


def refuse(sentence: str) -> HarmonyError:
    """The error for a recording that cannot be used (exit code 2)."""
    return HarmonyError(f"{sentence}.", 2)


def read_columns(where: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and the cells of the wanted columns, in the order wanted; other columns are ignored.

    Raises:
        HarmonyError: no such file, not CSV, a wanted column is missing, a line is too short, or there is no row.
    """
    rows = csv_rows(where, refuse)
    header = next(rows, None)
    if header is None:
        raise refuse(f"{where}: is empty; give a CSV file with the header {','.join(wanted)}")
    line = 0
    for line, cells in named_cells(where, header, wanted, rows, refuse):
        yield line, cells
    if line == 0:
        raise refuse(f"{where}: has a header but no row; give a file with at least one")


def label(where: Path, line: int, column: str, text: str) -> str:
    """A name as telemetry may hold it.

    Raises:
        HarmonyError: empty, too long, or with characters that have no place in a label.
    """
    if not is_plain(text, MAX_LABEL_CHARS):
        raise refuse(
            f"{where}, line {line}, column {column}: {text[:40]!r} is no name of 1 to {MAX_LABEL_CHARS} printable "
            "characters without markup; correct the cell"
        )
    return text


def number(where: Path, line: int, column: str, text: str, *, most: float = math.inf) -> float:
    """A number in [0, most], NaN where missing.

    Raises:
        HarmonyError: not a number, or outside.
    """
    if missing_cell(text):
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise refuse(
            f"{where}, line {line}, column {column}: {text[:40]!r} is not a number; correct or empty the cell"
        ) from None
    if not math.isfinite(value) or not 0 <= value <= most:
        bound = f"to {most:g}" if math.isfinite(most) else "upwards"
        raise refuse(
            f"{where}, line {line}, column {column}: {text[:40]!r} is not within 0 {bound}; correct or empty the cell"
        )
    return value


def instant_ms(where: Path, line: int, column: str, text: str) -> int:
    """An instant in milliseconds, from seconds since 1970.

    Raises:
        HarmonyError: missing, not a number, or not in seconds.
    """
    value = number(where, line, column, text)
    if math.isnan(value):
        raise refuse(f"{where}, line {line}, column {column}: has no time; complete or remove the line")
    if value >= _LAST_S:
        raise refuse(
            f"{where}, line {line}, column {column}: {text[:40]!r} is beyond the year 2286; give seconds since 1970, "
            "not milliseconds"
        )
    return round(value * 1000)
