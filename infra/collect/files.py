"""`harmony collect file`: telemetry that lies in files, or comes through a pipe."""

from __future__ import annotations

import re
import socket
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from time import time
from typing import TextIO

from infra.collect.device_table import DeviceTable
from infra.collect.formats.exposition import UnreadableError, read_exposition, with_target_labels
from infra.collect.formats.raw_record import FORMATS, read_raw
from infra.collect.loop import Collector, publisher_of, reader_of, report
from infra.collect.mapping.readings import Reader
from infra.collect.options import Dry
from infra.collect.points import Point
from infra.collect.sources.scrape import Round, parse_labels
from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.console.tables import NoTextError, open_text
from streams.records.strict_json import MalformedError

JSON_FORMATS = tuple(form for form in FORMATS if form not in ("auto", "otlp_proto"))
FILE_FORMATS = ("auto", "exposition", "csv", *JSON_FORMATS)
_ROWS_PER_ROUND = 2_000
# A sample of an exposition: name, labels, and a number.
_SAMPLE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*\s*(?:\{.*\}\s*|\s)[+-]?(?:\d|\.\d|nan|inf)", re.IGNORECASE)
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
    with publisher_of(common, *settings) as publisher:
        collector = Collector(lambda: looked, reader, settings[0].topics, publisher, say=say)
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
    started_ms = _clock_ms()
    with _opened(path) as lines:
        try:
            first = next((line for line in lines if line.strip()), None)
            if first is None:
                raise UnreadableError("it is empty")
            form = _form_of(first) if form == "auto" else form
            rest = chain([first], lines)
            if form == "exposition":
                yield read_exposition(_samples(rest), reader.reads, started_ms, target)
            else:
                rows = _table(rest, path == PIPE, started_ms) if form == "csv" else _documents(rest, form, started_ms)
                for points in _portions(rows, 1 if path == PIPE else _ROWS_PER_ROUND):
                    yield [p._replace(labels=with_target_labels(p.labels, target)) for p in points]
        except UnreadableError as error:
            raise HarmonyError(f"{path}: {error}.", 2) from None
        except UnicodeDecodeError:
            raise HarmonyError(f"{path}: is not UTF-8 text; convert it to UTF-8.", 2) from None


def _clock_ms() -> int:
    return int(time() * 1000)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with open_text(sys.stdin.buffer if path == PIPE else path) as lines:
            yield lines
    except NoTextError as error:
        raise HarmonyError(f"{path}: {error}.", 2) from None
    except (OSError, EOFError, zlib.error) as error:
        raise HarmonyError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.", 2) from None


def _form_of(first: str) -> str:
    head = first.lstrip()
    if head[0] in "{[":
        return "json"
    separated = any(mark in head.partition("{")[0] for mark in ",;\t")
    return "csv" if separated and head[0] != "#" and not _SAMPLE.match(head) else "exposition"


def _samples(lines: Iterable[str]) -> str:
    """The text of an exposition.

    Raises:
        UnreadableError: its first line that is no comment is no sample, as in the tables that tools print for people.
    """
    text = list(lines)
    for number, line in enumerate(text, 1):
        if line.strip() and not line.startswith("#"):
            if not line.startswith("{") and not _SAMPLE.match(line):
                raise UnreadableError(
                    f"line {number} is no sample of an exposition ({line.strip()[:40]!r}); of a device's tool give the "
                    "CSV, as nvidia-smi --query-gpu=... --format=csv and rocm-smi --csv write it"
                )
            break
    return "".join(text)


def _table(lines: Iterable[str], live: bool, started_ms: int) -> Iterator[list[Point]]:
    table = DeviceTable(lines, _clock_ms if live else lambda: started_ms, live=live)
    if not table.names_devices:
        say("No column names a device (index, uuid, pci.bus_id, ...): all rows are read as one device.")
    if not live and not table.names_times:
        say("No column is named timestamp: the rows are published as measured now.")
    yield from table
    if table.num_left_out:
        say(f"{table.num_left_out} rows have no time, or are cut off, and are left out.")
    if table.num_repeated:
        say(f"{table.num_repeated} rows repeat a device and an instant with other values: the last one counts.")
    if table.num_unreadable:
        say(f"{table.num_unreadable} cells hold no number and are missing: {table.first_unreadable}.")


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
