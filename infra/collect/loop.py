"""Read, put together, publish, again and again; and a word to the person at the terminal when the picture changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Any

from infra.collect.mapping.readings import Reader
from infra.collect.packing import pack, replicas_from_sources
from infra.collect.publisher import Publisher
from infra.collect.sources.scrape import Round
from infra.console.errors import HarmonyError
from infra.console.text import some
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
        say: takes one line for people.
    """

    def __init__(
        self,
        read: Read,
        reader: Reader,
        topics: Topics,
        publisher: Publisher,
        *,
        fleet_source: str | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._read, self._reader, self._topics, self._publisher = read, reader, topics, publisher
        self._fleet_source = fleet_source
        self._say = say
        self._said: set[str] = set()
        self.collected = Collected()

    def step(self) -> None:
        """One round.

        Raises:
            HarmonyError: Kafka did not take the records.
        """
        looked = self._read()
        readings = self._reader.read(looked.points)
        if self._fleet_source is not None:
            readings += replicas_from_sources(readings, self._fleet_source)
        records = pack(readings, self._topics)
        done = self.collected
        done.rounds += 1
        done.failures = looked.failures
        self._tell(looked, {reading.workload for reading in readings})
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
                self._said.discard("unpublished")
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
        }

    def _tell(self, looked: Round, workloads: set[str]) -> None:
        for where, reason in looked.failures.items():
            self._once(f"failure {where}", f"{where} cannot be read: {reason}")
        for key in [k for k in self._said if k.startswith("failure ") and k[8:] not in looked.failures]:
            self._said.discard(key)
            self._say(f"{key[8:]} can be read again.")
        new = sorted(workloads - self.collected.workloads)
        if new:
            self.collected.workloads |= workloads
            self._say(f"Telemetry of {_workloads(new)}.")
        for profile, reason in self._reader.tally.unplaced:
            self._once(f"unplaced {profile} {reason}", f"Some series of profile {profile} are left out: {reason}.")
        if self.collected.rounds == 1 and not workloads and not looked.failures:
            known = "none that a profile knows" if not self._reader.tally.points else "none that belongs to a workload"
            self._say(f"Nothing to publish yet: {len(looked.points)} samples were read, {known}.")

    def _once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._say(text)


def _workloads(names: list[str]) -> str:
    return f"{len(names)} workload{'s' if len(names) != 1 else ''}: {some(names, _MOST_NAMED)}"
