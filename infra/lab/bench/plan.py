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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.planning.planner import horizon_steps, plan, warm_up
from agents.planning.request import PlanInput, PlanResult
from agents.policy import Policy, WorkloadSpec
from agents.records import LEVELS
from infra.console.options import say
from infra.lab.report import document, load_average, print_table, spread, write_json
from model.capacity.grid import MOST_ALLOWED
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from model.planning.queue_kernel import CLUMP

# A sample of plans held against every candidate count, simulated step by step on independent draws.


Float = NDArray[np.float64]

_STRATA = (np.arange(8192) + 0.5) / 8192
_SIGMAS = 4.0
_COST_ERROR = 0.01  # of the cost of a count, which is flat about the cheapest one


class _Futures(NamedTuple):
    """V draws: demand [V, H], capacity, steps of lead time, and the share of misses that chance lets be too many."""

    demand: Float
    capacity: Float
    lead: NDArray[np.int64]
    tolerance: Float


@dataclass(frozen=True, slots=True)
class Checked:
    """Plans with the count that trying all finds; with another that costs as much within the error of draws; wrong.

    And the largest gap between a stated risk and the exhaustive one, in standard errors of the draws.
    """

    same: int
    as_good: int
    wrong: int
    largest_gap_sigmas: float


def check_plans(
    requests: Sequence[PlanInput],
    results: Sequence[PlanResult],
    demand: NDArray[np.float32],
    policy: Policy,
    draws_per_path: int = 64,
) -> Checked:
    """Plans of workloads without queue or pending replicas against exhaustive verification.

    Args:
        demand: [B, S, H], requests/s.
    """
    same = as_good = wrong = 0
    gap = 0.0
    for number, (request, result) in enumerate(zip(requests, results, strict=True)):
        missed, unkept, shares = _risks(request, demand[number].astype(np.float64), policy, draws_per_path, number)
        draws = demand.shape[1] * draws_per_path
        low = request.bounds[0]
        for risk in result.risks:
            p = missed[risk.replicas - low]
            error = np.sqrt(max(p * (1.0 - p), 1.0 / draws) / draws + risk.p_miss * (1.0 - risk.p_miss) / draws)
            gap = max(gap, abs(risk.p_miss - p) / error)
        paths = demand[number, :, : _horizon(request, policy, demand.shape[2])]
        price = request.price * float(paths.mean() * (1.0 / request.capacity.quantiles(_STRATA)).mean())
        cost = np.arange(low, low + len(shares)) + price * shares
        few = np.flatnonzero(unkept <= policy.epsilon)
        bound = int(few[0]) if len(few) else len(shares) - 1
        best = max(int(cost.argmin()), bound)
        found = (result.proposed or 0) - low
        if best == found:
            same += 1
            continue
        error = _SIGMAS * np.sqrt(policy.epsilon / draws)
        is_bound = abs(unkept[min(found, best)] - policy.epsilon) <= error
        near = bool(is_bound or cost[found] <= cost[best] * (1.0 + _COST_ERROR))
        as_good, wrong = as_good + near, wrong + (not near)
    return Checked(same, as_good, wrong, float(gap))


def _horizon(request: PlanInput, policy: Policy, steps: int) -> int:
    p95_s = float(request.lead.quantiles(LEVELS)[-1])
    return horizon_steps(p95_s, policy.commit_s, request.step_ms, steps) or steps


