"""Our side of `harmony bench ingest`: stage 1 as a worker runs it, from the first batch to the last acknowledged page.

Run as a process of its own: `python -m infra.lab.bench.ingest_subject '{"brokers": ..., ...}'`; one JSON line on
stdout.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, process_time
from typing import Any

import faust
import uvloop

from agents.ingest import IngestStage, register_ingest_agents
from infra.lab.bench.job import CATALOGUE, PARTITIONS, STREAM
from infra.lab.report import process_memory_mib
from infra.observability.metrics import PrometheusMeter
from streams.ingest.kernel import IngestKernel
from streams.ingest.warm_up import warm_up
from streams.log import OutRecord
from streams.runtime.app import ConnectionConfig, StageHost, tune_garbage_collector
from streams.runtime.transport import FetchedBatch
from streams.topics import Topics


class _IngestProgress:
    """What the kernels have folded."""

    def __init__(self) -> None:
        self.records: dict[int, int] = {}
        self.samples: dict[int, int] = {}
        self.refused: dict[int, int] = {}

    def __call__(self, kernel: IngestKernel) -> None:
        counters = kernel.counters
        self.records[kernel.partition] = counters.records
        self.samples[kernel.partition] = counters.samples
        self.refused[kernel.partition] = counters.dead + counters.late + counters.duplicate


@dataclass(frozen=True, slots=True)
class _RunTopics(Topics):
    """Topics of one run, but for the telemetry of requests, which all runs read from the same full topic."""

    telemetry: str = ""

    @property
    def telemetry_requests(self) -> str:
        return self.telemetry


class _OneTopic(IngestStage):
    """Reads the job's one topic; the pages go to topics of this run."""

    def __init__(self, topics: Topics, progress: _IngestProgress) -> None:
        super().__init__(STREAM, CATALOGUE, topics, progress)
        self._source_of = {topics.telemetry_requests: "requests"}


class _TimedHost(StageHost):
    """Notes when the first batch arrives, and how many records the broker has acknowledged."""

    first: tuple[float, float] | None = None
    num_acknowledged = 0

    async def accept(self, batch: FetchedBatch) -> None:
        if self.first is None:
            self.first = (monotonic(), process_time())
        await super().accept(batch)

    async def send(self, records: Sequence[OutRecord]) -> list[Any]:
        done = await super().send(records)
        self.num_acknowledged += len(done)
        return done


def run_subject(brokers: str, telemetry: str, prefix: str, records: int) -> None:
    """Fold a preloaded topic of so many records and say what it took; ends the process."""
    warm_up()
    meter = PrometheusMeter()
    progress = _IngestProgress()
    stage = _OneTopic(_RunTopics(prefix, PARTITIONS, telemetry=telemetry), progress)
    host = _TimedHost(ConnectionConfig(brokers, f"{prefix}workers-{os.getpid()}"), [stage], meter)
    register_ingest_agents(host, stage)

    def done() -> bool:
        lanes = host.status.lanes.values()
        return sum(progress.records.values()) >= records and not any(lane.waits_for for lane in lanes)

    async def watch() -> None:
        while not done():  # noqa: ASYNC110 - the subject itself must not spend time on telling how far it is
            await asyncio.sleep(0.002)
        assert host.first is not None
        started_s, started_cpu_s = host.first
        report: dict[str, Any] = {
            "samples": sum(progress.samples.values()),
            "refused": sum(progress.refused.values()),
            "outputs": host.num_acknowledged,
            "wall_s": monotonic() - started_s,
            "cpu_s": process_time() - started_cpu_s,
            "rss_mb": _peak_mb(),
        }
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        os._exit(0)

    host.app.task(watch)
    uvloop.install()
    tune_garbage_collector()  # as a worker does
    worker = faust.Worker(host.app, loglevel="error", redirect_stdouts=False, quiet=True)
    worker.execute_from_commandline()


def _peak_mb() -> float:
    """The most memory that this process has held; `ru_maxrss` would also count what its parent held."""
    return process_memory_mib("VmHWM")


if __name__ == "__main__":
    run_subject(**json.loads(sys.argv[1]))
