"""`harmony collect file`: telemetry that lies in files, or comes through a pipe."""

from __future__ import annotations

import re
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from time import time
from typing import TextIO

from infra.collect.device_table import DeviceTable
from infra.collect.formats.exposition import UnreadableError, read_exposition, with_target_labels
from infra.collect.formats.json_documents import begins_document, read_documents
from infra.collect.formats.raw_record import FORMATS, NOT_MEASURED
from infra.collect.loop import Collector, publisher_of, reader_of, report
from infra.collect.mapping.readings import Reader
from infra.collect.options import Dry
from infra.collect.points import Point, is_measured
from infra.collect.sources.scrape import Round, parse_labels
from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.console.tables import NoTextError, open_text
from infra.settings.load import Settings

JSON_FORMATS = tuple(form for form in FORMATS if form not in ("auto", "otlp_proto"))
FILE_FORMATS = ("auto", "exposition", "csv", *JSON_FORMATS)
_ROWS_PER_ROUND = 2_000
_TWICE = "the series stands twice with different values, the later one counts (give every exporter a file of its own)"
# A sample without labels, even with a decimal comma, is no header of a table.
_BARE_SAMPLE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*[ \t]+[-+.,\d]+(?:[ \t]+\d+)?\s*$")
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
    *,
    history: bool = False,
) -> None:
    """Publish every file, one after the other.

    Args:
        history: all files together in the order of time, as the past of a fleet that starts.

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
        portions = (p for path in paths for p in read_file(path, form, given, reader, passed_over))
        if history:
            passed_over.update(_publish_past(collector, common, settings, portions))
        else:
            for points in portions:
                looked = Round(points)
                collector.step()
    report(collector.summary() | {"passed_over": dict(passed_over)}, common)
    if not common.as_json:
        for reason, count in passed_over.items():
            say(f"left out: {count} samples: {reason}")


def _publish_past(
    collector: Collector, common: Dry, settings: tuple[Settings, str], portions: Iterable[list[Point]]
) -> Mapping[str, int]:
    from infra.collect.history import open_history, publish_points

    publisher, newest_ms = open_history(collector, settings, common)
    return publish_points(publisher, (point for points in portions for point in points), newest_ms, _clock_ms())


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
    started_ms = _clock_ms()
    with _opened(path) as lines:
        try:
            head = list(_until_text(lines))
            if not head:
                raise UnreadableError("it is empty")
            first = head[-1] = head[-1].removeprefix("\ufeff")
            form = _form_of(first) if form == "auto" else form
            rest = chain(head, lines)
            if form == "exposition":
                points = read_exposition(_samples(rest), reader.reads, started_ms, target)
                passed_over.update(_odd_samples(points))
                yield points
            else:
                rows = (
                    _table(chain([first], lines), path == PIPE, started_ms)
                    if form == "csv"
                    else read_documents(rest, form, started_ms, passed_over)
                )
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
    separated = any(mark in head.partition("{")[0] for mark in ",;\t")
    is_sample = head[0] == "#" or _SAMPLE.match(head) or _BARE_SAMPLE.match(head)
    return "csv" if separated and not is_sample else "exposition"


def _odd_samples(points: Iterable[Point]) -> Iterator[str]:
    """Per sample that says nothing, or not the same as another of its series and time, the reason."""
    values: dict[tuple[str, frozenset[tuple[str, str]], int], float] = {}
    for point in points:
        if not is_measured(point.value):
            yield NOT_MEASURED
        elif values.setdefault((point.name, frozenset(point.labels.items()), point.ts_ms), point.value) != point.value:
            yield _TWICE


def _samples(lines: Iterable[str]) -> str:
    """The text of an exposition.

    Raises:
        UnreadableError: its first line that is no comment is no sample, as in the tables that tools print for people.
    """
    text = list(lines)
    for number, line in enumerate(text, 1):
        sample = line.strip()
        if sample and not sample.startswith("#"):
            if not sample.startswith("{") and not _SAMPLE.match(sample) and not _BARE_SAMPLE.match(sample):
                raise UnreadableError(
                    f"line {number} is no sample of an exposition ({sample[:40]!r}); of a device's tool give the "
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
        remedy = "; write decimals with a point" if "," in table.first_unreadable else ""
        say(f"{table.num_unreadable} cells hold no number and are missing: {table.first_unreadable}{remedy}.")


def _portions(rows: Iterable[list[Point]], size: int) -> Iterator[list[Point]]:
    portion: list[Point] = []
    for n, points in enumerate(rows, 1):
        portion += points
        if n % size == 0:
            yield portion
            portion = []
    # Also an empty one: that nothing was read is said, too.
    yield portion
