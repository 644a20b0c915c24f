"""The simulated fleet against a real broker and a scripted scaler in place of the workers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import orjson
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from agents.policy import GuardLimits, Policy, Slo, WorkloadSpec
from agents.records import (
    Command,
    Decision,
    Fingerprint,
    ForecastView,
    InputFacts,
    Quantiles,
    ReplicaView,
    RiskView,
    Target,
)
from infra.console.errors import HarmonyError
from infra.demo.fleet import FleetRunner, Snapshot
from infra.demo.workloads import FleetSpec
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.simulator.arrivals import GeneratedLoad, LoadShape, TokenShape
from infra.simulator.closed_loop import SimulatedWorkload
from infra.simulator.profiles import BUILT_IN_PROFILES
from streams.config import StreamConfig
from streams.topics import Topics

STREAM = StreamConfig(step_ms=5_000, grace_ms=5_000, context_steps=8)
INPUTS = InputFacts(None, 1.0, 8, 0, 1.0, censored=False, flat=False, cliff=False, zero_after_nonzero=False, offsets={})
START_TS_MS = 1_700_000_000_000


def fleet(*names: str) -> FleetSpec:
    shape = LoadShape(3.0, TokenShape(400, 0.5), TokenShape(60, 0.5), noise=0.0)
    return FleetSpec(
        tuple(
            SimulatedWorkload(
                WorkloadSpec(name, max_replicas=6, slo=Slo(3.0, 0.3), mode="act", lead_time_s=7.0),
                BUILT_IN_PROFILES["moe-30b"],
                GeneratedLoad(shape, k),
                initial_replicas=1,
            )
            for k, name in enumerate(names)
        ),
        start_ts_ms=START_TS_MS,
    )


def policy(spec: FleetSpec) -> Policy:
    return Policy(workloads=spec.specs(), guards=GuardLimits(warm_up_steps=8))


class ScriptedScaler:
    """Answers a slot once a tick has closed it on every partition: two replicas from the first acting slot on."""

    def __init__(self, bootstrap: str, topics: Topics, mute: frozenset[str] = frozenset()) -> None:
        self.topics, self.mute = topics, mute
        self.samples: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.current: dict[str, int] = {}
        self.outcomes: list[dict[str, object]] = []
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
        self._producer = KafkaProducer(bootstrap_servers=bootstrap)
        parts = [
            TopicPartition(t, p)
            for t in (topics.telemetry_gpu, topics.telemetry_requests)
            for p in range(topics.partitions)
        ]
        self._consumer.assign(parts)
        self._closed = dict.fromkeys(parts, 0)
        self._answered = START_TS_MS
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[ScriptedScaler]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(20)
            self._consumer.close()
            self._producer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for part, records in self._consumer.poll(timeout_ms=50).items():
                for record in records:
                    self._read(part, record)
            while min(self._closed.values()) >= self._answered + 2 * STREAM.step_ms:
                self._answered += STREAM.step_ms
                self._answer(self._answered)

    def _read(self, part: TopicPartition, record: object) -> None:
        body = orjson.loads(record.value)  # type: ignore[attr-defined]
        if body["kind"] == "tick":
            assert body["ts_ms"] > self._closed[part]
            self._closed[part] = body["ts_ms"]
            return
        assert record.key == body["workload"].encode()  # type: ignore[attr-defined]
        self.samples[(part.topic, part.partition)].append(record.key)  # type: ignore[attr-defined]
        if body["kind"] == "fleet":
            self.current[body["workload"]] = body["values"]["replicas_desired"]
        elif body["kind"] == "outcome":
            self.outcomes.append(body)

    def _answer(self, origin_ts_ms: int) -> None:
        sequence = origin_ts_ms // STREAM.step_ms
        acts = origin_ts_ms >= START_TS_MS + 8 * STREAM.step_ms
        for workload, current in sorted(self.current.items()):
            if workload in self.mute:
                continue
            command_id = f"two-{workload}" if acts else None
            action = "up" if acts and current < 2 else "hold"
            decision = Decision(
                f"{workload}@{origin_ts_ms}",
                workload,
                origin_ts_ms,
                "act",
                action,
                "scripted",
                ReplicaView(current, 0, current, 2, 2),
                RiskView(0.01, 0.99, {}, None),
                ForecastView(
                    "m", "seasonal_naive", "request.arrival_rate", "1/s", 60.0, Quantiles((0.1, 0.5, 0.9), (1, 2, 3))
                ),
                None,
                None,
                None,
                (),
                {},
                INPUTS,
                Fingerprint("p", "m"),
                command_id,
            )
            key = workload.encode()
            self._producer.send(self.topics.decisions, key=key, value=msgspec.json.encode(decision))
            if command_id is not None:
                command = Command(
                    command_id,
                    decision.decision_id,
                    workload,
                    Target("apps/v1", "Deployment", "default", "x"),
                    2,
                    current,
                    1,
                    sequence,
                    origin_ts_ms,
                    origin_ts_ms + 30_000,
                    "scripted",
                    None,
                    0.01,
                )
                self._producer.send(self.topics.commands, key=key, value=msgspec.json.encode(command))
        self._producer.flush()


def test_the_fleet_publishes_waits_and_obeys(broker: EmbeddedKafka, topic_prefix: str) -> None:
    topics = Topics(prefix=topic_prefix, partitions=2)
    create_topics(broker.bootstrap, topics.specs())
    spec = fleet("a/one", "b/two", "c/three")
    snapshots: list[Snapshot] = []
    runner = FleetRunner(
        broker.bootstrap,
        topics,
        STREAM,
        policy(spec),
        spec,
        speed=1_000.0,
        duration_s=0.1,
        now_ms=0,
        on_update=snapshots.append,
    )
    with ScriptedScaler(broker.bootstrap, topics).running() as scaler:
        summary = runner.run()
    assert summary["slots"] == runner.num_slots == 8 + 20
    assert summary["decisions"] == 3 * 28
    assert summary["commands"] == summary["commands_applied"] == 3
    assert summary["commands_refused"] == {}
    assert summary["forecasts_by_source"] == {"seasonal_naive": 84}
    assert summary["scored_s"] == 100.0
    assert all(row["launches"] == 1 and row["attainment"] > 0.9 for row in summary["workloads"])
    # Ready 7 s after the command at the end of slot 8: within slot 10.
    ready = [snapshot.live.rows[0].replicas_ready for snapshot in snapshots]
    assert ready == [1] * 9 + [2] * 19
    assert [snapshot.warm_up for snapshot in snapshots] == [True] * 7 + [False] * 21
    assert snapshots[-1].live.rows[0].band_rps == (1, 3)
    # One replica per workload more, scored from its command to the end of the run.
    assert summary["gpu_hours"] == pytest.approx(3 * (100 + 100) / 3600)
    assert (
        sorted((o["status"], o.get("lead_time_s")) for o in scaler.outcomes)
        == [("applied", None)] * 3 + [("ready", 7.0)] * 3
    )
    # murmur2 of the key: all records of a workload lie in one partition, the same of both topics.
    homes = defaultdict(set)
    for (_, partition), keys in scaler.samples.items():
        for key in keys:
            homes[key].add(partition)
    assert {key: len(home) for key, home in homes.items()} == {b"a/one": 1, b"b/two": 1, b"c/three": 1}


def test_the_same_run_twice_gives_the_same_result(broker: EmbeddedKafka, topic_prefix: str) -> None:
    results = []
    for k in range(2):
        topics = Topics(prefix=f"{topic_prefix}{k}.", partitions=2)
        create_topics(broker.bootstrap, topics.specs())
        spec = fleet("a/one")
        runner = FleetRunner(
            broker.bootstrap, topics, STREAM, policy(spec), spec, speed=1_000.0, duration_s=0.05, now_ms=0
        )
        with ScriptedScaler(broker.bootstrap, topics).running():
            results.append(runner.run())
    assert results[0] == results[1]


def test_a_missing_decision_is_named(broker: EmbeddedKafka, topic_prefix: str) -> None:
    topics = Topics(prefix=topic_prefix, partitions=2)
    create_topics(broker.bootstrap, topics.specs())
    spec = fleet("a/one", "b/two")
    runner = FleetRunner(
        broker.bootstrap,
        topics,
        STREAM,
        policy(spec),
        spec,
        speed=1_000.0,
        now_ms=0,
        decision_timeout_s=1.0,
        first_timeout_s=1.0,
    )
    with (
        ScriptedScaler(broker.bootstrap, topics, mute=frozenset({"b/two"})).running(),
        pytest.raises(HarmonyError, match="no decision yet for b/two"),
    ):
        runner.run()


def test_stop_ends_a_waiting_run_and_still_gives_a_summary(broker: EmbeddedKafka, topic_prefix: str) -> None:
    topics = Topics(prefix=topic_prefix, partitions=1)
    create_topics(broker.bootstrap, topics.specs())
    spec = fleet("a/one")

    def stop() -> None:
        runner.stop()

    runner = FleetRunner(broker.bootstrap, topics, STREAM, policy(spec), spec, speed=20.0, now_ms=0, check_alive=stop)
    summary = runner.run()
    assert summary["decisions"] == 0
    assert 0 < summary["slots"] <= 8
    assert summary["attainment"] is None


def test_an_undeclared_workload_is_refused_before_anything_is_sent() -> None:
    spec = fleet("a/one")
    with pytest.raises(HarmonyError, match="does not declare the fleet's workload a/one"):
        FleetRunner("127.0.0.1:1", Topics(), STREAM, replace(policy(spec), workloads=()), spec, speed=1.0, now_ms=0)
