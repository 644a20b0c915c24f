"""Tables from outside: rows of CSV (plain or gzip) and Parquet files, and the cells in them.

A row comes with the number of its line, so that every error names file, line, column and remedy. The caller hands in
`refuse`, which makes its own exception from such a sentence. CSV needs the standard library only, Parquet pyarrow.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TextIO

from infra.console.instants import NS_PER_DAY, NS_PER_UNIT, Instant, InstantError, read_instant

Refusal = Callable[[str], Exception]
Row = tuple[int, list[str]]  # line number and fields
Cells = tuple[int, list[object]]  # line number and cells: text of CSV, values of Parquet

_GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC: Final = b"PAR1"
_PARQUET_SUFFIXES = {".parquet", ".pq", ".parq"}
# First bytes of what is no text, and what a person calls it.
_NO_TEXT: Final = {
    b"\x28\xb5\x2f\xfd": "packed (zstd, .zst): unpack it, or give plain text or gzip",
    b"\xfd7zXZ": "packed (xz): unpack it, or give plain text or gzip",
    b"BZh": "packed (bzip2): unpack it, or give plain text or gzip",
    b"PK\x03\x04": "packed (zip), or a spreadsheet: unpack it, or save the sheet as CSV",
    b"7z\xbc\xaf": "packed (7z): unpack it, or give plain text or gzip",
    b"\x04\x22\x4d\x18": "packed (lz4): unpack it, or give plain text or gzip",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save the sheet as CSV",
    PARQUET_MAGIC: "a Parquet file, and only text is read here: convert it to CSV",
    b"ARROW1": "an Arrow (Feather) file: convert it to CSV or Parquet",
    b"ORC": "an ORC file: convert it to CSV or Parquet",
    b"\xff\xfe": "UTF-16 text, as PowerShell writes it: convert the file to UTF-8",
    b"\xfe\xff": "UTF-16 text: convert the file to UTF-8",
}
_MISSING = {"", "na", "n/a", "[n/a]", "nan", "null", "none"}
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WITH_UNIT = re.compile(rf"{_NUMBER.pattern}\s*[^\d\s.,_:-]{{1,8}}", re.ASCII)
_COMMA_NUMBER = re.compile(r"[+-]?\d[\d.,]*,\d[\d.]*", re.ASCII)
_DECLARED_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"')
_SEPARATORS = ",;\t"
_NAMELESS = re.compile(r"(?:Unnamed: \d+(?:_level_\d+)?|__index_level_\d+__)?")
# Names of the column of times; one with an offset, `(UTC)`, or a unit behind it counts as well.
TIME_NAMES: Final = ("timestamp", "ts_ms", "time", "datetime", "date", "ds", "ts")
_TIME_NAME = re.compile(
    r"@?(?:utc[_ ]?)?(time[_ ]?stamp|datetime|date[_ ]time|time|date|ds|ts|epoch|unix[_ ]?time(?:stamp)?)"
    r"(?:[_ ]?[\[(]?(?:utc|gmt|ms|s|us|ns|epoch)[\])]?)*",
    re.IGNORECASE,
)


class NoTextError(ValueError):
    """A file that is no text; the message goes on from its name: what it is, and what to do."""


@contextmanager
def open_text(source: Path | BinaryIO, *, newline: str | None = None) -> Iterator[TextIO]:
    """Open UTF-8 text, plain or gzip, with or without a byte order mark, and decode it as it is read.

    Raises:
        OSError: the file cannot be opened.
        NoTextError: it is packed otherwise, a workbook, Parquet, or UTF-16.
    """
    if isinstance(source, Path):
        with source.open("rb") as raw, open_text(raw, newline=newline) as lines:
            yield lines
        return
    stream: BinaryIO = source if hasattr(source, "peek") else io.BufferedReader(source)  # type: ignore[type-var]
    head = _head(stream)
    if head.startswith(_GZIP_MAGIC):
        stream = gzip.open(stream)  # type: ignore[assignment] # noqa: SIM115 - the caller closes what it opened
        head = _head(stream)
    kind = next((what for magic, what in _NO_TEXT.items() if head.startswith(magic)), None)
    if kind is None and b"\0" in head:
        kind = "no text, or UTF-16 (it holds NUL bytes): convert it to UTF-8"
    if kind is not None:
        raise NoTextError(f"is {kind}")
    lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline=newline)
    try:
        yield lines
    finally:
        lines.detach()


def _head(stream: BinaryIO) -> bytes:
    """The first bytes of a stream, which stay unread."""
    head: bytes = stream.peek(64)[:64]  # type: ignore[attr-defined]
    return head


class CsvReader:
    """Rows of CSV text as its lines come: number of the line, and fields.

    The header is the first line that is not empty, behind a line `sep=;` as spreadsheets write it. What separates its
    fields, a comma, a semicolon or a tab, is the one that stands in it most often.

    Args:
        strict: text behind a closing quote is an error.
        skip_spaces: spaces before a field do not count.

    Raises:
        csv.Error: while rows are read, for a line that is not CSV.
    """

    def __init__(self, lines: Iterable[str], *, strict: bool = False, skip_spaces: bool = False) -> None:
        following = iter(lines)
        self._num_before = 0
        first = ""
        for first in following:
            if first.strip() and not _DECLARED_SEPARATOR.fullmatch(first):
                break
            self._num_before += 1
            first = ""
        bare = _QUOTED.sub("", first)
        separator = max(_SEPARATORS, key=bare.count)
        self._reader = csv.reader(
            chain([first] if first else [], following), delimiter=separator, skipinitialspace=skip_spaces, strict=strict
        )

    @property
    def line(self) -> int:
        """Number of the line that was read last."""
        return self._num_before + self._reader.line_num

    def __iter__(self) -> Iterator[Row]:
        for row in self._reader:
            yield self.line, row


@contextmanager
def _readable(where: Path, refuse: Refusal, line: Callable[[], int]) -> Iterator[TextIO]:
    """The text of a file; whatever goes wrong while it is read becomes a sentence.

    Args:
        line: number of the line that was read last.
    """
    try:
        with open_text(where, newline="") as lines:
            yield lines
    except NoTextError as error:
        raise refuse(f"{where}: {error}") from None
    except UnicodeDecodeError:
        raise refuse(f"{where}, after line {line()}: is not UTF-8 text; convert the file to UTF-8") from None
    except csv.Error as error:
        raise refuse(f"{where}, line {line() + 1}: is not CSV ({error}); correct the line") from None
    except EOFError:
        raise refuse(f"{where}, after line {line()}: the gzip file is cut short; fetch it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise refuse(f"{where}, after line {line()}: is not a sound gzip file ({error}); fetch it again") from None
    except IsADirectoryError:
        raise refuse(f"{where}: is a directory; give a file") from None
    except OSError as error:
        raise refuse(f"{where}: cannot be read ({error.strerror or error}); check the path") from None


def csv_rows(where: Path, refuse: Refusal) -> Iterator[Row]:
    """Line number and fields of each row of a CSV file, the header included.

    Args:
        refuse: makes the exception to raise from a sentence that names file, line and remedy.

    Raises:
        Exception: what `refuse` makes: not readable, not UTF-8, packed, not CSV, or a damaged gzip file.
    """
    line = 0
    with _readable(where, refuse, lambda: line) as lines:
        for line, row in CsvReader(lines, strict=True):
            yield line, row


def json_lines(where: Path, refuse: Refusal) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line of a file of JSON lines; empty lines are left out.

    Raises:
        Exception: what `refuse` makes: not readable, as for `csv_rows`, or a line that is no JSON object.
    """
    line = 0
    with _readable(where, refuse, lambda: line) as lines:
        for line, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                body = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise refuse(f"{where}, line {line}: is not JSON ({str(error)[:80]}); give one object a line") from None
            if not isinstance(body, dict):
                raise refuse(f"{where}, line {line}: is no JSON object; give one object a line")
            yield line, body


