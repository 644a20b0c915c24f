"""The plan of each workload: the fewest replicas whose risk of missing the SLO is at most the allowed one.

    demand paths, capacity and lead-time posteriors ─▶ required replicas of scenarios ─▶ count, proposals, risks, cost

Beside the chance constraint simpler rules propose counts (`agents.planning.planner`); the plan states the risk of them
all. A row's random numbers come from (workload, origin, seed), so a row does not depend on its batch.
Pure: takes records and tensors, returns records. It works on the CPU, wherever the paths come from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.planning.request import PlanInput, PlanResult
from agents.policy import Policy
from agents.records import LEVELS, LevelRisk, Quantiles
from model.calibration.risk import state_risks
from model.capacity.draws import CapacityTable, LeadTable
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import SPACING, CapacityPosterior, SlotEvidence
from model.planning.search import GROUNDS, PlanProblem, finite_rows, peak_quantiles, solve
from streams.windows.coarse import COARSE_STEP_MS

__all__ = ["LEVELS", "PlanInput", "PlanResult", "horizon_steps", "plan", "reactive_replicas", "warm_up"]


# What rules simpler than the chance constraint propose: the risk of their counts is stated beside the plan's.
#
# A workload with a capacity of its own is all they need, at its median: the load of now, the forecast's peak, the same
# time of yesterday, and the plan before.


# Standard deviations of a Poisson count by which arrivals of one slot are reduced.
_SURE_SIGMAS: Final = 2.0


def simple_proposals(
    request: PlanInput, capacity: float, reactive: int | None, high_peak: float, window_s: tuple[float, float]
) -> dict[str, int]:
    """Replicas by rule, within bounds; a rule that lacks what it looks at proposes nothing.

    Args:
        capacity: median of one replica, 1/s.
        reactive: what the load of now needs.
        high_peak: of the demand forecast for the window, 1/s.
        window_s: that the plan answers for, after the origin.
    """
    yesterday = _highest_day_ago(request, window_s)
    offered = {
        "quantile": _replicas_for(high_peak, capacity),
        "reactive": reactive,
        "yesterday": None if yesterday is None else _replicas_for(yesterday, capacity),
        "last_plan": request.last_replicas,
    }
    return {rule: clip(count, request.bounds) for rule, count in offered.items() if count is not None}


def reactive_rule(request: PlanInput, commit_s: float, capacity: float) -> int | None:
    """Replicas for the present arrival rate, and to work the queue off within the commit time; None when unknown.

    One slot is a noisy witness: of its requests only as many count as are surely more than chance.
    """
    rate = request.arrival_rate_now
    if rate is None or not math.isfinite(rate):
        return None
    step_s = request.step_ms / 1000.0
    requests = max(rate, 0.0) * step_s
    surely = max(0.0, requests - _SURE_SIGMAS * math.sqrt(requests)) / step_s
    arriving = _replicas_for(surely + request.waiting / commit_s, capacity)
    working = math.ceil(request.busy_replicas + request.waiting / commit_s / capacity - 1e-9)
    return clip(max(arriving, working), request.bounds)


def clip(replicas: int, bounds: tuple[int, int]) -> int:
    """The count within bounds."""
    return min(max(replicas, bounds[0]), bounds[1])


def _highest_day_ago(request: PlanInput, window_s: tuple[float, float]) -> float | None:
    """Highest mean over ten minutes of the demand a day before the window; None where none was observed."""
    into_s = request.origin_ts_ms % COARSE_STEP_MS / 1000.0
    first, last = (int((into_s + at_s) * 1000.0 // COARSE_STEP_MS) for at_s in window_s)
    return max((mean for mean in request.day_ago[first : last + 1] if mean is not None), default=None)


def _replicas_for(rate: float, capacity: float) -> int:
    return math.ceil(min(rate / capacity, 1e9) - 1e-9)


# Place of the median among the levels.
_MEDIAN: Final = LEVELS.index(0.5)
# Fills rows with fewer counts than others.
_NO_COUNT: Final = -1


def warm_up() -> None:
    """Compile or load what `plan` runs, so that no slot waits for it: some seconds, once per machine and version."""
    capacity = CapacityPosterior(1.0)
    for end_ts_ms in (1000, 2000):
        capacity.observe(SlotEvidence(end_ts_ms, 1.0, 1.0, 0.0, 0.0, 1, 0, 0, ttft_s=1.0, objective=0.99))
    capacity.snapshot()
    request = PlanInput("warm-up", 0, 1000, None, 1, 0, 0, 1.0, 0.0, capacity=capacity, lead=LeadTimePosterior(1.0))
    plan([request], torch.ones(1, 2, 8, 1), Policy(commit_s=1.0))


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the rows of a call share; `demand` and `load`, the demand in requests as heavy as now, are [B, H, S]."""

    demand: NDArray[np.float32]
    load: NDArray[np.float32]
    capacities: CapacityTable
    leads: LeadTable
    policy: Policy
    step_s: float
    delay_s: float

    @property
    def reach(self) -> int:
        """Steps that a plan looks ahead at most."""
        return min(self.policy.max_horizon, int(self.demand.shape[1]))


