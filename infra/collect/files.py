"""`harmony collect file`: telemetry that lies in files, or comes through a pipe."""

from __future__ import annotations

import gzip
import socket
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from time import time
from typing import TextIO

from infra.collect.command import publisher_of, reader_of, report
from infra.collect.formats.exposition import UnreadableError, read_exposition, with_target_labels
from infra.collect.formats.raw_record import FORMATS, read_raw
from infra.collect.loop import Collector
from infra.collect.mapping.readings import Reader
from infra.collect.options import Dry
from infra.collect.points import Point
from infra.collect.sources.scrape import Round
from infra.collect.tables import Table
from infra.collect.targets import parse_labels
from infra.console.errors import HarmonyError
from infra.console.options import say
from streams.records.strict_json import MalformedError

JSON_FORMATS = tuple(form for form in FORMATS if form not in ("auto", "otlp_proto"))
FILE_FORMATS = ("auto", "exposition", "csv", *JSON_FORMATS)
_ROWS_PER_ROUND = 2_000
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
    found = common.settings()
    reader = reader_of(found[0], profiles, mappings, workload)
    looked = Round([])
    with publisher_of(common, *found) as publisher:
        collector = Collector(lambda: looked, reader, found[0].topics, publisher, say=say)
        for path in paths:
            for points in read_file(path, form, given, reader):
                looked = Round(points)
                collector.step()
    report(collector.summary(), common)


def read_file(path: Path, form: str, labels: dict[str, str], reader: Reader) -> Iterator[list[Point]]:
    """The points of a file in portions; of a pipe row by row, as they come.

    Raises:
        HarmonyError: unreadable, or not of the format; names file and line.
    """
    target = {"instance": socket.gethostname() if path == PIPE else path.name.split(".")[0], **labels}
    now_ms = int(time() * 1000)
    with _opened(path) as lines:
        try:
            first = next((line for line in lines if line.strip()), None)
            if first is None:
                raise UnreadableError("it is empty")
            form = _form_of(first) if form == "auto" else form
            rest = chain([first], lines)
            if form == "exposition":
                yield read_exposition("".join(rest), reader.wanted, now_ms, target)
            else:
                rows = _table(rest, now_ms) if form == "csv" else _documents(rest, form, now_ms)
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
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with TextIOWrapper(gzip.open(file) if packed else file, encoding="utf-8") as lines:
                yield lines
    except OSError as error:
        raise HarmonyError(f"Cannot read {path}: {error.strerror or error}.", 2) from None


def _form_of(first: str) -> str:
    head = first.lstrip()
    if head[0] in "{[":
        return "json"
    return "exposition" if head[0] == "#" or "," not in head.partition("{")[0] else "csv"


def _table(lines: Iterable[str], now_ms: int) -> Iterator[list[Point]]:
    table = Table(lines, now_ms)
    yield from table
    if table.num_left_out:
        say(f"{table.num_left_out} rows have no time, or are cut off, and are left out.")


def _documents(lines: Iterable[str], form: str, now_ms: int) -> Iterator[list[Point]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield read_raw(line.encode(), now_ms, "auto" if form == "json" else form).points
            except MalformedError as error:
                raise UnreadableError(f"line {number}: {error.detail}") from None


def _portions(rows: Iterable[list[Point]], size: int) -> Iterator[list[Point]]:
    portion: list[Point] = []
    for n, points in enumerate(rows, 1):
        portion += points
        if n % size == 0:
            yield portion
            portion = []
    if portion:
        yield portion
