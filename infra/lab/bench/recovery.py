"""`harmony bench recovery`: kill -9, start again, and the first and last new decision of a whole fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time
from typing import Any

from infra.console.options import say
from infra.lab.bench.live_loop import DecisionWatch, LiveJob, LiveLoop, Publisher, measure_fleets, step_ms_for, stop
from infra.lab.report import print_table

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
    runs = [(_job(number), _measure) for number in bench.workloads]
    body = measure_fleets("recovery", asdict(bench), bench.brokers, runs, out)
    _show(body["results"])
    return body


def _job(workloads: int) -> LiveJob:
    """One sample per workload and step."""
    step_ms = step_ms_for(workloads)
    return LiveJob(workloads=workloads, samples_per_s=max(1, 1_000 * workloads // step_ms), step_ms=step_ms)


async def _measure(loop: LiveLoop) -> dict[str, Any]:
    job = loop.job
    say(f"{job.workloads:,} workloads: publishing {job.history_steps} steps of history ...")
    first_live = await asyncio.to_thread(loop.publish_history)
    process = loop.start_worker()
    try:
        async with DecisionWatch(loop) as watch, Publisher(loop) as publisher:
            publishing = asyncio.create_task(publisher.run(first_live))
            try:
                await watch.until_level(publisher, job.patience_s)
                await _until_closing(watch, publisher, job)
                process.kill()
                killed_ms = time() * 1000
                process.wait()
                process = loop.start_worker()
                say("  killed and started again ...")
                seen = max(origin for _, origin in watch.stamps)
                await watch.until(seen + job.step_ms, job.patience_s)
            finally:
                publishing.cancel()
    finally:
        stop(process)
    new = [stamp for (_, origin), stamp in watch.stamps.items() if origin > seen and stamp > killed_ms]
    return {
        "workloads": job.workloads,
        "step_ms": job.step_ms,
        "first_s": (min(new) - killed_ms) / 1000,
        "last_s": (_last_of_first(watch, seen, killed_ms) - killed_ms) / 1000,
        "slot_closed_s": (max(publisher.ticks[seen + job.step_ms].values()) - killed_ms) / 1000,
    }


async def _until_closing(watch: DecisionWatch, publisher: Publisher, job: LiveJob) -> None:
    """Until a moment before the next slot closes: killed earlier, a worker would come back to nothing to do."""
    closes_ms = max(publisher.ticks) + job.step_ms + job.grace_ms
    while (left_s := closes_ms / 1000 - _BEFORE_S - time()) > 0:
        await watch.poll(min(left_s, 0.2))


def _last_of_first(watch: DecisionWatch, seen: int, killed_ms: float) -> int:
    """When the slowest workload had its first new decision."""
    firsts: dict[str, int] = {}
    for (name, origin), stamp in watch.stamps.items():
        if origin > seen and stamp > killed_ms:
            firsts[name] = min(stamp, firsts.get(name, stamp))
    return max(firsts.values())


def _show(results: Sequence[dict[str, Any]]) -> None:
    rows = [
        (f"{r['workloads']:,}", *(f"{r[key]:.1f}" for key in ("slot_closed_s", "first_s", "last_s"))) for r in results
    ]
    note = "seconds from the kill; before the next slot closes there is nothing to decide"
    print_table(("workloads", "next slot closed", "first decision", "last workload's first"), rows, note)
