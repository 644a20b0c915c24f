"""A sample of plans held against every candidate count, simulated step by step on independent draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.planning.planner import horizon_steps
from agents.planning.request import PlanInput, PlanResult
from agents.policy import Policy
from agents.records import LEVELS
from model.capacity.grid import MOST_ALLOWED
from model.planning.queue_kernel import CLUMP

Float = NDArray[np.float64]

_STRATA = (np.arange(8192) + 0.5) / 8192
_LITTLE = 10
_SIGMAS = 4.0
_SHARE_ERROR = 0.25  # of the expected share of misses: the planner takes one future of each path


class _Futures(NamedTuple):
    """V draws: demand [V, H], capacity, steps of lead time, and the share of misses that chance lets be too many."""

    demand: Float
    capacity: Float
    lead: NDArray[np.int64]
    tolerance: Float


@dataclass(frozen=True, slots=True)
class Checked:
    """Plans with the count that trying all finds; with another, but no further from epsilon than draws err; wrong.

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
        missed, kept, shares = _risks(request, demand[number].astype(np.float64), policy, draws_per_path, number)
        draws = demand.shape[1] * draws_per_path
        low = request.bounds[0]
        for risk in result.risks:
            p = missed[risk.replicas - low]
            error = np.sqrt(max(p * (1.0 - p), 1.0 / draws) / draws + risk.p_miss * (1.0 - risk.p_miss) / draws)
            gap = max(gap, abs(risk.p_miss - p) / error)
        bearable = request.bearable_share * np.array(
            [
                2.0 if n == request.ready else 0.5 if n < request.ready else 1.0
                for n in range(low, request.bounds[1] + 1)
            ]
        )
        best = _fewest(missed, kept, shares <= bearable, policy.epsilon) + low
        if best == result.proposed:
            same += 1
            continue
        between = range(min(best, result.proposed or 0) - low, max(best, result.proposed or 0) - low)
        error = _SIGMAS * np.sqrt(policy.epsilon / draws)
        near = all(
            min(abs(t[n] - policy.epsilon) for t in (missed, kept)) <= error
            or abs(shares[n] / bearable[n] - 1.0) <= _SHARE_ERROR
            for n in between
        )
        as_good, wrong = as_good + near, wrong + (not near)
    return Checked(same, as_good, wrong, float(gap))


def _fewest(missed: Float, kept: Float, bearable: NDArray[np.bool_], epsilon: float) -> int:
    enough = np.flatnonzero((kept <= epsilon) & bearable)
    if not len(enough):
        return len(kept) - 1
    first = int(enough[0])
    little = missed[first : first + max(1, (first + 1) // _LITTLE) + 1]
    rare = np.flatnonzero(little <= epsilon)
    return first + int(rare[0]) if len(rare) else first


def _risks(
    request: PlanInput, paths: Float, policy: Policy, draws_per_path: int, seed: int
) -> tuple[Float, Float, Float]:
    """P(missed), P(not kept) and the expected share of misses of every count within the bounds."""
    rng = np.random.default_rng(seed)
    step_s = request.step_ms / 1000
    window = int(np.ceil(policy.commit_s / step_s - 1e-9))
    p95_s = float(request.lead.quantiles(LEVELS)[-1])
    horizon = horizon_steps(p95_s, policy.commit_s, request.step_ms, paths.shape[1]) or paths.shape[1]
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
    missed, kept, shares = zip(*answers, strict=True)
    return np.array(missed), np.array(kept), np.array(shares)


def _one_count(
    request: PlanInput, futures: _Futures, window: int, step_s: float, count: int
) -> tuple[float, float, float]:
    """Shares of futures that are missed, and not kept, with one count, and of requests that are expected to miss."""
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
    missed, unkept = (late > tolerated) | too_high, (late_anyway > tolerated) | too_high
    return float(missed.mean()), float(unkept.mean()), float(expected.mean())


def _of_stretch(demand: Float, first: NDArray[np.int64], end: NDArray[np.int64]) -> Float:
    """Demand of the steps [first, end) of each future, 0 elsewhere."""
    steps = np.arange(demand.shape[1])
    return np.where((steps >= first[:, None]) & (steps < end[:, None]), demand, 0.0)


def _missed(demand: Float, odds: float, rate: Float, power: int) -> Float:
    with np.errstate(divide="ignore", over="ignore"):
        share = 1.0 / (1.0 + odds * (rate[:, None] / demand) ** power)
    return (np.where(demand > 0, demand * share, 0.0)).sum(axis=1) / np.maximum(demand.sum(axis=1), 1e-300)
