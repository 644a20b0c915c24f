"""Logs that change under existing state: retention, topics lost or made anew, and what others write into them."""

from __future__ import annotations

import re
import signal
import urllib.request

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.faults.kept_state import Copy, append, configure, goes_on, refusal
from tests.faults.logs import Entry, ends_of
from tests.integration.pipeline import STREAM, Pipeline

pytestmark = pytest.mark.faults


def delete_before(pipeline: Pipeline, topic: str, keep: int) -> dict[int, int]:
    """Let retention have removed all but the newest records of each partition; the first offsets left."""
    firsts = {p: max(0, end - keep) for p, end in ends_of(pipeline.bootstrap, topic).items()}
    admin = KafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    admin.delete_records({TopicPartition(topic, p): first for p, first in firsts.items()})
    admin.close()
    return firsts


def test_pages_out_of_reach_of_retention_are_refused(copy: Copy) -> None:
    pipeline = copy()
    delete_before(pipeline, pipeline.topics.pages, 20)
    for role, says in (("ingest", "none has its 32 predecessors in reach"), ("forecast", "removed everything before")):
        code, last = refusal(pipeline, role=role)
        assert code == 1
        assert says in last
        assert "retention.bytes" in last
        assert "`harmony state reset`" in last


def test_commit_records_without_pages_are_refused(copy: Copy) -> None:
    pipeline = copy(pages=lambda _entries: [])
    code, last = refusal(pipeline)
    assert code == 1
    assert f"{pipeline.topics.pages}/" in last
    assert "emptied or created anew" in last
    assert "`harmony state reset`" in last


def test_a_group_that_has_committed_without_any_state_is_refused(copy: Copy) -> None:
    pipeline = copy()
    goes_on(pipeline, 1)
    for topic in (pipeline.topics.pages, pipeline.topics.plans, pipeline.topics.commits):
        delete_before(pipeline, topic, 0)
    code, last = refusal(pipeline)
    assert code == 1
    assert "no state is found" in last
    assert "`harmony state reset`" in last


def test_lost_telemetry_is_said_and_the_state_goes_on(copy: Copy) -> None:
    pipeline = copy()
    topics = pipeline.topics
    pipeline.publish_slots(2)  # while no worker runs
    firsts = delete_before(pipeline, topics.telemetry_requests, 0)
    said = goes_on(pipeline)
    for partition, first in firsts.items():
        line = next(s for s in said.splitlines() if f"telemetry is lost: {topics.telemetry_requests}/{partition}" in s)
        assert f"to {first - 1} were removed by retention" in line
        assert "retention.ms" in line
    assert f"telemetry is lost: {topics.telemetry_gpu}" not in said


def test_telemetry_that_is_lost_while_a_worker_runs_is_said_and_counted(copy: Copy) -> None:
    pipeline = copy()
    topics = pipeline.topics
    configure(pipeline, STREAM, None)
    with pipeline.worker() as worker:
        pipeline.wait_for_decisions(pipeline.publish_slots(2), 240)
        worker.send_signal(signal.SIGSTOP)
        try:
            pipeline.publish_slots(2)
            firsts = delete_before(pipeline, topics.telemetry_requests, 0)
            last = pipeline.publish_slots(2)
        finally:
            worker.send_signal(signal.SIGCONT)
        pipeline.wait_for_decisions(last, 240)
        page = urllib.request.urlopen(f"{worker.metrics_url}/metrics", timeout=10).read().decode()  # type: ignore[attr-defined]  # noqa: S310
    said = pipeline.log_of()
    assert "Traceback" not in said
    lines = [s for s in said.splitlines() if f"telemetry is lost: {topics.telemetry_requests}/" in s]
    ranges = [re.search(r"/(\d+): offsets (\d+) to (\d+) were removed", line) for line in lines]
    assert {int(m[1]): int(m[3]) + 1 for m in ranges if m} == firsts
    lost = sum(int(m[3]) + 1 - int(m[2]) for m in ranges if m)
    assert f"\nharmony_telemetry_lost_total {lost}.0\n" in page
    assert lost > 0
    assert f"telemetry is lost: {topics.telemetry_gpu}" not in said


def test_a_source_topic_that_was_made_anew_is_refused(copy: Copy) -> None:
    pipeline = copy(telemetry_gpu=lambda entries: entries[:3])
    code, last = refusal(pipeline)
    assert code == 1
    assert f"{pipeline.topics.telemetry_gpu}/" in last
    assert "but the log ends at" in last


@pytest.mark.parametrize("name", ["pages", "plans", "commits", "pages_coarse"])
@pytest.mark.parametrize("key", [None, b"forecast/0"])
def test_a_foreign_record_is_named(copy: Copy, name: str, key: bytes | None) -> None:
    pipeline = copy(**{name: append(0, key, b'{"hello": "world"}')})
    topic = getattr(pipeline.topics, name)
    offset = ends_of(pipeline.bootstrap, topic)[0] - 1
    code, last = refusal(pipeline)
    assert code == 1
    assert "harmony worker stops (" in last
    assert f"{name.replace('_', '.')}/0: offset {offset} " in last
    assert "`harmony state reset`" in last


def damaged(entries: list[Entry]) -> list[Entry]:
    """One bit of the newest record's value is another."""
    last = max((e for e in entries if e.partition == 0), key=lambda e: e.offset)
    value = bytearray(last.value or b"")
    value[-8] ^= 1
    return [e._replace(value=bytes(value)) if e is last else e for e in entries]


@pytest.mark.parametrize("name", ["pages", "commits"])
def test_a_damaged_record_is_named(copy: Copy, name: str) -> None:
    pipeline = copy(**{name: damaged})
    topic = getattr(pipeline.topics, name)
    code, last = refusal(pipeline)
    assert code == 1
    assert f"{topic}/0: " in last
    assert str(ends_of(pipeline.bootstrap, topic)[0] - 1) in last
    assert any(word in last for word in ("damaged", "corrupt", "digest", "not a commit record"))


@pytest.mark.parametrize("name", ["pages", "commits"])
def test_a_torn_chain_is_seen(copy: Copy, name: str) -> None:
    def without_one(entries: list[Entry]) -> list[Entry]:
        """A repeat of an earlier record stands in place of one, so that all offsets stay."""
        mine = [e for e in entries if e.partition == 0]
        gone, repeated = mine[-9], mine[-12]
        if name == "commits":
            # Each commit record holds the whole state. A worker reads the newest ones, and needs none before them.
            repeated, gone, _ = [e for e in mine if e.key == mine[-1].key][-3:]
        return [e._replace(key=repeated.key, value=repeated.value) if e is gone else e for e in entries]

    code, last = refusal(copy(**{name: without_one}))
    assert code == 1
    assert f"{name}/0" in last
    assert "torn" in last
