"""`harmony.Publisher` and `harmony.subscribe` on a real broker, and the examples of the page about Python."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import harmony
import pytest
from kafka import KafkaProducer

from agents.decide.records import encode_decision
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.tail import TopicTail
from streams.records.decode import decode
from streams.records.schema import FleetRecord, SampleRecord
from streams.topics import Topics
from tests.infra.page.fleet_records import START_TS_MS, STEP_MS, decision

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

TOPICS = Topics()
WORKLOAD = "prod/llm/chat-70b"
PAGE = Path(__file__).parents[3] / "docs" / "python.md"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of its own: the page uses the topics' default names."""
    kafka = EmbeddedKafka(tmp_path_factory.mktemp("api"), quiet=True)
    kafka.start()
    create_topics(kafka.bootstrap, TOPICS.specs())
    yield kafka.bootstrap
    kafka.stop()


def put(brokers: str, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=brokers, acks="all")
    for value in values:
        producer.send(topic, key=WORKLOAD.encode(), value=value).get(30)
    producer.close()


def records(brokers: str, topic: str) -> list[Any]:
    with TopicTail(brokers, topic) as tail:
        return [
            decode(record.value or b"", record.key, "requests", stamp_ms=record.stamp_ms)
            for record in tail.read(tail.bounds())
        ]


def test_the_examples_of_the_page_hold(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed (extra `pandas`)")
    monkeypatch.setenv("HARMONY_BROKERS", brokers)
    put(brokers, TOPICS.decisions, encode_decision(decision(WORKLOAD, 0)))
    text = PAGE.read_text(encoding="utf-8").replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "python.md", str(PAGE), 0)
    assert len(test.examples) > 20
    failed: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=failed.append)
    assert not failed, "".join(failed)


def test_samples_arrive_as_they_were_given(brokers: str) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with harmony.Publisher(brokers) as publisher:
        publisher.requests("a/b", source="pod-1", at=at, requests_started_total=5, num_requests_running=None)
        publisher.fleet("a/b", ready=2, pending=1, at=1_767_225_600_500)
    found = [r for r in records(brokers, TOPICS.telemetry_requests) if getattr(r, "workload", "") == "a/b"]
    sample, fleet = found
    assert isinstance(sample, SampleRecord)
    assert isinstance(fleet, FleetRecord)
    assert sample.samples[0].ts_ms == 1_767_225_600_000
    assert sample.samples[0].values == {"requests_started_total": 5.0, "num_requests_running": None}
    assert (fleet.facts[0][1].ready, fleet.facts[0][1].pending, fleet.facts[0][1].ts_ms) == (2, 1, 1_767_225_600_500)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs at least one value"),
        ({"requests_started_totl": 1.0}, "did you mean requests_started_total"),
        ({"colour": 1.0}, "it is none of requests_started_total"),
        ({"requests_started_total": float("nan")}, "None where nothing was measured"),
        ({"requests_started_total": "many"}, "values: "),
        ({"requests_started_total": 1.0, "at": datetime(2026, 1, 1)}, "has no zone"),  # noqa: DTZ001
        ({"requests_started_total": 1.0, "at": "now"}, "at: 'now' must be a datetime"),
    ],
)
def test_a_sample_that_cannot_be_says_why(brokers: str, options: dict[str, Any], words: str) -> None:
    with harmony.Publisher(brokers) as publisher, pytest.raises(harmony.InputError, match=words):
        publisher.requests("a/b", source="pod-1", **options)


def test_who_subscribes_misses_nothing_from_then_on(brokers: str) -> None:
    put(brokers, TOPICS.decisions, encode_decision(decision("before", 0)))
    mine = harmony.subscribe("decisions", brokers, workload="mine", idle=2.0)
    put(brokers, TOPICS.decisions, *(encode_decision(decision("mine", k)) for k in (1, 2)), b"{}", b"\xff")
    put(brokers, TOPICS.decisions, encode_decision(decision("other", 3)))
    heard = list(mine)
    assert [d.origin_ts_ms for d in heard] == [START_TS_MS + STEP_MS * k for k in (1, 2)]
    assert all(isinstance(d, harmony.Decision) for d in heard)
    whole = {d.workload for d in harmony.subscribe("decisions", brokers, from_beginning=True, idle=2.0)}
    assert whole >= {"before", "mine", "other"}


def test_a_topic_or_a_broker_that_is_not_there_is_told(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(harmony.InputError, match="topic: 'decision' is none of decisions, commands, forecasts"):
        harmony.subscribe("decision", brokers)  # type: ignore[call-overload]
    with pytest.raises(harmony.InputError, match="idle: 0"):
        harmony.subscribe("decisions", brokers, idle=0)
    monkeypatch.setenv("HARMONY_TOPIC_PREFIX", "nowhere.")
    with pytest.raises(harmony.HarmonyError, match=r"There is no topic nowhere\.commands"):
        harmony.subscribe("commands", brokers)
