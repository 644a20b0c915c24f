"""An actuator over an outage of Kafka: its answers end with the leases, and begin again with the next command."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from kafka import KafkaProducer

from agents.decide.records import command_record
from infra.kafka.admin import create_topics
from streams.topics import Topics
from tests.brokers import started_broker
from tests.integration.test_actuate import Place, in_time, until


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_answers_end_with_the_lease_and_come_back_with_kafka(tmp_path: Path) -> None:
    with started_broker(tmp_path / "kafka") as kafka:
        topics = Topics(prefix="outage.", partitions=1)
        create_topics(kafka.bootstrap, topics.specs())
        place = Place(tmp_path, kafka, topics)

        def give(sequence: int, replicas: int, lease_ms: int) -> None:
            command = in_time(sequence, replicas)
            until_ms = command.issued_ts_ms + lease_ms
            record = command_record(topics.commands, "f", in_time(sequence, replicas, valid_until_ts_ms=until_ms))
            producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all")
            producer.send(record.topic, record.value, record.key).get(60)
            producer.close()

        with place.actuator("keda", "--no-grpc", "--web-port", "0") as process:
            err = place.directory / "err"
            web = await until(lambda: re.search(r"http://127\.0\.0\.1:\d+", err.read_text()), "its address", process)

            async def told() -> tuple[int, Any]:
                async with ClientSession() as session, session.get(f"{web[0]}/v1/replicas?workload=w") as response:
                    return response.status, (await response.json()).get("replicas")

            async def hears(wanted: tuple[int, Any]) -> None:
                for _ in range(600):
                    if await told() == wanted:
                        return
                    assert process.poll() is None, "an outage of Kafka is no reason to end"
                    await asyncio.sleep(0.1)
                pytest.fail(f"{wanted} was expected, {await told()} is told")

            await asyncio.to_thread(give, 1, 5, 8_000)
            await hears((200, 5))
            await asyncio.to_thread(kafka.stop)
            await hears((503, None))
            await asyncio.to_thread(kafka.start)
            await asyncio.to_thread(give, 2, 7, 600_000)
            await hears((200, 7))
