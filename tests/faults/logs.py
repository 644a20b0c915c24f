"""Kafka logs as plain records, and a tail of the commit records that says how far a pipeline has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from agents.decide.state import DecideCommit
from agents.forecast.commit import CommitBody
from streams.log import LogRecord
from streams.runtime.commits import CommitAssembler
from streams.topics import Topics

STAGES = ("forecast", "decide")


class Entry(NamedTuple):
    """One record as the broker holds it."""

    partition: int
    offset: int
    stamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def read_log(bootstrap: str, topic: str) -> list[Entry]:
    """Every record of a topic, by partition and offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, isolation_level="read_committed"
    )
    try:
        partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        assert partitions, f"there is no topic {topic}"
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        entries: list[Entry] = []
        while any(consumer.position(p) < ends[p] for p in partitions):
            for tp, fetched in consumer.poll(timeout_ms=500).items():
                entries += [
                    Entry(tp.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in fetched
                ]
        return sorted(entries, key=lambda e: e[:2])
    finally:
        consumer.close()


def ends_of(bootstrap: str, topic: str) -> dict[int, int]:
    """The offset after the last record of each partition."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        return {tp.partition: end for tp, end in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()


def copy_log(bootstrap: str, source: str, target: str, until: Mapping[int, int] | None = None) -> int:
    """Write a topic's records to another: same partitions, order and offsets, below `until`; returns how many."""
    entries = [e for e in read_log(bootstrap, source) if until is None or e.offset < until[e.partition]]
    for partition in {e.partition for e in entries}:
        offsets = [e.offset for e in entries if e.partition == partition]
        assert offsets == list(range(len(offsets))), f"{source}/{partition} has holes: a copy would move its offsets"
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_in_flight_requests_per_connection=1, max_request_size=2 << 20
    )
    try:
        for e in entries:
            producer.send(target, key=e.key, value=e.value, partition=e.partition)
        producer.flush(60)
    finally:
        producer.close()
    return len(entries)


class Progress:
    """Follows commit records of stages 2 and 3, and counts decisions.

    Attributes:
        commits, decisions: records read so far.
    """

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        self._bootstrap, self._topics = bootstrap, topics
        self._tps = [TopicPartition(t, p) for t in (topics.commits, topics.decisions) for p in range(topics.partitions)]
        self._next = dict.fromkeys(self._tps, 0)
        self._consumer = self._connected()
        self._assemblers = {(stage, p): CommitAssembler(stage, p) for p in range(topics.partitions) for stage in STAGES}
        self.commits = self.decisions = 0

    def close(self) -> None:
        self._consumer.close()

    def _connected(self) -> KafkaConsumer:
        """A consumer that goes on where the last one was; waits until a broker takes it."""
        while True:
            try:
                consumer = KafkaConsumer(
                    bootstrap_servers=self._bootstrap,
                    group_id=None,
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                )
            except KafkaError:
                sleep(0.1)
                continue
            consumer.assign(self._tps)
            for tp in self._tps:
                consumer.seek(tp, self._next[tp])
            return consumer

    def poll(self, timeout_ms: int = 100) -> None:
        """Read what is new."""
        for tp, fetched in self._consumer.poll(timeout_ms=timeout_ms).items():
            self._next[tp] = fetched[-1].offset + 1
            if tp.topic == self._topics.decisions:
                self.decisions += len(fetched)
                continue
            self.commits += len(fetched)
            for r in fetched:
                for stage in STAGES:
                    self._assemblers[stage, tp.partition].feed(LogRecord(r.offset, r.timestamp, r.key, r.value))

    def drain(self) -> None:
        """Read all that the broker has now."""
        ends = None
        while ends is None:
            try:
                ends = self._consumer.end_offsets(self._tps, timeout_ms=5_000)
            except KafkaError:
                # A client that has seen a majority of the brokers go may never find its way back: begin with a new one.
                with suppress(Exception):
                    self._consumer.close()
                self._consumer = self._connected()
        while any(self._consumer.position(tp) < ends[tp] for tp in self._tps):
            self.poll()

    def slots(self, stages: Sequence[str] = STAGES) -> dict[tuple[str, int], int | None]:
        """Newest slot committed, by stage and pages partition."""
        found: dict[tuple[str, int], int | None] = {}
        for p in range(self._topics.partitions):
            if "forecast" in stages:
                commit = self._assemblers["forecast", p].newest
                found["forecast", p] = msgspec.msgpack.decode(commit.body, type=CommitBody).slot if commit else None
            if "decide" in stages:
                decided = self._assemblers["decide", 0].newest
                body = msgspec.msgpack.decode(decided.body, type=DecideCommit) if decided else None
                mark = body.state.partitions.get(str(p)) if body else None
                found["decide", p] = mark.slot if mark else None
        return found

    def reached(self, slot: int, stages: Sequence[str] = STAGES) -> bool:
        """Whether every partition has committed the slot."""
        return all(at is not None and at >= slot for at in self.slots(stages).values())

    def wait_for_slot(self, slot: int, stages: Sequence[str], timeout_s: float) -> bool:
        """Whether every partition has committed the slot before the time was up."""
        deadline = monotonic() + timeout_s
        while not self.reached(slot, stages):
            self.poll()
            if monotonic() > deadline:
                return False
        return True
