"""Actuators as programs on a real Kafka: from a command in the topic to replicas, and the outcome back in telemetry."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from kafka import KafkaProducer

from agents.decide.records import command_record
from agents.records import Command
from infra.actuate.runner import CommandFeed
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.kafka.tail import TopicTail
from streams.catalogue import DEFAULT_CATALOGUE
from streams.records.decode import RecordDecoder
from streams.records.schema import FleetRecord, OutcomeRecord
from streams.topics import Topics
from tests.agents.actuation.test_apply_guard import command
from tests.infra.actuate.api_server import ApiServer, serving
from tests.infra.actuate.receiver import Receiver

ROOT = Path(__file__).parents[2]
SECRET = "a secret of more than sixteen bytes"
PATIENCE_S = 60.0


@pytest.fixture
def topics(broker: EmbeddedKafka, topic_prefix: str) -> Topics:
    made = Topics(prefix=topic_prefix, partitions=3)
    create_topics(broker.bootstrap, made.specs())
    return made


@pytest.fixture
def send(broker: EmbeddedKafka, topics: Topics) -> Iterator[Callable[..., None]]:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")

    def send(*commands: Command | bytes) -> None:
        for c in commands:
            if isinstance(c, bytes):
                producer.send(topics.commands, value=c, key=b"w").get(20)
            else:
                r = command_record(topics.commands, "f", c)
                producer.send(r.topic, r.value, r.key, list(r.headers)).get(20)

    yield send
    producer.close()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving() as made:
        yield made


def in_time(sequence: int, replicas: int = 5, expected: int = 3, **changes: Any) -> Command:
    now_ms = time.time_ns() // 1_000_000
    lease = {"issued_ts_ms": now_ms, "valid_until_ts_ms": now_ms + 600_000}
    return command(sequence, replicas=replicas, expected=expected, **{**lease, **changes})


class Place:
    """Settings of an actuator in a directory of its own."""

    def __init__(self, directory: Path, broker: EmbeddedKafka, topics: Topics) -> None:
        self.directory = directory
        self.config = directory / "harmony.yaml"
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "prod", "name": "w"}
        self.config.write_text(
            yaml.safe_dump(
                {
                    "brokers": broker.bootstrap,
                    "topic_prefix": topics.prefix,
                    "state_dir": str(directory / "state"),
                    "workloads": [{"id": "w", "target": target, "replicas": {"min": 1, "max": 20}}],
                }
            )
        )

    @contextmanager
    def actuator(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A running `harmony actuate ...`; told to stop at the end, which it must do with exit code 0."""
        command_line = [sys.executable, "-m", "infra", "actuate", *arguments, "--config", str(self.config)]
        environ = {**os.environ, "HARMONY_WEBHOOK_SECRET": SECRET}
        with (self.directory / "err").open("ab") as err:
            process = subprocess.Popen(command_line, cwd=ROOT, stdout=subprocess.PIPE, stderr=err, env=environ)
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0, (self.directory / "err").read_text()[-2000:]
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def place(tmp_path: Path, broker: EmbeddedKafka, topics: Topics) -> Place:
    return Place(tmp_path, broker, topics)


async def until(true: Callable[[], Any], what: str, process: subprocess.Popen[bytes] | None = None) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        found = await asyncio.to_thread(true)
        if found:
            return found
        if process is not None and process.poll() is not None:
            pytest.fail(f"it ended with {process.returncode} while waiting for {what}")
        await asyncio.sleep(0.05)
    pytest.fail(f"{what} did not come within {PATIENCE_S:g} s")


def telemetry(broker: EmbeddedKafka, topics: Topics, kind: type[Any]) -> list[Any]:
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536)
    with TopicTail(broker.bootstrap, topics.telemetry_requests) as tail:
        records = [r for stretch in tail.back() for r in stretch]
    decoded = [decoder.decode(r.value, r.key) for r in records]
    assert all(isinstance(d, OutcomeRecord | FleetRecord) for d in decoded), "all of it is good telemetry"
    return [d for d in decoded if isinstance(d, kind)]


