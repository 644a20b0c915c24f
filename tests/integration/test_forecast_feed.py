"""What a run's forecasts are scored from, against a real broker: nothing that is on its way is left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer

from agents.forecast.kernel import STAGE
from agents.records import ForecastRecord
from infra.console.errors import HarmonyError
from infra.demo.scores import ForecastFeed
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, of_source
from streams.config import StreamConfig
from streams.pages.page import Page, WorkloadFacts
from streams.runtime.commits import encode_commit
from streams.topics import Topics
from tests.streams.pages.page_bytes import encode_page

STREAM = StreamConfig(step_ms=5_000, context_steps=8)
WORKLOAD = "test/chat"
SLOT = 340_000_000
FORECAST = ForecastRecord(
    forecast_id="f" * 24,
    workload=WORKLOAD,
    origin_ts_ms=STREAM.slot_end_ms(SLOT),
    step_ms=STREAM.step_ms,
    source="seasonal_naive",
    model="m",
    quantile_levels=(0.05, 0.5, 0.95),
    targets={"request.arrival_rate": ((1.0, 2.0, 3.0),)},
    peaks={},
    peak_window_s=5.0,
)


def pages() -> list[Page]:
    """Slot `SLOT` of both sources, with the workload in the one of requests."""
    made = []
    for source in SOURCES:
        names = tuple(i.name for i in of_source(DEFAULT_CATALOGUE, source))
        workloads = (WORKLOAD,) if source == "requests" else ()
        page = Page(
            source=source,
            partition=0,
            slot=SLOT,
            prev=None,
            prev_digest=None,
            end_offset=1,
            end_stamp_ms=1,
            resume_offset=1,
            step_ms=STREAM.step_ms,
            grace_ms=STREAM.grace_ms,
            indicators=names,
            workloads=workloads,
            values=np.ones((len(workloads), len(names)), np.float32),
            observed=np.ones((len(workloads), len(names)), bool),
            facts=tuple(WorkloadFacts(1, SLOT, 1, 1) for _ in workloads),
        )
        made.append(page)
    return made


class Answers:
    """What the forecast stage publishes of one slot, by hand."""

    def __init__(self, producer: KafkaProducer, topics: Topics) -> None:
        self._producer, self._topics = producer, topics

    def close(self) -> None:
        for page in pages():
            for key, value in encode_page(page, 1).records:
                self._producer.send(self._topics.pages, value, key, partition=0)
        self._producer.flush()

    def forecast(self) -> None:
        self._producer.send(self._topics.forecasts, msgspec.json.encode(FORECAST), WORKLOAD.encode(), partition=0)
        self._producer.flush()

    def commit(self, slot: int = SLOT, sequence: int = 7) -> None:
        body = msgspec.msgpack.encode({"slot": slot, "resume_offset": 3})
        _, records = encode_commit(self._topics.commits, STAGE, 0, sequence, None, body)
        for record in records:
            self._producer.send(record.topic, record.value, record.key, partition=0)
        self._producer.flush()


@contextmanager
def feed_and_answers(broker: EmbeddedKafka, prefix: str) -> Iterator[tuple[ForecastFeed, Answers]]:
    topics = Topics(prefix, 1, 16 << 20)
    create_topics(broker.bootstrap, topics.specs())
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    try:
        with ForecastFeed(broker.bootstrap, topics, STREAM, WORKLOAD) as feed:
            yield feed, Answers(producer, topics)
    finally:
        producer.close()


def test_forecasts_that_come_after_the_decision_are_waited_for(broker: EmbeddedKafka, topic_prefix: str) -> None:
    with feed_and_answers(broker, topic_prefix) as (feed, answers):
        answers.close()
        later = [Timer(1.0, answers.forecast), Timer(1.5, answers.commit)]
        for timer in later:
            timer.start()
        feed.drain(30.0)
        for timer in later:
            timer.join()
        assert feed.scorecard.forecasts_by_source == {"seasonal_naive": 1}


def test_a_slot_that_is_never_answered_is_said_to_be(broker: EmbeddedKafka, topic_prefix: str) -> None:
    with feed_and_answers(broker, topic_prefix) as (feed, answers):
        answers.close()
        answers.commit(SLOT - 1)
        with pytest.raises(HarmonyError, match="the last slot's forecasts did not come within 2 s"):
            feed.drain(2.0)


def test_who_was_stopped_waits_for_no_answer(broker: EmbeddedKafka, topic_prefix: str) -> None:
    with feed_and_answers(broker, topic_prefix) as (feed, answers):
        answers.close()
        answers.forecast()
        feed.drain(30.0, answered=False)
        assert feed.scorecard.forecasts_by_source == {"seasonal_naive": 1}
