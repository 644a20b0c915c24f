"""`harmony bench latency` and `harmony bench recovery`: how soon decisions come, in steady state and after a kill.

Latency runs from the broker's stamp of the tick that closes a slot to the decision on its topic. Recovery runs from
`kill -9` of a worker to the first new decision, and to the first one of the last workload.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple

from agents.planning.codec import slot_of_plan
from infra.console.options import say
from infra.lab.bench.live_loop import (
    PARTITIONS,
    DecisionWatch,
    LiveJob,
    LiveLoop,
    LoadPublisher,
    measure_fleets,
    step_ms_for,
    stop,
)
from infra.lab.report import percentile, print_table
from streams.log import LogRecord
from streams.pages.codec import slot_of_page
from streams.runtime.restore import LogReader

# Time per stage by the broker's stamps, read back from the topics after the measurement.


Place = tuple[int, int]
"""A partition of the pages, and a slot."""


class StageStamps(NamedTuple):
    """When the broker had the last page of each slot, and its plan, ms since the epoch."""

    pages: Mapping[Place, int]
    plans: Mapping[Place, int]


async def read_stamps(loop: LiveLoop, since_ms: int) -> StageStamps:
    """Those of the records from this stamp on, up to the end of the topics."""
    pages: dict[Place, int] = {}
    plans: dict[Place, int] = {}
    async with LogReader({"bootstrap_servers": loop.brokers}) as reader:
        for partition in range(PARTITIONS):
            async for record in _since(reader, loop.topics.pages, partition, since_ms):
                pages[partition, slot_of_page(record.key)] = record.stamp_ms
        async for record in _since(reader, loop.topics.plans, 0, since_ms):
            assert record.key is not None
            plans[int(record.key), slot_of_plan(record.value, record.offset)] = record.stamp_ms
    return StageStamps(pages, plans)


async def _since(reader: LogReader, topic: str, partition: int, since_ms: int) -> AsyncIterator[LogRecord]:
    start, (_, end) = await reader.offset_at(topic, partition, since_ms), await reader.bounds(topic, partition)
    async for record in reader.read(topic, partition, start, end):
        yield record


def parts_ms(
    decided: Mapping[tuple[str, int], int],
    partition: Mapping[str, int],
    ticks: Mapping[int, Mapping[int, int]],
    stamps: StageStamps,
    origins: Iterable[int],
    step_ms: int,
) -> dict[str, dict[str, float]]:
    """Each decision's way in three parts: from the tick to its page, from there to its plan, from there to itself.

    Args:
        decided: stamps of decisions by workload and origin.
        partition: of each workload.
        ticks: stamps of the ticks that closed a slot, by origin and partition.
        origins: of the slots to look at.

    Returns:
        Median and 99th percentile of each part, ms; empty where there are no such decisions.
    """
    parts: dict[str, list[int]] = {"page": [], "plan": [], "decision": []}
    origin_set = set(origins)
    for (name, origin), decision in decided.items():
        place = partition[name], origin // step_ms - 1
        if origin in origin_set and place in stamps.pages and place in stamps.plans:
            page, plan = stamps.pages[place], stamps.plans[place]
            parts["page"].append(page - ticks[origin][place[0]])
            parts["plan"].append(plan - page)
            parts["decision"].append(decision - plan)
    return {
        part: {"p50_ms": percentile(times_ms, 0.5), "p99_ms": percentile(times_ms, 0.99)}
        for part, times_ms in parts.items()
        if times_ms
    }


_BATCHES = re.compile(r"^harmony_(batch_wait|inference|plan)_seconds_(sum|count) ([0-9.e+-]+)$", re.MULTILINE)
_FORECASTS = re.compile(r'^harmony_forecasts_total\{[^}]*source="([^"]*)"[^}]*\} ([0-9.e+]+)$', re.MULTILINE)
_RIVAL = "hpa_loop.py"  # what a scaler by hand does, without nearly all that ours does


@dataclass(frozen=True, slots=True)
class LatencyBench:
    """What to measure: fleets one after the other, each for so many slots."""

    workloads: tuple[int, ...] = (100, 1_000)
    samples_per_s: int = 5_000
    slots: int = 10
    weights: str | None = None
    brokers: str | None = None


def run_latency_bench(bench: LatencyBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`).

    Raises:
        HarmonyError: the worker did not decide in time.
    """
    runs = [
        (
            LiveJob(number, bench.samples_per_s, step_ms_for(number), weights=bench.weights),
            partial(_measure, slots=bench.slots, rival=rival),
        )
        for number in bench.workloads
        for rival in (None, _RIVAL)
    ]
    body = measure_fleets("latency", asdict(bench), bench.brokers, runs, out)
    _show(body["results"])
    return body


