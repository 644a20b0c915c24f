"""Transactions on our topics: what is open or aborted is read by nobody, and one that hangs is reported."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from kafka import KafkaProducer

from infra.kafka.admin import TopicAdmin, create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.tail import TopicTail
from infra.kafka.transactions import open_transactions
from infra.operate.doctor import Finding, examine_transactions
from infra.settings.load import load_settings
from streams.log import ContractBroken
from streams.records.schema import encode_sample
from streams.runtime import restore
from streams.runtime.restore import LogReader
from streams.runtime.transactions import PATIENCE_S
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


class Foreign:
    """A transactional publisher beside the pipeline's own, on one topic."""

    def __init__(self, bootstrap: str, name: str, topic: str) -> None:
        self._topic = topic
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, acks="all")
        self._producer.init_transactions()

    def begin(self, key: bytes, *values: bytes, partition: int | None = None) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.send(self._topic, key=key, value=value, partition=partition)
        self._producer.flush(30)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(5)


@contextmanager
def foreign(broker: EmbeddedKafka, topic: str) -> Iterator[Foreign]:
    publisher = Foreign(broker.bootstrap, f"{topic}-foreign", topic)
    try:
        yield publisher
    finally:
        publisher.close()


def page_of(worker: Any, path: str) -> str:
    text: str = urllib.request.urlopen(f"{worker.metrics_url}{path}", timeout=10).read().decode()  # noqa: S310
    return text


def number(worker: Any, series: str) -> float:
    lines = page_of(worker, "/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"harmony_{series} "))


def until(what: str, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = monotonic() + timeout_s
    while not holds():
        assert monotonic() < deadline, what
        sleep(0.2)


ACCEPTED = 'samples_total{outcome="accepted"}'


@pytest.mark.parametrize("committed", [False, True])
def test_a_worker_reads_what_a_transaction_holds_after_its_commit_and_never_after_its_abort(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path, committed: bool
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, ["w"])
    topic = pipeline.topics.telemetry_requests
    with foreign(broker, topic) as other, pipeline.worker() as worker:
        pipeline.wait_for_decisions(pipeline.publish_slots(3), worker=worker)
        before = number(worker, ACCEPTED)
        now_ms, values = pipeline.slot * pipeline.stream.step_ms, {"num_requests_running": 1}
        samples = [encode_sample("requests", "w", f"txn-{n}", now_ms, values) for n in range(5)]
        other.begin(b"w", *samples)
        origin = pipeline.publish_slot()  # its records of this partition of `requests` come behind the open transaction
        until("records are held up", lambda: number(worker, 'unstable_records{stage="ingest"}') > len(samples))
        sleep(1.0)
        with TopicTail(broker.bootstrap, topic) as tail:
            assert not [r for stretch in tail.back() for r in stretch if b"txn-" in (r.value or b"")]
        gpu_samples = 2
        assert number(worker, ACCEPTED) == before + gpu_samples
        (other.commit if committed else other.abort)()
        pipeline.wait_for_decisions(origin, worker=worker)
        pipeline.wait_for_decisions(pipeline.publish_slot(), worker=worker)
        own_samples = 2 * (gpu_samples + 3)
        assert number(worker, ACCEPTED) == before + own_samples + committed * len(samples)
        until("nothing is held up", lambda: number(worker, 'unstable_records{stage="ingest"}') == 0)
        # The gap of what was aborted is no loss, and after a restart the state goes on behind it.
        assert number(worker, "telemetry_lost_total") == 0
    with pipeline.worker() as worker:
        pipeline.wait_for_decisions(pipeline.publish_slots(2), worker=worker)
    assert pipeline.count(pipeline.topics.decisions) == 7


@pytest.mark.slow
def test_a_transaction_that_hangs_stops_no_worker_and_is_reported_with_its_remedy(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, ["w"])
    topic = pipeline.topics.telemetry_requests
    with foreign(broker, topic) as other, pipeline.worker() as worker:
        pipeline.wait_for_decisions(pipeline.publish_slots(2), worker=worker)
        (end,) = {end.high_watermark for place, end in ends_of(broker, topic).items() if place[1] == 0} or {0}
        other.begin(b"x", b"{}", partition=0)
        origin = pipeline.publish_slot()

        def check() -> dict[str, Any]:
            checks: dict[str, dict[str, Any]] = json.loads(page_of(worker, "/readyz"))["checks"]
            return checks.get("transactions", {})

        until("the check", lambda: check().get("ok") is False, PATIENCE_S + 30)
        detail = check()["detail"]
        assert re.search(rf"{re.escape(topic)}/0: \d+ records from offset {end} on wait for a transaction", detail)
        remedy = f"{broker.bootstrap} abort --topic {topic} --partition 0 --start-offset {end}"
        assert remedy in detail
        assert "open_transaction" in pipeline.log_of()
        assert number(worker, 'open_transaction_seconds{stage="ingest"}') > PATIENCE_S
        with TopicAdmin(broker.bootstrap) as admin:
            (one,) = open_transactions(admin.log_ends([topic, pipeline.topics.pages]), broker.bootstrap)
        assert (one.topic, one.partition, one.first_offset) == (topic, 0, end)
        assert PATIENCE_S - 5 < one.open_s < PATIENCE_S + 120
        assert found_by_doctor(pipeline).status == "fail"
        assert remedy in found_by_doctor(pipeline).remedy
        assert worker.poll() is None, "waiting is no standstill of the worker"
        other.abort()
        pipeline.wait_for_decisions(origin, worker=worker)
        until("the check", lambda: check()["ok"] is True)
        assert found_by_doctor(pipeline).status == "ok"
        until("no transaction", lambda: number(worker, 'open_transaction_seconds{stage="ingest"}') == 0)


def found_by_doctor(pipeline: Pipeline) -> Finding:
    with TopicAdmin(pipeline.bootstrap) as admin:
        return examine_transactions(load_settings(pipeline.config, environ={}), pipeline.bootstrap, admin)


def ends_of(broker: EmbeddedKafka, topic: str) -> dict[Any, Any]:
    with TopicAdmin(broker.bootstrap) as admin:
        return admin.log_ends([topic])


async def test_state_behind_an_open_transaction_is_waited_for_and_then_refused(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, ["w"])
    topic = pipeline.topics.commits

    def own(value: bytes) -> None:
        pipeline.producer.send(topic, value=value, partition=0)
        pipeline.producer.flush(30)

    own(b"before")
    with foreign(broker, topic) as other:
        other.begin(b"k", b"foreign", partition=0)
        own(b"behind")
        async with LogReader({"bootstrap_servers": broker.bootstrap}) as reader:
            assert await reader.bounds(topic, 0) == (0, 3), "the state that is hidden counts"
            monkeypatch.setattr(restore, "_TRANSACTION_LIMIT_S", 1.0)
            with pytest.raises(ContractBroken, match=r"commits/0: 2 records from offset 1 on wait for a transaction"):
                _ = [r async for r in reader.read(topic, 0, 0, 3)]
            other.abort()
            # ... and the marker, which the coordinator writes after it has answered.
            for _ in range(600):
                bounds = await reader.bounds(topic, 0)
                if bounds == (0, 4):
                    break
                await asyncio.sleep(0.05)
            assert bounds == (0, 4)
            assert [r.value async for r in reader.read(topic, 0, 0, 4)] == [b"before", b"behind"]
    pipeline.producer.close(1)