@dataclass(frozen=True, slots=True)
class _Row:
    """A request with what was read off its posteriors; `at` is its place in the batch.

    `sight_s` is how far the paths reach where lead time and commit window reach further, else infinite.
    """

    at: int
    request: PlanInput
    reactive: int | None
    epsilon: float
    horizon: int
    sight_s: float
    delay_s: float
    lead: Quantiles
    capacity: Quantiles

    def window(self, commit_s: float) -> tuple[float, float]:
        """The time a replica commanded now answers for, as far as it can be seen, in seconds after the origin."""
        start_s = self.lead.values[_MEDIAN] + self.delay_s
        end_s = self.lead.values[-1] + self.delay_s + commit_s
        return min(start_s, max(self.sight_s - commit_s, 0.0)), min(end_s, self.sight_s)


def horizon_steps(lead_p95_s: float, commit_s: float, step_ms: int, max_horizon: int) -> int | None:
    """Steps a forecast must reach to cover lead time and commit window; None when above `max_horizon`."""
    steps = max(math.ceil((lead_p95_s + commit_s) * 1000.0 / step_ms - 1e-9), 1)
    return steps if steps <= max_horizon else None


def reactive_replicas(request: PlanInput, commit_s: float) -> int | None:
    """What the load of now needs (`agents.planning.planner`); None when it or the capacity is unknown."""
    if request.arrival_rate_now is None or not request.capacity.known:
        return None
    return reactive_rule(request, commit_s, float(request.capacity.quantiles((0.5,))[0]))


def plan(
    requests: Sequence[PlanInput],
    paths: Tensor,
    policy: Policy,
    *,
    indicator: int = 0,
    delay_s: float = 0.0,
    work: Mapping[int, NDArray[np.float32]] | None = None,
) -> list[PlanResult]:
    """Plan every workload of a batch.

    Args:
        requests: B of them, of one step length.
        paths: float [B, S, H, N], joint sample paths aligned with `requests`.
        indicator: column of N that is the arrival rate.
        delay_s: time from the origin until a command is given, which the lead time does not hold.
        work: by row, work of a request in parts of its present work, float32 [H, S]; others stay as they are.

    Returns:
        One result per request, in order.

    Raises:
        ValueError: paths that do not fit the requests, or requests of several step lengths.
    """
    if paths.ndim != 4 or paths.shape[0] != len(requests):
        raise ValueError(f"paths must be [{len(requests)}, S, H, N], got {tuple(paths.shape)}")
    if not requests:
        return []
    if len({r.step_ms for r in requests}) > 1:
        raise ValueError("requests of one batch must share one step length")
    if not 0 <= indicator < paths.shape[3]:
        raise ValueError(f"paths have {paths.shape[3]} indicators, there is no number {indicator}")
    demand = paths[..., indicator].detach().to("cpu", torch.float32).transpose(1, 2).contiguous().numpy()
    capacities, leads = CapacityTable.of([r.capacity for r in requests]), LeadTable.of([r.lead for r in requests])
    load = demand
    if work:
        load = demand.copy()
        for b, parts in work.items():
            load[b] *= parts
    batch = _Batch(demand, load, capacities, leads, policy, requests[0].step_ms / 1000.0, delay_s)
    facts = zip(
        requests,
        capacities.known,
        capacities.quantiles(LEVELS),
        leads.quantiles(LEVELS),
        finite_rows(demand).tolist(),
        strict=True,
    )
    described = [_describe(at, *fact, batch) for at, fact in enumerate(facts)]
    rows = [d for d in described if isinstance(d, _Row)]
    planned = iter(_plan_rows(rows, batch) if rows else ())
    return [next(planned) if isinstance(d, _Row) else d for d in described]


def _describe(
    at: int,
    request: PlanInput,
    has_capacity: bool,
    capacity: tuple[float, ...],
    lead_s: tuple[float, ...],
    finite: bool,
    batch: _Batch,
) -> _Row | PlanResult:
    """The request with its quantiles, or the answer where no futures need be looked at."""
    policy, delay_s = batch.policy, batch.delay_s
    epsilon = policy.epsilon if request.epsilon is None else request.epsilon
    lead = Quantiles(LEVELS, lead_s)
    reactive = reactive_rule(request, policy.commit_s, capacity[_MEDIAN]) if has_capacity else None
    if not finite:
        return PlanResult(
            request.workload,
            "forecast",
            epsilon,
            capacity=Quantiles(LEVELS, capacity) if has_capacity else None,
            lead_time_s=lead,
            reactive_replicas=reactive,
        )
    if not has_capacity:
        current = request.ready + request.pending
        has_load = (request.arrival_rate_now or 0.0) > 0 or request.waiting > 0
        proposed = clip(max(current, 1) if has_load else current, request.bounds)
        return PlanResult(request.workload, None, epsilon, proposed, "capacity_unknown", lead_time_s=lead)
    steps = horizon_steps(lead_s[-1] + delay_s, policy.commit_s, request.step_ms, batch.reach)
    # One slow start must not end all planning: what lies beyond the paths is taken to be as far off as they reach.
    horizon, sight_s = (batch.reach, batch.reach * batch.step_s) if steps is None else (steps, math.inf)
    return _Row(at, request, reactive, epsilon, horizon, sight_s, delay_s, lead, Quantiles(LEVELS, capacity))