def test_the_feed_begins_at_the_beginning_says_when_it_has_caught_up_and_goes_on(
    broker: EmbeddedKafka, topics: Topics, send: Callable[..., None]
) -> None:
    with CommandFeed(broker.bootstrap, topics.commands) as feed:
        first = next(feed.batches())
    assert (first.commands, first.caught_up) == ({}, True), "an empty topic is caught up with at once"
    send(*(in_time(i, workload=f"w{i % 5}") for i in range(20)), b"no command")
    with CommandFeed(broker.bootstrap, topics.commands) as feed:
        batches, newest, unreadable = feed.batches(), {}, 0
        for batch in batches:
            newest |= batch.commands
            unreadable += batch.unreadable
            if batch.caught_up:
                break
        assert {w: c.sequence for w, c in newest.items()} == {f"w{i}": 15 + i for i in range(5)}
        assert unreadable == 1
        send(in_time(99))
        later = next(b for b in batches if b.commands)
        assert later.commands["w"].sequence == 99


def test_dry_run_shows_the_newest_command_of_each_workload_and_ends(place: Place, send: Callable[..., None]) -> None:
    send(in_time(1, 9), in_time(2, 5), in_time(1, 4, workload="v"), b"no command")
    with place.actuator("dry-run", "--once", "--json") as process:
        out, _ = process.communicate(timeout=60)
    lines = {line["workload"]: line for line in map(orjson.loads, out.splitlines())}
    assert (lines["w"]["status"], lines["w"]["before"], lines["w"]["after"]) == ("applied", 3, 5)
    assert lines["w"]["dry_run"] is True
    assert (lines["v"]["status"], lines["v"]["reason"]) == ("refused", "undeclared")
    with place.actuator("dry-run", "--once") as process:
        out, _ = process.communicate(timeout=60)
    assert b"set 5" in out
    assert b"undeclared" in out


def test_an_epoch_above_that_of_the_settings_is_refused_with_the_remedy(
    place: Place, send: Callable[..., None]
) -> None:
    send(in_time(1, 9), in_time(1, 5, epoch=2))
    with place.actuator("dry-run", "--once", "--json") as process:
        out, _ = process.communicate(timeout=60)
    (line,) = map(orjson.loads, out.splitlines())
    assert (line["status"], line["reason"], line["after"]) == ("refused", "epoch_jump", None)
    assert "set advanced.planning.epoch to 2" in line["detail"]
    place.config.write_text(place.config.read_text() + "advanced: {planning: {epoch: 2}}\n")
    with place.actuator("dry-run", "--once", "--json") as process:
        out, _ = process.communicate(timeout=60)
    (line,) = map(orjson.loads, out.splitlines())
    assert (line["status"], line["after"]) == ("applied", 5)


async def test_kubernetes_acts_tells_outcomes_and_facts_and_remembers_over_a_kill(
    place: Place, broker: EmbeddedKafka, topics: Topics, server: ApiServer, send: Callable[..., None]
) -> None:
    send(in_time(7))
    thing = server.thing("prod", "w")
    arguments = ("kubernetes", "--act", "--server", server.url, "--facts-every", "0.5", "--web-port", "0", "--json")
    with place.actuator(*arguments) as process:
        await until(lambda: thing.replicas == 5, "5 replicas", process)
        thing.ready = 5
        outcomes = await until(
            lambda: (o := telemetry(broker, topics, OutcomeRecord)) and o[-1].fact.status == "ready" and o, "ready"
        )
        assert [o.fact.status for o in outcomes] == ["applied", "ready"]
        assert {o.fact.command_id for o in outcomes} == {"c5"}
        assert outcomes[-1].fact.lead_time_s > 0
        assert telemetry(broker, topics, FleetRecord)[-1].facts[0][1].desired == 5
        process.kill()
        process.wait()
    send(in_time(6, 2, expected=5, workload="w"))
    with place.actuator(*arguments) as process:
        send(in_time(8, 8, expected=5))
        await until(lambda: thing.replicas == 8, "8 replicas", process)
    assert thing.writes == [5, 8], "the older command was not obeyed in between"


async def test_a_second_harmony_on_a_target_starts_only_to_take_it_over(
    place: Place, server: ApiServer, send: Callable[..., None]
) -> None:
    thing = server.thing("prod", "w")
    thing.owned_by("harmony-0123abcd")
    send(in_time(7))
    arguments = ("kubernetes", "--act", "--server", server.url, "--web-port", "0", "--no-facts")
    with place.actuator(*arguments) as process:
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    told = " ".join((place.directory / "err").read_text().split())
    assert "another HARMONY (harmony-0123abcd) set the replicas of Deployment prod/w" in told
    assert "--take-over" in told
    assert thing.writes == []
    with place.actuator(*arguments, "--take-over") as process:
        await until(lambda: thing.replicas == 5, "5 replicas", process)
    assert thing.managed[0]["manager"] != "harmony-0123abcd"
    with place.actuator(*arguments) as process:  # it is this one's now
        send(in_time(8, 8, expected=5))
        await until(lambda: thing.replicas == 8, "8 replicas", process)


