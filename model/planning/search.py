"""The search for the cheapest count: replicas, beside what the requests that are expected to miss with them cost.

It is a sample-average approximation with common random numbers. Every demand path is combined with draws of capacity
and lead time, and each of these scenarios yields the load and the queue that replicas meet. Misses of every count are
the mean over the scenarios; the empirical tail of the replicas required is the risk of every count at once. The number
of paths is that of the forecast, so their spread enters the stated standard error.

Source: A. J. Kleywegt, A. Shapiro, T. Homem-de-Mello, "The sample average approximation method for stochastic discrete
optimization", SIAM Journal on Optimization 2002; P. Glasserman, "Monte Carlo methods in financial engineering",
chapter 4, for strata and common random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.capacity.draws import capacity_strata, lead_strata, strata_order
from model.compiled import compiled
from model.planning.queue_kernel import (
    ExpectedMisses,
    RequiredReplicas,
    Scenario,
    empty_requirements,
    expected_misses,
    expected_share,
    poisson_tolerances,
    required_replicas,
)

# The question of the search and its answer, as arrays over B workloads.


GROUNDS: Final = ("cheapest", "queue_bound", "maximum")
_CHEAPEST, _QUEUE_BOUND, _MAXIMUM = range(3)


class PlanProblem(NamedTuple):
    """B workloads at their origins, with everything that draws of their scenarios need.

    Attributes:
        demand: float32 [R, H, S], requests/s of each step on each path, of these and perhaps other rows.
        row: int64 [B], the row of `demand` that belongs to each.
        log_first: float64 [B], logarithm of the lower end of the first cell of the capacity, requests/s per replica.
        spacing: width of a cell in log capacity.
        cumulative: float64 [B, K], probability of the capacity up to each cell's end.
        location, scale: float64 [B], of the log lead time in seconds, a Student t.
        steepness: int64 [B], power of the curve of misses over load.
        per_unit: float64 [B], requests that are judged per unit of demand.
        student: int64 [B], row of the tables `values` and `probabilities`, float64 [F, K], of its distribution.
        delay_s: time from the origin until a command is given.
        horizon: int64 [B], steps of the paths that belong to the row; at least `window_steps`.
        ready, pending: int64 [B], replicas serving now, and commanded and not yet serving.
        arrived: int64 [B, H], how many of the pending ones serve from the start of each step at the latest; those not
            arrived within the row's horizon are taken to arrive when a replica commanded now would.
        waiting: float64 [B], requests.
        ttft_s, objective: float64 [B].
        low, high: int64 [B], inclusive bounds of the replica count.
        epsilon: float64 [B], largest share of the futures in which replicas may fall behind.
        price: float64 [B], replicas that are as dear as one replica's worth of requests that miss.
        others: int64 [B, E], more counts whose risk is wanted; negative = none.
        seeds: int64 [B, 2], which path meets which draw.
    """

    demand: NDArray[np.float32]
    row: Whole
    log_first: Float
    spacing: float
    cumulative: Float
    location: Float
    scale: Float
    steepness: Whole
    per_unit: Float
    student: Whole
    values: Float
    probabilities: Float
    delay_s: float
    horizon: Whole
    ready: Whole
    pending: Whole
    arrived: Whole
    waiting: Float
    ttft_s: Float
    objective: Float
    low: Whole
    high: Whole
    epsilon: Float
    price: Float
    others: Whole
    seeds: Whole
    window_steps: int
    step_s: float


class PlanSolution(NamedTuple):
    """What the futures say, row by row.

    Attributes:
        replicas: int64 [B], the count from which on one more replica saves less misses than it costs, but so many that
            replicas fall behind in a share epsilon of the futures at most.
        ground: int64 [B], index into `GROUNDS`: what decided, `maximum` where neither can be had within the bounds.
        cheapest: int64 [B], the count without the second condition, within the bounds.
        num_counts: int64 [B], how many of the next four belong to the row.
        counts, p_miss, stderr: [B, C], ascending counts with P(miss) and its standard error over the demand paths.
        shares: [B, C], the share of requests that is expected to miss, those of a queue that nothing avoids left out.
    """

    replicas: Whole
    ground: Whole
    cheapest: Whole
    num_counts: Whole
    counts: Whole
    p_miss: Float
    stderr: Float
    shares: Float


# The empirical tail of the required replicas.


Counts = NDArray[np.int32]


@compiled
def num_exceeding(required: Counts, count: int) -> int:
    """The number of scenarios that require more than `count` replicas."""
    enough, total = np.int32(count), np.int32(0)
    for need in required:
        total = np.int32(total + (need > enough))
    return int(total)


@compiled
def min_replicas_for_risk(required: Counts, low: int, high: int, epsilon: float) -> int:
    """The fewest of low..high + 1 replicas that at most a share epsilon of the scenarios exceeds."""
    while low <= high:
        middle = (low + high) // 2
        if num_exceeding(required, middle) / len(required) > epsilon:
            low = middle + 1
        else:
            high = middle - 1
    return low


@compiled
def risk_of(required: Counts, paths: int, count: int) -> tuple[float, float]:
    """P(need > count), and its standard error over paths.

    Futures on one demand path are not independent. Where no spread is seen the error is that of a single miss.
    """
    draws = len(required)
    repeats = draws // paths
    hits = np.zeros(paths, np.int32)
    enough = np.int32(count)
    for first in range(0, draws, paths):
        these = required[first : first + paths]
        for s in range(paths):
            hits[s] += these[s] > enough
    total, squares = 0, 0
    for hit in hits:
        total += int(hit)
        squares += int(hit) * int(hit)
    single = (1.0 - 1.0 / draws) / draws**2
    spread = (squares / paths - (total / paths) ** 2) / repeats**2
    return total / draws, math.sqrt(max(spread / paths, single))


Float = NDArray[np.float64]
Whole = NDArray[np.int64]

# Draws of every row, at least; one of each path.
_DRAWS: Final = 1024
# Counts on either side of the answer whose risk is stated.
_NEIGHBOUR_COUNTS: Final = 2
# Expected share of misses from which on a count is too small whatever misses cost.
_HOPELESS_MISS_RATIO: Final = 0.3


def solve(problem: PlanProblem) -> PlanSolution:
    """Choose the count of every row."""
    rows, paths = len(problem.row), problem.demand.shape[2]
    draws = paths * max(_DRAWS // paths, 1)
    width = 2 * _NEIGHBOUR_COUNTS + 1 + 3 * problem.others.shape[1]
    solution = PlanSolution(
        replicas=np.zeros(rows, np.int64),
        ground=np.zeros(rows, np.int64),
        cheapest=np.zeros(rows, np.int64),
        num_counts=np.zeros(rows, np.int64),
        counts=np.zeros((rows, width), np.int64),
        p_miss=np.zeros((rows, width)),
        stderr=np.zeros((rows, width)),
        shares=np.zeros((rows, width)),
    )
    _solve_rows(problem, draws, *strata_order(draws, paths), empty_requirements(draws), solution)
    return solution


@compiled
def _solve_rows(
    problem: PlanProblem,
    draws: int,
    capacity: Whole,
    lead: Whole,
    required: RequiredReplicas,
    solution: PlanSolution,
) -> None:
    for b in range(len(problem.row)):
        demand = _demand(problem, b)
        requests = demand.mean() * problem.per_unit[b] * problem.window_steps * problem.step_s
        tolerances = poisson_tolerances(requests, 1.0 - problem.objective[b], problem.steepness[b])
        load = demand.mean() * _compute_requirements(problem, b, demand, tolerances, draws, capacity, lead, required)
        expected = _expected(problem, b, required, 0, draws)
        _choose(problem, b, required, expected, draws, load, solution)
        _state_risks(problem, b, required, expected, draws, solution)


@compiled
def _demand(problem: PlanProblem, b: int) -> Float:
    """Requests/s [H, S] of one row; which path meets which draw is the row's own."""
    paths, horizon = problem.demand.shape[2], problem.horizon[b]
    demand = np.empty((horizon, paths))
    shift = problem.seeds[b, 0] % paths
    for t in range(horizon):
        rates = problem.demand[problem.row[b], t]
        for s in range(paths - shift):
            rate = rates[s + shift]
            demand[t, s] = rate if rate > 0 else 0.0
        for s in range(shift):
            rate = rates[s]
            demand[t, paths - shift + s] = rate if rate > 0 else 0.0
    return demand


