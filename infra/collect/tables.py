"""CSV logs of devices: nvidia-smi, DCGM's and AMD's tools, one row per device and instant."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from infra.collect.formats.exposition import UnreadableError
from infra.collect.points import Point

# Columns that say who measured; the rest is numbers.
_LABELS = frozenset({"index", "uuid", "gpu", "device", "host", "hostname", "pod", "namespace", "node"})
_TIMES = ("timestamp", "time", "ts")
_UNIT = re.compile(r"\s*\[([^\]]*)\]\s*$")
_CELL = re.compile(r"^\s*(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([%A-Za-z/°]*)\s*$")
# What nvidia-smi writes where a device does not tell.
_ABSENT = re.compile(r"^\s*(?:\[.*\]|N/?A|)\s*$", re.IGNORECASE)
_NVIDIA_SMI = "nvidia_smi_"
_OTHER = "csv_"


class Column(NamedTuple):
    """`name` of the metric; empty for labels and times."""

    header: str
    name: str


class Table:
    """Reads rows as they come, so that a pipe works as a file does.

    Args:
        lines: header first.
        now_ms: the time of rows without one.

    Raises:
        UnreadableError: no header that names a device's numbers.
    """

    def __init__(self, lines: Iterable[str], now_ms: int) -> None:
        self._whole_line = True
        self._rows = csv.reader(self._noted(lines), skipinitialspace=True)
        self._now_ms = now_ms
        header = next(self._read(), [])
        # nvidia-smi's query names hold dots, and its headers units in brackets.
        prefix = _NVIDIA_SMI if any("." in cell or _UNIT.search(cell) for cell in header) else _OTHER
        self._columns = [_column(cell, prefix) for cell in header]
        if len(header) < 2 or not any(column.name for column in self._columns):
            raise UnreadableError("line 1 is no header of a CSV table of devices")
        self.num_left_out = 0

    def _noted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._whole_line = line.endswith("\n")
            yield line

    def _read(self) -> Iterator[list[str]]:
        try:
            yield from self._rows
        except csv.Error as error:
            raise UnreadableError(f"line {self._rows.line_num} is not CSV ({error})") from None

    def __iter__(self) -> Iterator[list[Point]]:
        """The points of each row.

        A row may end early: what it does not hold was not measured. One that holds no time though the header names one,
        or is cut off in the middle of its last line, is left out and counted.
        """
        headers = [column.header for column in self._columns]
        timed = [name for name in _TIMES if name in headers]
        for row in self._read():
            if not row:
                continue
            cells = dict(zip(headers, row, strict=False))
            torn = len(row) < len(self._columns) and not self._whole_line
            if torn or (timed and not cells.get(timed[0], "").strip()):
                self.num_left_out += 1
                continue
            ts_ms = _time_ms(cells[timed[0]], self._rows.line_num) if timed else self._now_ms
            labels = {name: cells[name].strip() for name in _LABELS if cells.get(name, "").strip()}
            yield [
                Point(column.name, labels, ts_ms, value)
                for column, cell in zip(self._columns, row, strict=False)
                if column.name and (value := _number(cell)) is not None
            ]


def _column(cell: str, prefix: str) -> Column:
    header = _UNIT.sub("", cell).strip()
    if header.lower() in _LABELS or header.lower() in _TIMES:
        return Column(header.lower(), "")
    return Column(header, prefix + re.sub(r"[^A-Za-z0-9_]+", "_", header))


def _number(cell: str) -> float | None:
    found = _CELL.match(cell)
    return float(found.group(1)) if found and not _ABSENT.match(cell) else None


def _time_ms(text: str, line: int) -> int:
    """Unix seconds, or nvidia-smi's `2026/07/14 08:12:38.123`, which is this machine's local time."""
    text = text.strip()
    try:
        try:
            return round(float(text) * 1000)
        except ValueError:
            at = datetime.fromisoformat(text.replace("/", "-"))
        return round((at if at.tzinfo else at.astimezone()).astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UnreadableError(f"line {line}: {text[:40]!r} is no time") from None
