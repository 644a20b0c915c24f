"""Telemetry with everything in it that goes wrong, as a function of the seed and the number of slots.

| slots | what happens |
|---|---|
| all | poison, empty records, repeats, late and out-of-order samples, a clock far ahead, counter resets |
| 8 to L + 16 | one workload is away for longer than the context: it is retired, then it appears again |
| 20 to 26 | no GPU sample at all: one source is silent, its ticks go on |
| 30 to 35 | partition 1 gets nothing but ticks |
| 52 to 55 | the GPU topic gets neither samples nor ticks: nothing can be joined until slot 56 |
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from aiokafka.partitioner import murmur2

from streams.config import StreamConfig
from streams.records.facts import BatchJob, ClassCounts, Control, OutcomeFact
from streams.records.schema import encode_batch, encode_control, encode_outcome, encode_slo
from tests.integration.pipeline import PARTITIONS, STREAM, Pipeline, workload_names
from tests.streams.ingest.random_logs import POISON, Publisher

ODD = "team-9/odd"
AWAY_FROM = 8
SILENT_GPU = range(20, 26)
IDLE_PARTITION = range(30, 35)
STALLED_GPU = range(52, 56)


class HostilePipeline(Pipeline):
    """A pipeline with such telemetry. `declared` are the workloads its settings name."""

    forges_controls = True

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        home: Path,
        seed: int,
        stream: StreamConfig = STREAM,
        num_workloads: int = 4,
    ) -> None:
        names = workload_names(num_workloads + 1)
        super().__init__(bootstrap, prefix, home, names, seed, stream)
        self.declared = names
        self._chance = random.Random(f"hostile {seed}")
        self._odd = {
            kind: [Publisher(self._chance, kind, ODD, f"r{n}") for n in range(2)] for kind in ("requests", "gpu")
        }
        self._late: list[tuple[str, bytes, bytes]] = []
        self._first_slot = self.slot

    @property
    def num_slots(self) -> int:
        return self.slot - self._first_slot

    @property
    def last_slot(self) -> int:
        """Newest slot that the published ticks have closed."""
        return self.slot - 1

    @property
    def stalled(self) -> bool:
        """Whether the newest slot's ticks went to one source only."""
        return self.num_slots - 1 in STALLED_GPU

    @property
    def full_course(self) -> int:
        """Slots until everything in the table above has happened and the visitor has been back for a while."""
        return AWAY_FROM + self.stream.context_steps + 8 + 16

    def publish_slot(self) -> int:
        number = self.num_slots
        away = AWAY_FROM <= number < AWAY_FROM + self.stream.context_steps + 8
        self.workloads = self.declared[:-1] if away else self.declared
        self._odd_records()
        return super().publish_slot()

    def _ticked_topics(self) -> tuple[str, ...]:
        return tuple(t for t in super()._ticked_topics() if not (self._is_gpu(t) and self.stalled))

    def _is_gpu(self, topic: str) -> bool:
        return topic == self.topics.telemetry_gpu

    def _send(self, topic: str, key: bytes, value: bytes) -> None:
        chance = self._chance.random()
        silent = self._is_gpu(topic) and (self.num_slots in SILENT_GPU or self.num_slots in STALLED_GPU)
        if silent or (self.num_slots in IDLE_PARTITION and partition_of(key) == 1):
            return
        super()._send(topic, key, value)
        if chance < 0.04:
            super()._send(topic, key, value)
        elif chance < 0.07:
            self._late.append((topic, key, value))
        elif chance < 0.09:
            super()._send(topic, key, self._chance.choice(POISON))
        elif chance < 0.10:
            self.producer.send(topic, key=key, value=None)

    def _odd_records(self) -> None:
        """A workload of counters that reset, dead letters in every partition, operators, outcomes."""
        rng, topics, key = self._chance, self.topics, ODD.encode()
        start_ms = self.slot * self.stream.step_ms
        late, self._late = self._late, []
        for record in late:
            # Their slot is closed by now.
            super()._send(*record)
        for kind, topic in (("requests", topics.telemetry_requests), ("gpu", topics.telemetry_gpu)):
            for publisher in self._odd[kind]:
                values, hists = publisher.row()
                body = {
                    "v": 1, "kind": kind, "workload": ODD, "source": publisher.source,
                    "ts_ms": start_ms + rng.randrange(self.stream.step_ms), "values": values,
                }  # fmt: skip
                if hists:
                    body["hist"] = hists
                self._send(topic, key, msgspec.json.encode(body))
            # At least one dead letter per slot and partition, so that every stage has outputs to lose.
            for partition in range(PARTITIONS):
                self.producer.send(topic, value=rng.choice(POISON), partition=partition)
        future = {"v": 1, "kind": "requests", "workload": ODD, "source": "r0", "ts_ms": 9_000_000_000_000, "values": {}}
        self._send(topics.telemetry_requests, key, msgspec.json.encode(future))
        if rng.random() < 0.2:
            fact = OutcomeFact(start_ms + 500, f"c{self.slot}", "ready", 2, 10.0 + rng.random())
            value = encode_outcome(self.declared[0], "k8s", fact)
            self._send(topics.telemetry_requests, self.declared[0].encode(), value)
        if rng.random() < 0.5:
            jobs = [BatchJob(start_ms + rng.randint(-1, 9) * 60_000, 1e4 * rng.random())]
            value = encode_batch(self.declared[0], "queue", start_ms + 500, jobs)
            self._send(topics.telemetry_requests, self.declared[0].encode(), value)
        counts = [ClassCounts(name, 9.0 * (self.slot % 50), 10.0 * (self.slot % 50)) for name in ("bulk", "chat")]
        value = encode_slo(self.declared[-1], "gateway", start_ms + 900, counts)
        self._send(topics.telemetry_requests, self.declared[-1].encode(), value)
        if rng.random() < 0.1:
            action = rng.choice(["pause", "resume"])
            control = Control(f"op-{self.slot}", start_ms, action, workload=self.declared[1], by="tests")
            self.producer.send(topics.controls, value=encode_control(control), partition=0)
        if rng.random() < 0.05 and self.forges_controls:
            # Publishers of telemetry may not give orders: in their topics such a record is refused.
            control = Control(f"forged-{self.slot}", start_ms, "pause", by="somebody")
            self.producer.send(
                topics.telemetry_requests, value=encode_control(control), partition=self.slot % PARTITIONS
            )


def partition_of(key: bytes) -> int:
    """Where the producer's default partitioner puts a key."""
    hashed: int = murmur2(key)
    return (hashed & 0x7FFFFFFF) % PARTITIONS