@compiled
def _compute_requirements(
    problem: PlanProblem,
    b: int,
    demand: Float,
    tolerances: Float,
    draws: int,
    order: Whole,
    lead_order: Whole,
    required: RequiredReplicas,
) -> float:
    """Needs of the row's futures under this many draws; returns the mean of replicas per request/s."""
    paths, window = demand.shape[1], problem.window_steps
    table = problem.student[b]
    capacities = capacity_strata(draws, problem.log_first[b], problem.spacing, problem.cumulative[b])
    leads = lead_strata(
        draws,
        problem.location[b],
        problem.scale[b],
        problem.values[table],
        problem.probabilities[table],
        problem.delay_s,
        problem.step_s,
        problem.horizon[b] - window,
    )
    capacity, lead_steps = np.empty(draws), np.empty(draws, np.int64)
    shift = problem.seeds[b, 1] % paths
    for first in range(0, draws, paths):
        these, others = order[first : first + paths], lead_order[first : first + paths]
        for s in range(paths):
            capacity[first + s] = capacities[these[s]]
            lead_steps[first + s] = leads[others[s + shift if s + shift < paths else s + shift - paths]]
    scenario = Scenario(
        demand,
        problem.ready[b],
        problem.pending[b],
        problem.arrived[b, : problem.horizon[b]],
        problem.waiting[b] / problem.step_s,
        problem.ttft_s[b] / problem.step_s,
        1.0 - problem.objective[b],
        window,
        problem.steepness[b],
    )
    required_replicas(scenario, capacity, lead_steps, tolerances, problem.low[b], problem.high[b], required)
    replicas = 0.0
    for one in capacity:
        replicas += 1.0 / one
    return replicas / draws


