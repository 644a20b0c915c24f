"""A worker process on a real broker, fed slot by slot with telemetry that is a function of its seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from agents.policy import GuardLimits, Policy, Slo, TargetRef, WorkloadSpec
from infra.console.host import free_port
from infra.demo.supervisor import worker_command
from infra.demo.workloads import write_settings
from infra.kafka.admin import create_topics
from infra.worker.fail_points import VARIABLE as FAIL_POINTS
from streams.config import StreamConfig
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample, encode_tick
from streams.topics import Topics

STREAM = StreamConfig(step_ms=5_000, grace_ms=5_000, skew_ms=2_000, context_steps=32)
START_TS_MS = 1_700_000_000_000
PARTITIONS = 2


def workload_names(count: int) -> tuple[str, ...]:
    return tuple(f"team-{n % 3}/service-{n}" for n in range(count))


def policy_for(workloads: Sequence[str]) -> Policy:
    specs = tuple(
        WorkloadSpec(
            id=name,
            target=TargetRef(name=name.rsplit("/", 1)[-1]),
            min_replicas=1,
            max_replicas=12,
            slo=Slo(2.0, 0.2, 0.99),
            mode="act",
            capacity_rps=2.0,
            lead_time_s=20.0,
        )
        for name in workloads
    )
    guards = GuardLimits(warm_up_steps=16, stabilization_down_s=60.0)
    return Policy(fleet="test", workloads=specs, guards=guards)


class Pipeline:
    """Topics under a prefix of their own, a settings file, and worker processes."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        home: Path,
        workloads: Sequence[str],
        seed: int = 0,
        stream: StreamConfig = STREAM,
    ) -> None:
        self.bootstrap = bootstrap
        self.stream = stream
        self.topics = Topics(prefix, PARTITIONS, 16 << 20)
        self.workloads = tuple(workloads)
        self.home = home
        self.config = home / "harmony.yaml"
        self._rng = random.Random(seed)
        self._web_ports: set[int] = set()
        self._counters: dict[tuple[str, str], list[float]] = {}
        self.slot = START_TS_MS // stream.step_ms
        home.mkdir(parents=True, exist_ok=True)
        write_settings(self.config, policy_for(workloads), stream, self.topics)
        self.producer = self.connect()

    def connect(self) -> Any:
        """Create the topics; returns the producer of the telemetry."""
        create_topics(self.bootstrap, self.topics.specs())
        return KafkaProducer(bootstrap_servers=self.bootstrap, acks="all", linger_ms=5)

    # Workers.

    def start_worker(
        self, name: str = "w0", role: str = "all", fail_points: str = "", program: Sequence[str] = ("infra",)
    ) -> subprocess.Popen[bytes]:
        command, environment = self.worker_call(name, role, fail_points, program)
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        process.metrics_url = f"http://127.0.0.1:{command[command.index('--web-port') + 1]}"  # type: ignore[attr-defined]
        return process

    def worker_call(
        self, name: str, role: str, fail_points: str, program: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Argument list and environment of a worker process."""
        self._web_ports.add(port := free_port(self._web_ports))  # one that starts does not listen at once
        command = worker_command(
            self.config, "--brokers", self.bootstrap, "--instance-id", name, "--role", role, "--web-port", str(port),
            "--no-ticks", "--accelerated", "--end-with-parent",
        )  # fmt: skip
        command[2:3] = program
        return command, {**os.environ, "HARMONY_STATE_DIR": str(self.home), FAIL_POINTS: fail_points}

    @contextmanager
    def worker(self, name: str = "w0", role: str = "all") -> Iterator[subprocess.Popen[bytes]]:
        process = self.start_worker(name, role)
        try:
            yield process
        finally:
            stop(process)

    def log_of(self, name: str = "w0") -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    # Telemetry.

    def publish_slot(self) -> int:
        """Publish one slot's samples of every workload, then the ticks that close it; returns its origin."""
        start_ms = self.slot * self.stream.step_ms
        for number, workload in enumerate(self.workloads):
            key = workload.encode()
            rate = 3.0 + 2.0 * ((self.slot + 7 * number) % 24 < 12) + self._rng.random()
            for replica in ("r0", "r1"):
                if replica == "r1" and number % 4 == 3 and self.slot % 30 >= 20:
                    continue  # silent for a while, though it serves
                counters = self._counters.setdefault((workload, replica), [0.0] * 3)
                counters[0] += round(rate * self.stream.step_ms / 2000)
                counters[1] += counters[0] * 100 % 977 + 500
                counters[2] += 300
                values = {
                    "requests_started_total": counters[0],
                    "prompt_tokens_total": counters[1],
                    "generation_tokens_total": counters[2],
                    "num_requests_running": self._rng.randint(2, 9),
                    "num_requests_waiting": 0,
                    "slo_good_total": counters[0],
                    "slo_total": counters[0],
                }
                ts_ms = start_ms + 1_000 + self._rng.randint(0, 3_000)
                requests = encode_sample("requests", workload, replica, ts_ms, values)
                self._send(self.topics.telemetry_requests, key, requests)
                gpu = {"sm_active_ratio": self._rng.random(), "power_w": 400 + 100 * self._rng.random()}
                self._send(self.topics.telemetry_gpu, key, encode_sample("gpu", workload, f"{replica}/0", ts_ms, gpu))
            facts = FleetFacts(start_ms + 4_000, ready=2, pending=0, draining=0, desired=2)
            self._send(self.topics.telemetry_requests, key, encode_fleet(workload, "k8s", facts))
        self.slot += 1
        origin = self.slot * self.stream.step_ms
        tick = encode_tick(origin + self.stream.grace_ms)
        for topic in self._ticked_topics():
            for partition in range(PARTITIONS):
                self.producer.send(topic, value=tick, partition=partition)
        # A frozen broker holds a request for the 30 s of its own deadline before the next one is asked.
        self.producer.flush(120)
        return origin

    def _ticked_topics(self) -> tuple[str, ...]:
        return self.topics.telemetry_requests, self.topics.telemetry_gpu

    def publish_slots(self, count: int) -> int:
        return [self.publish_slot() for _ in range(count)][-1]

    def _send(self, topic: str, key: bytes, value: bytes) -> None:
        self.producer.send(topic, key=key, value=value)

    # Logs.

    def log(self, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
        """Every record of a topic as (partition, offset, key, value)."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=None, enable_auto_commit=False, isolation_level="read_committed"
        )
        try:
            partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            consumer.seek_to_beginning(*partitions)
            records = []
            while any(consumer.position(p) < ends[p] for p in partitions):
                for partition, fetched in consumer.poll(timeout_ms=500).items():
                    records += [(partition.partition, r.offset, r.key, r.value) for r in fetched]
            return sorted(records, key=lambda r: r[:2])
        finally:
            consumer.close()

    def count(self, topic: str) -> int:
        return len(self.log(topic))

    def until(self, what: str, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Until a condition holds."""
        deadline = monotonic() + timeout_s
        while not holds():
            assert monotonic() < deadline, f"{what} did not come within {timeout_s:g} s\n{self.log_of()[-3000:]}"
            sleep(0.3)

    def wait_for_decisions(self, origin_ts_ms: int, timeout_s: float = 60.0, worker: Running | None = None) -> None:
        """Until every workload has a decision at the origin; not for a worker that has ended."""
        wanted = {(w, origin_ts_ms) for w in self.workloads}
        marks = [f'"workload":"{w}","origin_ts_ms":{t}'.encode() for w, t in wanted]
        deadline = monotonic() + timeout_s
        while True:
            values = [v for *_, v in self.log(self.topics.decisions) if v is not None]
            missing = [m for m in marks if not any(m in v for v in values)]
            if not missing:
                return
            if monotonic() > deadline or (worker is not None and worker.poll() is not None):
                logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.home.glob("*.log")))
                raise AssertionError(f"no decision within {timeout_s} s: {missing}\n{logs}")
            sleep(0.3)


class Running(Protocol):
    """A worker process."""

    pid: int

    def poll(self) -> int | None: ...

    def send_signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def stop(process: Running, number: int = signal.SIGTERM) -> int:
    """Signal a worker that still runs and wait for its end."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