def _plan_rows(rows: Sequence[_Row], batch: _Batch) -> list[PlanResult]:
    at, ends = np.array([row.at for row in rows]), np.array([row.horizon for row in rows])
    commit_s = batch.policy.commit_s
    starts = np.array([min(int(row.window(commit_s)[0] / batch.step_s), row.horizon - 1) for row in rows])
    peaks = peak_quantiles(batch.demand, at, starts, ends, LEVELS).tolist()
    proposals = [
        simple_proposals(row.request, row.capacity.values[_MEDIAN], row.reactive, peak[-1], row.window(commit_s))
        for row, peak in zip(rows, peaks, strict=True)
    ]
    solution = solve(_problem(rows, proposals, batch))
    shifts = np.array([row.request.shift for row in rows])
    state_risks(solution.p_miss, solution.stderr, solution.num_counts, shifts)
    answers = zip(*(numbers.tolist() for numbers in solution), strict=True)
    return [_result(*numbers, commit_s) for numbers in zip(rows, proposals, peaks, answers, strict=True)]


def _problem(rows: Sequence[_Row], proposals: Sequence[dict[str, int]], batch: _Batch) -> PlanProblem:
    requests, specs = [row.request for row in rows], [row.request.declared for row in rows]
    at = np.array([row.at for row in rows])
    low, high = np.array([r.searched for r in requests]).T
    count_lists = [
        [*offered.values(), r.ready + r.pending, *r.beside] for r, offered in zip(requests, proposals, strict=True)
    ]
    others = np.full((len(rows), max(map(len, count_lists))), _NO_COUNT)
    for b, counts in enumerate(count_lists):
        others[b, : len(counts)] = counts
    return PlanProblem(
        demand=batch.load,
        row=at,
        log_first=batch.capacities.log_first[at],
        spacing=SPACING,
        cumulative=batch.capacities.cumulative[at],
        location=batch.leads.location[at],
        scale=batch.leads.scale[at],
        steepness=batch.capacities.steepness[at],
        per_unit=np.array([r.per_unit for r in requests]),
        student=batch.leads.student[at],
        values=batch.leads.values,
        probabilities=batch.leads.probabilities,
        delay_s=batch.delay_s,
        horizon=np.array([row.horizon for row in rows]),
        ready=np.array([r.ready for r in requests]),
        pending=np.array([r.pending for r in requests]),
        arrived=_arrived(requests, batch.demand.shape[1], batch.step_s),
        waiting=np.array([float(r.waiting) for r in requests]),
        ttft_s=np.array([float(s.slo.ttft_s) for s in specs]),
        objective=np.array([float(s.slo.objective) for s in specs]),
        low=low.copy(),
        high=high.copy(),
        epsilon=np.array([float(row.epsilon) for row in rows]),
        price=np.array([r.price for r in requests]),
        others=others,
        seeds=np.array([_seeds(r, batch.policy.seed) for r in requests]),
        window_steps=min(max(math.ceil(batch.policy.commit_s / batch.step_s - 1e-9), 1), batch.reach),
        step_s=batch.step_s,
    )


def _seeds(request: PlanInput, seed: int) -> tuple[int, int]:
    text = f"{request.workload}\x1f{request.origin_ts_ms}\x1f{seed}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _arrived(requests: Sequence[PlanInput], horizon: int, step_s: float) -> NDArray[np.int64]:
    """Pending replicas of known remaining time that serve from the start of each step; int64 [B, H]."""
    arrived = np.zeros((len(requests), horizon), np.int64)
    for b, request in enumerate(requests):
        for remaining_s in request.pending_remaining_s[: request.pending]:
            arrived[b, max(math.ceil(min(remaining_s / step_s, horizon) - 1e-9), 0) :] += 1
    return arrived


def _result(
    row: _Row,
    proposals: dict[str, int],
    peak: list[float],
    answer: tuple[int, int, int, int, list[int], list[float], list[float], list[float]],
    commit_s: float,
) -> PlanResult:
    replicas, ground, cheapest, num_counts, counts, p_miss, stderr, shares = answer
    hours = row.request.declared.gpus_per_replica * commit_s / 3600.0
    stated = zip(counts[:num_counts], p_miss, stderr, shares, strict=False)
    start_s, end_s = row.window(commit_s)
    return PlanResult(
        workload=row.request.workload,
        refused=None,
        epsilon=row.epsilon,
        proposed=replicas,
        proposer=GROUNDS[ground],
        proposals={"cheapest": cheapest, **proposals},
        miss_price=row.request.price,
        risks=tuple([LevelRisk(n, p, e, n * hours, share) for n, p, e, share in stated]),
        peak=Quantiles(LEVELS, tuple(peak)),
        window_s=end_s - start_s,
        sight_s=row.sight_s if math.isfinite(row.sight_s) else None,
        capacity=row.capacity,
        lead_time_s=row.lead,
        reactive_replicas=row.reactive,
    )