def _risks(
    request: PlanInput, paths: Float, policy: Policy, draws_per_path: int, seed: int
) -> tuple[Float, Float, Float]:
    """P(missed), P(falling behind) and the expected share of misses of every count within the bounds."""
    rng = np.random.default_rng(seed)
    step_s = request.step_ms / 1000
    window = int(np.ceil(policy.commit_s / step_s - 1e-9))
    horizon = _horizon(request, policy, paths.shape[1])
    demand = np.repeat(paths, draws_per_path, axis=0)  # [V, H]
    capacity = rng.permutation(np.resize(request.capacity.quantiles(_STRATA), len(demand)))
    lead_s = rng.permutation(np.resize(request.lead.quantiles(_STRATA), len(demand)))
    lead = np.clip(np.ceil(lead_s / step_s - 1e-9), 0, horizon - window).astype(np.int64)
    low, high = request.bounds
    requests = float(paths[:, :horizon].mean()) * request.per_unit * window * step_s
    clumps = (1.0 - request.declared.slo.objective) * requests / CLUMP + 0.5
    tolerance = np.minimum(rng.gamma(clumps, CLUMP, len(demand)) / requests, MOST_ALLOWED)
    futures = _Futures(demand, capacity, lead, tolerance)
    answers = [_one_count(request, futures, window, step_s, n) for n in range(low, high + 1)]
    missed, unkept, shares = zip(*answers, strict=True)
    return np.array(missed), np.array(unkept), np.array(shares)


def _one_count(
    request: PlanInput, futures: _Futures, window: int, step_s: float, count: int
) -> tuple[float, float, float]:
    """Shares of futures that are missed, and of those in which one count falls behind; of requests, of misses."""
    demand, capacity, lead, tolerance = futures
    slo = request.declared.slo
    allowed_share, power = 1.0 - slo.objective, request.capacity.steepness
    odds = 1.0 / allowed_share - 1.0
    works_off = capacity * odds ** (1.0 / power)
    stretches = [_of_stretch(demand, lead, lead + window)]
    if count < request.ready:
        stretches.append(_of_stretch(demand, 0 * lead, lead + window))
    # The mean of the curve over a stretch, weighted by demand.
    load = np.max([_missed(s, odds, capacity * count, power) for s in stretches], axis=0)
    queue, inherited, fresh, balance, late, late_anyway, inside = np.zeros((7, len(demand)))
    for t in range(int(lead.max()) + window):
        within = (t >= lead) & (t < lead + window)
        serving = np.where(t >= lead, count, min(count, request.ready))
        here, served = demand[:, t] * step_s, works_off * serving * step_s
        allowed = works_off * serving * slo.ttft_s
        after = np.maximum(0.0, queue + here - served)
        inherited = np.where(t == lead, queue, inherited)
        fresh_after, balance_after = np.maximum(0.0, fresh + here - served), balance + here - served
        due, due_after = ((k - lead) / window * inherited for k in (t, t + 1))
        over = np.maximum(queue, after) > allowed
        worst = np.max([fresh, fresh_after, due + balance, due_after + balance_after], axis=0)
        over_anyway = over if count < request.ready else worst > allowed
        scored = (t < lead + window) if count < request.ready else within
        late += here * (over & scored)
        late_anyway += here * (over_anyway & scored)
        inside += here * within
        fresh, balance = np.where(within, fresh_after, fresh), np.where(within, balance_after, balance)
        queue = after
    tolerated = (1.0 - slo.objective) * inside
    too_high = load > tolerance
    expected = np.where(late_anyway > tolerated, np.maximum(load, 0.5), load)
    return (
        float(((late > tolerated) | too_high).mean()),
        float((late_anyway > tolerated).mean()),
        float(expected.mean()),
    )


def _of_stretch(demand: Float, first: NDArray[np.int64], end: NDArray[np.int64]) -> Float:
    """Demand of the steps [first, end) of each future, 0 elsewhere."""
    steps = np.arange(demand.shape[1])
    return np.where((steps >= first[:, None]) & (steps < end[:, None]), demand, 0.0)


def _missed(demand: Float, odds: float, rate: Float, power: int) -> Float:
    with np.errstate(divide="ignore", over="ignore"):
        share = 1.0 / (1.0 + odds * (rate[:, None] / demand) ** power)
    return (np.where(demand > 0, demand * share, 0.0)).sum(axis=1) / np.maximum(demand.sum(axis=1), 1e-300)


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
