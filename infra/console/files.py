"""Rows of a CSV file, plain or gzip, read as they are needed; what is wrong with the file is said with its line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from infra.console.errors import HarmonyError

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


# One cell of a telemetry file: a time, a number, or nothing.


_MISSING = {"", "na", "n/a", "[n/a]", "nan", "null", "none"}
_SECONDS_BELOW = 1e11  # a number below is seconds since 1970 (until the year 5138), above milliseconds
_MICROSECONDS_ABOVE = 1e14
_NANOSECONDS_ABOVE = 1e17


def missing_cell(cell: object) -> bool:
    """True for nothing, an empty cell, and the usual words for it."""
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def number_cell(cell: object) -> float | None:
    """A finite number, or None."""
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
        moment = cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    if isinstance(cell, str):
        try:
            moment = datetime.fromisoformat(cell.strip())
        except ValueError:
            pass
        else:
            if not cell.strip().isdigit():  # a bare number reads as a compact date, and is not meant so
                return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    number = number_cell(cell)
    if number is None or number < 0:
        return None
    if number < _SECONDS_BELOW and not number_is_ms:
        return round(number * 1000)
    if number < _MICROSECONDS_ABOVE or number_is_ms:
        return round(number)
    return round(number / (1000 if number < _NANOSECONDS_ABOVE else 1_000_000))


# Results of a measuring command as JSON: what `--json OUT` writes.


STDOUT = Path("-")


def plain(value: Any) -> Any:
    """With null in place of NaN and the infinities, which JSON does not know; tuples become lists."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(where: Path | None, body: Any) -> None:
    """Into a file, on one line of stdout for `-`, nowhere for None.

    Raises:
        HarmonyError: it cannot be written (exit code 2).
    """
    if where is None:
        return
    if where == STDOUT:
        print(json.dumps(plain(body)), flush=True)
        return
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(json.dumps(plain(body), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise HarmonyError(f"--json: cannot write {where}: {error.strerror or error}.", 2) from None