def holds_json(where: Path) -> bool:
    """Whether text begins as JSON does; false where it cannot be read."""
    try:
        with open_text(where) as lines:
            return next((line for line in lines if line.strip()), "").lstrip()[:1] in {"{", "["}
    except (OSError, ValueError, EOFError, zlib.error):
        return False


class TableFile(NamedTuple):
    """A table whose rows are read as they are asked for.

    Attributes:
        header: line number and names.
        rows: takes the positions of the columns to read and gives a row's line and all its cells, in the order of the
            header; cells of other columns of a Parquet file are None. Lines of Parquet are counted as if it were CSV.
    """

    header: Row
    rows: Callable[[Collection[int]], Iterator[Cells]]


def open_table(where: Path, refuse: Refusal) -> TableFile | None:
    """The table in a CSV or Parquet file; None where it is empty.

    Raises:
        Exception: what `refuse` makes: the file cannot be read, or pyarrow is missing; while rows are read, too.
    """
    if where.suffix.lower() in _PARQUET_SUFFIXES or _is_parquet(where):
        return TableFile((1, _parquet_names(where, refuse)), lambda columns: _parquet_rows(where, columns, refuse))
    rows = csv_rows(where, refuse)
    header = next(rows, None)
    return (
        None if header is None else TableFile(header, lambda _: ((line, list(cells)) for line, cells in rows if cells))
    )


