"""Tables from outside: rows of CSV (plain or gzip) and Parquet files, and the cells in them.

A row comes with the number of its line, so that every error names file, line, column and remedy. The caller hands in
`refuse`, which makes its own exception from such a sentence. CSV needs the standard library only, Parquet pyarrow.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TextIO

from infra.console.instants import number_ms, parse_iso, unit_by_size, unix_ms

Refusal = Callable[[str], Exception]
Row = tuple[int, list[str]]  # line number and fields

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_SUFFIXES = {".parquet", ".pq"}
_MISSING = {"", "na", "n/a", "[n/a]", "nan", "null", "none"}


@contextmanager
def open_text(path: Path, *, encoding: str = "utf-8", newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file, plain or gzip, and decode it as it is read.

    Raises:
        OSError: the file cannot be opened.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        with io.TextIOWrapper(gzip.open(raw) if packed else raw, encoding=encoding, newline=newline) as lines:
            yield lines


def parse_csv(
    lines: Iterable[str], refuse: Callable[[int, csv.Error], Exception], *, skip_spaces: bool = False
) -> Iterator[Row]:
    """Line number and fields of each row of CSV text, as the lines come.

    Raises:
        Exception: what `refuse` makes of a line number and what is wrong there.
    """
    reader = csv.reader(lines, skipinitialspace=skip_spaces)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise refuse(reader.line_num, error) from None


def csv_rows(where: Path, refuse: Refusal) -> Iterator[Row]:
    """Line number and fields of each row of a CSV file, the header included.

    Args:
        refuse: makes the exception to raise from a sentence that names file, line and remedy.

    Raises:
        Exception: what `refuse` makes: not readable, not UTF-8, not CSV, or a damaged gzip file.
    """
    reader = None
    try:
        with open_text(where, encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            for row in reader:
                yield reader.line_num, row
    except UnicodeDecodeError:
        raise refuse(f"{where}, after line {_line(reader)}: is not UTF-8 text; convert the file to UTF-8") from None
    except csv.Error as error:
        raise refuse(f"{where}, line {_line(reader)}: is not CSV ({error}); correct the line") from None
    except EOFError:
        raise refuse(f"{where}, after line {_line(reader)}: the gzip file is cut short; fetch it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise refuse(
            f"{where}, after line {_line(reader)}: is not a sound gzip file ({error}); fetch it again"
        ) from None
    except IsADirectoryError:
        raise refuse(f"{where}: is a directory; give a CSV file") from None
    except OSError as error:
        raise refuse(f"{where}: cannot be read ({error.strerror or error}); check the path") from None


def table_rows(where: Path, refuse: Refusal) -> Iterator[tuple[int, list[object]]]:
    """Line number and cells of each row of a CSV or Parquet file, the header first; empty lines are left out.

    Cells of CSV are text, cells of Parquet Python values. The lines of a Parquet file are counted as if it were CSV.

    Raises:
        Exception: what `refuse` makes: the file cannot be read, or pyarrow is missing.
    """
    if where.suffix.lower() in _PARQUET_SUFFIXES:
        yield from _parquet_rows(where, refuse)
        return
    for line, cells in csv_rows(where, refuse):
        if cells:
            yield line, list(cells)


def _parquet_rows(where: Path, refuse: Refusal) -> Iterator[tuple[int, list[object]]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise refuse("Reading Parquet needs pyarrow: install the extra `parquet`, or convert the file to CSV") from None
    try:
        with ParquetFile(where) as file:
            yield 1, list(file.schema_arrow.names)
            line = 2
            for batch in file.iter_batches():
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield line, list(values)
                    line += 1
    except OSError as error:
        raise refuse(f"{where}: cannot be read ({error}); check the path") from None
    except ArrowException as error:
        raise refuse(f"{where}: is not a Parquet file ({error})") from None


def named_cells(
    where: Path, header: Row, columns: Sequence[str], rows: Iterable[Row], refuse: Refusal
) -> Iterator[Row]:
    """Line number and cells of the wanted columns, in the order wanted, of each row that is not empty.

    Raises:
        Exception: what `refuse` makes: a wanted column is missing, or a line is too short to hold it.
    """
    names = [name.strip() for name in header[1]]
    missing = [name for name in columns if name not in names]
    if missing:
        raise refuse(f"{where}, line {header[0]}: lacks column {missing[0]}; the header must hold {','.join(columns)}")
    indices = [names.index(name) for name in columns]
    width = max(indices)
    for line, row in rows:
        if not row:
            continue
        if len(row) <= width:
            raise refuse(f"{where}, line {line}: has {len(row)} of {len(names)} columns; complete or remove the line")
        yield line, [row[index].strip() for index in indices]


def cell_problem(where: Path, line: int, column: str, text: str, problem: str) -> str:
    """The sentence that names a cell, quotes the first 40 characters of it, and says what is wrong.

    >>> cell_problem(Path("load.csv"), 3, "rate_rps", "many", "is not a number; correct it")
    "load.csv, line 3, column rate_rps: 'many' is not a number; correct it"
    """
    return f"{where}, line {line}, column {column}: {text[:40]!r} {problem}"


def nonnegative_number(where: Path, line: int, column: str, text: str, refuse: Refusal) -> float:
    """A finite number of at least 0.

    Raises:
        Exception: what `refuse` makes, for anything else.
    """
    try:
        value = float(text)
    except ValueError:
        raise refuse(cell_problem(where, line, column, text, "is not a number; correct it")) from None
    if not math.isfinite(value) or value < 0:
        raise refuse(cell_problem(where, line, column, text, "is not a finite number >= 0; correct it"))
    return value


def missing_cell(cell: object) -> bool:
    """True for nothing, an empty cell, and the usual words for it.

    >>> missing_cell(" N/A "), missing_cell("0")
    (True, False)
    """
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def number_cell(cell: object) -> float | None:
    """The finite number that a cell holds, or None."""
    if isinstance(cell, bool):
        return float(cell)
    if not isinstance(cell, (str, int, float, Decimal)):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def timestamp_ms(cell: object, *, number_is_ms: bool = False) -> int | None:
    """Milliseconds since 1970, UTC where no offset is written; None where the cell is no time.

    Args:
        number_is_ms: a number is milliseconds whatever its size, as in a column that says so.
    """
    if isinstance(cell, datetime):
        return unix_ms(cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC))
    # A bare number reads as a compact date of ISO 8601, and is not meant so.
    if isinstance(cell, str) and not cell.strip().isdigit():
        try:
            return unix_ms(parse_iso(cell.strip(), UTC))
        except ValueError:
            pass
    number = number_cell(cell)
    if number is None or number < 0:
        return None
    return round(number_ms(number, "ms" if number_is_ms else unit_by_size(number)))


def _line(reader: object) -> int:
    return int(getattr(reader, "line_num", 0))
