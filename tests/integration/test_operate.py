"""The operating commands against a real broker: what they read back, and what they write where."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
import typer
from kafka import KafkaProducer
from typer.testing import CliRunner, Result

from agents.decide.kernel import DecideKernel
from infra.explain.dead_letters import read_letter
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.tail import TopicTail
from infra.operate import cli as cli_operate
from streams.catalogue import DEFAULT_CATALOGUE
from streams.log import OutRecord
from streams.records.decode import RecordDecoder
from streams.records.schema import ControlRecord
from streams.topics import Topics
from tests.agents.planning.plan_samples import STEP_MS, STREAM, log, plan, policy, record, spec


@pytest.fixture
def topics(broker: EmbeddedKafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Topics:
    made = Topics(prefix=topic_prefix, partitions=3)
    create_topics(broker.bootstrap, made.specs())
    monkeypatch.setenv("HARMONY_TOPIC_PREFIX", topic_prefix)
    monkeypatch.setenv("HARMONY_BROKERS", broker.bootstrap)
    return made


@pytest.fixture
def producer(broker: EmbeddedKafka) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    yield producer
    producer.close()


def send(producer: KafkaProducer, *records: OutRecord) -> None:
    futures = [producer.send(r.topic, r.value, r.key, list(r.headers) or None, r.partition) for r in records]
    for future in futures:
        future.get(timeout=20)


def harmony(*arguments: str) -> Result:
    app = typer.Typer()
    cli_operate.register(app)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    return result


def test_decisions_are_read_back_and_orders_reach_every_partition(
    broker: EmbeddedKafka, topics: Topics, producer: KafkaProducer
) -> None:
    kernel = DecideKernel(policy(spec("a"), spec("b"), spec("c", mode="observe")), STREAM, topics)
    plans = [record(slot, plan("a", 5, 6), plan("b", 2, 3), plan("c", 4, 9)) for slot in range(4)]
    emissions = [kernel.fold(r) for r in log(*plans)]
    send(producer, *(r for e in emissions for group in e.outputs for r in group))
    send(producer, OutRecord(topics.decisions, b"x", b"not a decision"))

    rows = orjson.loads(harmony("status", "--json").stdout)["workloads"]
    assert [(r["workload"], r["action"], r["replicas"]["final"]) for r in rows] == [
        ("a", "hold", 6),
        ("b", "hold", 3),
        ("c", "up", 9),
    ]
    assert [r["origin_ts_ms"] for r in rows] == [4 * STEP_MS] * 3
    assert [r["command"] and r["command"]["in_force"] for r in rows] == [True, True, None]

    wanted = rows[1]["decision_id"]
    assert orjson.loads(harmony("explain", wanted[:10], "--json").stdout)["decision_id"] == wanted
    assert "stays at 3 replicas" in harmony("explain", "b").stdout

    lines = harmony("decisions", "--workload", "a", "--json", "-n", "3").stdout.splitlines()
    assert [orjson.loads(line)["origin_ts_ms"] for line in lines] == [STEP_MS * n for n in (2, 3, 4)]

    said = harmony("pin", "a", "9", "--for", "1h", "--reason", "load test")
    assert "(order " in said.stderr
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536)
    with TopicTail(broker.bootstrap, topics.controls) as tail:
        (written,) = next(iter(tail.back()))
    assert (written.partition, written.key) == (0, None)
    read = decoder.decode(written.value, written.key)
    assert isinstance(read, ControlRecord)
    control = read.control
    assert (control.action, control.workload, control.replicas) == ("pin", "a", 9)
    assert control.until_ts_ms == 4 * STEP_MS + 3_600_000


def test_back_reads_everything_once_newest_stretch_first(
    broker: EmbeddedKafka, topics: Topics, producer: KafkaProducer
) -> None:
    send(producer, *(OutRecord(topics.forecasts, None, str(i).encode(), i % 2) for i in range(100)))
    with TopicTail(broker.bootstrap, topics.forecasts) as tail:
        stretches = list(tail.back(stretch=5))
    seen = [int(r.value or b"") for stretch in stretches for r in stretch]
    assert sorted(seen) == list(range(100))
    assert sorted(int(r.value or b"") for r in stretches[0]) == list(range(90, 100))


def test_following_starts_with_what_arrives_after_it(
    broker: EmbeddedKafka, topics: Topics, producer: KafkaProducer
) -> None:
    send(producer, OutRecord(topics.forecasts, None, b"old", 0))
    with TopicTail(broker.bootstrap, topics.forecasts) as tail:
        following = tail.follow()
        send(producer, *(OutRecord(topics.forecasts, None, f"new{p}".encode(), p) for p in range(3)))
        assert {next(following).value for _ in range(3)} == {b"new0", b"new1", b"new2"}


def test_dead_letters_go_back_byte_for_byte(broker: EmbeddedKafka, topics: Topics, producer: KafkaProducer) -> None:
    def letter(topic: str, value: bytes) -> OutRecord:
        headers = (("reason", b"schema"), ("topic", topic.encode()), ("partition", b"1"), ("offset", b"5"))
        return OutRecord(topics.dead_letters, b"w", value, 0, headers)

    send(producer, letter(topics.telemetry_gpu, b"\xff\x00"), letter("somebody.elses", b"{}"))
    listed = orjson.loads(harmony("dlq", "list", "--json").stdout)["dead_letters"]
    assert [x["topic"] for x in listed] == [topics.telemetry_gpu, "somebody.elses"]
    assert orjson.loads(harmony("dlq", "replay", "--json").stdout) == {"found": 2, "sent": 1}
    with TopicTail(broker.bootstrap, topics.telemetry_gpu) as tail:
        (back,) = [r for stretch in tail.back() for r in stretch]
    assert (back.key, back.value) == (b"w", b"\xff\x00")
    assert read_letter(back).reason == "unknown"
