"""Rows of a CSV file, plain or gzip, read as they are needed; what is wrong with the file is said with its line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

Refusal = Callable[[str], Exception]


def csv_rows(where: Path, refuse: Refusal) -> Iterator[tuple[int, list[str]]]:
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


def _line(reader: object) -> int:
    return int(getattr(reader, "line_num", 0))
