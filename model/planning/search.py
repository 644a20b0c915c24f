"""The chance-constrained search: the fewest replicas whose P(miss) is at most epsilon, and the risks around it.

It is a sample-average approximation with common random numbers. Every demand path is combined with draws of capacity
and lead time, and each of these scenarios yields the replicas it requires. The empirical tail of the requirements is
the risk of every count at once. The first thousand draws decide, unless more draws could change the answer. The number
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


GROUNDS: Final = ("chance_constrained", "recovery", "maximum", "trial")
TRIAL: Final = GROUNDS.index("trial")


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
        epsilon: float64 [B], risks allowed.
        max_expected_miss_ratio: float64 [B], largest expected share of requests that miss.
        exploration: float64 [B], part of the capacities believed possible, from the least on, that a trial leaves out.
        min_replicas_without_known_misses: float64 [B], replicas from which on no misses are known at the load of
            each; fewer are not explored.
        on_trial: bool [B], whether the replicas commanded are those that the last plan tried.
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
    max_expected_miss_ratio: Float
    exploration: Float
    min_replicas_without_known_misses: Float
    on_trial: NDArray[np.bool_]
    others: Whole
    seeds: Whole
    window_steps: int
    step_s: float


class PlanSolution(NamedTuple):
    """What the futures say, row by row.

    Attributes:
        replicas: int64 [B], the fewest that keep all but a share epsilon of the futures, and with which no more than
            the bearable share of requests is expected to miss; where a queue that cannot be avoided makes P(miss) more
            than epsilon there, and a few more bring it down, it is those.
        ground: int64 [B], index into `GROUNDS`. `chance_constrained`: P(miss) is at most epsilon. `recovery`: it is
            not, for a queue is there before any replica can come, but the futures are kept at that risk. `maximum`:
            not even that. `trial`: P(miss) is more, for it is not known how much a replica carries, but it would be at
            most epsilon with no less than is hoped for.
        kept: int64 [B], the fewest that keep the futures at that risk, within the bounds.
        num_counts: int64 [B], how many of the next four belong to the row.
        counts, p_miss, stderr: [B, C], ascending counts with P(miss) and its standard error over the demand paths.
        shares: [B, C], the share of requests that is expected to miss, those of a queue that nothing avoids left out.
        trial: float64 [B, 4], of a trial P(miss), its standard error, the share of requests expected to miss, and the
            part of the capacities that was left out; NaN: there is none.
    """

    replicas: Whole
    ground: Whole
    kept: Whole
    num_counts: Whole
    counts: Whole
    p_miss: Float
    stderr: Float
    shares: Float
    trial: Float


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
def risk_of(required: Counts, paths: int, count: int) -> tuple[float, float, float]:
    """P(need > count), its standard error over paths, and the part of that which more draws per path would remove.

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
    stderr = math.sqrt(max(spread / paths, single))
    draw_stderr = math.sqrt((total * repeats - squares) / (draws * draws * max(repeats - 1, 1)))
    return total / draws, stderr, draw_stderr if repeats > 1 else stderr


Float = NDArray[np.float64]
Whole = NDArray[np.int64]

# Draws of every row; more are made only where they could change the answer.
_FIRST_DRAWS: Final = 1024
# Counts on either side of the answer whose risk is stated.
_NEIGHBOUR_COUNTS: Final = 2
# Replicas per extra replica that may be spent to keep the stated risk; at least one is.
_EXTRA_REPLICAS_DIVISOR: Final = 10
# Factor on the allowed expected miss ratio for the commanded count, so that the count changes only for a reason.
_STAY_MISS_FACTOR: Final = 2.0
# Factor on the allowed expected miss ratio for counts below the commanded one.
_SHRINK_MISS_FACTOR: Final = 0.5
# Distance from epsilon, in standard errors of the draws, below which more draws are made; strata halve the error.
_DOUBT_STDERRS: Final = 1.0
# Smallest share of the draws in the whole standard error at which more draws are worthwhile.
_MIN_DRAWN_STDERR_RATIO: Final = 0.5


