"""`harmony bench scale`: CPU time and memory per workload and sample as the fleet grows.

Fleets of every size without model and planner, which shows what the streams cost; then all that a worker does for them.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from agents.decide.kernel import DecideKernel
from agents.forecast.batcher import MicroBatcher
from agents.forecast.engine import Engine
from agents.forecast.kernel import ForecastKernel
from agents.forecast.publish import QUANTILE_LEVELS
from agents.forecast.scoring import ForecastScorer, NaiveBaseline, SkillBoard
from agents.forecast.workloads import PlannedSlot
from agents.policy import Policy, WorkloadSpec
from agents.records import WorkloadPlan
from agents.workload.state import Subject
from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.lab.bench.live_loop import policy_of, spec_of
from infra.lab.report import document, load_average, print_table, process_memory_mib, spread, write_json
from infra.worker.warm_up import warm_up
from model.inference import InferenceWorker
from model.network.forecaster import baselines
from streams.catalogue import DEFAULT_CATALOGUE, Source, of_source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import Emission, LogRecord, batched
from streams.meter import NullMeter
from streams.pages.page import Page, WorkloadFacts
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample, encode_tick, record_key
from streams.topics import Topics
from streams.windows.coarse import COARSE_ROWS, COARSE_STEP_MS, CoarseRow

_FINE_CELL_BYTES, _COARSE_CELL_BYTES = 4, 2
_TIMEOUT_S = 1_800.0
_SMALL = 10_000  # workloads
_HEADINGS = (
    "workloads", "ingest us/sample", "stage 2 us/workload", "stage 3 us/workload", "MiB", "KiB per further workload",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScaleBench:
    """What to measure.

    Attributes:
        workloads: fleet sizes, ascending; each in one partition and in a process of its own, once without model and
            planner, once forecast, planned and decided.
        slots: measured per fleet, after one in which every name is new; of small fleets up to ten times as many, for a
            slot of theirs is over in milliseconds.
        planned_slots: likewise where it is planned.
    """

    workloads: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    slots: int = 3
    planned_slots: int = 2
    seed: int = 1


def run_scale_bench(bench: ScaleBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`).

    Raises:
        HarmonyError: a fleet could not be measured, for instance for want of memory.
    """
    loads = [load_average()]
    job = {"seed": bench.seed}
    fleets = [_measured({"workloads": n, "slots": slots_of(bench.slots, n), **job}, loads) for n in bench.workloads]
    planned = [
        _measured({"workloads": n, "slots": slots_of(bench.planned_slots, n), **job, "planned": True}, loads)
        for n in bench.workloads
    ]
    results = {
        "fleets": fleets,
        "kb_per_workload": slopes(fleets),
        "ring_kb_per_workload": ring_kb(),
        "planned": {"fleets": planned, "kb_per_workload": slopes(planned)},
    }
    body = document("scale", asdict(bench), results, loads)
    write_json(out, body)
    _show(results)
    return body