@compiled
def _choose(
    problem: PlanProblem,
    b: int,
    required: RequiredReplicas,
    expected: ExpectedMisses,
    draws: int,
    load: float,
    solution: PlanSolution,
) -> None:
    """Choose the row's count: the cheapest, but so many that replicas fall behind in a share epsilon at most.

    Args:
        load: expected, in replicas.
    """
    low, high = problem.low[b], problem.high[b]
    cheapest = _cheapest(problem, b, expected, problem.price[b] * load)
    bound = min_replicas_for_risk(required.queue[:draws], low, high, problem.epsilon[b])
    solution.cheapest[b] = min(cheapest, high)
    solution.replicas[b] = min(max(cheapest, bound), high)
    solution.ground[b] = _MAXIMUM if max(cheapest, bound) > high else _QUEUE_BOUND if bound > cheapest else _CHEAPEST


@compiled
def _cheapest(problem: PlanProblem, b: int, expected: ExpectedMisses, price: float) -> int:
    """A count from which on one more replica saves less than it costs, in requests that are expected to miss.

    What one more replica saves falls with their number, but where nearly all requests miss: there it rises first.

    Args:
        price: replicas, of missing all requests.
    """
    below, enough = problem.low[b] - 1, problem.high[b] + 1
    while enough - below > 1:
        middle = (below + enough) // 2
        here = _expected_miss_ratio(problem, b, expected, middle)
        saved = here - _expected_miss_ratio(problem, b, expected, middle + 1)
        if here > _HOPELESS_MISS_RATIO or price * saved > 1.0:
            below = middle
        else:
            enough = middle
    return int(enough)


@compiled
def _expected(problem: PlanProblem, b: int, required: RequiredReplicas, first: int, end: int) -> ExpectedMisses:
    return expected_misses(required, first, end, 1.0 - problem.objective[b], problem.steepness[b])


@compiled
def _expected_miss_ratio(problem: PlanProblem, b: int, expected: ExpectedMisses, count: int) -> float:
    return expected_share(expected, count, problem.ready[b] + problem.pending[b])


@compiled
def _state_risks(
    problem: PlanProblem,
    b: int,
    required: RequiredReplicas,
    expected: ExpectedMisses,
    draws: int,
    solution: PlanSolution,
) -> None:
    """Risks of the counts around the chosen one, of the others asked for and of those beside them."""
    paths = problem.demand.shape[2]
    low, high, chosen = problem.low[b], problem.high[b], solution.replicas[b]
    counts = solution.counts[b]
    number = 0
    for count in range(max(chosen - _NEIGHBOUR_COUNTS, low), min(chosen + _NEIGHBOUR_COUNTS, high) + 1):
        counts[number] = count
        number += 1
    for other in problem.others[b]:
        if other < 0:
            continue
        for offset in (-1, 0, 1):
            count = min(max(min(max(other, low), high) + offset, low), high)
            is_stated = False
            for k in range(number):
                is_stated = is_stated or counts[k] == count
            if not is_stated:
                counts[number] = count
                number += 1
    counts[:number].sort()
    solution.num_counts[b] = number
    for k in range(number):
        solution.p_miss[b, k], solution.stderr[b, k] = risk_of(required.missed[:draws], paths, counts[k])
        solution.shares[b, k] = _expected_miss_ratio(problem, b, expected, counts[k])


# The largest demand of a span of steps, path by path, and its quantiles.


def peak_quantiles(
    demand: NDArray[np.float32], rows: Whole, first: Whole, end: Whole, levels: Sequence[float]
) -> Float:
    """Quantiles [B, Q] of the peak of paths [R, H, S], R type 6 and never negative.

    Args:
        rows: int64 [B], which of the R.
        first, end: int64 [B], span of steps of each.
    """
    ordered = np.sort(_peaks(demand, rows, first, end), axis=1)  # [B, S]
    most = ordered.shape[1] - 1
    position = np.clip(np.asarray(levels) * (most + 2) - 1.0, 0.0, most)
    low = position.astype(np.int64)
    below = ordered[:, low].astype(np.float64)
    quantiles: Float = below + (position - low) * (ordered[:, np.minimum(low + 1, most)] - below)
    return quantiles


@compiled
def finite_rows(demand: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool [R]: whether all numbers of paths [R, H, S] are finite."""
    rows = np.ones(demand.shape[0], np.bool_)
    for b in range(demand.shape[0]):
        strange, most = np.int32(0), np.float32(np.inf)
        for number in demand[b].reshape(-1):
            strange = np.int32(strange + (not abs(number) < most))
        rows[b] = strange == 0
    return rows


@compiled
def _peaks(demand: NDArray[np.float32], rows: Whole, first: Whole, end: Whole) -> NDArray[np.float32]:
    peaks = np.zeros((len(rows), demand.shape[2]), np.float32)
    for b in range(len(rows)):
        for t in range(first[b], end[b]):
            for s in range(demand.shape[2]):
                rate = demand[rows[b], t, s]
                peaks[b, s] = rate if rate > peaks[b, s] else peaks[b, s]  # noqa: FURB136
    return peaks
