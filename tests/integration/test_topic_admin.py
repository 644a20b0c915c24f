"""Topics on a real broker: created as specified, and every difference named."""

from __future__ import annotations

import dataclasses
import time

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from infra.console.errors import HarmonyError
from infra.kafka.admin import TopicAdmin, TopicDifference, check_topics, create_topics
from infra.kafka.embedded import EmbeddedKafka
from streams.topics import Topics


def test_created_topics_have_no_difference_and_a_second_creation_does_nothing(
    broker: EmbeddedKafka, topic_prefix: str
) -> None:
    specs = Topics(prefix=topic_prefix, partitions=2).specs()
    names = tuple(spec.name for spec in specs)
    assert {d.kind for d in check_topics(broker.bootstrap, specs)} == {"missing"}
    assert create_topics(broker.bootstrap, specs, dry_run=True) == names
    assert len(check_topics(broker.bootstrap, specs)) == len(specs)
    assert create_topics(broker.bootstrap, specs, replication_factor=1) == names
    assert check_topics(broker.bootstrap, specs) == ()
    assert create_topics(broker.bootstrap, specs) == ()


def test_each_changed_setting_and_partition_count_is_one_difference(broker: EmbeddedKafka, topic_prefix: str) -> None:
    specs = Topics(prefix=topic_prefix, partitions=1).specs()
    create_topics(broker.bootstrap, specs)
    changed = specs[0].name
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, changed, {"retention.ms": "1000"})])
    admin.close()
    # The broker learns of a changed setting a moment after the controller has confirmed it.
    deadline = time.monotonic() + 30
    while not check_topics(broker.bootstrap, specs[:1]) and time.monotonic() < deadline:
        time.sleep(0.02)
    more = dataclasses.replace(specs[1], partitions=3)
    assert check_topics(broker.bootstrap, [specs[0], more, *specs[2:]]) == (
        TopicDifference(changed, "config", "retention.ms", specs[0].config["retention.ms"], "1000"),
        TopicDifference(more.name, "partitions", "partitions", "3", "1"),
    )


def test_brokers_refuse_more_replicas_than_there_are(broker: EmbeddedKafka, topic_prefix: str) -> None:
    specs = Topics(prefix=topic_prefix).specs()
    with pytest.raises(HarmonyError, match=rf"The brokers at {broker.bootstrap} refuse: .*eplication"):
        create_topics(broker.bootstrap, specs, replication_factor=3)
    assert len(check_topics(broker.bootstrap, specs)) == len(specs)


def test_topic_made_by_somebody_else_meanwhile_is_no_error(
    broker: EmbeddedKafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = Topics(prefix=topic_prefix, partitions=1).specs()[:2]
    with TopicAdmin(broker.bootstrap) as admin:
        real = admin.describe
        calls = []

        def late_describe(names: list[str]) -> object:
            found = real(names)
            if not calls:
                create_topics(broker.bootstrap, specs[:1])
            calls.append(1)
            return found

        monkeypatch.setattr(admin, "describe", late_describe)
        admin.create_missing(specs)
    assert check_topics(broker.bootstrap, specs) == ()
