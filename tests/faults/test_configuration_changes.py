"""What changes under existing state: settings, retention, topics, and what others write to them.

One pipeline with 44 slots of state is made once; a test that must change a log works on a copy of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from infra.demo_settings import write_settings
from infra.kafka_embedded import EmbeddedKafka
from infra.settings import load_settings
from infra.topic_admin import create_topics
from streams.config import StreamConfig
from streams.topics import Topics
from tests.brokers import started_broker
from tests.faults.logs import Entry, ends_of, read_log
from tests.integration.pipeline import PARTITIONS, STREAM, Pipeline, policy_for, stop, workload_names

pytestmark = pytest.mark.faults

SLOTS = 44
STATE = ("telemetry_gpu", "telemetry_requests", "pages", "pages_coarse", "plans", "commits", "decisions", "commands")
Change = Callable[[list[Entry]], list[Entry]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with started_broker(tmp_path_factory.mktemp("config") / "kafka") as kafka:
        yield kafka


@pytest.fixture(scope="module")
def state(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A pipeline whose worker has ended after 44 slots; nobody may write to its topics."""
    pipeline = Pipeline(kafka.bootstrap, "state.", tmp_path_factory.mktemp("state"), workload_names(2))
    with pipeline.worker():
        origin = pipeline.publish_slots(SLOTS)
        pipeline.wait_for_decisions(origin, 400)
    return pipeline


@pytest.fixture
def copy(state: Pipeline, topic_prefix: str, tmp_path: Path) -> Callable[..., Pipeline]:
    """The same logs, offsets included, under other names; a change may be made to the records of some."""

    def make(**changes: Change) -> Pipeline:
        pipeline = Pipeline(state.bootstrap, topic_prefix, tmp_path / "copy", state.workloads)
        pipeline.slot = state.slot
        pipeline._counters = {key: list(values) for key, values in state._counters.items()}
        for name in STATE:
            entries = read_log(state.bootstrap, getattr(state.topics, name))
            write_log(pipeline, getattr(pipeline.topics, name), changes.get(name, list)(entries))
        return pipeline

    return make


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    return f"copy-{os.urandom(4).hex()}."


def write_log(pipeline: Pipeline, topic: str, entries: Sequence[Entry]) -> None:
    producer = KafkaProducer(
        bootstrap_servers=pipeline.bootstrap,
        acks="all",
        max_in_flight_requests_per_connection=1,
        max_request_size=2 << 20,
    )
    for e in entries:
        producer.send(topic, key=e.key, value=e.value, partition=e.partition, headers=list(e.headers))
    producer.flush(60)
    producer.close()


def append(partition: int, key: bytes | None, value: bytes) -> Change:
    return lambda entries: [*entries, Entry(partition, 0, 0, key, value, ())]


def refusal(
    pipeline: Pipeline,
    *,
    stream: StreamConfig = STREAM,
    topics: Topics | None = None,
    role: str = "all",
    **policy: Any,
) -> tuple[int, str]:
    """Exit code and last line of a worker that must not go on."""
    configure(pipeline, stream, topics, **policy)
    before = len(pipeline.log_of()) if (pipeline.home / "w0.log").exists() else 0
    worker = pipeline.start_worker(role=role)
    try:
        code = worker.wait(240)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it goes on\n{pipeline.log_of()[-3000:]}")
    finally:
        if worker.poll() is None:
            stop(worker)
        configure(pipeline, STREAM, None)
    said = pipeline.log_of()[before:]
    assert "Traceback" not in said, said
    last = said.rstrip().rsplit("\n", 1)[-1]
    print(f"exit code {code}: {last}")
    return code, last


def configure(pipeline: Pipeline, stream: StreamConfig, topics: Topics | None, **policy: Any) -> None:
    made = dataclasses.replace(policy_for(pipeline.workloads), **policy)
    write_settings(pipeline.config, made, stream, topics or pipeline.topics)


def goes_on(pipeline: Pipeline, slots: int = 2) -> str:
    """A worker takes up the state and decides further slots; what it said."""
    with pipeline.worker():
        pipeline.wait_for_decisions(pipeline.publish_slots(slots), 240)
    return pipeline.log_of()


# Settings.


