"""What a slot costs each stage, in memory: `python -m tests.bench.slot_cost [WORKLOADS]`.

One partition, a worker's kernels and forecaster, the samples of `harmony bench latency` (25 sources of each workload),
no Kafka. CPU of all threads per workload and slot, medians over the last slots; what is not a stage's own is indented.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

from agents.forecast.engine import Engine
from agents.forecast.kernel import ForecastKernel
from agents.forecast.scoring import ForecastScorer, NaiveBaseline
from agents.forecast.workloads import PartitionWorkloads
from infra.lab.bench.live_loop import LiveJob, LiveLoop, spec_of
from infra.lab.bench.scale import Planning
from model.inference import InferenceWorker
from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.records.schema import encode_tick
from streams.runtime.app import tune_garbage_collector
from streams.topics import Topics

_FIRST_SLOT, _SLOTS, _BUSY, _MEASURED = 350_000_000, 150, 30, 8
_FETCH = 1_024
_STAGES = ("read", "close", "forecast", "decide")
_PARTS = (
    (ForecastKernel, "_take"), (PartitionWorkloads, "_subject"), (InferenceWorker, "_run"), (Engine, "_plans"),
    (Engine, "_forecasts"), (ForecastScorer, "settle"), (ForecastScorer, "offer"), (NaiveBaseline, "_forecast"),
)  # fmt: skip


class _Costs:
    def __init__(self) -> None:
        self.slots: dict[str, list[float]] = {stage: [] for stage in _STAGES}

    def watch(self, owner: type, name: str) -> None:
        """Count the time that a method's thread spends in it."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return inner(*args, **options)
            finally:
                self.slots[f"  {owner.__name__}.{name}"][-1] += time.thread_time() - began

        self.slots[f"  {owner.__name__}.{name}"] = []
        setattr(owner, name, timed)

    def next_slot(self) -> None:
        for spent in self.slots.values():
            spent.append(0.0)


class _Bench:
    """One partition's kernels, and the logs between them."""

    def __init__(self, workloads: int) -> None:
        self.job = job = LiveJob(workloads=workloads, samples_per_s=5 * workloads)
        self.feed = object.__new__(LiveLoop)  # its samples alone: it would start a broker
        self.feed.job, self.feed.names = job, [f"bench/service-{n:05d}" for n in range(workloads)]
        topics = Topics("bench.", 1)
        self.planning = Planning([spec_of(name) for name in self.feed.names], job.stream, topics)
        sources: tuple[Source, ...] = ("requests", "gpu")
        self.ingest = {s: IngestKernel(0, s, job.stream, DEFAULT_CATALOGUE, topics, self.feed.names) for s in sources}
        self._offsets: dict[str, int] = defaultdict(int)
        self.costs = _Costs()

    def log(self, name: str, stamp_ms: int, key: bytes | None, value: bytes | None) -> LogRecord:
        self._offsets[name] += 1
        return LogRecord(self._offsets[name] - 1, stamp_ms, key, value)

    async def slot(self, slot: int, sources: int) -> None:
        """All three stages of one slot, one after the other."""
        self.costs.next_slot()
        end_ms = (slot + 1) * self.job.step_ms
        closed_ms = end_ms + self.job.grace_ms
        records = [self.log("requests", end_ms, *record) for record in self.feed.slot_records(slot, sources)]
        ticks = {source: self.log(source, closed_ms, None, encode_tick(closed_ms)) for source in self.ingest}
        began = time.process_time()
        for first in range(0, len(records), _FETCH):
            self.ingest["requests"].fold(records[first : first + _FETCH])
        began = self._spent("read", began)
        pages = [out for source in ticks for e in self.ingest[source].fold([ticks[source]]) for out in e.commits]
        self._spent("close", began)
        read = [self.log("pages", closed_ms, out.key, out.value) for out in pages]
        began = time.process_time()
        answers = [emission async for emission in self.planning.forecast.fold(read)]
        self._spent("forecast", began)
        plans = self.planning.plans_of(answers, closed_ms)
        began = time.process_time()
        for plan in plans:
            self.planning.decide.fold(plan)
        self._spent("decide", began)

    def _spent(self, stage: str, began: float) -> float:
        now = time.process_time()
        self.costs.slots[stage][-1] += now - began
        return now

    async def run(self) -> None:
        """History of one source each, then all sources, as a worker that catches up sees them."""
        for number in range(_SLOTS):
            await self.slot(_FIRST_SLOT + number, self.job.sources if number >= _SLOTS - _BUSY else 1)


def main(workloads: int) -> None:
    """Measure, and print a line per stage and part."""
    bench = _Bench(workloads)
    for owner, name in _PARTS:
        bench.costs.watch(owner, name)
    gc.collect()
    tune_garbage_collector()  # as a worker does
    asyncio.run(bench.run())
    bench.planning.close()
    for name, spent in sorted(bench.costs.slots.items(), key=lambda item: (item[0].startswith(" "), item[0])):
        print(f"{name:34s} {1e6 * median(spent[-_MEASURED:]) / workloads:7.1f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.slot_cost", description=__doc__)
    parser.add_argument("workloads", type=int, nargs="?", default=250)
    main(parser.parse_args().workloads)
