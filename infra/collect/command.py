"""What the collectors' commands share: settings, profiles, publisher, and the end of a run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

from infra.collect.loop import Collector, Read
from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader
from infra.collect.mapping.schema import Profile
from infra.collect.mapping.workloads import Identities
from infra.collect.options import Dry
from infra.collect.publisher import DryRun, KafkaPublisher, Publisher
from infra.console.errors import HarmonyError
from infra.console.options import print_json, say
from infra.durations import parse_duration_s
from infra.settings.load import Settings
from streams.topics import Topics


@contextmanager
def publisher_of(common: Dry, settings: Settings, brokers: str) -> Iterator[Publisher]:
    """Kafka, or the terminal."""
    publisher: Publisher = DryRun() if common.dry_run else KafkaPublisher(brokers, settings.kafka_client_options())
    try:
        yield publisher
    finally:
        publisher.close()


def reader_of(
    settings: Settings,
    profiles: Sequence[str] = (),
    mappings: Sequence[Path] = (),
    workload: str | None = None,
    own: Sequence[Profile] = (),
) -> Reader:
    """A reader by profiles (or by `own`, a collector's), with the workload rules of settings, files and flag."""
    mapping = choose(profiles, mappings)
    identities = Identities(settings.matches, mapping.rules, workload)
    promised = {section.id for section in settings.workloads if section.slo is not None}
    slos = {spec.id: spec.slo for spec in settings.policy.workloads if spec.id in promised}
    return Reader(own or mapping.profiles, identities, slos.get)


def interval_of(text: str) -> float:
    """A duration of at least 0.1 s.

    Raises:
        HarmonyError: it is none (exit code 2).
    """
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise HarmonyError(f"--interval: {error}.", 2) from None
    if seconds < 0.1:
        raise HarmonyError(f"--interval {text}: at least 0.1 s.", 2)
    return seconds


def collect(
    read: Read,
    reader: Reader,
    common: Dry,
    *,
    interval_s: float,
    once: bool,
    fleet_source: str | None = None,
    settings: tuple[Settings, str] | None = None,
) -> None:
    """Run a collector until it is told to stop, or once.

    Raises:
        HarmonyError: with `once`, that nothing could be read, or Kafka did not take it.
    """
    chosen, brokers = settings or common.settings()
    topics: Topics = chosen.topics
    with publisher_of(common, chosen, brokers) as publisher:
        collector = Collector(read, reader, topics, publisher, fleet_source=fleet_source, say=say)
        if once:
            collector.step()
        else:
            collector.run(interval_s, stop_event())
    report(collector.summary(), common)
    failures = collector.collected.failures
    if once and failures and not collector.collected.records:
        where, reason = next(iter(failures.items()))
        raise HarmonyError(f"Nothing was collected: {where}: {reason}")


def report(summary: Mapping[str, Any], common: Dry) -> None:
    """The last word: JSON on stdout where asked for, else a line on stderr."""
    if common.as_json:
        print_json(summary)
        return
    readings = sum(summary["readings"].values())
    lost = f", {summary['unpublished']} records not taken by Kafka" if summary.get("unpublished") else ""
    verb = "printed" if common.dry_run else "published"
    say(f"{summary['points']} samples, {readings} readings, {summary['records']} records {verb}{lost}.")
    for entry in summary["refused"]:
        say(f"left out: {entry['values']} values of {entry['field']} ({entry['reason']})")


def stop_event(on_stop: Callable[[], None] | None = None) -> Event:
    """An event that SIGINT and SIGTERM set."""
    stop = Event()

    def handle(_: int, __: FrameType | None) -> None:
        stop.set()
        if on_stop is not None:
            on_stop()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop
