"""What the Kafka clients complain of is counted by what they were doing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

from infra.console.host import free_port
from infra.observability.catalogue import KAFKA_OPERATIONS, OTHER
from infra.observability.logs import OPERATION_OF, KafkaComplaints
from infra.observability.metrics import PrometheusMeter


@pytest.fixture
def meter() -> Iterator[PrometheusMeter]:
    meter = PrometheusMeter(strict=True)
    complaints = KafkaComplaints(meter)
    complaints.listen()
    yield meter
    for name in OPERATION_OF:
        logging.getLogger(name).removeHandler(complaints)


def counted(meter: PrometheusMeter) -> dict[str, float]:
    family = next(f for f in meter.registry.collect() if f.name == "harmony_kafka_errors")
    return {s.labels["operation"]: s.value for s in family.samples if s.value and s.name.endswith("_total")}


@pytest.mark.parametrize(
    ("name", "words", "operation"),
    [
        ("aiokafka.conn", "connection lost", "connect"),
        ("aiokafka.consumer.fetcher", "fetch failed", "fetch"),
        ("aiokafka.consumer.group_coordinator", "Heartbeat failed", "rebalance"),
        ("aiokafka.consumer.group_coordinator", "OffsetCommit failed", "commit"),
        ("aiokafka.producer.sender", "Got error produce response", "produce"),
        ("kafka.admin.client", "no such topic", "admin"),
    ],
)
def test_a_complaint_counts_for_what_the_client_was_doing(
    meter: PrometheusMeter, name: str, words: str, operation: str
) -> None:
    logging.getLogger(name).warning(words)
    logging.getLogger(name).info("all is well")
    assert counted(meter) == {operation: 1.0}


def test_every_operation_has_its_label_value() -> None:
    assert {*OPERATION_OF.values(), "commit"} <= {*KAFKA_OPERATIONS, OTHER}


async def test_a_broker_that_is_not_there_is_counted(meter: PrometheusMeter) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{free_port()}")
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()
    assert counted(meter).keys() == {"connect"}
