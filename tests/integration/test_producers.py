"""A producer is closed in good order although its broker has gone."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from infra.kafka.admin import create_topics
from infra.kafka.clients import close_producer
from streams.topics import Topics
from tests.brokers import started_broker

pytestmark = pytest.mark.kafka


def test_what_is_on_its_way_to_a_broker_that_has_gone_ends_in_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", later.append)
    with started_broker(tmp_path / "kafka") as kafka:
        topics = Topics(prefix="close.", partitions=1)
        create_topics(kafka.bootstrap, topics.specs())

        def producer() -> KafkaProducer:
            return KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", max_block_ms=10_000)

        easy, hard = producer(), producer()
        for each in (easy, hard):
            each.send(topics.telemetry_requests, b"{}").get(30)
        easy.send(topics.telemetry_requests, b"{}")
        assert close_producer(easy, 30.0), "the broker is there"
        kafka.stop()
        hard.send(topics.telemetry_requests, b"{}")
        assert not close_producer(hard, 1.0), "nobody took it, and it says so"
        assert not hard._sender.is_alive()
        del easy, hard
        gc.collect()
    assert not later, "nothing is left that complains when collected"
