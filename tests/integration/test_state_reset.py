"""`harmony state reset` against a real broker: what it deletes, what it leaves, and when it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from typer.testing import CliRunner, Result

from agents.decide.state import DecideCommit, DecideState, pack_commit
from agents.policy import Policy
from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.demo.workloads import write_settings
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.rights import workers_group
from infra.operate.state_reset import raise_epoch
from infra.settings.load import load_settings
from streams.config import StreamConfig
from streams.runtime.commits import encode_commit
from streams.topics import Topics

Reset = Callable[..., Result]


@pytest.fixture
def topics(broker: EmbeddedKafka, topic_prefix: str) -> Topics:
    """Topics with a few records each; the decide stage has committed under epoch 4."""
    made = Topics(prefix=topic_prefix, partitions=2, pages_retention_bytes=16 << 20)
    create_topics(broker.bootstrap, made.specs())
    _, commit = encode_commit(made.commits, "decide", 0, 7, "before", pack_commit(DECIDED))
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    for name in (made.telemetry_gpu, made.decisions, made.pages, made.pages_coarse, made.plans):
        for n in range(3):
            producer.send(name, value=b"%d" % n, partition=0)
    for record in commit:
        producer.send(made.commits, key=record.key, value=record.value, partition=0)
    producer.flush(30)
    producer.close()
    return made


DECIDED = DecideCommit(5, "p", "default", 4, 15_000, DecideState())


@pytest.fixture
def reset(broker: EmbeddedKafka, topics: Topics, tmp_path: Path) -> Reset:
    config = tmp_path / "harmony.yaml"

    def run(*arguments: str, partitions: int = 2) -> Result:
        write_settings(config, Policy(epoch=2), StreamConfig(), replace(topics, partitions=partitions))
        return CliRunner().invoke(
            app, ["state", "reset", "--config", str(config), "--brokers", broker.bootstrap, *arguments]
        )

    return run


def held(broker: EmbeddedKafka, topic: str) -> tuple[int, int]:
    """Partitions of a topic, and the records in them."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    try:
        tps = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        begins, ends = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
        return len(tps), sum(ends[tp] - begins[tp] for tp in tps)
    finally:
        consumer.close()


def internal(topics: Topics) -> tuple[str, ...]:
    return topics.pages, topics.pages_coarse, topics.plans, topics.commits


def test_it_empties_the_internal_topics_and_nothing_else(
    broker: EmbeddedKafka, topics: Topics, reset: Reset, tmp_path: Path
) -> None:
    dry = reset("--dry-run", "--json")
    assert dry.exit_code == 0, dry.output
    answer = json.loads(dry.stdout)
    assert {t["name"]: t["records"] for t in answer["topics"]} == dict(zip(internal(topics), (3, 3, 3, 1), strict=True))
    assert (answer["dry_run"], answer["records"], answer["epoch"], answer["epoch_written"]) == (True, 10, 5, False)
    assert [held(broker, name)[1] for name in internal(topics)] == [3, 3, 3, 1]

    done = reset("--yes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["epoch"] == 5, "above that of the commit record, not only that of the settings"
    assert [held(broker, name) for name in internal(topics)] == [(2, 0), (2, 0), (1, 0), (2, 0)]
    assert [held(broker, name)[1] for name in (topics.telemetry_gpu, topics.decisions)] == [3, 3]
    assert load_settings(tmp_path / "harmony.yaml").policy.epoch == 5
    assert reset("--yes").exit_code == 0, "once more does no harm"


def test_it_asks_where_somebody_can_answer_and_else_wants_yes(
    broker: EmbeddedKafka, topics: Topics, reset: Reset
) -> None:
    unasked = reset()
    assert isinstance(unasked.exception, HarmonyError)
    assert unasked.exception.exit_code == 2
    assert "--yes" in unasked.exception.message
    assert held(broker, topics.pages)[1] == 3


def test_it_refuses_while_a_member_lives_and_then_forgets_the_groups_offsets(
    broker: EmbeddedKafka, topics: Topics, reset: Reset
) -> None:
    worker = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id=workers_group(topics), auto_offset_reset="earliest"
    )
    deadline = monotonic() + 60
    # Who joins before the broker tells of a new topic is given none of it, and may not be asked to join again.
    while not worker.partitions_for_topic(topics.pages):
        assert monotonic() < deadline
    worker.subscribe([topics.pages])
    while not worker.assignment():
        worker.poll(timeout_ms=200)
        assert monotonic() < deadline
    worker.commit()
    refused = reset("--yes")
    assert isinstance(refused.exception, HarmonyError)
    assert "Workers are alive in the group: " in refused.exception.message
    assert held(broker, topics.pages)[1] == 3
    worker.close()
    assert reset("--yes").exit_code == 0
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=workers_group(topics))
    assert consumer.committed(TopicPartition(topics.pages, 0)) is None
    consumer.close()


def test_topics_of_another_partition_count_are_made_anew(broker: EmbeddedKafka, topics: Topics, reset: Reset) -> None:
    done = reset("--yes", partitions=3)
    assert done.exit_code == 0, done.output
    assert [held(broker, name) for name in internal(topics)] == [(3, 0), (3, 0), (1, 0), (3, 0)]
    assert held(broker, topics.telemetry_gpu) == (2, 3)


def test_an_epoch_is_only_written_where_it_stands_once(tmp_path: Path) -> None:
    file = tmp_path / "harmony.yaml"
    for text, wanted in (
        (
            "advanced:\n  planning:\n    epoch: 3  # raised once\n",
            "advanced:\n  planning:\n    epoch: 9  # raised once\n",
        ),
        ("advanced:\n  planning:\n    # epoch: 1\n", None),
        ("a:\n  epoch: 1\nb:\n  epoch: 2\n", None),
    ):
        file.write_text(text)
        assert raise_epoch(file, 9) is (wanted is not None)
        assert file.read_text() == (wanted or text)
    assert not raise_epoch(None, 9)
    assert not raise_epoch(tmp_path / "absent.yaml", 9)
