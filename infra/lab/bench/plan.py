"""`harmony bench plan`: the planner alone, from sample paths to plans, for growing fleets; a sample is checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from agents.planning.planner import PlanInput, plan, warm_up
from agents.policy import Policy, WorkloadSpec
from infra.bench.plan_check import check_plans
from infra.console.options import say
from infra.json_report import write_json
from infra.lab.bench.report import document, load_average, print_table, spread
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior, SlotEvidence

_STEP_MS = 15_000
_ORIGIN_TS_MS = 1_763_636_400_000


@dataclass(frozen=True, slots=True)
class PlanBench:
    """What to measure.

    Attributes:
        workloads: fleet sizes, ascending.
        paths, steps: S sample paths of H steps.
        candidates: replica counts that each workload may have.
        batch: workloads planned in one call, as a worker does.
        threads: to plan on; a worker has one.
        checked: workloads whose plan is held against exhaustive verification.
    """

    rounds: int = 3
    workloads: tuple[int, ...] = (100, 1_000, 10_000)
    paths: int = 256
    steps: int = 12
    candidates: int = 32
    batch: int = 512
    threads: tuple[int, ...] = field(default_factory=lambda: (1, len(os.sched_getaffinity(0))))
    checked: int = 20


def run_plan_bench(bench: PlanBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`)."""
    torch.set_num_threads(1)
    policy = Policy()
    capacity, lead = _capacity(), _lead_time()
    rows: list[dict[str, Any]] = []
    loads = [load_average()]
    warm_up()
    for number in bench.workloads:
        requests = [_request(i, bench.candidates, capacity, lead) for i in range(number)]
        paths = _paths(min(number, bench.batch), bench)
        for threads in sorted(set(bench.threads)):
            wall_s, cpu_s = [], []
            for _ in range(bench.rounds):
                wall, cpu = _time(requests, paths, policy, bench.batch, threads)
                wall_s.append(wall)
                cpu_s.append(cpu)
                loads.append(load_average())
            say(f"  {number:,} workloads, {threads} thread(s): {median(wall_s):.2f} s, {median(cpu_s):.2f} s of CPU")
            per_workload = spread([1e6 * s / number for s in cpu_s])
            fleet = {"workloads": number, "threads": threads, "wall_s": spread(wall_s), "cpu_s": spread(cpu_s)}
            rows.append({**fleet, "cpu_us_per_workload": per_workload})
    sample = [_request(i, bench.candidates, capacity, lead, spare=12) for i in range(bench.checked)]
    paths = _paths(max(bench.checked, 1), bench)[: bench.checked]
    checked = check_plans(sample, plan(sample, paths, policy), paths[..., 0].numpy(), policy)
    alone = [row for row in rows if row["threads"] == min(bench.threads)]
    # By CPU time: what others do on the machine meanwhile counts less.
    growth = [
        (b["cpu_s"]["median"] / a["cpu_s"]["median"]) / (b["workloads"] / a["workloads"]) for a, b in pairwise(alone)
    ]
    job = {
        "rounds": bench.rounds,
        "paths": bench.paths,
        "steps": bench.steps,
        "candidates": bench.candidates,
        "batch": bench.batch,
        "paths_verify": policy.paths_verify,
    }
    results = {"fleets": rows, "growth_over_linear": growth, "exhaustive": asdict(checked)}
    body = document("plan", job, results, loads)
    write_json(out, body)
    _show(rows, growth)
    say(
        f"  of {bench.checked} plans {checked.same} have the count that trying every candidate finds, "
        f"{checked.as_good} as good a one within the error of its draws, {checked.wrong} another; "
        f"stated risks are within {checked.largest_gap_sigmas:.1f} standard errors"
    )
    return body


def _time(
    requests: Sequence[PlanInput], paths: Tensor, policy: Policy, batch: int, threads: int
) -> tuple[float, float]:
    def one(first: int) -> None:
        some = requests[first : first + batch]
        plan(some, paths[: len(some)], policy)

    with ThreadPoolExecutor(threads) as pool:
        started, started_cpu = perf_counter(), process_time()
        list(pool.map(one, range(0, len(requests), batch)))
        return perf_counter() - started, process_time() - started_cpu


def _paths(batch: int, bench: PlanBench) -> Tensor:
    """[B, S, H, 1] demand around 20 requests/s with a common level per path."""
    draw = torch.Generator().manual_seed(7)
    level = 20.0 + 4.0 * torch.randn(batch, bench.paths, 1, 1, generator=draw)
    noise = 2.0 * torch.randn(batch, bench.paths, bench.steps, 1, generator=draw)
    return (level + noise).clamp(min=0.0)


def _request(
    number: int, candidates: int, capacity: CapacityPosterior, lead: LeadTimePosterior, spare: int = 0
) -> PlanInput:
    """`spare`: replicas on top of those that are a little few for the load."""
    name = f"bench/service-{number}"
    ready = 6 + number % 5 + (number % 2) * spare
    return PlanInput(
        workload=name,
        origin_ts_ms=_ORIGIN_TS_MS,
        step_ms=_STEP_MS,
        spec=WorkloadSpec(name, min_replicas=1, max_replicas=candidates),
        ready=ready,
        pending=0,
        draining=0,
        arrival_rate_now=20.0,
        waiting_now=0.0,
        capacity=capacity,
        lead=lead,
        last_replicas=ready,
    )


def _capacity() -> CapacityPosterior:
    """A replica that carries about 2.5 requests/s."""
    posterior = CapacityPosterior(2.5, smoothing_s=0.0)
    for k in range(400):
        factor = 0.7 + 0.6 * (k % 40) / 40
        posterior.observe(
            SlotEvidence(
                end_ts_ms=(k + 1) * _STEP_MS,
                step_s=_STEP_MS / 1000,
                arrival_rate=25.0 * factor,
                waiting=None,
                miss_ratio=0.0 if factor < 1.0 else 0.4,
                ready=10,
                pending=0,
                draining=0,
                ttft_s=2.0,
                objective=0.99,
            )
        )
    return posterior


def _lead_time() -> LeadTimePosterior:
    posterior = LeadTimePosterior(60.0)
    for _ in range(300):
        posterior.update(60.0)
    return posterior


def _show(rows: Sequence[dict[str, Any]], growth: Sequence[float]) -> None:
    table = [
        (
            f"{row['workloads']:,}",
            str(row["threads"]),
            f"{row['wall_s']['median']:.2f}",
            f"{row['cpu_s']['median']:.2f}",
            f"{row['cpu_s']['min']:.2f}-{row['cpu_s']['max']:.2f}",
            f"{row['cpu_us_per_workload']['median']:.0f}",
        )
        for row in rows
    ]
    note = f"CPU time grows {median(growth):.2f} x as fast as the fleet (1 = linear)" if growth else ""
    print_table(("workloads", "threads", "seconds", "CPU seconds", "range", "CPU us per workload"), table, note)
