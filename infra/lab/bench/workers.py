"""`harmony bench workers`: one load on one worker, on several, and on separate processes per role."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from infra.console.host import LOOPBACK, free_port
from infra.console.options import say
from infra.console.web import HttpClient
from infra.lab.bench.live_loop import DecisionWatch, LiveJob, LiveLoop, LoadPublisher, measure_fleets, stop
from infra.lab.report import percentile, print_table, process_memory_mib

ARRANGEMENTS: Final[dict[str, tuple[str, ...]]] = {
    "1 worker": ("all",),
    "2 workers": ("all",) * 2,
    "4 workers": ("all",) * 4,
    "roles apart": ("ingest", "forecast", "decide"),
}
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class WorkersBench:
    """What to measure: every arrangement under the same load, each for so many slots."""

    workloads: int = 200
    samples_per_s: int = 5_000
    slots: int = 10
    brokers: str | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """A worker process and the port of its probes."""

    role: str
    process: subprocess.Popen[bytes]
    port: int

    def cpu_s(self) -> float:
        """CPU time so far, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def resident_mib(self) -> float:
        """Memory in use."""
        return process_memory_mib("VmRSS", self.process.pid)

    def partitions(self) -> int:
        """Partitions assigned to it, of all topics that it reads."""
        answer = HttpClient(timeout_s=5.0).get(f"http://{LOOPBACK}:{self.port}/readyz", "application/json")
        number = re.match(r"\d+", orjson.loads(answer)["checks"]["assigned"]["detail"])
        return int(number[0]) if number else 0


def run_workers_bench(bench: WorkersBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`).

    Raises:
        HarmonyError: the workers did not decide in time, or one of them has ended.
    """
    job = LiveJob(workloads=bench.workloads, samples_per_s=bench.samples_per_s)
    runs = [(job, partial(_measure, name=name, roles=roles, slots=bench.slots)) for name, roles in ARRANGEMENTS.items()]
    body = measure_fleets("workers", asdict(bench), bench.brokers, runs, out)
    _show(body["results"])
    return body


@contextmanager
def _workers(loop: LiveLoop, roles: Sequence[str]) -> Iterator[list[_Running]]:
    with ExitStack() as stack:
        running = []
        for number, role in enumerate(roles):
            port = free_port()
            process = loop.start_worker(f"bench-{number}", role, port)
            stack.callback(stop, process)
            running.append(_Running(role, process, port))
        yield running


async def _measure(loop: LiveLoop, name: str, roles: Sequence[str], slots: int) -> dict[str, Any]:
    job = loop.job
    say(f"{name}: publishing {job.history_steps} steps of history of {job.workloads:,} workloads ...")
    first_live = await asyncio.to_thread(loop.publish_history)
    with _workers(loop, roles) as running:
        async with DecisionWatch(loop) as watch, LoadPublisher(loop) as publisher:
            publishing = asyncio.create_task(publisher.run(first_live))
            try:
                await watch.until_level(publisher, job.patience_s)
                settled = max(publisher.ticks) + 2 * job.step_ms  # what was left of the catching up is not measured
                while settled not in publisher.ticks:
                    await watch.poll(0.2)
                say(f"  caught up; measuring {slots} slots of {job.step_ms / 1000:g} s ...")
                before = [worker.cpu_s() for worker in running]
                last = settled + slots * job.step_ms
                while last not in publisher.ticks:
                    await watch.poll(0.2)
                cpu_s = [worker.cpu_s() - seconds for worker, seconds in zip(running, before, strict=True)]
                await watch.until(last, job.patience_s)
                _expect_alive(loop, running)  # the others would have taken its partitions over, and nobody have noticed
                memory = [worker.resident_mib() for worker in running]
                partitions = [await asyncio.to_thread(worker.partitions) for worker in running]
            finally:
                publishing.cancel()
    origins = range(settled + job.step_ms, last + 1, job.step_ms)
    delays = watch.delays_ms(publisher, origins)
    samples = slots * job.workloads * job.sources
    return {
        "arrangement": name,
        "roles": list(roles),
        "workloads": job.workloads,
        "samples_per_s": job.workloads * job.sources * 1000 / job.step_ms,
        "decisions": len(delays),
        "expected": len(origins) * job.workloads,
        "cpu_us_per_sample": 1e6 * sum(cpu_s) / samples,
        "cpu_ms_per_decision": 1e3 * sum(cpu_s) / (slots * job.workloads),
        "cpu_share_by_worker": [seconds / sum(cpu_s) for seconds in cpu_s],
        "partitions_by_worker": partitions,
        "resident_mib_by_worker": [round(mib) for mib in memory],
        "p50_ms": percentile(delays, 0.5),
        "p99_ms": percentile(delays, 0.99),
    }


def _expect_alive(loop: LiveLoop, running: Sequence[_Running]) -> None:
    for number, worker in enumerate(running, 1):
        code = worker.process.poll()
        if code is not None:
            raise loop.complaint(f"worker {number} of {len(running)} has ended with code {code}")


def _show(results: Sequence[dict[str, Any]]) -> None:
    alone = results[0]["cpu_us_per_sample"]
    rows = [
        (
            r["arrangement"],
            f"{r['decisions']:,}/{r['expected']:,}",
            f"{r['cpu_us_per_sample']:.0f}",
            f"{r['cpu_us_per_sample'] / alone:.2f}",
            " ".join(f"{100 * share:.0f}" for share in r["cpu_share_by_worker"]),
            " ".join(map(str, r["partitions_by_worker"])),
            " ".join(map(str, r["resident_mib_by_worker"])),
            f"{r['p50_ms']:.0f}",
            f"{r['p99_ms']:.0f}",
        )
        for r in results
    ]
    headings = (
        "arrangement", "decisions", "CPU us/sample", "of one", "CPU %", "partitions", "MiB", "p50 ms", "p99 ms",
    )  # fmt: skip
    print_table(headings, rows, "CPU of the workers alone, its share, partitions and memory worker by worker")