async def _measure(loop: LiveLoop, slots: int, rival: str | None) -> dict[str, Any]:
    job = loop.job
    say(f"{job.workloads:,} workloads, {job.sources} sources each: publishing {job.history_steps} steps of history ...")
    first_live = await asyncio.to_thread(loop.publish_history)
    with loop.worker() if rival is None else loop.rival(rival):
        started = monotonic()
        async with DecisionWatch(loop) as watch, LoadPublisher(loop) as publisher:
            publishing = asyncio.create_task(publisher.run(first_live))
            try:
                await watch.until_level(publisher, job.patience_s)
                started_s = monotonic() - started
                say(f"  caught up after {started_s:.1f} s; measuring {slots} slots of {job.step_ms / 1000:g} s ...")
                caught_up = await asyncio.to_thread(loop.metrics)
                publisher.behind_ms = 0.0
                # What was closed while it caught up is not measured, nor the slot open at that moment.
                last = max(publisher.ticks) + (slots + 1) * job.step_ms
                while last not in publisher.ticks:
                    await watch.poll(0.2)
                await watch.until(last, job.patience_s)
                measured = await asyncio.to_thread(loop.metrics)
            finally:
                publishing.cancel()
    origins = range(last - (slots - 1) * job.step_ms, last + 1, job.step_ms)
    parts = {}
    if rival is None:
        stamps = await read_stamps(loop, min(publisher.ticks[origins[0]].values()))
        parts = parts_ms(watch.stamps, loop.partition, publisher.ticks, stamps, origins, job.step_ms)
    by_slot = [watch.delays_ms(publisher, (origin,)) for origin in origins]
    delays = [delay for slot in by_slot for delay in slot]
    return {
        "subject": "harmony" if rival is None else Path(rival).stem,
        "workloads": job.workloads,
        "step_ms": job.step_ms,
        "sources_per_workload": job.sources,
        "samples_per_s": job.workloads * job.sources * 1000 / job.step_ms,
        "decisions": len(delays),
        "expected": len(origins) * job.workloads,
        "p50_ms": percentile(delays, 0.5),
        "p99_ms": percentile(delays, 0.99),
        "worst_ms_by_slot": [max(slot) for slot in by_slot],
        "parts": parts,
        "batch_ms": _by_batch(measured, caught_up),
        "forecasts": _by_forecaster(measured, caught_up),
        "publisher_behind_ms": round(publisher.behind_ms),
        "catch_up_s": started_s,
    }


def _grown(counters: re.Pattern[str], metrics: str, before: str) -> dict[tuple[str, ...], float]:
    """By how much counters grew between two looks, by the groups of the pattern but the last, their value."""
    old, new = ({groups[:-1]: float(groups[-1]) for groups in counters.findall(text)} for text in (before, metrics))
    return {names: value - old.get(names, 0.0) for names, value in new.items()}


def _by_batch(metrics: str, before: str) -> dict[str, float]:
    """Mean time that a batch of workloads waited, was forecast and was planned between two looks, ms."""
    grown = _grown(_BATCHES, metrics, before)
    return {
        name: 1000 * grown[name, "sum"] / grown[name, "count"]
        for name in ("batch_wait", "inference", "plan")
        if grown.get((name, "count"), 0.0) > 0
    }


def _by_forecaster(metrics: str, before: str) -> dict[str, float]:
    """Share of the forecasts that each forecaster made between two looks."""
    counts = _grown(_FORECASTS, metrics, before)
    total = sum(counts.values())
    return {name: count / total for (name,), count in counts.items() if count > 0}


