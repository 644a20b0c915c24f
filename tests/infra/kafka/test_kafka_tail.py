"""Reading a topic on and on: what happens when there is more of it. The real broker is in tests/integration."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from kafka import TopicPartition

from infra.actuate.runner import CommandFeed
from infra.console.errors import HarmonyError
from infra.kafka import tail as kafka_tail
from infra.kafka.tail import TopicTail


class Consumer:
    """A topic without records, of which the client hears that it has grown."""

    partitions = 2

    def __init__(self, **_: Any) -> None:
        self.polls = 0

    def partitions_for_topic(self, _: str) -> set[int]:
        return set(range(self.partitions if self.polls < 3 else 2 * self.partitions))

    def poll(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        self.polls += 1
        return {}

    def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    end_offsets = beginning_offsets

    def highwater(self, _: TopicPartition) -> int | None:
        return None

    def ignored(self, *_: Any) -> None:
        pass

    assign = resume = seek = close = ignored


@pytest.fixture(autouse=True)
def growing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "KafkaConsumer", Consumer)
    monkeypatch.setattr(kafka_tail, "bootstrap_servers", lambda *_: ["h:1"])


def test_an_actuator_does_not_pass_over_the_commands_of_new_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "_COUNTED_EVERY_S", 0.0)
    with CommandFeed("h:1", "t.commands") as feed:
        batches = feed.batches()
        assert all(batch.caught_up for batch in islice(batches, 3))
        with pytest.raises(HarmonyError, match=r"t\.commands at h:1 has 4 partitions now, 2 when .* Start again"):
            list(islice(batches, 5))


def test_nor_does_who_follows_the_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "_COUNTED_EVERY_S", 0.0)
    with TopicTail("h:1", "t.decisions") as tail, pytest.raises(HarmonyError, match="4 partitions now"):
        next(tail.follow())


class HeldUp(Consumer):
    """A topic of which one partition has an open transaction at offset 5, before a record at offset 7."""

    partitions = 1
    stable = 5

    def highwater(self, _: TopicPartition) -> int:
        return 8

    def position(self, _: TopicPartition) -> int:
        return self.stable

    def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, self.stable)


def test_an_actuator_that_a_transaction_holds_up_acts_on_nothing_and_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_tail, "KafkaConsumer", HeldUp)
    monkeypatch.setattr(kafka_tail, "_COUNTED_EVERY_S", 1e9)
    now_s = 0.0
    monkeypatch.setattr(kafka_tail, "monotonic", lambda: now_s)
    with CommandFeed("h:1", "t.commands") as feed:
        batches = feed.batches()
        first = [next(batches), next(batches)]
        now_s += 60.0
        late = next(batches)
        monkeypatch.setattr(HeldUp, "stable", 8)
        free = next(batches)
    assert [(batch.caught_up, batch.held_up) for batch in first] == [(False, ())] * 2
    assert not late.caught_up
    assert len(late.held_up) == 1
    assert late.held_up[0].startswith(
        "t.commands/0: 3 records from offset 5 on wait for a transaction that has been open"
    )
    assert "kafka-transactions.sh --bootstrap-server h:1 abort --topic t.commands" in late.held_up[0]
    assert (free.caught_up, free.held_up) == (True, ())


def test_the_client_is_not_asked_at_every_poll() -> None:
    with CommandFeed("h:1", "t.commands") as feed:
        assert len(list(islice(feed.batches(), 10))) == 10
