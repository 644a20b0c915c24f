"""Load for a worker process in real time: its history at once, then samples at a fixed rate and a tick per slot."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from agents.policy import GuardLimits, Policy, Slo, TargetRef, WorkloadSpec
from infra.console.errors import HarmonyError
from infra.console.host import LOOPBACK, free_port
from infra.console.web import FetchError, HttpClient
from infra.demo.supervisor import worker_command
from infra.demo.workloads import write_settings
from infra.kafka.admin import create_topics
from infra.lab.bench.ingest import broker
from infra.lab.bench.job import partition_of, preload
from infra.lab.bench.subjects import rival
from infra.lab.report import document, load_average, write_json
from streams.config import StreamConfig
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample, encode_tick, record_key
from streams.topics import Topics

PARTITIONS = 4
_WORKLOADS_PER_5S = 1_000  # what one core decides upon in a step, with room for catching up


Measure = Callable[["LiveLoop"], Coroutine[Any, Any, dict[str, Any]]]


def measure_fleets(
    name: str,
    options: Mapping[str, Any],
    brokers: str | None,
    runs: Sequence[tuple[LiveJob, Measure]],
    out: Path | None,
) -> dict[str, Any]:
    """Measure fleets one after the other on one broker; returns the document, stored in `out` too.

    Args:
        options: what the bench was asked for; the brokers' addresses are left out.
    """
    loads = [load_average()]
    results = []
    with broker(brokers) as at:
        for job, measure in runs:
            with tempfile.TemporaryDirectory(prefix="harmony-bench-") as home:
                results.append(asyncio.run(measure(LiveLoop(at, job, Path(home)))))
            loads.append(load_average())
    body = document(name, {**options, "brokers": None}, results, loads)
    write_json(out, body)
    return body


@dataclass(frozen=True, slots=True)
class LiveJob:
    """Shape of the load.

    Attributes:
        samples_per_s: in all, spread evenly over the workloads; at least one per workload and step is sent.
        history_steps: slots published before the worker starts; more than the ridge needs, 64.
        weights: of the network (`advanced.model.weights`); None: what a worker serves.
    """

    workloads: int = 1_000
    samples_per_s: int = 5_000
    step_ms: int = 5_000
    grace_ms: int = 1_000
    context_steps: int = 128
    history_steps: int = 72
    weights: str | None = None

    @property
    def sources(self) -> int:
        """Sources of each workload, each heard once a step."""
        return max(1, round(self.samples_per_s * self.step_ms / 1000 / self.workloads))

    @property
    def patience_s(self) -> float:
        """Until a worker must have caught up with the history: ten times what a quiet core takes for a workload."""
        return 120.0 + 0.01 * self.history_steps * self.workloads

    @property
    def stream(self) -> StreamConfig:
        return StreamConfig(step_ms=self.step_ms, grace_ms=self.grace_ms, skew_ms=500, context_steps=self.context_steps)


class LiveLoop:
    """Topics, settings, a publisher's samples and a worker; everything under a prefix of its own.

    Args:
        home: directory for the settings file, the worker's state and its log.
    """

    def __init__(self, brokers: str, job: LiveJob, home: Path) -> None:
        self.brokers, self.job, self.home = brokers, job, home
        self.topics = Topics(f"bench-live-{os.urandom(3).hex()}.", PARTITIONS)
        self.names = [f"bench/service-{n:05d}" for n in range(job.workloads)]
        self.partition = {name: partition_of(name.encode(), PARTITIONS) for name in self.names}
        self._config = home / "harmony.yaml"
        self._port = free_port()
        create_topics(brokers, self.topics.specs())
        policy = policy_of([spec_of(name) for name in self.names])
        write_settings(self._config, policy, job.stream, self.topics)

    def sample(self, name: str, source: int, slot: int) -> tuple[bytes, bytes]:
        """One source's sample within a slot, as (key, value)."""
        number = int(name[-5:])
        count = 10 * (slot % 100_000) + (slot + number) % 5  # 6 to 11 requests a slot
        values = {
            "requests_started_total": count,
            "prompt_tokens_total": 300 * count,
            "generation_tokens_total": 120 * count,
            "num_requests_running": 3 + (slot + source) % 4,
            "num_requests_waiting": 0,
            "kv_cache_usage_ratio": 0.4,
            "slo_good_total": count,
            "slo_total": count,
        }
        span_ms = self.job.step_ms
        # In the order of publishing, all samples and then all facts: one ahead of its broker's stamp would be refused.
        place, places = source * len(self.names) + number, (self.job.sources + 1) * len(self.names)
        ts_ms = slot * span_ms + place * span_ms // places
        return record_key(name), encode_sample("requests", name, f"replica-{source}", ts_ms, values)

    def slot_records(self, slot: int, sources: int) -> Iterator[tuple[bytes, bytes]]:
        """All records of a slot: samples of so many sources, and what the fleet says of each workload."""
        for source in range(sources):
            for name in self.names:
                yield self.sample(name, source, slot)
        facts = FleetFacts(slot * self.job.step_ms + self.job.step_ms // 2, ready=3, pending=0, draining=0, desired=3)
        for name in self.names:
            yield record_key(name), encode_fleet(name, "k8s", facts)

    def publish_history(self) -> int:
        """Publish the slots before this one, one source per workload; returns the first slot still to come."""
        job = self.job
        first_live = int(time() * 1000) // job.step_ms + 2
        slots = range(first_live - job.history_steps - 2, first_live)
        records = (record for slot in slots for record in self.slot_records(slot, 1))
        tick = encode_tick(first_live * job.step_ms - job.step_ms)
        preload(self.brokers, self.topics.telemetry_requests, PARTITIONS, records, tick)
        preload(self.brokers, self.topics.telemetry_gpu, PARTITIONS, (), tick)
        return first_live

    def worker(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """A worker process for the time of the block."""
        return _stopped_after(self.start_worker())

    def rival(self, script: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """One of `tests/bench/rivals` in the worker's place.

        Raises:
            HarmonyError: this installation does not have it.
        """
        job = {
            "brokers": self.brokers,
            "topic": self.topics.telemetry_requests,
            "out_topic": self.topics.decisions,
            "step_ms": self.job.step_ms,
            "grace_ms": self.job.grace_ms,
        }
        return _stopped_after(self._start([*rival(script, script).command, json.dumps(job)]))

    def start_worker(
        self, instance: str = "bench", role: str = "all", port: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a worker process; it ends with us."""
        command = worker_command(
            self._config, "--brokers", self.brokers, "--instance-id", instance, "--role", role,
            "--web-port", str(port or self._port), "--no-ticks", "--end-with-parent",
        )  # fmt: skip
        return self._start(command)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "HARMONY_STATE_DIR": str(self.home), "OMP_NUM_THREADS": "1"}
        if self.job.weights is not None:
            environment["HARMONY_ADVANCED__MODEL__WEIGHTS"] = self.job.weights
        with (self.home / "worker.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def metrics(self) -> str:
        """What the worker says at /metrics; nothing while it does not answer."""
        try:
            return HttpClient(timeout_s=5.0).get(f"http://{LOOPBACK}:{self._port}/metrics", "*/*")
        except FetchError:
            return ""

    def complaint(self, what: str) -> HarmonyError:
        """An error that ends with the worker's last words."""
        lines = (self.home / "worker.log").read_text(errors="replace").strip().splitlines()
        return HarmonyError(f"{what}; the worker's last line: {lines[-1] if lines else 'none'}")


def step_ms_for(workloads: int) -> int:
    """Steps of 5 s, longer where one core needs longer for so many."""
    return 5_000 * max(1, -(-workloads // _WORKLOADS_PER_5S))


@contextmanager
def _stopped_after(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def policy_of(specs: Sequence[WorkloadSpec]) -> Policy:
    """A fleet that scales soon after it is first heard of."""
    guards = GuardLimits(warm_up_steps=8, stabilization_down_s=60.0)
    return Policy(fleet="bench", workloads=tuple(specs), guards=guards)


def spec_of(name: str, lead_time_s: float = 20.0) -> WorkloadSpec:
    """A workload that is scaled, its capacity declared."""
    return WorkloadSpec(
        id=name,
        target=TargetRef(name=name.rsplit("/", 1)[-1]),
        min_replicas=1,
        max_replicas=32,
        slo=Slo(2.0, 0.2, 0.99),
        mode="act",
        capacity_rps=2.0,
        lead_time_s=lead_time_s,
    )


# Both ends of a live loop: samples and ticks published in time, and the decisions that come back.


class _DecisionFields(msgspec.Struct):
    workload: str
    origin_ts_ms: int


_decode_glance = msgspec.json.Decoder(_DecisionFields).decode


class DecisionWatch:
    """Reads the decisions topic as it grows: when the broker stamped each decision of (workload, origin)."""

    def __init__(self, loop: LiveLoop) -> None:
        self._loop = loop
        self.stamps: dict[tuple[str, int], int] = {}
        self._counts: Counter[int] = Counter()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=loop.brokers,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=50,
        )

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        partitions = [TopicPartition(self._loop.topics.decisions, p) for p in range(PARTITIONS)]
        self._consumer.assign(partitions)
        for partition in partitions:
            self._consumer.seek(partition, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def poll(self, timeout_s: float) -> int:
        """Take what is new within the time; returns how many decisions that were."""
        fetched = await self._consumer.getmany(timeout_ms=int(timeout_s * 1000))
        new = 0
        for records in fetched.values():
            for record in records:
                identity = _identity(record.value)
                if identity is not None and identity not in self.stamps:
                    self.stamps[identity] = record.timestamp
                    self._counts[identity[1]] += 1
                    new += 1
        return new

    def delays_ms(self, publisher: LoadPublisher, origins: Sequence[int]) -> list[int]:
        """From the tick that closed a slot to each of its decisions, by the broker's stamps."""
        return [
            self.stamps[name, origin] - publisher.ticks[origin][self._loop.partition[name]]
            for origin in origins
            for name in self._loop.names
            if (name, origin) in self.stamps
        ]

    async def until(self, origin_ts_ms: int, timeout_s: float) -> None:
        """Until every workload has a decision at this origin or a later one.

        Raises:
            HarmonyError: not within the time.
        """

        def missing() -> str:
            decided = {name for name, origin in self.stamps if origin >= origin_ts_ms}
            left = len(self._loop.names) - len(decided)
            return f"{left} workloads have no decision" if left else ""

        await self._poll_while(missing, timeout_s)

    async def until_level(self, publisher: LoadPublisher, timeout_s: float) -> None:
        """Until all workloads are decided at the newest origin but one whose slot was closed, or the newest.

        Raises:
            HarmonyError: not within the time.
        """

        def behind() -> str:
            closed = sorted(publisher.ticks)[-2:]
            if any(self._counts[origin] == len(self._loop.names) for origin in closed):
                return ""
            decided = max((o for o, n in self._counts.items() if n == len(self._loop.names)), default=None)
            by = "nothing decided" if decided is None or not closed else f"{(closed[-1] - decided) / 1000:.0f} s behind"
            return f"the worker does not keep up: {by}"

        await self._poll_while(behind, timeout_s)

    async def _poll_while(self, lacking: Callable[[], str], timeout_s: float) -> None:
        """Poll until nothing is lacking; what is after the time is said in the error."""
        deadline = time() + timeout_s
        await self.poll(0.2)
        while what := lacking():
            if time() > deadline:
                raise self._loop.complaint(f"{what} after {timeout_s:.0f} s")
            await self.poll(0.2)


class LoadPublisher:
    """Publishes live slots in time, and the ticks that close them."""

    def __init__(self, loop: LiveLoop) -> None:
        self._loop = loop
        self._producer = AIOKafkaProducer(bootstrap_servers=loop.brokers, acks=1, linger_ms=5)
        self.ticks: dict[int, dict[int, int]] = {}
        self.behind_ms = 0.0

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def run(self, first_slot: int) -> None:
        """Publish slots as their time comes, those that are late at once, until cancelled; `ticks` holds, by origin and
        partition, the newest broker stamp.
        """
        job, topics = self._loop.job, self._loop.topics
        for slot in itertools.count(first_slot):
            records = list(self._loop.slot_records(slot, job.sources))
            pieces = 50
            for piece in range(pieces):
                # A sample leaves when its time has come, not before.
                before_ms, now_ms = (job.step_ms * p // pieces for p in (piece, piece + 1))
                await self._sleep_until(slot * job.step_ms + now_ms)
                if before_ms < job.grace_ms <= now_ms:
                    await self._tick(slot)
                for key, value in records[piece * len(records) // pieces : (piece + 1) * len(records) // pieces]:
                    partition = partition_of(key, PARTITIONS)
                    await self._producer.send(topics.telemetry_requests, value, key=key, partition=partition)

    async def _tick(self, slot: int) -> None:
        """Close the slot before this one."""
        origin = slot * self._loop.job.step_ms
        value = encode_tick(origin + self._loop.job.grace_ms)
        topics = self._loop.topics
        sent = [
            (partition, await self._producer.send(topic, value, partition=partition))
            for topic in (topics.telemetry_requests, topics.telemetry_gpu)
            for partition in range(PARTITIONS)
        ]
        stamps = self.ticks.setdefault(origin, {})
        for partition, done in sent:
            stamp_ms = (await done).timestamp
            stamps[partition] = max(stamps.get(partition, 0), stamp_ms)

    async def _sleep_until(self, ts_ms: int) -> None:
        ahead_s = ts_ms / 1000 - time()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        else:
            self.behind_ms = max(self.behind_ms, -1000 * ahead_s)


def _identity(value: bytes | None) -> tuple[str, int] | None:
    if value is None:
        return None
    glance = _decode_glance(value)
    return glance.workload, glance.origin_ts_ms