@pytest.mark.parametrize(
    ("role", "stream", "says"),
    [
        ("ingest", dataclasses.replace(STREAM, step_ms=10_000), "step_ms 5000, the settings say 10000"),
        ("forecast", dataclasses.replace(STREAM, step_ms=10_000), "step 5000 ms and grace 5000 ms"),
        ("decide", dataclasses.replace(STREAM, step_ms=10_000), "has a step of 5000 ms"),
        ("all", dataclasses.replace(STREAM, grace_ms=4_000), "grace 5000 ms, the configuration says 5000 and 4000"),
    ],
)
def test_another_step_or_grace_is_refused_by_every_stage(
    state: Pipeline, role: str, stream: StreamConfig, says: str
) -> None:
    code, last = refusal(state, stream=stream, role=role)
    assert code == 2
    assert says in last
    assert "`harmony state reset`" in last


def test_another_partition_count_is_refused(state: Pipeline, copy: Callable[..., Pipeline]) -> None:
    wanted = dataclasses.replace(state.topics, partitions=4)
    code, last = refusal(state, topics=wanted)
    assert code == 2
    assert "`harmony state reset`" in last
    assert "partitions is 2, wanted 4" in last
    # The same with topics that somebody has enlarged: the pages know.
    grown = copy()
    admin = KafkaAdminClient(bootstrap_servers=state.bootstrap)
    names = [spec.name for spec in grown.topics.specs() if spec.partitions == PARTITIONS]
    admin.create_partitions(dict.fromkeys(names, 4))
    admin.close()
    deadline = monotonic() + 30
    while set(map(len, (ends_of(state.bootstrap, name) for name in names))) != {4}:
        assert monotonic() < deadline
        sleep(0.3)
    code, last = refusal(grown, topics=dataclasses.replace(grown.topics, partitions=4))
    assert code == 2
    assert "partition count 2, the settings say 4" in last
    assert "`harmony state reset`" in last


def test_another_fleet_name_is_refused(state: Pipeline) -> None:
    code, last = refusal(state, fleet="another")
    assert code == 2
    assert "the state of fleet 'test'" in last


@pytest.mark.parametrize("context_steps", [16, 40])
def test_another_context_length_rebuilds_the_rings(
    copy: Callable[..., Pipeline], context_steps: int, tmp_path: Path
) -> None:
    """Afterwards a forecast is the one of a worker that has had this length from the beginning.

    But for its width: intervals are widened by what forecasts have missed, and the earlier ones had another length.
    """
    changed = copy()
    stream = dataclasses.replace(STREAM, context_steps=context_steps)
    configure(changed, stream, None)
    goes_on(changed, 1)
    calm = Pipeline(changed.bootstrap, f"calm-{changed.topics.prefix}", tmp_path / "calm", changed.workloads)
    configure(calm, stream, None)
    write_log(calm, calm.topics.pages, read_log(changed.bootstrap, changed.topics.pages))
    origin = changed.slot * STREAM.step_ms
    wanted = forecasts_at(changed, origin)
    assert len(wanted) == len(changed.workloads)
    with calm.worker(role="forecast"):
        deadline = monotonic() + 120
        while len(forecasts_at(calm, origin)) < len(wanted):
            assert monotonic() < deadline, calm.log_of()[-3000:]
            sleep(0.5)
    found = forecasts_at(calm, origin)
    assert found.keys() == wanted.keys()
    for workload, forecast in wanted.items():
        assert same_but_for_width(found[workload], forecast)


