"""Others' telemetry on a real Kafka: from a real Prometheus, asked and writing, and from records in others' formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer

from agents.records import Decision
from infra.collect.points import Point
from infra.kafka.embedded import EmbeddedKafka
from streams.records.schema import FleetRecord, SampleRecord
from tests.infra.collect.exporter import answering
from tests.infra.collect.samples import DCGM, TS_MS, VLLM
from tests.infra.collect.writers import otlp, samples, telegraf_v1, telegraf_v2, vector
from tests.infra.observability.prometheus_server import prometheus
from tests.integration.collect_place import PARTITIONS, ROOT, WAIT_S, Place, committed, end
from tests.integration.pipeline import Pipeline, stop
from tests.integration.test_live_time import STREAM, ticking_worker
from tests.programs import needs

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def place(broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Place:
    return Place(broker.bootstrap, topic_prefix, tmp_path)


def growing(_: str) -> str:
    """A vLLM server that has served one more request at every look."""
    growing.looks += 1  # type: ignore[attr-defined]
    return VLLM.replace(" 17000.0", f" {17000 + growing.looks}") + DCGM  # type: ignore[attr-defined]


growing.looks = 0  # type: ignore[attr-defined]
NAMED = ("acme/chat-7b", "prod/chat-7b")


@needs("prometheus")
def test_a_prometheus_server_is_asked(place: Place) -> None:
    with answering() as exporter:
        exporter.pages["/metrics"] = growing
        with prometheus(place.home / "prometheus", [exporter.address]) as server:
            command = (
                "collect",
                "prometheus",
                "--server",
                server.url,
                "--interval",
                "0.5",
                "--json",
                "--count-replicas",
            )
            with place.running(*command) as process:
                place.until("ten scrapes", lambda: len(place.sampled()) >= 20)
                summary = place.stop(process)
            held = server.query("vllm:generation_tokens_total[5m]")[0]["values"]
    found = place.sampled()
    assert {workload for workload, _, _ in found} == set(NAMED)
    engine = {ts: v["generation_tokens_total"] for (w, _, ts), v in found.items() if w == NAMED[0]}
    # What was published is what Prometheus scraped, at the times at which it did.
    assert engine.items() <= {round(at_s * 1000): float(text) for at_s, text in held}.items()
    times = sorted(engine)
    assert [engine[t] for t in times] == sorted(set(engine.values()))
    device = next(v for (w, _, _), v in found.items() if w == NAMED[1])
    assert (device["sm_active_ratio"], device["power_w"]) == (0.83, 612.5)
    facts = [r for r in place.telemetry() if isinstance(r, FleetRecord)]
    assert {(r.workload, f.ready) for r in facts for _, f in r.facts} == {(NAMED[0], 1)}
    assert summary["workloads"] == sorted(NAMED)
    assert summary["unpublished"] == 0
    assert "Some series of profile dcgm are left out" in place.said()


@needs("prometheus")
def test_a_prometheus_server_writes(place: Place) -> None:
    with (
        answering() as exporter,
        place.running("collect", "remote-write", "--listen", "127.0.0.1:0", "--json") as process,
    ):
        place.until("the receiver listens", lambda: "url: " in place.said())
        url = place.said().rpartition("url: ")[2].split()[0]
        exporter.pages["/metrics"] = growing
        # Shards send one scrape in pieces, as large servers do.
        queue = {"max_samples_per_send": 7, "min_shards": 3, "max_shards": 3, "batch_send_deadline": "200ms"}
        remote = [{"url": url, "queue_config": queue}]
        with prometheus(place.home / "prometheus", [exporter.address], remote_write=remote) as server:
            place.until("five scrapes", lambda: len(place.sampled()) >= 10)
            held = server.query("vllm:generation_tokens_total[5m]")[0]["values"]
        summary = place.stop(process)
    found = place.sampled()
    engine = {ts: v for (w, _, ts), v in found.items() if w == NAMED[0]}
    told = {round(at_s * 1000): float(text) for at_s, text in held}
    assert all(v["generation_tokens_total"] == told[ts] for ts, v in engine.items() if ts in told)
    # Put together again: no reading lacks what another one has.
    assert {frozenset(v) for v in engine.values()} == {frozenset(next(iter(engine.values())))}
    assert sum(len(r.samples) for r in place.telemetry() if isinstance(r, SampleRecord)) == len(found)
    assert summary["refused_requests"] == 0
    assert summary["requests"] > 5


def adapter(points: list[Point]) -> list[dict[str, Any]]:
    """As prometheus-kafka-adapter writes them, with the time in milliseconds."""
    return [{"name": p.name, "labels": p.labels, "value": str(p.value), "timestamp": p.ts_ms} for p in points]


def test_others_formats_are_mapped_and_keyed_by_workload(place: Place) -> None:
    """Six writers with keys and partitions of their own, each with a model of its own name, and bad records between."""
    formats: dict[str, list[bytes]] = {
        "otlp_json": [json.dumps(otlp()).encode()],
        "telegraf-v1": [json.dumps({"metrics": telegraf_v1()}).encode()],
        "telegraf-v2": [json.dumps(item).encode() for item in telegraf_v2()],
        "adapter": [json.dumps(item).encode() for item in adapter(samples())],
        "vector": [json.dumps(item).encode() for item in vector()],
    }
    renamed = {
        name: [value.replace(b"chat-7b-5d9c7b6f4-x2k8p", f"{name}-5d9c7b6f4-x2k8p".encode()) for value in values]
        for name, values in formats.items()
    }
    proto = otlp_proto(renamed["otlp_json"][0].replace(b"otlp_json", b"otlp-proto"))
    if proto is not None:
        renamed["otlp-proto"] = [proto]
    producer = KafkaProducer(bootstrap_servers=place.bootstrap, acks="all")
    bad = (b"{", b"[1]", b'{"a":1}', b"\x00")
    for n, value in enumerate(bad):
        producer.send(place.topics.telemetry_raw, value=value, key=b"bad", partition=n % PARTITIONS)
    for name, values in renamed.items():
        for n, value in enumerate(values):
            # One writer spreads its pieces over all partitions, another has no key, the rest have foreign ones.
            partition = n % PARTITIONS if name in ("adapter", "vector") else None
            producer.send(place.topics.telemetry_raw, value=value, key=name.encode(), partition=partition)
    producer.flush(30)
    producer.close()
    with place.running("map", "--json", "--hold", "1s") as process:
        place.until("every writer's telemetry", lambda: len(place.sampled()) == len(renamed))
        place.until("the dead letters", lambda: len(place.log(place.topics.dead_letters)) == len(bad))
        summary = place.stop(process)
    found = place.sampled()
    assert {workload for workload, _, _ in found} == {f"prod/{name}" for name in renamed}
    values = next(iter(found.values()))
    assert values["requests_started_total"] == 103.0
    assert all(v == values and ts == TS_MS for (_, _, ts), v in found.items())
    letters = place.log(place.topics.dead_letters)
    assert sorted(dict(r.headers)["reason"] for r in letters) == [b"decode", b"decode", b"schema", b"schema"]
    assert {dict(r.headers)["topic"] for r in letters} == {place.topics.telemetry_raw.encode()}
    assert summary["dead_letters"] == {"decode": 2, "schema": 2}
    assert committed(place) == {p: end(place, p) for p in range(PARTITIONS)}


@pytest.mark.faults
def test_a_killed_mapper_loses_nothing(place: Place) -> None:
    """Killed twice while records of one sample each come in: the first telemetry of every time is whole."""
    producer = KafkaProducer(bootstrap_servers=place.bootstrap, acks="all", linger_ms=2)
    sent: list[int] = []

    def one_more(seen: int) -> bool:
        """Send another scrape, so that one always waits for its parts; true when so many are published."""
        ts_ms = TS_MS + 5000 * len(sent)
        for n, item in enumerate(adapter([p._replace(ts_ms=ts_ms) for p in samples()])):
            producer.send(place.topics.telemetry_raw, value=json.dumps(item).encode(), partition=n % PARTITIONS)
        producer.flush(30)
        sent.append(ts_ms)
        return len(place.sampled()) >= seen

    for _ in range(2):
        with place.running("map", "--json", "--hold", "2s") as process:
            enough = len(place.sampled()) + 4
            place.until(f"{enough} scrapes", lambda enough=enough: one_more(enough))  # type: ignore[misc]
            waiting = len(sent) - len(place.sampled())
            process.kill()
        assert waiting > 0
    with place.running("map", "--json", "--hold", "2s") as process:
        place.until("all scrapes", lambda: len(place.sampled()) == len(sent))
        place.stop(process)
    producer.close()
    found = place.sampled()
    records = place.telemetry()
    published = sum(len(r.samples) for r in records if isinstance(r, SampleRecord))
    print(f"{len(sent)} scrapes of {len(samples())} records each; {published} readings in {len(records)} records")
    assert sorted(ts for _, _, ts in found) == sent
    assert {len(values) for values in found.values()} == {8}
    assert committed(place) == {p: end(place, p) for p in range(PARTITIONS)}


def otlp_proto(value: bytes) -> bytes | None:
    """otlp_json as otlp_proto; None where the package is not installed."""
    try:
        from google.protobuf.json_format import ParseDict
        from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
    except ImportError:
        return None
    body: bytes = ParseDict(json.loads(value), MetricsData()).SerializeToString()
    return body


def test_from_an_exporter_to_a_decision_in_observe(broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> None:
    """What a new user does: nothing declared, a collector beside a worker, and decisions say what would be done."""
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, (), stream=STREAM)
    served = [100]

    def metrics(_: str) -> str:
        served[0] += 4
        return VLLM.replace('7b"} 100.0', f'7b"}} {served[0]}.0')

    def decisions() -> list[Decision]:
        values = [v for *_, v in pipeline.log(pipeline.topics.decisions)]
        return [msgspec.json.decode(v or b"", type=Decision) for v in values]

    with answering() as exporter, ticking_worker(pipeline):
        exporter.pages["/metrics"] = metrics
        command = (
            sys.executable, "-m", "infra", "collect", "prometheus", "--scrape", exporter.address, "--interval", "0.5",
            "--count-replicas", "--config", str(pipeline.config), "--brokers", broker.bootstrap,
        )  # fmt: skip
        with (tmp_path / "collect.log").open("w") as log:
            collecting = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            deadline_s = monotonic() + WAIT_S
            while not any(d.inputs.observed_ratio > 0.4 and d.replicas.ready == 1 for d in decisions()):
                assert monotonic() < deadline_s, (tmp_path / "collect.log").read_text() + pipeline.log_of("live")[
                    -2000:
                ]
                sleep(0.5)
        finally:
            stop(collecting)
    found = decisions()
    print(found[-1])
    assert not any(d.inputs.censored for d in found if d.inputs.arrival_rate)
    assert {(d.workload, d.mode) for d in found} == {("acme/chat-7b", "observe")}
    assert pipeline.count(pipeline.topics.dead_letters) == 0
    assert pipeline.count(pipeline.topics.commands) == 0
