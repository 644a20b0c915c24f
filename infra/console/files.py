"""Rows of a CSV file, plain or gzip, read as they are needed; what is wrong with the file is said with its line."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

Refusal = Callable[[str], Exception]
Row = tuple[int, list[str]]  # line number and fields


def csv_rows(where: Path, refuse: Refusal) -> Iterator[Row]:
    """Line number and fields of each row, the header included.

    Args:
        refuse: makes the exception to raise from a sentence that names file, line and remedy.

    Raises:
        Exception: what `refuse` makes: not readable, not UTF-8, not CSV, or a damaged gzip file.
    """
    reader = None
    try:
        with where.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            # io.TextIOWrapper decodes as it goes, so that a large file is never held whole.
            reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), strict=True)
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


def named_cells(where: Path, header: Row, wanted: Sequence[str], rows: Iterable[Row], refuse: Refusal) -> Iterator[Row]:
    """Line number and cells of the wanted columns, in the order wanted, of each row that is not empty.

    Raises:
        Exception: what `refuse` makes: a wanted column is missing, or a line too short to hold it.
    """
    names = [name.strip() for name in header[1]]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise refuse(f"{where}, line {header[0]}: lacks column {missing[0]}; the header must hold {','.join(wanted)}")
    places = [names.index(name) for name in wanted]
    width = max(places)
    for line, row in rows:
        if not row:
            continue
        if len(row) <= width:
            raise refuse(f"{where}, line {line}: has {len(row)} of {len(names)} columns; complete or remove the line")
        yield line, [row[place].strip() for place in places]


def not_negative(where: Path, line: int, column: str, text: str, refuse: Refusal) -> float:
    """A finite number of at least 0.

    Raises:
        Exception: what `refuse` makes, for anything else.
    """
    try:
        value = float(text)
    except ValueError:
        raise refuse(f"{where}, line {line}, column {column}: {text[:40]!r} is not a number; correct it") from None
    if not math.isfinite(value) or value < 0:
        raise refuse(f"{where}, line {line}, column {column}: {text[:40]!r} is not a finite number >= 0; correct it")
    return value


def _line(reader: object) -> int:
    return int(getattr(reader, "line_num", 0))