async def test_kubernetes_without_act_changes_nothing(
    place: Place, server: ApiServer, send: Callable[..., None]
) -> None:
    send(in_time(7))
    with place.actuator("kubernetes", "--server", server.url, "--no-facts", "--json") as process:
        assert process.stdout is not None
        line = orjson.loads(await asyncio.to_thread(process.stdout.readline))
    assert (line["dry_run"], line["status"], line["after"]) == (True, "applied", 5)
    assert server.thing("prod", "w").writes == []


async def test_pins_and_the_kill_switch_reach_a_running_actuator(
    place: Place, server: ApiServer, send: Callable[..., None]
) -> None:
    thing = server.thing("prod", "w")

    def say(*arguments: str) -> None:
        line = [sys.executable, "-m", "infra", *arguments, "--here", "--config", str(place.config)]
        subprocess.run(line, cwd=ROOT, check=True, capture_output=True)

    with place.actuator("kubernetes", "--act", "--server", server.url, "--web-port", "0", "--no-facts") as process:
        await asyncio.to_thread(say, "pin", "w", "9", "--for", "1h", "--reason", "test")
        await until(lambda: thing.replicas == 9, "the pin, without any command", process)
        await asyncio.to_thread(say, "pause")
        await asyncio.to_thread(say, "unpin", "w")
        send(in_time(7, 4, expected=9))
        audit = place.directory / "state/actuate/kubernetes/audit.jsonl"
        await until(lambda: b'"reason":"stopped"' in audit.read_bytes(), "the refusal", process)
        await asyncio.to_thread(say, "resume")
        send(in_time(8, 6, expected=9))
        await until(lambda: thing.replicas == 6, "resumed", process)
    assert thing.writes == [9, 6]


async def test_the_webhook_posts_and_tells(
    place: Place, broker: EmbeddedKafka, topics: Topics, send: Callable[..., None]
) -> None:
    receiver = Receiver(SECRET.encode(), {"w": 3})
    await receiver.start()
    receiver.ills.append(503)
    send(in_time(7))
    try:
        with place.actuator("webhook", receiver.url, "--web-port", "0") as process:
            await until(lambda: receiver.counts["w"] == 5, "the post", process)
            outcomes = await until(lambda: telemetry(broker, topics, OutcomeRecord), "the outcome", process)
    finally:
        await receiver.stop()
    assert [o.fact.status for o in outcomes] == ["applied"]
    assert receiver.bad_signatures == 0


async def test_keda_is_answered_by_the_program(
    place: Place, broker: EmbeddedKafka, topics: Topics, send: Callable[..., None]
) -> None:
    import grpc.aio

    from infra.actuate.keda import METRIC, SERVICE
    from tests.infra.actuate.keda_wire import compiled

    send(in_time(7))
    with place.actuator("keda", "--grpc-port", "0", "--web-port", "0") as process:
        err = place.directory / "err"
        marker = "external scaler on 127.0.0.1:"
        text = await until(lambda: marker in (t := err.read_text()) and t, "the scaler's address", process)
        port = int(text.split(marker)[1].split()[0])
        pb = compiled()
        request = pb.GetMetricsRequest(
            scaledObjectRef=pb.ScaledObjectRef(name="so", namespace="prod", scalerMetadata={"workload": "w"}),
            metricName=METRIC,
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary(
                f"/{SERVICE}/GetMetrics",
                pb.GetMetricsRequest.SerializeToString,
                pb.GetMetricsResponse.FromString,
            )
            deadline_s = time.monotonic() + PATIENCE_S
            while True:
                try:
                    answer = await ask(request, timeout=10)
                    break
                except grpc.aio.AioRpcError:  # no lease before the topic was read
                    assert time.monotonic() < deadline_s
                    await asyncio.sleep(0.1)
        (outcome,) = await until(lambda: telemetry(broker, topics, OutcomeRecord), "the outcome", process)
    assert answer.metricValues[0].metricValueFloat == 5.0
    assert outcome.fact.status == "accepted", "the HPA has yet to make the change"


async def test_it_does_not_act_beside_an_hpa(place: Place, server: ApiServer) -> None:
    server.scalers = [("cpu", "Deployment", "w")]
    with place.actuator("kubernetes", "--act", "--server", server.url) as process:
        assert await asyncio.to_thread(process.wait, 60) == 1
    said = (place.directory / "err").read_text()
    assert "prod/cpu on Deployment w" in said
    assert "Traceback" not in said