def _is_parquet(where: Path) -> bool:
    try:
        with where.open("rb") as raw:
            return raw.read(4) == PARQUET_MAGIC
    except OSError:
        return False


@contextmanager
def _parquet(where: Path, refuse: Refusal) -> Iterator[Any]:
    """A Parquet file; whatever pyarrow or a conversion of it raises becomes a sentence."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise refuse("Reading Parquet needs pyarrow: install the extra `parquet`, or convert the file to CSV") from None
    if where.is_dir():
        raise refuse(f"{where}: is a directory; give one Parquet file of it")
    try:
        with ParquetFile(where, coerce_int96_timestamp_unit="us") as file:
            yield file
    except OSError as error:
        raise refuse(f"{where}: cannot be read ({_first_line(error)}); check the path") from None
    except Exception as error:  # noqa: BLE001 - pyarrow passes on the errors of several libraries
        raise refuse(f"{where}: is not a Parquet file that can be read ({_first_line(error)}); write it anew") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _parquet_names(where: Path, refuse: Refusal) -> list[str]:
    with _parquet(where, refuse) as file:
        return list(file.schema_arrow.names)


def _parquet_rows(where: Path, columns: Collection[int], refuse: Refusal) -> Iterator[Cells]:
    line = 2
    with _parquet(where, refuse) as file:
        names = file.schema_arrow.names
        width = len(names)
        for batch in file.iter_batches(columns=[names[k] for k in sorted(columns)]):
            read = {k: _parquet_cells(batch.column(names[k])) for k in columns}
            nothing = [None] * batch.num_rows
            for values in zip(*(read.get(k, nothing) for k in range(width)), strict=True):
                yield line, list(values)
                line += 1


def _parquet_cells(column: Any) -> list[object]:
    """Cells as Python values: instants of dates and timestamps, text, numbers; of other types their names."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if types.is_timestamp(kind) or types.is_date64(kind):
        ns = NS_PER_UNIT[kind.unit if types.is_timestamp(kind) else "ms"]
        return [None if n is None else Instant(n * ns) for n in column.cast(pa.int64()).to_pylist()]
    if types.is_date32(kind):
        return [None if n is None else Instant(n * NS_PER_DAY) for n in column.cast(pa.int32()).to_pylist()]
    if types.is_binary(kind) or types.is_large_binary(kind):
        return [None if cell is None else cell.decode("utf-8", "replace") for cell in column.to_pylist()]
    if any(is_plain(kind) for is_plain in (
        types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null,
        types.is_string, types.is_large_string,
    )):  # fmt: skip
        return list(column.to_pylist())
    return [Unreadable(str(kind)) if there else None for there in column.is_valid().to_pylist()]


class Unreadable(NamedTuple):
    """A cell of a type that stands for no number, text or instant."""

    kind: str

    def __str__(self) -> str:
        return f"a {self.kind}"


def column_of(names: Sequence[str], wanted: str) -> int | None:
    """Position of a column by its name, else by its name in other capitals; None where there is none."""
    if wanted in names:
        return names.index(wanted)
    lowered = [name.lower() for name in names]
    return lowered.index(wanted.lower()) if wanted.lower() in lowered else None


def time_column(names: Sequence[str]) -> int | None:
    """Position of the column of times; None where no name says so.

    >>> time_column(["gpu", "Timestamp (UTC)"]), time_column(["time", "ts_ms"]), time_column(["uptime"])
    (1, 1, None)
    """
    lowered = [name.strip().lower() for name in names]
    exact = next((lowered.index(name) for name in TIME_NAMES if name in lowered), None)
    return (
        exact if exact is not None else next((k for k, name in enumerate(lowered) if _TIME_NAME.fullmatch(name)), None)
    )


