"""Telemetry in, commands out, with a worker process on a real broker."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import msgspec

from agents.records import Command, Decision, ForecastRecord
from infra.kafka.embedded import EmbeddedKafka
from tests.integration.pipeline import PARTITIONS, STREAM, Pipeline, workload_names


def test_telemetry_becomes_forecasts_decisions_and_leases(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(3))
    topics = pipeline.topics
    with pipeline.worker() as worker:
        origin = pipeline.publish_slots(24)
        pipeline.wait_for_decisions(origin)
        metrics = urllib.request.urlopen(f"{worker.metrics_url}/metrics", timeout=5).read().decode()  # type: ignore[attr-defined]  # noqa: S310
        ready = urllib.request.urlopen(f"{worker.metrics_url}/readyz", timeout=5)  # type: ignore[attr-defined]  # noqa: S310
        assert ready.status == 200
    assert 'harmony_samples_total{outcome="accepted"}' in metrics

    # One page per slot, source and partition; at the first record the slot before it was still open (grace of a step).
    assert pipeline.count(topics.pages) == (1 + 24) * 2 * PARTITIONS
    decisions = [msgspec.json.decode(v or b"", type=Decision) for *_, v in pipeline.log(topics.decisions)]
    assert len(decisions) == 24 * 3
    assert len({d.decision_id for d in decisions}) == len(decisions)
    assert {d.action for d in decisions} <= {"up", "down", "hold"}

    forecasts = [msgspec.json.decode(v or b"", type=ForecastRecord) for *_, v in pipeline.log(topics.forecasts)]
    newest = [f for f in forecasts if f.origin_ts_ms == origin]
    assert sorted(f.workload for f in newest) == sorted(pipeline.workloads)
    for forecast in newest:
        for steps in forecast.targets.values():
            assert all(list(quantiles) == sorted(quantiles) for quantiles in steps)

    leases = [msgspec.json.decode(v or b"", type=Command) for *_, v in pipeline.log(topics.commands)]
    acting = [d for d in decisions if d.command_id is not None]
    assert {c.command_id for c in leases} == {d.command_id for d in acting}
    assert acting
    assert all(c.valid_until_ts_ms > c.issued_ts_ms + STREAM.grace_ms for c in leases)
    by_id = {c.command_id: c.replicas for c in leases}
    assert all(by_id[d.command_id or ""] == d.replicas.final for d in acting)


def test_poison_is_dead_lettered_and_stops_nothing(broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(2))
    topics = pipeline.topics
    poison = [
        b"", b"{bad", b"\xff\xfe", b"[]", b"null", b'"x"', b"{}", b"9" * 5000,
        b'{"v":1,"kind":"requests","workload":"w","source":"s","ts_ms":1700000001000,"values":{"num_requests_running":true}}',
        b'{"v":1,"kind":"requests","workload":"w","source":"s","ts_ms":1700000001000,"values":{"num_requests_running":NaN}}',
        b'{"v":9,"kind":"requests","workload":"w","source":"s","ts_ms":1700000001000,"values":{}}',
        b'{"v":1,"kind":"requests","workload":"w","source":"s","ts_ms":99999999999999,"values":{"num_requests_running":1}}',
        b'{"v":1,"kind":"requests","workload":"w","source":"s","ts_ms":"1","values":{"num_requests_running":1}}',
    ]  # fmt: skip
    with pipeline.worker():
        for bad in poison:
            pipeline.producer.send(topics.telemetry_requests, key=b"w", value=bad)
        origin = pipeline.publish_slots(4)
        pipeline.wait_for_decisions(origin)
    dead = [value for *_, value in pipeline.log(topics.dead_letters)]
    assert sorted(v or b"" for v in dead) == sorted(poison)
    assert "Traceback" not in pipeline.log_of()