def solve(problem: PlanProblem, max_draws: int) -> PlanSolution:
    """Choose the count of every row.

    Args:
        max_draws: futures per row, at most; at least one per path.
    """
    rows, paths = len(problem.row), problem.demand.shape[2]
    most = paths * max(max_draws // paths, 1)
    first = min(paths * max(_FIRST_DRAWS // paths, 1), most)
    width = 2 * _NEIGHBOUR_COUNTS + 1 + 3 * problem.others.shape[1]
    solution = PlanSolution(
        replicas=np.zeros(rows, np.int64),
        ground=np.zeros(rows, np.int64),
        kept=np.zeros(rows, np.int64),
        num_counts=np.zeros(rows, np.int64),
        counts=np.zeros((rows, width), np.int64),
        p_miss=np.zeros((rows, width)),
        stderr=np.zeros((rows, width)),
        shares=np.zeros((rows, width)),
        trial=np.full((rows, 4), np.nan),
    )
    _solve_rows(
        problem,
        first,
        *strata_order(first, paths),
        most,
        *strata_order(most, paths),
        empty_requirements(most),
        solution,
    )
    return solution


@compiled
def _solve_rows(
    problem: PlanProblem,
    first: int,
    first_capacity: Whole,
    first_lead: Whole,
    most: int,
    most_capacity: Whole,
    most_lead: Whole,
    required: RequiredReplicas,
    solution: PlanSolution,
) -> None:
    for b in range(len(problem.row)):
        demand = _demand(problem, b)
        draws = first
        requests = demand.mean() * problem.per_unit[b] * problem.window_steps * problem.step_s
        tolerances = poisson_tolerances(requests, 1.0 - problem.objective[b], problem.steepness[b])
        _compute_requirements(problem, b, demand, tolerances, first, first_capacity, first_lead, required)
        expected = _expected(problem, b, required, 0, first)
        doubtful = _choose(problem, b, required, expected, first, solution)
        if doubtful and most > first:
            draws = most
            _compute_requirements(problem, b, demand, tolerances, most, most_capacity, most_lead, required)
            expected = _expected(problem, b, required, 0, most)
            _choose(problem, b, required, expected, most, solution)
        _explore_fewer(problem, b, required, draws, solution)
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
) -> None:
    """Needs of the row's futures under this many draws."""
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


@compiled
def _choose(
    problem: PlanProblem,
    b: int,
    required: RequiredReplicas,
    expected: ExpectedMisses,
    draws: int,
    solution: PlanSolution,
) -> bool:
    """Choose the row's count; whether more draws might change it."""
    paths = problem.demand.shape[2]
    low, high, epsilon = problem.low[b], problem.high[b], problem.epsilon[b]
    kept, missed = required.kept[:draws], required.missed[:draws]
    enough = min_replicas_for_risk(kept, low, high, epsilon)
    while enough <= high and _expected_miss_ratio(problem, b, expected, enough) > _max_expected_miss_ratio(
        problem, b, enough
    ):
        enough += 1
    if enough > high:
        chosen, ground = high, 2
    else:
        chosen, ground = enough, 1
        for count in range(enough, min(enough + max(1, enough // _EXTRA_REPLICAS_DIVISOR), high) + 1):
            if num_exceeding(missed, count) / draws <= epsilon:
                chosen, ground = count, 0
                break
    solution.replicas[b], solution.ground[b], solution.kept[b] = chosen, ground, min(enough, high)
    for count in range(max(enough - 1, low), chosen + 1):
        for counts in (kept, missed):
            p, stderr, draw_stderr = risk_of(counts, paths, count)
            if abs(p - epsilon) < _DOUBT_STDERRS * draw_stderr and draw_stderr > _MIN_DRAWN_STDERR_RATIO * stderr:
                return True
    return False


@compiled
def _max_expected_miss_ratio(problem: PlanProblem, b: int, count: int) -> float:
    """Share that may be expected to miss with `count`: a move must be worth it, for both ways cost a start."""
    commanded = problem.ready[b] + problem.pending[b]
    if count == commanded:
        return float(problem.max_expected_miss_ratio[b] * _STAY_MISS_FACTOR)
    return float(problem.max_expected_miss_ratio[b] * (_SHRINK_MISS_FACTOR if count < commanded else 1.0))


@compiled
def _explore_fewer(
    problem: PlanProblem, b: int, required: RequiredReplicas, draws: int, solution: PlanSolution
) -> None:
    """Give a replica up that would not be missed if replicas carry no less than is hoped for, or go on without it.

    Not where misses are remembered of such a load, for there the doubt is knowledge; and what was not tried before is
    not begun where more replicas are wanted than there are. Futures stand in the order of their capacities, path by
    path, so that those of larger ones are the last.
    """
    paths, low = problem.demand.shape[2], problem.low[b]
    commanded, proposed = problem.ready[b] + problem.pending[b], solution.replicas[b]
    begins = proposed == commanded and problem.pending[b] == 0
    goes_on = problem.on_trial[b] and proposed == commanded + 1
    count, repeats = proposed - 1, draws // paths
    left_out = int(problem.exploration[b] * repeats)
    if (
        left_out == 0
        or solution.ground[b] != 0
        or not (begins or goes_on)
        or count < max(low, problem.min_replicas_without_known_misses[b])
    ):
        return
    first = left_out * paths
    missed = required.missed[first:draws]
    share = _expected_miss_ratio(problem, b, _expected(problem, b, required, first, draws), count)
    p, stderr, _ = risk_of(missed, paths, count)
    if p <= problem.epsilon[b] and share <= _max_expected_miss_ratio(problem, b, count):
        solution.replicas[b], solution.ground[b] = count, TRIAL
        solution.trial[b, 0], solution.trial[b, 1] = p, stderr
        solution.trial[b, 2], solution.trial[b, 3] = share, left_out / repeats


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
        solution.p_miss[b, k], solution.stderr[b, k], _ = risk_of(required.missed[:draws], paths, counts[k])
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
