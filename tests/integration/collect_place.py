"""Topics of a test on a real Kafka, the collectors' commands run against them, and what lies in them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml
from kafka import KafkaConsumer, TopicPartition

from infra.kafka.admin import create_topics
from streams.records.decode import decode
from streams.records.schema import FleetRecord, SampleRecord
from streams.topics import Topics

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
WAIT_S = 120.0


class Place:
    """Topics under a prefix of their own, and what lies in them."""

    def __init__(self, bootstrap: str, prefix: str, home: Path) -> None:
        self.bootstrap, self.home = bootstrap, home
        self.topics = Topics(prefix, PARTITIONS, 16 << 20)
        create_topics(bootstrap, (*self.topics.specs(), self.topics.raw_spec()))
        self.config = home / "harmony.yaml"
        own = {"brokers": bootstrap, "topic_prefix": prefix, "partitions": PARTITIONS, "state_dir": str(home)}
        self.config.write_text(yaml.safe_dump(own))

    def log(self, topic: str) -> list[Any]:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None, enable_auto_commit=False)
        try:
            partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            consumer.seek_to_beginning(*partitions)
            records: list[Any] = []
            while any(consumer.position(p) < ends[p] for p in partitions):
                for fetched in consumer.poll(timeout_ms=300).values():
                    records += fetched
            return records
        finally:
            consumer.close()

    def telemetry(self) -> list[SampleRecord | FleetRecord]:
        """Both topics as stage 1 decodes them: not one record is refused, and each lies where its key belongs."""
        found = []
        for topic, source in ((self.topics.telemetry_requests, "requests"), (self.topics.telemetry_gpu, "gpu")):
            places: dict[bytes, set[int]] = {}
            for record in self.log(topic):
                decoded = decode(record.value, record.key, source)  # type: ignore[arg-type]
                assert isinstance(decoded, SampleRecord | FleetRecord), (decoded, record.value)
                places.setdefault(record.key, set()).add(record.partition)
                found.append(decoded)
            assert all(len(partitions) == 1 for partitions in places.values())
        return found

    def sampled(self) -> dict[tuple[str, str, int], dict[str, float | None]]:
        """(workload, source, time) -> values, the first in the log as stage 1 takes it."""
        first: dict[tuple[str, str, int], dict[str, float | None]] = {}
        for record in self.telemetry():
            for sample in record.samples if isinstance(record, SampleRecord) else ():
                first.setdefault((record.workload, sample.source, sample.ts_ms), sample.values)
        return first

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command of ours, until the block ends."""
        with (self.home / "command.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "infra", *arguments, "--config", str(self.config)],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()

    def stop(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """End it as a person does; returns its summary."""
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=90)
        assert process.returncode == 0, self.said()
        summary: dict[str, Any] = json.loads(out.splitlines()[-1])
        return summary

    def said(self) -> str:
        return (self.home / "command.log").read_text()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline_s = monotonic() + WAIT_S
        while not condition():
            assert monotonic() < deadline_s, f"not within {WAIT_S} s: {what}\n{[*self.sampled()][:9]}\n{self.said()}"
            sleep(0.3)


def committed(place: Place) -> dict[int, int | None]:
    consumer = KafkaConsumer(bootstrap_servers=place.bootstrap, group_id=f"{place.topics.prefix}mapper")
    try:
        return {p: consumer.committed(TopicPartition(place.topics.telemetry_raw, p)) for p in range(PARTITIONS)}
    finally:
        consumer.close()


def end(place: Place, partition: int) -> int:
    consumer = KafkaConsumer(bootstrap_servers=place.bootstrap, group_id=None)
    try:
        at = TopicPartition(place.topics.telemetry_raw, partition)
        return int(consumer.end_offsets([at])[at])
    finally:
        consumer.close()
