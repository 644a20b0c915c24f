"""Read, put together, publish, again and again; and a word to the person at the terminal when the picture changes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic
from types import FrameType
from typing import Any

from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader, SourceReading
from infra.collect.mapping.schema import ExporterProfile
from infra.collect.mapping.starts import PodStarts, summaries
from infra.collect.mapping.workloads import Identities
from infra.collect.options import Dry
from infra.collect.points import Point
from infra.collect.publisher import DryRun, KafkaPublisher, RecordPublisher, pack, replicas_from_sources
from infra.collect.sources.scrape import Round
from infra.console.errors import HarmonyError
from infra.console.options import print_json, say
from infra.console.text import parse_duration_s, some
from infra.settings.load import Settings
from streams.log import OutRecord
from streams.topics import Topics

_MOST_NAMED = 8

Read = Callable[[], Round]


@dataclass(slots=True)
class Collected:
    """What a collector has done since it started.

    Attributes:
        rounds: looks at the source.
        failures: sources that could not be read in the last round, and why.
        workloads: heard of so far.
        unpublished: records that Kafka did not take.
    """

    rounds: int = 0
    records: int = 0
    unpublished: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    workloads: set[str] = field(default_factory=set)


class Collector:
    """Brings one source's telemetry to one publisher.

    Args:
        read: one look at the source.
        reader: puts points together.
        fleet_source: publish replica counts, the engines that answer, under this name; None = do not.
        starts: follows the starts of replicas; None = nobody does.
        say: takes one line for people.
    """

    def __init__(
        self,
        read: Read,
        reader: Reader,
        topics: Topics,
        publisher: RecordPublisher,
        *,
        fleet_source: str | None = None,
        starts: PodStarts | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._read, self._reader, self._topics, self._publisher = read, reader, topics, publisher
        self._fleet_source = fleet_source
        self._starts = starts
        self._measured: set[str] = set()
        self._say = say
        self._message_keys: set[str] = set()
        self.collected = Collected()

    def step(self) -> None:
        """One round.

        Raises:
            HarmonyError: Kafka did not take the records.
        """
        looked = self._read()
        readings = self._readings(looked)
        self.send(self._records(readings))

    def slots(self, points: Sequence[Point], step_ms: int) -> dict[int, list[OutRecord]]:
        """The records of points that span many steps, by step: no record holds samples of two."""
        by_slot: dict[int, list[SourceReading]] = {}
        for reading in self._readings(Round(list(points))):
            by_slot.setdefault(reading.ts_ms // step_ms, []).append(reading)
        return {slot: self._records(readings) for slot, readings in by_slot.items()}

    def _readings(self, looked: Round) -> list[SourceReading]:
        readings = self._reader.read(looked.points)
        self._measured |= {reading.workload for reading in readings if reading.kind != "fleet"}
        for start in self._starts.read(looked.points) if self._starts is not None else ():
            # Other pods of the cluster are nobody's replicas.
            if start.workload in self._measured:
                self._say(f"{start.sentence()}.")
        done = self.collected
        done.rounds += 1
        done.failures = looked.failures
        self._report(looked, {reading.workload for reading in readings})
        return readings

    def _records(self, readings: list[SourceReading]) -> list[OutRecord]:
        counted = [] if self._fleet_source is None else replicas_from_sources(readings, self._fleet_source)
        return pack([*readings, *counted], self._topics)

    def send(self, records: Sequence[OutRecord]) -> None:
        """Publish records.

        Raises:
            HarmonyError: Kafka did not take them.
        """
        done = self.collected
        try:
            self._publisher.publish(records)
        except HarmonyError:
            done.unpublished += len(records)
            raise
        done.records += len(records)

    def run(self, interval_s: float, stop: Event) -> None:
        """Rounds at this interval until told to stop; what Kafka does not take is lost, said once, and not tried again.

        Telemetry is about now: after an outage the next round says more than an old one sent late.
        """
        due_s = monotonic()
        while not stop.is_set():
            try:
                self.step()
                self._message_keys.discard("unpublished")
            except HarmonyError as error:
                self._once("unpublished", f"{error.message} Telemetry is lost until it does; trying on.")
            due_s += interval_s
            late_s = monotonic() - due_s
            if late_s > interval_s:
                due_s += late_s // interval_s * interval_s
            stop.wait(max(0.0, due_s - monotonic()))

    def summary(self) -> dict[str, Any]:
        """For `--json` and the last line."""
        tally, done = self._reader.tally, self.collected
        return {
            "rounds": done.rounds,
            "records": done.records,
            "unpublished": done.unpublished,
            "points": tally.points,
            "readings": dict(sorted(tally.readings.items())),
            "workloads": sorted(done.workloads),
            "failures": done.failures,
            "without_workload": [
                {"profile": profile, "reason": reason, "points": n}
                for (profile, reason), n in tally.unplaced.most_common()
            ],
            "refused": [{"field": name, "reason": code, "values": n} for (name, code), n in tally.refused.items()],
            "without_arrivals": [
                {"profile": profile, "metrics": metrics, "readings": n}
                for (profile, metrics), n in tally.lacking.items()
            ],
        } | self._starts_summary()

    def _starts_summary(self) -> dict[str, Any]:
        if self._starts is None:
            return {}
        return {"starts": list(summaries(s for s in self._starts.starts if s.workload in self._measured))}

    def _report(self, looked: Round, workloads: set[str]) -> None:
        for where, reason in looked.failures.items():
            self._once(f"failure {where}", f"{where} cannot be read: {reason}")
        for key in [k for k in self._message_keys if k.startswith("failure ") and k[8:] not in looked.failures]:
            self._message_keys.discard(key)
            self._say(f"{key[8:]} can be read again.")
        new = sorted(workloads - self.collected.workloads)
        if new:
            self.collected.workloads |= workloads
            self._say(f"Telemetry of {_workloads(new)}.")
        if self.collected.rounds == 1 and not workloads and not looked.failures:
            tally = self._reader.tally
            problem = (
                "none that a profile knows"
                if not tally.points
                else "and every value that a profile knows is blank"
                if tally.blank.total() >= tally.points
                else "none that belongs to a workload"
            )
            self._say(f"Nothing to publish yet: {len(looked.points)} samples were read, {problem}.")

    def _once(self, key: str, text: str) -> None:
        if key not in self._message_keys:
            self._message_keys.add(key)
            self._say(text)


def _workloads(names: list[str]) -> str:
    return f"{len(names)} workload{'s' if len(names) != 1 else ''}: {some(names, _MOST_NAMED)}"


# What the collectors' commands share: settings, profiles, publisher, and the end of a run.


@contextmanager
def publisher_of(common: Dry, settings: Settings, brokers: str) -> Iterator[RecordPublisher]:
    """Kafka, or the terminal."""
    publisher: RecordPublisher = (
        DryRun() if common.dry_run else KafkaPublisher(brokers, settings.kafka_client_options())
    )
    try:
        yield publisher
    finally:
        publisher.close()


def reader_of(
    settings: Settings,
    profiles: Sequence[str] = (),
    mappings: Sequence[Path] = (),
    workload: str | None = None,
    own: Sequence[ExporterProfile] = (),
) -> Reader:
    """A reader by profiles (or by `own`, a collector's), with the workload rules of settings, files and flag."""
    mapping = choose(profiles, mappings)
    identities = Identities(settings.matches, mapping.rules, workload)
    promised = {section.id for section in settings.workloads if section.slo is not None}
    slos = {spec.id: spec.slo for spec in settings.policy.workloads if spec.id in promised}
    return Reader(own or mapping.profiles, identities, slos.get, say)


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
    starts: PodStarts | None = None,
    settings: tuple[Settings, str] | None = None,
    before: Callable[[Collector], None] | None = None,
) -> None:
    """Run a collector until it is told to stop, or once.

    Args:
        before: what is to be done first, such as publishing the past.

    Raises:
        HarmonyError: with `once`, that nothing could be read, or Kafka did not take it.
    """
    chosen, brokers = settings or common.settings()
    topics: Topics = chosen.topics
    with publisher_of(common, chosen, brokers) as publisher:
        collector = Collector(read, reader, topics, publisher, fleet_source=fleet_source, starts=starts, say=say)
        if before is not None:
            before(collector)
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
    for entry in summary.get("starts", ()):
        for kind in ("cold", "warm"):
            if kind in entry:
                stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in entry[kind]["median_s"].items())
                say(f"{entry['workload']}: {entry[kind]['starts']} {kind} starts, medians: {stages}")
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