def is_nameless(name: str) -> bool:
    """True for a column without a name, also as pandas fills it in.

    >>> is_nameless(" "), is_nameless("Unnamed: 0"), is_nameless("rps")
    (True, True, False)
    """
    return _NAMELESS.fullmatch(name.strip()) is not None


def named_cells(
    where: Path, header: Row, columns: Sequence[str], rows: Iterable[Row], refuse: Refusal
) -> Iterator[Row]:
    """Line number and cells of the wanted columns, in the order wanted, of each row that is not empty.

    Raises:
        Exception: what `refuse` makes: a wanted column is missing or there twice, or a line has cells too few or many.
    """
    names = [name.strip() for name in header[1]]
    indices = [column_of(names, name) for name in columns]
    for name, index in zip(columns, indices, strict=True):
        if index is None:
            raise refuse(f"{where}, line {header[0]}: lacks column {name}; the header must hold {','.join(columns)}")
        if names.count(names[index]) > 1:
            raise refuse(f"{where}, line {header[0]}: column {names[index]} is there twice; rename or remove one")
    found = [index for index in indices if index is not None]
    width = max(found)
    for line, row in rows:
        if not row:
            continue
        if len(row) <= width:
            raise refuse(f"{where}, line {line}: has {len(row)} of {len(names)} columns; complete or remove the line")
        if any(cell.strip() for cell in row[len(names) :]):
            raise refuse(f"{where}, line {line}: has {len(row)} cells, the header {len(names)}; correct the line")
        yield line, [row[index].strip() for index in found]


def cell_problem(where: Path, line: int, column: str, cell: object, problem: str) -> str:
    """The sentence that names a cell, quotes the first 40 characters of it, and says what is wrong.

    >>> cell_problem(Path("load.csv"), 3, "rate_rps", "many", "is not a number; correct it")
    "load.csv, line 3, column rate_rps: 'many' is not a number; correct it"
    """
    text = repr(cell[:40]) if isinstance(cell, str) else str(cell)[:40]
    return f"{where}, line {line}, column {column[:60]}: {text} {problem}"


class InstantColumn:
    """The instants of one column of a table; some cells with and others without an offset are refused.

    Args:
        refuse: makes the exception to raise from a sentence.
    """

    def __init__(self, where: Path, column: str, refuse: Refusal) -> None:
        self._where, self._column, self._refuse = where, column, refuse
        self.zoned: bool | None = None

    def read(self, line: int, cell: object) -> Instant:
        """The instant of a cell, UTC where it names no offset.

        Raises:
            Exception: what `refuse` makes: it is no instant, or is written in another way than those before.
        """
        try:
            if missing_cell(cell):
                raise InstantError("is no time; complete or remove the row")
            instant = read_instant(cell)
            if instant.zoned is not None and self.zoned not in {None, instant.zoned}:
                raise InstantError(
                    "has an offset from UTC and others have none, or the other way round; write all alike"
                )
        except InstantError as error:
            raise self._refuse(cell_problem(self._where, line, self._column, cell, str(error))) from None
        self.zoned = self.zoned if instant.zoned is None else instant.zoned
        return instant


def number_problem(cell: object, otherwise: str = "is not a number; correct it") -> str:
    """What is wrong with a cell that is no number, and what to do.

    >>> number_problem("103,39")
    'has a comma in its number; write decimals with a point and no thousands separators'
    """
    text = cell.strip() if isinstance(cell, str) else ""
    if _COMMA_NUMBER.fullmatch(text):
        return "has a comma in its number; write decimals with a point and no thousands separators"
    if _WITH_UNIT.fullmatch(text):
        return "has a unit behind its number; write the number alone"
    return otherwise


def nonnegative_number(where: Path, line: int, column: str, text: str, refuse: Refusal) -> float:
    """A finite number of at least 0.

    Raises:
        Exception: what `refuse` makes, for anything else.
    """
    try:
        value = float(text)
    except ValueError:
        value = None
    if value is None or "_" in text:
        raise refuse(cell_problem(where, line, column, text, number_problem(text)))
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
    return cell is None or (isinstance(cell, float | Decimal) and math.isnan(cell))


def number_cell(cell: object) -> float | None:
    """The finite number that a cell holds, or None.

    >>> number_cell(" 12.5 "), number_cell("1_000"), number_cell("inf")
    (12.5, None, None)
    """
    if isinstance(cell, str):
        text = cell.strip()
        cell = float(text) if _NUMBER.fullmatch(text) else None
    if not isinstance(cell, int | float | Decimal):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