def slots_of(least: int, workloads: int) -> int:
    """Slots of a fleet of this size, where a large one has the least."""
    return least * min(max(_SMALL // workloads, 1), 10)


def _measured(job: Mapping[str, int], loads: list[float]) -> dict[str, Any]:
    workloads = job["workloads"]
    say(f"{workloads:,} workloads{', planned' if 'planned' in job else ''} ...")
    result = _run(job)
    samples = result["samples_per_slot"]
    loads.append(load_average())
    return {
        "workloads": workloads,
        "samples_per_slot": samples,
        "ingest_us_per_sample": spread([1e6 * s / samples for s in result["ingest_s"]]),
        "forecast_us_per_workload": spread([1e6 * s / workloads for s in result["forecast_s"]]),
        "decide_us_per_workload": spread([1e6 * s / workloads for s in result["decide_s"]]),
        "resident_kb": result["resident_kb"],
    }


def slopes(fleets: Sequence[Mapping[str, Any]]) -> list[float]:
    """KiB per further workload, from one fleet to the next."""
    return [(b["resident_kb"] - a["resident_kb"]) / (b["workloads"] - a["workloads"]) for a, b in pairwise(fleets)]


def ring_kb() -> float:
    """The floor: every cell of both rings."""
    demand = sum(indicator.level == 1 for indicator in DEFAULT_CATALOGUE)
    fine = StreamConfig().context_steps * len(DEFAULT_CATALOGUE)
    return (_FINE_CELL_BYTES * fine + _COARSE_CELL_BYTES * COARSE_ROWS * demand) / 1024


def _run(job: Mapping[str, int]) -> dict[str, Any]:
    command = [sys.executable, "-m", f"{__package__}.scale", json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise HarmonyError(f"{job['workloads']:,} workloads took more than {_TIMEOUT_S:.0f} s.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise HarmonyError(f"{job['workloads']:,} workloads could not be measured: {last}")
    # The first run of a version says that it compiles.
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _show(results: dict[str, Any]) -> None:
    print_table(_HEADINGS, _rows(results), f"{_spread_of(results)} Without model and planner.\n")
    print_table(
        _HEADINGS,
        _rows(results["planned"]),
        f"{_spread_of(results['planned'])} Planned and decided. Both rings alone are "
        f"{results['ring_kb_per_workload']:.1f} KiB per workload.",
    )


def _spread_of(results: Mapping[str, Any]) -> str:
    costs = [workload_us(fleet) for fleet in results["fleets"]]
    return f"A workload of the dearest fleet costs {max(costs) / min(costs):.2f} x one of the cheapest."


def workload_us(fleet: Mapping[str, Any]) -> float:
    """What a workload costs in stages 2 and 3 per slot, in microseconds of CPU time."""
    return float(fleet["forecast_us_per_workload"]["median"] + fleet["decide_us_per_workload"]["median"])


def _rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    gained: Sequence[float | None] = [None, *results["kb_per_workload"]]
    return [
        (
            f"{fleet['workloads']:,}",
            f"{fleet['ingest_us_per_sample']['median']:.1f}",
            f"{fleet['forecast_us_per_workload']['median']:.0f}",
            f"{fleet['decide_us_per_workload']['median']:.0f}",
            f"{fleet['resident_kb'] / 1024:.0f}",
            "-" if slope is None else f"{slope:.1f}",
        )
        for fleet, slope in zip(results["fleets"], gained, strict=True)
    ]


# The measured process: stages 1 and 2 of one fleet size, without Kafka, model and planner.
#
# Run as `python -m infra.lab.bench.scale '{"workloads": 1000, "slots": 3, "seed": 1}'`; a JSON line ends its
# stdout. With `"planned": true` every slot is forecast, planned and decided, as in a worker.


# The kernels that plan and decide for one partition, with a forecaster that a worker can serve without weights.


class Planning:
    """Stages 2 and 3 of one partition as a worker has them, forecasts by the baselines; `close` it.

    Attributes:
        forecast, decide: the kernels.
    """

    def __init__(self, specs: Sequence[WorkloadSpec], stream: StreamConfig, topics: Topics) -> None:
        policy = policy_of(specs)
        forecaster, meter = baselines(), NullMeter()
        warm_up(forecaster)
        self._inference = InferenceWorker(forecaster)
        batcher = MicroBatcher(self._inference.forecast)
        engine = Engine(forecaster, batcher, policy, DEFAULT_CATALOGUE, stream.step_ms, meter)
        baseline = NaiveBaseline(DEFAULT_CATALOGUE, stream.step_ms, QUANTILE_LEVELS)
        scorer = ForecastScorer(SkillBoard(QUANTILE_LEVELS), baseline, meter)
        self.forecast = ForecastKernel(0, stream, DEFAULT_CATALOGUE, topics, policy, engine, meter, scorer)
        self.decide = DecideKernel(policy, stream, topics)
        self._topic = topics.plans
        self._read = 0

    def plans_of(self, emissions: Sequence[Emission], stamp_ms: int) -> list[LogRecord]:
        """Plans among what stage 2 emitted, as stage 3 reads them."""
        outs = [out for e in emissions for group in e.outputs for out in group if out.topic == self._topic]
        self._read += len(outs)
        return [LogRecord(self._read - len(outs) + k, stamp_ms, out.key, out.value) for k, out in enumerate(outs)]

    def close(self) -> None:
        """Stop the thread that forecasts."""
        self._inference.close()


_FIRST_SLOT = 117_000_000
_FETCH = 2_048
_WEIGHED = 5  # slots after which the memory is taken, the last ones: what is on its way differs from one to the next
_LEAD_S = 100.0  # the longer, the more stated risks wait for their windows to end
_VALUES: dict[Source, tuple[str, ...]] = {
    "requests": (
        "requests_started_total", "prompt_tokens_total", "generation_tokens_total", "num_requests_running",
        "num_requests_waiting", "kv_cache_usage_ratio", "slo_good_total", "slo_total",
    ),
    "gpu": ("sm_active_ratio", "tensor_active_ratio", "memory_used_bytes", "memory_total_bytes", "power_w"),
}  # fmt: skip


class _NoModel:
    """PlannedSlot every workload without looking at it."""

    fingerprint = "none"
    min_context = 1_000_000

    async def plan(
        self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool, partition_size: int
    ) -> PlannedSlot:
        del origin_ts_ms, with_forecast, partition_size
        return PlannedSlot([WorkloadPlan(s.window.workload, s.refused, s.inputs) for s in subjects])


class _Fleet:
    """One partition: its kernels, filled as after a week of telemetry."""

    def __init__(self, workloads: int, seed: int, planned: bool) -> None:
        self.config = StreamConfig(max_workloads=workloads + 1)
        self.names = [f"prod/llm/service-{n:06d}" for n in range(workloads)]
        self.slot = _FIRST_SLOT
        self._rng = np.random.default_rng(seed)
        self.topics = topics = Topics(partitions=1)
        self.ingest: dict[Source, IngestKernel] = {
            source: IngestKernel(0, source, self.config, DEFAULT_CATALOGUE, topics, self.names) for source in _VALUES
        }
        specs = [spec_of(name, _LEAD_S) for name in self.names]
        self.planning = Planning(specs, self.config, topics) if planned else None
        self.forecast = (
            ForecastKernel(0, self.config, DEFAULT_CATALOGUE, topics, Policy(), _NoModel(), NullMeter())
            if self.planning is None
            else self.planning.forecast
        )
        self._offsets = dict.fromkeys(_VALUES, 0)
        self._pages = 0

    def fill_rings(self) -> None:
        """L slots of pages and a week of coarse rows, so that every byte of both rings is in use."""
        table, n = self.forecast.table, len(self.names)
        workloads = tuple(self.names)
        for slot in range(_FIRST_SLOT - self.config.context_steps, _FIRST_SLOT):
            table.advance(slot)
            end_ms = self.config.slot_end_ms(slot)
            fleet = FleetFacts(end_ms - 1, 3, 0, 0)
            for source in _VALUES:
                names = tuple(i.name for i in of_source(DEFAULT_CATALOGUE, source))
                values = self._rng.random((n, len(names)), np.float32)
                facts = WorkloadFacts(1, end_ms - 1, 1, 1, fleet=fleet if source == "requests" else None)
                shape = (source, 0, slot, None, None, 0, 0, 0, self.config.step_ms, self.config.grace_ms, names)
                table.write(Page(*shape, workloads, values, values >= 0, (facts,) * n))
        newest = self.config.slot_end_ms(_FIRST_SLOT) // COARSE_STEP_MS - 1
        names = tuple(i.name for i in DEFAULT_CATALOGUE if i.level == 1)
        mask = np.ones((n, len(names)), np.bool_)
        # What lies between two rows is written too: as not observed.
        for index in range(newest - COARSE_ROWS + 1, newest + 1, 63):
            table.write_coarse(CoarseRow(index, workloads, names, mask.astype(np.float32), mask))

    def records(self, source: Source) -> Iterator[LogRecord]:
        """One sample of each workload, what its fleet says, and the tick that closes the slot."""
        start_ms, end_ms = self.slot * self.config.step_ms, self.config.slot_end_ms(self.slot)
        stamp_ms = end_ms + self.config.grace_ms
        grows = self.slot - _FIRST_SLOT
        values = {n: 100.0 * grows if n.endswith("_total") else 0.5 for n in _VALUES[source]}
        if source == "gpu":
            values |= {"memory_used_bytes": 4e10, "memory_total_bytes": 8e10}
        for number, name in enumerate(self.names):
            ts_ms = start_ms + 1 + number % (self.config.step_ms - 1)
            yield self._record(source, stamp_ms, name, encode_sample(source, name, "r0", ts_ms, values))
        for name in self.names if source == "requests" else ():
            yield self._record(source, stamp_ms, name, encode_fleet(name, "k8s", FleetFacts(end_ms - 1, 3, 0, 0)))
        yield self._record(source, stamp_ms, None, encode_tick(stamp_ms))

    def _record(self, source: Source, stamp_ms: int, name: str | None, value: bytes) -> LogRecord:
        self._offsets[source] += 1
        return LogRecord(self._offsets[source] - 1, stamp_ms, None if name is None else record_key(name), value)

    def close(self) -> None:
        """Stop the thread that forecasts, where there is one."""
        if self.planning is not None:
            self.planning.close()

    def page_records(self, emissions: Sequence[Emission]) -> list[LogRecord]:
        """Stage 1's commits as stage 2 reads them."""
        records = []
        for emission in emissions:
            for out in emission.commits:
                records.append(LogRecord(self._pages, emission.closed_stamp_ms or 0, out.key, out.value))
                self._pages += 1
        return records


def _fold(kernel: IngestKernel, records: Iterable[LogRecord]) -> tuple[list[Emission], float, int]:
    """What a source's records come to, fetch by fetch, in how many CPU seconds, and how many records these were."""
    emissions: list[Emission] = []
    cpu_s, number = 0.0, 0
    for fetched in batched(records, _FETCH):
        started = process_time()
        emissions += kernel.fold(fetched)
        cpu_s += process_time() - started
        number += len(fetched)
    return emissions, cpu_s, number


async def _answer(fleet: _Fleet, pages: Sequence[LogRecord]) -> tuple[int, float, float]:
    """How many emissions answered the slot, and the CPU seconds of stages 2 and 3."""
    started, number, plans = process_time(), 0, []
    async for emission in fleet.forecast.fold(pages):
        number += 1
        if fleet.planning is not None:  # of the rest nothing is kept, as where it is published
            plans += fleet.planning.plans_of([emission], fleet.config.slot_end_ms(fleet.slot))
    forecast_s, decide_s = process_time() - started, 0.0
    if fleet.planning is not None:
        started = process_time()
        commands = 0
        for piece in (piece for plan in plans for piece in fleet.planning.decide.decide(plan)):
            commands += sum(out.topic == fleet.topics.commands for group in piece.outputs for out in group)
        fleet.planning.decide.seal()
        decide_s = process_time() - started
        if commands < len(fleet.names):
            raise RuntimeError("stage 3 did not command every workload")
    return number, forecast_s, decide_s


def _resident_kb() -> int:
    """Memory in use, once what is free has gone back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(1024 * process_memory_mib("VmRSS"))


def measure(workloads: int, slots: int, seed: int, planned: bool = False) -> dict[str, Any]:
    """CPU seconds of both stages per slot, and memory, for one fleet in one partition.

    Args:
        planned: forecast, plan and decide too; the memory is then that of all three stages.
    """
    empty_kb = _resident_kb()
    gc.freeze()  # as a worker does with what it has imported
    with closing(_Fleet(workloads, seed, planned)) as fleet:
        return _measure(fleet, slots, empty_kb)


def _measure(fleet: _Fleet, slots: int, empty_kb: int) -> dict[str, Any]:
    workloads = len(fleet.names)
    fleet.fill_rings()
    ingest_s, forecast_s, decide_s, resident_kb, samples = [], [], [], [], 0
    for number in range(slots + 1):
        pages: list[LogRecord] = []
        folded_s, samples = 0.0, 0
        for source, kernel in fleet.ingest.items():
            emissions, cpu_s, number_read = _fold(kernel, fleet.records(source))
            samples += number_read - 1  # the tick is none
            folded_s += cpu_s
            pages += fleet.page_records(emissions)
            del emissions
        answers, forecast, decided = asyncio.run(_answer(fleet, pages))
        pages.clear()
        fleet.slot += 1
        # The first slot meets every name for the first time.
        if number:
            if not answers:
                raise RuntimeError("stage 2 did not answer the slot")
            ingest_s.append(folded_s)
            forecast_s.append(forecast)
            decide_s.append(decided)
        if number > slots - _WEIGHED:
            resident_kb.append(_resident_kb() - empty_kb)
    ring = fleet.forecast.table[fleet.names[-1]]
    if len(fleet.forecast.table) != workloads or not ring.observed[: -slots - 1].all():
        raise RuntimeError("the rings are not full")
    return {
        "workloads": workloads,
        "samples_per_slot": samples,
        "ingest_s": ingest_s,
        "forecast_s": forecast_s,
        "decide_s": decide_s,
        "resident_kb": median(resident_kb),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(**json.loads(sys.argv[1]))) + "\n")
