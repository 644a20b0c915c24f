"""Answers sent in batches stand in the log as those sent one by one: same partitions, order, keys and headers."""

from __future__ import annotations

import random

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from kafka import KafkaConsumer, TopicPartition
from kafka.partitioner.default import murmur2

from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from streams.log import OutRecord
from streams.runtime.producer import partition_of, send_batches
from streams.topics import Topics

pytestmark = pytest.mark.kafka
PARTITIONS = 3


def _placed(key: bytes, num_partitions: int) -> int:
    """By kafka-python's own hash."""
    return int(murmur2(key) & 0x7FFFFFFF) % num_partitions


def answers(topic: str, seed: int) -> list[OutRecord]:
    """Some hundred records of one to a hundred keys, now and then a large one, a deletion, or one with a partition."""
    rng = random.Random(seed)
    made = []
    for n in range(600):
        key = b"workload-%d" % rng.randrange(100)
        size = rng.choice((10, 2_000, 90_000)) if seed % 2 else rng.choice((10, 2_000))
        value = None if rng.random() < 0.02 else b"%d " % n + b"x" * size
        partition = rng.randrange(PARTITIONS) if rng.random() < 0.3 else None
        made.append(OutRecord(topic, key, value, partition, (("ce_id", b"%d" % n),)))
    return made


@pytest.mark.parametrize("seed", [0, 1])
async def test_every_record_is_where_its_key_says_in_the_order_given(
    broker: EmbeddedKafka, topic_prefix: str, seed: int
) -> None:
    topics = Topics(topic_prefix, PARTITIONS)
    create_topics(broker.bootstrap, topics.specs())
    records = answers(topics.decisions, seed)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", max_batch_size=1 << 16) as producer:
        await send_batches(producer, records)
    wanted: dict[int, list[OutRecord]] = {p: [] for p in range(PARTITIONS)}
    for record in records:
        place = _placed(record.key or b"", PARTITIONS) if record.partition is None else record.partition
        wanted[place].append(record)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", group_id=None)
    places = [TopicPartition(topics.decisions, p) for p in range(PARTITIONS)]
    consumer.assign(places)
    ends = consumer.end_offsets(places)
    found: dict[int, list[OutRecord]] = {p: [] for p in range(PARTITIONS)}
    while any(consumer.position(place) < ends[place] for place in places):
        for place, batch in consumer.poll(1_000).items():
            for r in batch:
                given = wanted[place.partition][len(found[place.partition])]
                headers = tuple((name, bytes(value)) for name, value in r.headers)
                found[place.partition].append(OutRecord(r.topic, r.key, r.value, given.partition, headers))
    consumer.close()
    assert found == wanted


def test_keys_are_placed_as_the_clients_of_publishers_place_them() -> None:
    for n in range(500):
        key = b"prod/llm/service-%d" % n
        assert partition_of(key, 7) == _placed(key, 7)


async def test_a_refused_record_is_an_error(broker: EmbeddedKafka, topic_prefix: str) -> None:
    topics = Topics(topic_prefix, 1)
    create_topics(broker.bootstrap, topics.specs())
    too_large = [OutRecord(topics.decisions, b"w", b"x" * (1 << 21), 0)]
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", max_request_size=1 << 20) as producer:
        with pytest.raises(KafkaError):
            await send_batches(producer, too_large)
