"""Records that are made to hurt whoever reads them: small on the wire and huge in memory, all headers, all names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from agents.planning.codec import decode_plan, encode_plan
from agents.records import LevelRisk, Quantiles, WorkloadPlan
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from streams.config import StreamConfig
from streams.topics import PLAN_BYTES, Topics
from tests.agents.planning.plan_samples import plan, record
from tests.faults.nursery import Nursery
from tests.faults.test_exhausted import Needy, needy_worker
from tests.integration.pipeline import stop
from tests.streams.runtime.test_readable_records import Unreadable

pytestmark = pytest.mark.faults

BOMB = bytes(48 << 20)


@pytest.fixture
def target(own_broker: EmbeddedKafka, nursery: Nursery, tmp_path: Path) -> Iterator[Needy]:
    with needy_worker(own_broker, nursery, tmp_path / "target") as made:
        yield made


def test_bombs_and_headers_stop_no_worker(target: Needy) -> None:
    """48 MiB of zeros take 50 kB on the wire, and a broker looks at no more than that."""
    topic, key = target.topics.telemetry_requests, target.workloads[0].encode()
    packer = KafkaProducer(
        bootstrap_servers=target.bootstrap, compression_type="gzip", max_request_size=1 << 30, batch_size=1 << 29
    )
    for value, name in ((BOMB, key), (b"{}", BOMB), (None, BOMB)):
        packer.send(topic, key=name, value=value, partition=0).get(60)
    packer.close()
    many = [(f"h{n}", b"x" * 100) for n in range(1_000)]
    target.producer.send(topic, key=key, value=b"{}", headers=many).get(60)
    # What brokers take and aiokafka does not read.
    target.producer.send(topic, key=key, value=b"[]", headers=[(Unreadable("trace"), b"x")]).get(60)
    target.decides()
    consumer = KafkaConsumer(bootstrap_servers=target.bootstrap, group_id=None, enable_auto_commit=False)
    try:
        places = [TopicPartition(target.topics.dead_letters, p) for p in range(target.topics.partitions)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        letters = [r for _ in range(10) for found in consumer.poll(1_000).values() for r in found]
    finally:
        consumer.close()
    cut = {dict(r.headers).get("cut", b"").decode(): len(r.key) + len(r.value) for r in letters}
    assert cut == {str(len(BOMB) + len(key)): 1_024 + len(key), str(len(BOMB) + 2): 1_024 + 2, "": len(key) + 2}
    assert {r.value for r in letters} >= {b"{}", b"[]"}
    assert stop(target.process) == 0


def full_partition(rng: random.Random) -> list[WorkloadPlan]:
    """As many workloads as there may be, of long names, no two plans of which are alike."""

    def some(count: int) -> tuple[float, ...]:
        return tuple(sorted(rng.random() * 100 for _ in range(count)))

    plans = []
    for _ in range(StreamConfig().max_workloads):
        levels = Quantiles((0.05, 0.1, 0.5, 0.9, 0.95), some(5))
        risks = tuple(LevelRisk(n, *some(4)) for n in range(12))
        named = plan(rng.randbytes(64).hex(), rng.randint(1, 50), rng.randint(1, 50))
        plans.append(msgspec.structs.replace(named, risks=risks, peak=levels, capacity=levels, lead_time_s=levels))
    return plans


def test_the_plan_of_a_full_partition_goes_through_the_log(own_broker: EmbeddedKafka, seed: int) -> None:
    topics = Topics("full.")
    create_topics(own_broker.bootstrap, topics.specs())
    value = encode_plan(record(1, *full_partition(random.Random(seed))))
    assert 2 << 20 < len(value) < PLAN_BYTES, len(value)
    producer = KafkaProducer(bootstrap_servers=own_broker.bootstrap, max_request_size=PLAN_BYTES, batch_size=0)
    producer.send(topics.plans, value=value).get(60)
    producer.close()
    consumer = KafkaConsumer(
        topics.plans, bootstrap_servers=own_broker.bootstrap, auto_offset_reset="earliest", group_id=None,
        enable_auto_commit=False, max_partition_fetch_bytes=4 << 20, consumer_timeout_ms=30_000,
    )  # fmt: skip
    try:
        assert len(decode_plan(next(iter(consumer)).value).workloads) == StreamConfig().max_workloads
    finally:
        consumer.close()
