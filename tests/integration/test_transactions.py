"""Telemetry of transactional producers: the markers that end transactions take offsets, and nobody can read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from tests.integration.pipeline import Pipeline, workload_names


class TransactionalPipeline(Pipeline):
    """Publishes each slot, with the ticks that close it, in a transaction of its own."""

    def connect(self) -> Any:
        create_topics(self.bootstrap, self.topics.specs())
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=f"{self.topics.prefix}feed")
        producer.init_transactions()
        return producer

    def publish_slot(self) -> int:
        self.producer.begin_transaction()
        origin = super().publish_slot()
        self.producer.commit_transaction()
        return origin


def test_markers_are_no_gaps_while_a_worker_runs_and_when_it_starts_again(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    pipeline = TransactionalPipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(3))
    for slots in (6, 3):
        with pipeline.worker() as worker:
            for _ in range(slots):
                # The worker has folded all there is, to the marker, when the next transaction comes.
                pipeline.wait_for_decisions(pipeline.publish_slot(), worker=worker)
    assert pipeline.count(pipeline.topics.decisions) == 9 * 3
    assert "retention" not in pipeline.log_of()
