"""`harmony collect file`: telemetry that lies in files, or comes through a pipe."""

from __future__ import annotations

import re
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from time import time
from typing import NamedTuple, TextIO

from infra.collect.formats.exposition import UnreadableError, read_exposition, with_target_labels
from infra.collect.formats.json_documents import begins_document, read_documents
from infra.collect.formats.raw_record import FORMATS, NOT_MEASURED
from infra.collect.loop import Collector, publisher_of, reader_of, report
from infra.collect.mapping.readings import Reader
from infra.collect.options import Dry
from infra.collect.points import Point, is_measured
from infra.collect.sources.scrape import Round, parse_labels
from infra.console.errors import HarmonyError
from infra.console.instants import LOCAL, number_ms, parse_iso, unix_ms
from infra.console.options import say
from infra.console.tables import open_text, parse_csv

# CSV logs of devices: nvidia-smi, DCGM's and AMD's tools, one row per device and instant.


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


class DeviceTable:
    """Reads rows as they come, so that a pipe works as a file does.

    Args:
        lines: header first.
        now_ms: the time of rows without one.

    Raises:
        UnreadableError: no header that names a device's numbers.
    """

    def __init__(self, lines: Iterable[str], now_ms: int) -> None:
        self._has_newline = True
        self._rows = parse_csv(self._noted(lines), _refuse_csv, skip_spaces=True)
        self._now_ms = now_ms
        _, header = next(self._rows, (0, []))
        # nvidia-smi's query names hold dots, and its headers units in brackets.
        prefix = _NVIDIA_SMI if any("." in cell or _UNIT.search(cell) for cell in header) else _OTHER
        self._columns = [_column(cell, prefix) for cell in header]
        if len(header) < 2 or not any(column.name for column in self._columns):
            raise UnreadableError("line 1 is no header of a CSV table of devices")
        self.num_left_out = 0

    def _noted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._has_newline = line.endswith("\n")
            yield line

    def __iter__(self) -> Iterator[list[Point]]:
        """The points of each row.

        A row may end early: what it does not hold was not measured. One that holds no time though the header names one,
        or is cut off in the middle of its last line, is left out and counted.
        """
        headers = [column.header for column in self._columns]
        timed = [name for name in _TIMES if name in headers]
        for line, row in self._rows:
            if not row:
                continue
            cells = dict(zip(headers, row, strict=False))
            torn = len(row) < len(self._columns) and not self._has_newline
            if torn or (timed and not cells.get(timed[0], "").strip()):
                self.num_left_out += 1
                continue
            ts_ms = _time_ms(cells[timed[0]], line) if timed else self._now_ms
            labels = {name: cells[name].strip() for name in _LABELS if cells.get(name, "").strip()}
            yield [
                Point(column.name, labels, ts_ms, value)
                for column, cell in zip(self._columns, row, strict=False)
                if column.name and (value := _number(cell)) is not None
            ]


def _refuse_csv(line: int, error: Exception) -> UnreadableError:
    return UnreadableError(f"line {line} is not CSV ({error})")


def _column(cell: str, prefix: str) -> Column:
    header = _UNIT.sub("", cell).strip()
    if header.lower() in _LABELS or header.lower() in _TIMES:
        return Column(header.lower(), "")
    return Column(header, prefix + re.sub(r"[^A-Za-z0-9_]+", "_", header))


def _number(cell: str) -> float | None:
    match = _CELL.match(cell)
    return float(match.group(1)) if match and not _ABSENT.match(cell) else None


def _time_ms(text: str, line: int) -> int:
    """Unix seconds, or nvidia-smi's `2026/07/14 08:12:38.123`, which is this machine's local time."""
    text = text.strip()
    try:
        try:
            return round(number_ms(float(text), "s"))
        except ValueError:
            return unix_ms(parse_iso(text.replace("/", "-"), LOCAL))
    except (ValueError, OverflowError):
        raise UnreadableError(f"line {line}: {text[:40]!r} is no time") from None


JSON_FORMATS = tuple(form for form in FORMATS if form not in ("auto", "otlp_proto"))
FILE_FORMATS = ("auto", "exposition", "csv", *JSON_FORMATS)
# A sample without labels, even with a decimal comma, is no header of a table.
_BARE_SAMPLE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*[ \t]+[-+.,\d]+(?:[ \t]+\d+)?\s*$")
_ROWS_PER_ROUND = 2_000
_TWICE = "the series stands twice with different values, the later one counts (give every exporter a file of its own)"
PIPE = Path("-")