def _show(results: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            f"{r['workloads']:,}",
            r["subject"],
            f"{r['samples_per_s']:,.0f}",
            f"{r['decisions']:,}/{r['expected']:,}",
            f"{r['p50_ms']:.0f}",
            f"{r['p99_ms']:.0f}",
            f"{max(r['worst_ms_by_slot']):.0f}",
            " ".join(f"{part['p50_ms']:.0f}/{part['p99_ms']:.0f}" for part in r["parts"].values()),
            " ".join(f"{mean:.0f}" for mean in r["batch_ms"].values()),
            ", ".join(f"{name} {share:.0%}" for name, share in r["forecasts"].items()),
        )
        for r in results
    ]
    headings = (
        "workloads", "subject", "samples/s", "decisions", "p50 ms", "p99 ms", "worst ms",
        "to page, plan, decision", "batch waits, forecast, plan", "forecasts by",
    )  # fmt: skip
    note = "parts are p50/p99 ms by the broker's stamps; a batch's are means of the worker's own clock, ms"
    print_table(headings, rows, note)


# Recovery.


_BEFORE_S = 0.2


@dataclass(frozen=True, slots=True)
class RecoveryBench:
    """What to measure: one kill per fleet size."""

    workloads: tuple[int, ...] = (1_000,)
    brokers: str | None = None


def run_recovery_bench(bench: RecoveryBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`).

    Raises:
        HarmonyError: the worker did not decide in time.
    """
    runs = [(_job(number), _measure_recovery) for number in bench.workloads]
    body = measure_fleets("recovery", asdict(bench), bench.brokers, runs, out)
    _show_recovery(body["results"])
    return body


def _job(workloads: int) -> LiveJob:
    """One sample per workload and step."""
    step_ms = step_ms_for(workloads)
    return LiveJob(workloads=workloads, samples_per_s=max(1, 1_000 * workloads // step_ms), step_ms=step_ms)


async def _measure_recovery(loop: LiveLoop) -> dict[str, Any]:
    job = loop.job
    say(f"{job.workloads:,} workloads: publishing {job.history_steps} steps of history ...")
    first_live = await asyncio.to_thread(loop.publish_history)
    process = loop.start_worker()
    try:
        async with DecisionWatch(loop) as watch, LoadPublisher(loop) as publisher:
            publishing = asyncio.create_task(publisher.run(first_live))
            try:
                await watch.until_level(publisher, job.patience_s)
                await _until_closing(watch, publisher, job)
                process.kill()
                killed_ms = time() * 1000
                process.wait()
                process = loop.start_worker()
                say("  killed and started again ...")
                newest_origin = max(origin for _, origin in watch.stamps)
                await watch.until(newest_origin + job.step_ms, job.patience_s)
            finally:
                publishing.cancel()
    finally:
        stop(process)
    new = [stamp for (_, origin), stamp in watch.stamps.items() if origin > newest_origin and stamp > killed_ms]
    return {
        "workloads": job.workloads,
        "step_ms": job.step_ms,
        "first_s": (min(new) - killed_ms) / 1000,
        "last_s": (_last_of_first(watch, newest_origin, killed_ms) - killed_ms) / 1000,
        "slot_closed_s": (max(publisher.ticks[newest_origin + job.step_ms].values()) - killed_ms) / 1000,
    }


async def _until_closing(watch: DecisionWatch, publisher: LoadPublisher, job: LiveJob) -> None:
    """Until a moment before the next slot closes: killed earlier, a worker would come back to nothing to do."""
    closes_ms = max(publisher.ticks) + job.step_ms + job.grace_ms
    while (left_s := closes_ms / 1000 - _BEFORE_S - time()) > 0:
        await watch.poll(min(left_s, 0.2))


def _last_of_first(watch: DecisionWatch, newest_origin: int, killed_ms: float) -> int:
    """When the slowest workload had its first new decision."""
    firsts: dict[str, int] = {}
    for (name, origin), stamp in watch.stamps.items():
        if origin > newest_origin and stamp > killed_ms:
            firsts[name] = min(stamp, firsts.get(name, stamp))
    return max(firsts.values())


def _show_recovery(results: Sequence[dict[str, Any]]) -> None:
    rows = [
        (f"{r['workloads']:,}", *(f"{r[key]:.1f}" for key in ("slot_closed_s", "first_s", "last_s"))) for r in results
    ]
    note = "seconds from the kill; before the next slot closes there is nothing to decide"
    print_table(("workloads", "next slot closed", "first decision", "last workload's first"), rows, note)
