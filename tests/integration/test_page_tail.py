"""How far back the page reads: so many records, and of large ones no more than so many bytes."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from agents.planning.codec import encode_plan, misses_of_plan
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.page import tail
from infra.page.memory import FleetMemory
from infra.page.tail import PageTail
from streams.topics import Topics
from tests.infra.page.fleet_records import STEP_MS, plan

pytestmark = pytest.mark.kafka
STEPS = 1_000  # more than one request brings


class Noted(FleetMemory):
    """Remembers the slots of the plans that it was given."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(topics, STEP_MS)
        self.slots: list[int] = []

    def fold(self, topic: str, value: bytes | None) -> None:
        super().fold(topic, value)
        self.slots.append(misses_of_plan(value).slot)


async def read_back(bootstrap: str, topics: Topics, until: int) -> list[int]:
    """Slots of the plans that a page reads, up to this one."""
    memory = Noted(topics)
    reading = asyncio.create_task(PageTail(memory, topics, {"bootstrap_servers": bootstrap}).run())
    try:
        async with asyncio.timeout(60):
            while until not in memory.slots:  # noqa: ASYNC110 - a reader tells nobody
                await asyncio.sleep(0.05)
    finally:
        reading.cancel()
    return memory.slots


async def test_of_plans_of_a_large_fleet_the_newest_are_read(
    broker: EmbeddedKafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics(topic_prefix, 1)
    create_topics(broker.bootstrap, topics.specs())
    values = [encode_plan(plan({f"w{n}": 0.01 for n in range(40)}, step)) for step in range(STEPS)]
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all") as producer:
        for value in values:
            await producer.send(topics.plans, value, partition=0)
    assert await read_back(broker.bootstrap, topics, STEPS - 1) == list(range(STEPS))
    size = max(map(len, values))
    monkeypatch.setattr(tail, "BACK_BYTES", 300 * size)
    newest = await read_back(broker.bootstrap, topics, STEPS - 1)
    assert newest == list(range(newest[0], STEPS))
    assert STEPS - 320 < newest[0] <= STEPS - 300  # records are of nearly one size