def same_but_for_width(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether each step has the same median, and the distances above it grew by one factor."""
    median, high = one["quantile_levels"].index(0.5), one["quantile_levels"].index(0.9)
    factors = []
    for name, steps in one["targets"].items():
        for mine, theirs in zip(steps, other["targets"][name], strict=True):
            spread = theirs[high] - theirs[median]
            if mine[median] != pytest.approx(theirs[median], rel=1e-4, abs=1e-3 * spread):
                print(f"{name}: median {mine[median]} instead of {theirs[median]}, spread {spread}")
                return False
            if spread > 0:
                factors.append((mine[high] - mine[median]) / spread)
    bare = ("targets", "peaks")
    print(f"widened by {min(factors):.4f} to {max(factors):.4f}")
    same = {k: v for k, v in one.items() if k not in bare} == {k: v for k, v in other.items() if k not in bare}
    return same and min(factors) == pytest.approx(max(factors), rel=1e-2)


def forecasts_at(pipeline: Pipeline, origin_ts_ms: int) -> dict[str, Any]:
    bodies = [json.loads(value) for *_, value in pipeline.log(pipeline.topics.forecasts) if value is not None]
    return {b["workload"]: b for b in bodies if b["origin_ts_ms"] == origin_ts_ms}


def test_other_indicators_are_matched_by_name(copy: Callable[..., Pipeline]) -> None:
    changed = copy()
    launcher = Path(__file__).with_name("other_catalogue.py")
    command = [
        sys.executable, str(launcher), "worker", "--config", str(changed.config), "--brokers", changed.bootstrap,
        "--instance-id", "w0", "--web-port", "0", "--no-ticks", "--accelerated", "--end-with-parent",
    ]  # fmt: skip
    environment = {
        **os.environ, "HARMONY_STATE_DIR": str(changed.home), "PYTHONPATH": str(launcher.parents[2]),
    }  # fmt: skip
    with (changed.home / "w0.log").open("ab") as log:
        worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        origin = changed.publish_slots(2)
        changed.wait_for_decisions(origin, 120)
    finally:
        stop(worker)
    forecasts = forecasts_at(changed, origin)
    assert all("request.arrival_rate" in body["targets"] for body in forecasts.values())
    assert all("request.prompt_token_rate" not in body["targets"] for body in forecasts.values())
    assert len(forecasts) == len(changed.workloads)


# Retention and lost topics.


def delete_before(pipeline: Pipeline, topic: str, keep: int) -> dict[int, int]:
    """Let retention have removed all but the newest records of each partition; the first offsets left."""
    firsts = {p: max(0, end - keep) for p, end in ends_of(pipeline.bootstrap, topic).items()}
    admin = KafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    admin.delete_records({TopicPartition(topic, p): first for p, first in firsts.items()})
    admin.close()
    return firsts


def test_pages_out_of_reach_of_retention_are_refused(copy: Callable[..., Pipeline]) -> None:
    pipeline = copy()
    delete_before(pipeline, pipeline.topics.pages, 20)
    for role, says in (("ingest", "none has its 32 predecessors in reach"), ("forecast", "removed everything before")):
        code, last = refusal(pipeline, role=role)
        assert code == 1
        assert says in last
        assert "retention.bytes" in last
        assert "`harmony state reset`" in last


def test_commit_records_without_pages_are_refused(copy: Callable[..., Pipeline]) -> None:
    pipeline = copy(pages=lambda _entries: [])
    code, last = refusal(pipeline)
    assert code == 1
    assert f"{pipeline.topics.pages}/" in last
    assert "emptied or created anew" in last
    assert "`harmony state reset`" in last


def test_a_group_that_has_committed_without_any_state_is_refused(copy: Callable[..., Pipeline]) -> None:
    pipeline = copy()
    goes_on(pipeline, 1)
    for topic in (pipeline.topics.pages, pipeline.topics.plans, pipeline.topics.commits):
        delete_before(pipeline, topic, 0)
    code, last = refusal(pipeline)
    assert code == 1
    assert "no state is found" in last
    assert "`harmony state reset`" in last


def test_lost_telemetry_is_said_and_the_state_goes_on(copy: Callable[..., Pipeline]) -> None:
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


def test_a_source_topic_that_was_made_anew_is_refused(copy: Callable[..., Pipeline]) -> None:
    pipeline = copy(telemetry_gpu=lambda entries: entries[:3])
    code, last = refusal(pipeline)
    assert code == 1
    assert f"{pipeline.topics.telemetry_gpu}/" in last
    assert "but the log ends at" in last


# What others write.


@pytest.mark.parametrize("name", ["pages", "plans", "commits", "pages_coarse"])
@pytest.mark.parametrize("key", [None, b"forecast/0"])
def test_a_foreign_record_is_named(copy: Callable[..., Pipeline], name: str, key: bytes | None) -> None:
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
def test_a_damaged_record_is_named(copy: Callable[..., Pipeline], name: str) -> None:
    pipeline = copy(**{name: damaged})
    topic = getattr(pipeline.topics, name)
    code, last = refusal(pipeline)
    assert code == 1
    assert f"{topic}/0: " in last
    assert str(ends_of(pipeline.bootstrap, topic)[0] - 1) in last
    assert any(word in last for word in ("damaged", "corrupt", "digest", "not a commit record"))


@pytest.mark.parametrize("name", ["pages", "commits"])
def test_a_torn_chain_is_seen(copy: Callable[..., Pipeline], name: str) -> None:
    def without_one(entries: list[Entry]) -> list[Entry]:
        """A repeat of an earlier record stands in place of one, so that all offsets stay."""
        mine = [e for e in entries if e.partition == 0]
        gone, repeated = mine[-9], mine[-12]
        return [e._replace(key=repeated.key, value=repeated.value) if e is gone else e for e in entries]

    code, last = refusal(copy(**{name: without_one}))
    assert code == 1
    assert f"{name}/0" in last
    assert "torn" in last


# harmony state reset.


def harmony(pipeline: Pipeline, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infra", *arguments, "--config", str(pipeline.config)]
    environment = {**os.environ, "HARMONY_STATE_DIR": str(pipeline.home), "HARMONY_BROKERS": pipeline.bootstrap}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


def test_state_reset_refuses_while_a_worker_lives_and_empties_everything_after(copy: Callable[..., Pipeline]) -> None:
    pipeline = copy()
    topics = pipeline.topics
    internal = (topics.pages, topics.pages_coarse, topics.plans, topics.commits)

    def held() -> dict[str, int]:
        return {name: pipeline.count(name) for name in internal}

    with pipeline.worker():
        pipeline.wait_for_decisions(pipeline.publish_slots(1), 120)
        refused = harmony(pipeline, "state", "reset", "--yes")
        assert refused.returncode == 1
        assert "Workers are alive in the group: w0" in refused.stderr
    deadline = monotonic() + 60
    while "Workers are alive" in (dry := harmony(pipeline, "state", "reset", "--dry-run")).stderr:
        assert monotonic() < deadline
        sleep(1)
    before = held()
    assert dry.returncode == 0
    assert before[topics.pages]
    assert before[topics.plans]
    assert before[topics.commits]
    assert f"{topics.pages}: {before[topics.pages]} records" in dry.stderr
    assert held() == before, "a dry run deletes nothing"
    unasked = harmony(pipeline, "state", "reset")
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    done = harmony(pipeline, "state", "reset", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["dry_run"], answer["records"]) == (False, sum(before.values()))
    assert not any(held().values())
    assert load_settings(pipeline.config).policy.epoch == answer["epoch"] == 2
    decided = pipeline.count(topics.decisions)
    goes_on(pipeline, 1)
    assert pipeline.count(topics.decisions) > decided
    commands = [json.loads(value) for *_, value in pipeline.log(topics.commands) if value is not None]
    assert {c["epoch"] for c in commands} <= {1, 2}


def test_state_reset_makes_internal_topics_anew_for_another_partition_count(copy: Callable[..., Pipeline]) -> None:
    pipeline = copy()
    wanted = dataclasses.replace(pipeline.topics, partitions=3)
    admin = KafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    public = [spec.name for spec in pipeline.topics.specs() if spec.partitions == PARTITIONS]
    internal = {wanted.pages, wanted.pages_coarse, wanted.commits}
    admin.create_partitions({name: 3 for name in public if name not in internal})
    admin.close()
    configure(pipeline, STREAM, wanted)
    done = harmony(pipeline, "state", "reset", "--yes")
    assert done.returncode == 0, done.stderr
    assert {name: len(ends_of(pipeline.bootstrap, name)) for name in internal} == dict.fromkeys(internal, 3)
    assert create_topics(pipeline.bootstrap, wanted.specs()) == ()
    with pipeline.worker() as worker:
        deadline = monotonic() + 60
        while not pipeline.count(wanted.pages):
            assert worker.poll() is None, pipeline.log_of()[-3000:]
            assert monotonic() < deadline, pipeline.log_of()[-3000:]
            sleep(0.5)
