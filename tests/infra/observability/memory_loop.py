"""The three stages' real kernels behind real lanes, with dictionaries for topics: telemetry in, decisions out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from agents.decide.agent import DecideLane
from agents.decide.kernel import DecideKernel
from agents.forecast.batcher import MicroBatcher
from agents.forecast.engine import QUANTILE_LEVELS, Engine
from agents.forecast.kernel import ForecastKernel
from agents.forecast.scoring import ForecastScorer, NaiveBaseline, SkillBoard
from agents.ingest import IngestLane
from agents.policy import GuardLimits, Policy, TargetRef, WorkloadSpec
from infra.observability.metrics import PrometheusMeter
from infra.observability.stage_metrics import DecideMetrics, IngestMetrics
from model.contract import ContextBatch, ForecastBatch, Forecaster
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord, OutRecord
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample, encode_tick
from streams.runtime.lane import Kernel, Lane
from streams.topics import Topics

STREAM = StreamConfig(step_ms=5_000, grace_ms=5_000, skew_ms=2_000, context_steps=32, controls_in_telemetry=True)
START_SLOT = 340_000_000
DELAY_MS = 250  # between the stamp that closes a slot and the clock of whoever measures


class MemoryLoop:
    """One partition of each topic. `clock_ms` is what the lanes think the time is."""

    def __init__(self, workloads: Sequence[str] = ("a", "b"), guards: GuardLimits = GuardLimits()) -> None:  # noqa: B008 - immutable
        self.meter = PrometheusMeter(strict=True)
        self.topics = Topics("t.", 1, 16 << 20)
        self.workloads = tuple(workloads)
        self.slot = START_SLOT
        self.clock_ms = 0
        self.logs: dict[str, list[LogRecord]] = {}
        self.failures: list[BaseException] = []
        specs = tuple(
            WorkloadSpec(w, TargetRef(name=w), max_replicas=9, mode="act", capacity_rps=2.0) for w in workloads
        )
        policy = Policy(fleet="test", workloads=specs, guards=guards, paths_screen=32)
        observe = IngestMetrics(self.meter)
        self.ingest = {
            s: IngestLane(IngestKernel(0, s, STREAM, DEFAULT_CATALOGUE, self.topics), observe) for s in SOURCES
        }
        forecaster = LastValue()
        batcher = MicroBatcher(_inline(forecaster), deadline_s=0, meter=self.meter)
        engine = Engine(forecaster, batcher, policy, DEFAULT_CATALOGUE, STREAM.step_ms, self.meter)
        baseline = NaiveBaseline(DEFAULT_CATALOGUE, STREAM.step_ms, QUANTILE_LEVELS)
        scorer = ForecastScorer(SkillBoard(QUANTILE_LEVELS), baseline, self.meter)
        self.forecast = ForecastKernel(0, STREAM, DEFAULT_CATALOGUE, self.topics, policy, engine, self.meter, scorer)
        self.decide = DecideLane(
            DecideKernel(policy, STREAM, self.topics),
            DecideMetrics(self.meter, self.topics, fleet=policy.fleet, epoch=policy.epoch),
        )
        self._counter = 0.0
        self._read = {self.topics.pages: 0, self.topics.plans: 0}

    async def fold(self, stage: str, kernel: Kernel, records: Sequence[LogRecord]) -> None:
        """One lane's work on these records, publishing awaited."""
        lane = Lane(
            stage,
            kernel,
            self._send,
            lambda _offset: None,
            self.meter,
            lambda _stage, error: self.failures.append(error),
            lambda _name: None,
            now_ms=lambda: self.clock_ms,
        )
        lane.next_offset = None
        await lane.put(list(records))
        while (not lane.marks or lane.waits_for or getattr(kernel, "num_deferred", 0)) and not self.failures:  # noqa: ASYNC110 - the lane has no event
            await asyncio.sleep(0)
        assert not self.failures, self.failures
        await lane.close()

    async def _send(self, records: Sequence[OutRecord]) -> None:
        for record in records:
            self.append(record.topic, record.key, record.value)

    def append(self, topic: str, key: bytes | None, value: bytes | None, stamp_ms: int = 0) -> LogRecord:
        log = self.logs.setdefault(topic, [])
        log.append(LogRecord(len(log), stamp_ms, key, value))
        return log[-1]

    async def feed(self, source: Source, key: bytes | None, value: bytes, stamp_ms: int) -> None:
        """One telemetry record, folded at once."""
        topic = self.topics.telemetry_requests if source == "requests" else self.topics.telemetry_gpu
        self.clock_ms = stamp_ms + DELAY_MS
        await self.fold("ingest", self.ingest[source], [self.append(topic, key, value, stamp_ms)])

    async def publish_slot(self, rate: float | None = 10.0, ready: int = 5) -> None:
        """A sample per workload and source, fleet facts, and the ticks that close the slot; all stages follow.

        Without a rate nothing is said of requests.
        """
        start_ms = self.slot * STREAM.step_ms
        at_ms = start_ms + 2_000
        self._counter += (rate or 0.0) * STREAM.step_ms / 1000
        for workload in self.workloads:
            key = workload.encode()
            counts = {"requests_started_total": self._counter, "num_requests_waiting": 0.0}
            if rate is not None:
                await self.feed("requests", key, encode_sample("requests", workload, "r", at_ms, counts), at_ms)
            await self.feed("gpu", key, encode_sample("gpu", workload, "g", at_ms, {"power_w": 400.0}), at_ms)
            facts = FleetFacts(at_ms, ready=ready, pending=0, draining=0, desired=ready)
            await self.feed("requests", key, encode_fleet(workload, "k8s", facts), at_ms)
        self.slot += 1
        end_ms = self.slot * STREAM.step_ms + STREAM.grace_ms
        for source in SOURCES:
            await self.feed(source, None, encode_tick(end_ms), end_ms)
        await self.follow()

    async def follow(self) -> None:
        """Stages 2 and 3 read what is new."""
        for stage, kernel, topic in (
            ("forecast", self.forecast, self.topics.pages),
            ("decide", self.decide, self.topics.plans),
        ):
            new = self.logs.get(topic, [])[self._read[topic] :]
            self._read[topic] += len(new)
            if new:
                await self.fold(stage, kernel, new)


class LastValue:
    """The newest value, spread evenly from 10 % below to 10 % above: a forecast whose coverage is known."""

    fingerprint = "last_value-test"
    max_horizon = 64
    min_context = 1

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        spread = torch.linspace(0.9, 1.1, num_paths)[None, :, None, None]
        newest = batch.values[:, -1:, None] * spread  # [B, S, 1, N]
        paths = newest.expand(-1, -1, horizon, -1).contiguous()
        return ForecastBatch(paths, ("last_value",) * len(batch), self.fingerprint)


def _inline(forecaster: Forecaster):  # type: ignore[no-untyped-def]
    async def forecast(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        return forecaster.forecast(batch, horizon, num_paths)

    return forecast
