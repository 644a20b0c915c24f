"""What one publisher sends in a burst ends no worker, and costs declared workloads next to nothing: the full size."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic

import pytest
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer

from infra.kafka.embedded import EmbeddedKafka
from infra.lab.report import process_memory_mib
from streams.records.facts import Control
from streams.records.schema import encode_control, encode_sample
from tests.faults.logs import Progress
from tests.integration.pipeline import PARTITIONS, Pipeline, stop, workload_names
from tests.streams.records.bad_records import BAD, KEY

pytestmark = pytest.mark.faults

# What the broker takes: 128 KiB, compressed. Snappy and LZ4 unpack to less than zstd and gzip.
BOMB_MIB = {"gzip": 100, "snappy": 2, "lz4": 24, "zstd": 600}
MOST_GROWN_MB = 300
BEFORE, AFTER = 6, 8  # slots
MOST_AGE_RATIO = 1.5


class Flooded(Pipeline):
    """A worker in real use of its time; how long each slot takes to be decided."""

    def __init__(self, broker: EmbeddedKafka, home: Path) -> None:
        super().__init__(broker.bootstrap, "flooded.", home, workload_names(10))
        self.process = self.start_worker()
        self.progress = Progress(broker.bootstrap, self.topics)

    def age_s(self) -> float:
        """Publish a slot; how old it is when it is decided, were it published as time passes."""
        self.publish_slot()
        began = monotonic()
        decided = self.progress.wait_for_slot(self.slot - 1, ("decide",), 120)
        assert decided, self.log_of()[-3000:]
        assert self.process.poll() is None
        return monotonic() - began + (self.stream.grace_ms + self.stream.skew_ms) / 1000

    def memory_mb(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4_096 / 1e6

    @contextmanager
    def publisher(self) -> Iterator[KafkaProducer]:
        """Another publisher, as fast as it can."""
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=20, batch_size=1 << 16)
        yield producer
        producer.flush(120)
        producer.close(5)


@pytest.fixture
def flooded(own_broker: EmbeddedKafka, tmp_path: Path) -> Iterator[Flooded]:
    made = Flooded(own_broker, tmp_path / "flooded")
    yield made
    if made.process.poll() is None:
        stop(made.process)
    made.progress.close()
    made.producer.close(1)


def check(made: Flooded, usual_s: float, before_mb: float, most_mb: float) -> None:
    """Declared workloads are decided about as soon as before, in no more memory, in this life and in the next."""
    ages = [made.age_s() for _ in range(AFTER)]
    grown_mb = made.memory_mb() - before_mb
    print(f"age {usual_s:.2f} s before, {[round(age, 2) for age in ages]} after; memory + {grown_mb:.0f} MB")
    assert made.process.poll() is None
    assert max(ages[2:]) <= MOST_AGE_RATIO * usual_s
    assert grown_mb <= most_mb
    assert stop(made.process) == 0
    made.process = made.start_worker()
    made.age_s()
    assert made.process.poll() is None
    assert "worker stops" not in made.log_of()


@pytest.mark.parametrize(
    ("topic", "pins"), [("telemetry_requests", 60_000), ("controls", 60_000), ("controls", 1_000_000)]
)
def test_pins_in_a_burst(flooded: Flooded, topic: str, pins: int) -> None:
    usual_s = median(flooded.age_s() for _ in range(BEFORE))
    before_mb = flooded.memory_mb()
    rng, now_ms = random.Random(1), flooded.slot * flooded.stream.step_ms
    with flooded.publisher() as producer:
        for number in range(pins):
            reason = rng.randbytes(120).hex()
            pin = Control(
                f"pin-{number}", now_ms, "pin", f"x/{rng.randbytes(60).hex()}"[:128], replicas=3, reason=reason
            )
            partition = number % PARTITIONS if topic == "telemetry_requests" else 0
            producer.send(getattr(flooded.topics, topic), value=encode_control(pin), partition=partition)
    check(flooded, usual_s, before_mb, 150)


@pytest.mark.parametrize("number", [30_000, 300_000])
def test_names_that_nobody_has_heard_of(flooded: Flooded, number: int) -> None:
    usual_s = median(flooded.age_s() for _ in range(BEFORE))
    before_mb = flooded.memory_mb()
    ts_ms = flooded.slot * flooded.stream.step_ms + 1_000
    with flooded.publisher() as producer:
        for n in range(number):
            name = f"flood/{n:06d}"
            values: dict[str, float | None] = {"requests_started_total": 1.0, "num_requests_running": 2.0}
            value = encode_sample("requests", name, "r0", ts_ms, values)
            producer.send(flooded.topics.telemetry_requests, key=name.encode(), value=value)
    check(flooded, usual_s, before_mb, 200)


def test_two_hundred_thousand_bad_records(flooded: Flooded) -> None:
    """Of every kind that is refused, with bombs of four compressions among them: memory at its highest."""
    usual_s = median(flooded.age_s() for _ in range(BEFORE))
    before_mb, topic = flooded.memory_mb(), flooded.topics.telemetry_requests
    bad = [value for _, _, value in BAD]
    with flooded.publisher() as producer:
        for number in range(200_000):
            producer.send(topic, key=KEY, value=bad[number % len(bad)])
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        bombs = asyncio.run(sent(flooded.bootstrap, topic, codec))
        assert bombs == PARTITIONS
    ages = [flooded.age_s() for _ in range(AFTER)]
    peak_mb = process_memory_mib("VmHWM", flooded.process.pid) * 1.048_576
    print(
        f"{len(bad)} kinds: age {usual_s:.2f} s before, {[round(age, 2) for age in ages]} after; "
        f"{before_mb:.0f} MB before, {peak_mb:.0f} MB at most"
    )
    assert flooded.process.poll() is None
    assert max(ages[2:]) <= MOST_AGE_RATIO * usual_s
    assert peak_mb <= before_mb + MOST_GROWN_MB


async def sent(bootstrap: str, topic: str, codec: str) -> int:
    """One record per partition that is some KiB on the wire and many MiB unpacked; returns how many the broker took."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, max_request_size=1 << 30)
    await producer.start()
    try:
        for partition in range(PARTITIONS):
            await producer.send_and_wait(topic, bytes(BOMB_MIB[codec] << 20), key=KEY, partition=partition)
    finally:
        await producer.stop()
    return PARTITIONS
