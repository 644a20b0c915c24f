"""`harmony export` as a person types it."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from infra.console.errors import HarmonyError
from infra.console.options import BrokersOption, ConfigOption, say


def export(
    out: Annotated[
        str, typer.Argument(metavar="FILE", help="CSV to write (.csv, .csv.gz); - for stdout.", show_default=False)
    ] = "-",
    workload: Annotated[
        list[str] | None, typer.Option("--workload", "-w", help="Only this one. Repeatable; default: all.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only so long before the newest slot: 6h, 2d; default: all that is kept.")
    ] = None,
    config: ConfigOption = None,
    brokers: BrokersOption = None,
) -> None:
    """Write what the workers have folded, slot by slot, to a file for `forecast`, `train --data` or your own tools."""
    from infra.connection import find_fleet
    from infra.console.text import printable
    from infra.kafka.tail import TopicTail
    from infra.operate.export import PageHistory, write_csv

    since_s = None if since is None else _duration_s(since)
    if out != "-" and not out.endswith((".csv", ".csv.gz")):
        raise HarmonyError(f"{out}: the file is .csv or .csv.gz.", 2)
    settings, where = find_fleet(config, brokers)
    stream, topics = settings.stream, settings.topics
    history = PageHistory(stream, topics.partitions, workload or (), topics.pages)
    with TopicTail(where, topics.pages, security=settings.kafka_client_options()) as tail:
        for record in tail.read(tail.bounds()):
            history.take(record)
    strangers = sorted(set(workload or ()) - history.workloads)
    if strangers:
        known = ", ".join(printable(name, 64) for name in sorted(history.workloads)[:10]) or "none"
        raise HarmonyError(f"No slot of workload {printable(strangers[0], 64)!r} on {topics.pages}; it holds: {known}.")
    if not history.workloads:
        raise HarmonyError(f"{topics.pages} at {where} holds no workload yet; a worker writes it a slot after another.")
    with _opened(out) as file:
        rows, indicators = write_csv(file, history.histories(since_s), stream.step_ms)
    say(f"{rows} slots of {stream.step_ms / 1000:g} s, {len(indicators)} indicators: {out}")


def _duration_s(text: str) -> float:
    from infra.durations import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise HarmonyError(f"--since: {error}.", 2) from None


@contextmanager
def _opened(out: str) -> Iterator[TextIO]:
    """The file as it will be: it stands there whole, or not at all."""
    if out == "-":
        yield sys.stdout
        return
    path, part = Path(out), Path(f"{out}.part")
    try:
        with part.open("wb") as raw:
            packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if out.endswith(".gz") else raw
            with io.TextIOWrapper(packed, encoding="utf-8", newline="") as file:
                yield file
        part.replace(path)
    except OSError as error:
        raise HarmonyError(f"{out}: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)
