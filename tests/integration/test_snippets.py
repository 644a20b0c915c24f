"""The client snippets of the documentation, run as they are shown against a real broker and a real page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic, time
from typing import Any

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from agents.decide.records import encode_command, encode_decision
from agents.records import Command, Target
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from streams.records.decode import decode
from streams.records.schema import FleetRecord, SampleRecord
from streams.topics import Topics
from tests.infra.page.fleet_records import LEVELS, decision, forecast, step_records
from tests.infra.page.page_server import page_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DOCS = Path(__file__).parents[2] / "docs"
SNIPPETS = DOCS / "snippets"
TOPICS = Topics()
WORKLOAD = "prod/llm/chat-70b"
START_S = 60.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of its own: the snippets use the topics' default names."""
    kafka = EmbeddedKafka(tmp_path_factory.mktemp("snippets"), quiet=True)
    kafka.start()
    create_topics(kafka.bootstrap, TOPICS.specs())
    yield kafka.bootstrap
    kafka.stop()


def command_of(snippet: str, *arguments: str) -> list[str]:
    runner = [sys.executable, "-u"] if snippet.endswith(".py") else ["sh"]
    return [*runner, str(SNIPPETS / snippet), *arguments]


def environment(brokers: str) -> dict[str, str]:
    return {**os.environ, "HARMONY_BROKERS": brokers}


def needed(snippet: str) -> None:
    """Skip where the client of a snippet is not installed."""
    if "confluent" in snippet:
        pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    if "kcat" in snippet and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    if "curl" in snippet and shutil.which("curl") is None:
        pytest.skip("curl is not installed")


def everything(brokers: str, topic: str) -> list[Any]:
    consumer = KafkaConsumer(bootstrap_servers=brokers, group_id=None, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, p) for p in range(TOPICS.partitions)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        records: list[Any] = []
        while any(consumer.position(p) < ends[p] for p in partitions):
            for fetched in consumer.poll(timeout_ms=500).values():
                records += fetched
        return records
    finally:
        consumer.close()


def murmur2_partition(workload: str) -> int:
    from aiokafka.partitioner import murmur2

    return int((murmur2(workload.encode()) & 0x7FFFFFFF) % TOPICS.partitions)


def telling_workload(snippet: str) -> str:
    """A workload that librdkafka's default partitioner would put on another partition."""
    names = (f"{snippet.split('.', maxsplit=1)[0]}/chat-{n}" for n in range(1000))
    return next(w for w in names if zlib.crc32(w.encode()) % TOPICS.partitions != murmur2_partition(w))


