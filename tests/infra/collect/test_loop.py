"""The loop: what it says, when it goes on, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest

from infra.collect.formats.exposition import read_exposition
from infra.collect.loop import Collector
from infra.collect.points import Point
from infra.collect.sources.scrape import Round
from infra.console.errors import HarmonyError
from streams.log import OutRecord
from tests.infra.collect.samples import TOPICS, TS_MS, VLLM, accepted, reader


class Kept:
    """Keeps records; refuses the first `refusals` batches."""

    def __init__(self, refusals: int = 0) -> None:
        self.records: list[OutRecord] = []
        self.refusals = refusals

    def publish(self, records: Sequence[OutRecord]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise HarmonyError("Kafka is away.")
        self.records += records

    def close(self) -> None:
        pass


class Script:
    """Answers as told, then stops the loop."""

    def __init__(self, *rounds: Round) -> None:
        self.stop = Event()
        self._rounds = list(rounds)

    def __call__(self) -> Round:
        looked = self._rounds.pop(0)
        if not self._rounds:
            self.stop.set()
        return looked


def scraped(n: int, pod: str = "a") -> list[Point]:
    by = reader("vllm")
    return read_exposition(VLLM, by.reads, TS_MS + 1000 * n, {"instance": "h", "pod": pod, "namespace": "x"})


def test_a_failing_source_is_told_once_and_again_when_it_is_back() -> None:
    said: list[str] = []
    script = Script(Round(scraped(0)), Round([], {"h": "gone"}), Round([], {"h": "gone"}), Round(scraped(1)))
    collector = Collector(script, reader("vllm"), TOPICS, Kept(), say=said.append)
    collector.run(0.001, script.stop)
    assert said == ["Telemetry of 1 workload: x/a.", "h cannot be read: gone", "h can be read again."]


def test_what_kafka_does_not_take_is_lost_said_once_and_counted() -> None:
    said: list[str] = []
    kept = Kept(refusals=2)
    script = Script(*(Round(scraped(n)) for n in range(4)))
    collector = Collector(script, reader("vllm"), TOPICS, kept, say=said.append)
    collector.run(0.001, script.stop)
    assert [line for line in said if "Kafka is away" in line] == [
        "Kafka is away. Telemetry is lost until it does; trying on."
    ]
    assert len(accepted(kept.records)) == 2
    assert (collector.summary()["records"], collector.summary()["unpublished"]) == (2, 2)
    with pytest.raises(HarmonyError):
        Collector(lambda: Round(scraped(0)), reader("vllm"), TOPICS, Kept(1)).step()


def test_new_workloads_are_named_as_they_come() -> None:
    said: list[str] = []
    script = Script(Round(scraped(0)), Round(scraped(1) + scraped(1, "b")), Round(scraped(2, "b")))
    Collector(script, reader("vllm"), TOPICS, Kept(), say=said.append).run(0.001, script.stop)
    assert said == ["Telemetry of 1 workload: x/a.", "Telemetry of 1 workload: x/b."]


def test_nothing_known_at_all_is_told() -> None:
    said: list[str] = []
    collector = Collector(lambda: Round([Point("up", {}, TS_MS, 1.0)]), reader("vllm"), TOPICS, Kept(), say=said.append)
    collector.step()
    collector.step()
    assert said == ["Nothing to publish yet: 1 samples were read, none that a profile knows."]


def test_replica_counts_come_with_the_readings() -> None:
    kept = Kept()
    Collector(lambda: Round(scraped(0)), reader("vllm"), TOPICS, kept, fleet_source="c").step()
    assert [r.topic for r in kept.records] == [TOPICS.telemetry_requests] * 2
    accepted(kept.records)
