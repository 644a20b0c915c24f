"""A publisher that sends all it can: with the quota of the documents at the broker, nobody starves."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.protocol.admin import AlterClientQuotasRequest

from infra.kafka.clients import close_producer
from infra.kafka.embedded import EmbeddedKafka
from tests.faults.nursery import Nursery
from tests.faults.test_exhausted import needy_worker

pytestmark = pytest.mark.faults

QUOTA_BYTES_PER_S = 50_000
FLOOD_S = 20.0


def set_quota(bootstrap: str, client_id: str, bytes_per_s: float) -> None:
    """What `kafka-configs.sh --alter --entity-type clients --add-config producer_byte_rate=...` asks the broker for."""
    entry = AlterClientQuotasRequest.EntryData
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        request = AlterClientQuotasRequest(
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
                    ops=[entry.OpData(key="producer_byte_rate", value=bytes_per_s, remove=False)],
                )
            ],
            validate_only=False,
        )
        (answer,) = admin._manager.run(admin._manager.send, request).entries
        assert answer.error_code == 0, answer
    finally:
        admin.close()


def test_a_flood_within_a_quota_starves_nobody(own_broker: EmbeddedKafka, nursery: Nursery, tmp_path: Path) -> None:
    set_quota(own_broker.bootstrap, "flooder", QUOTA_BYTES_PER_S)
    with needy_worker(own_broker, nursery, tmp_path / "flooded") as made:
        flooder = KafkaProducer(
            bootstrap_servers=own_broker.bootstrap, client_id="flooder", linger_ms=5, request_timeout_ms=60_000
        )
        try:
            started = monotonic()
            sent = 0
            while monotonic() - started < FLOOD_S:
                for _ in range(200):
                    flooder.send(made.topics.telemetry_gpu, value=b"flood" + bytes(1_000))
                    sent += 1
                made.decides(1)
            seconds = monotonic() - started
        finally:
            close_producer(flooder, 0)
        arrived = [v for *_, v in made.log(made.topics.telemetry_gpu) if v is not None and v.startswith(b"flood")]
        rate = sum(map(len, arrived)) / seconds
        print(f"{sent} sent, {len(arrived)} arrived, {rate:,.0f} bytes/s of {QUOTA_BYTES_PER_S:,}")
        assert arrived
        # The broker counts over some ten seconds, and lets the first of them pass.
        assert rate < 2.5 * QUOTA_BYTES_PER_S