@pytest.mark.parametrize(
    ("snippet", "topic", "source"),
    [
        ("publish_kafka_python.py", TOPICS.telemetry_requests, "requests"),
        ("publish_aiokafka.py", TOPICS.telemetry_gpu, "gpu"),
        ("publish_confluent.py", TOPICS.telemetry_requests, "requests"),
        ("kcat.sh", TOPICS.telemetry_requests, "requests"),
    ],
)
def test_what_a_snippet_publishes_is_taken_in_on_the_right_partition(
    brokers: str, snippet: str, topic: str, source: Any
) -> None:
    needed(snippet)
    workload = telling_workload(snippet)
    done = subprocess.run(
        command_of(snippet, workload),
        env=environment(brokers),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (record,) = [r for r in everything(brokers, topic) if r.key == workload.encode()]
    assert record.partition == murmur2_partition(workload)
    decoded = decode(record.value, record.key, source, stamp_ms=record.timestamp)
    assert isinstance(decoded, SampleRecord | FleetRecord), decoded


def publish(brokers: str, topic: str, values: Sequence[tuple[str, bytes]]) -> None:
    producer = KafkaProducer(bootstrap_servers=brokers, acks="all")
    for workload, value in values:
        producer.send(topic, key=workload.encode(), value=value).get(60)
    producer.close()


def lines_of(snippet: str, brokers: str, count: int, about: str = "") -> list[str]:
    """The first lines that a following snippet prints, of those that begin with `about`."""
    process = subprocess.Popen(command_of(snippet), env=environment(brokers), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    heard: Queue[str] = Queue()
    reader = Thread(target=lambda out: [heard.put(line.strip()) for line in out], args=(process.stdout,), daemon=True)
    reader.start()
    found: list[str] = []
    deadline_s = monotonic() + START_S
    try:
        while len(found) < count and monotonic() < deadline_s:
            try:
                line = heard.get(timeout=0.5)
                found += [line] if line.startswith(about) else []
            except Empty:
                assert process.poll() is None, f"{snippet} has ended"
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        process.stdout.close()
    return found


def lease(workload: str, replicas: int, sequence: int, valid_for_s: float) -> tuple[str, bytes]:
    until_ms = int((time() + valid_for_s) * 1000)
    command = Command(
        f"c{sequence}", f"d{sequence}", workload, Target("apps/v1", "Deployment", "default", "chat"), replicas, 6, 1,
        sequence, until_ms - 60_000, until_ms, "cheapest", 0.004, 0.01,
    )  # fmt: skip
    return workload, encode_command(command)


def test_the_actuator_obeys_only_what_is_newer_and_in_force(brokers: str) -> None:
    stale = [lease("obeyed-stale", 1, 5, -1)]
    late = [lease("obeyed", 7, 10, 3600), lease("obeyed", 3, 9, 3600), lease("obeyed", 8, 11, 3600)]
    publish(brokers, TOPICS.commands, [*stale, *late])
    lines = lines_of("subscribe_kafka_python.py", brokers, 2, about="obeyed")  # other tests write there too
    assert lines == [f"obeyed -> {n} replicas because cheapest" for n in (7, 8)]


def test_decisions_and_forecasts_are_followed(brokers: str) -> None:
    needed("confluent")
    decided, said = decision(WORKLOAD, 3), forecast(WORKLOAD, 3)
    publish(brokers, TOPICS.decisions, [(WORKLOAD, encode_decision(decided))])
    publish(brokers, TOPICS.forecasts, [(WORKLOAD, msgspec.json.encode(said))])
    assert lines_of("subscribe_aiokafka.py", brokers, 1) == [f"{WORKLOAD} hold 4 stabilization 3->4"]
    last = said.targets["request.arrival_rate"][-1]
    middle, high = last[LEVELS.index(0.5)], last[LEVELS.index(0.95)]
    assert lines_of("subscribe_confluent.py", brokers, 1) == [f"{WORKLOAD} median {middle} 95 % {high} requests/s"]


def test_kcat_reads_the_commands_there_are(brokers: str) -> None:
    needed("kcat.sh")
    publish(brokers, TOPICS.commands, [lease("by-kcat", 4, 1, 3600)])
    run = subprocess.run(
        command_of("kcat.sh", "kcat/reads"),
        env=environment(brokers),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert any(line.startswith('by-kcat {"command_id":"c1"') for line in run.stdout.splitlines())


def test_curl_reads_the_pages_json() -> None:
    needed("curl")
    with page_server() as server:
        server.fold(*step_records(2, 0), (TOPICS.decisions, encode_decision(decision(WORKLOAD, 0))))
        run = subprocess.run(
            command_of("page_curl.sh"),
            env={**os.environ, "PAGE": server.url},
            capture_output=True,
            timeout=60,
            check=True,
        )
    fleet, workload = run.stdout.splitlines()
    assert len(msgspec.json.decode(fleet)["rows"]) == 3
    assert msgspec.json.decode(workload)["id"] == WORKLOAD


def test_the_documentation_shows_the_files_that_are_run() -> None:
    page = (DOCS / "clients.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"<!-- snippet: (\S+) -->\n```\w+\n(.*?)```\n", page, re.DOTALL))
    files = {
        path.name: path.read_text(encoding="utf-8") for path in SNIPPETS.iterdir() if path.suffix in {".py", ".sh"}
    }
    assert shown.keys() == files.keys()
    for name, text in files.items():
        assert shown[name] == text, f"docs/clients.md shows another {name} than docs/snippets holds: copy it there"