def collect_files(
    common: Dry,
    paths: Sequence[Path],
    form: str,
    labels: Sequence[str],
    profiles: Sequence[str],
    mappings: Sequence[Path],
    workload: str | None,
) -> None:
    """Publish every file, one after the other.

    Raises:
        HarmonyError: a file that cannot be read (names file and line), or Kafka did not take it.
    """
    if form not in FILE_FORMATS:
        raise HarmonyError(f"--format {form!r} is none of {', '.join(FILE_FORMATS)}.", 2)
    given = parse_labels(labels)
    settings = common.settings()
    reader = reader_of(settings[0], profiles, mappings, workload)
    looked = Round([])
    passed_over: Counter[str] = Counter()
    with publisher_of(common, *settings) as publisher:
        collector = Collector(lambda: looked, reader, settings[0].topics, publisher, say=say)
        for path in paths:
            for points in read_file(path, form, given, reader, passed_over):
                looked = Round(points)
                collector.step()
    report(collector.summary() | {"passed_over": dict(passed_over)}, common)
    if not common.as_json:
        for reason, count in passed_over.items():
            say(f"left out: {count} samples: {reason}")


def read_file(
    path: Path, form: str, labels: dict[str, str], reader: Reader, passed_over: Counter[str]
) -> Iterator[list[Point]]:
    """The points of a file in portions; of a pipe row by row, as they come.

    Args:
        passed_over: counts what is there and cannot be used, by reason.

    Raises:
        HarmonyError: unreadable, or not of the format; names file and line.
    """
    target = {"instance": socket.gethostname() if path == PIPE else path.name.split(".")[0], **labels}
    now_ms = int(time() * 1000)
    with _opened(path) as lines:
        try:
            head = list(_until_text(lines))
            if not head:
                raise UnreadableError("it is empty")
            first = head[-1] = head[-1].removeprefix("\ufeff")
            form = _form_of(first) if form == "auto" else form
            rest = chain(head, lines)
            if form == "exposition":
                points = read_exposition("".join(rest), reader.reads, now_ms, target)
                passed_over.update(_odd_samples(points))
                yield points
            else:
                rows = (
                    _table(chain([first], lines), now_ms)
                    if form == "csv"
                    else read_documents(rest, form, now_ms, passed_over)
                )
                for points in _portions(rows, 1 if path == PIPE else _ROWS_PER_ROUND):
                    yield [p._replace(labels=with_target_labels(p.labels, target)) for p in points]
        except UnreadableError as error:
            raise HarmonyError(f"{path}: {error}.", 2) from None
        except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
            raise HarmonyError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.", 2) from None


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if path == PIPE:
        yield sys.stdin
        return
    try:
        with open_text(path) as lines:
            yield lines
    except OSError as error:
        raise HarmonyError(f"Cannot read {path}: {error.strerror or error}.", 2) from None


def _until_text(lines: Iterable[str]) -> Iterator[str]:
    """The lines up to and with the first that is not blank."""
    for line in lines:
        yield line
        if line.strip():
            return


def _form_of(first: str) -> str:
    head = first.lstrip()
    if begins_document(head):
        return "auto"
    exposition = head[0] == "#" or "," not in head.partition("{")[0] or _BARE_SAMPLE.match(head)
    return "exposition" if exposition else "csv"


def _odd_samples(points: Iterable[Point]) -> Iterator[str]:
    """Per sample that says nothing, or not the same as another of its series and time, the reason."""
    values: dict[tuple[str, frozenset[tuple[str, str]], int], float] = {}
    for point in points:
        if not is_measured(point.value):
            yield NOT_MEASURED
        elif values.setdefault((point.name, frozenset(point.labels.items()), point.ts_ms), point.value) != point.value:
            yield _TWICE


def _table(lines: Iterable[str], now_ms: int) -> Iterator[list[Point]]:
    table = DeviceTable(lines, now_ms)
    yield from table
    if table.num_left_out:
        say(f"{table.num_left_out} rows have no time, or are cut off, and are left out.")


def _portions(rows: Iterable[list[Point]], size: int) -> Iterator[list[Point]]:
    portion: list[Point] = []
    for n, points in enumerate(rows, 1):
        portion += points
        if n % size == 0:
            yield portion
            portion = []
    # Also an empty one: that nothing was read is said, too.
    yield portion
