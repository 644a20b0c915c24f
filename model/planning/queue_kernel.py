"""Required replicas of scenarios: the load and the fluid queue (Lindley recursion) of each demand path.

A future of one workload is a demand path, a capacity per replica and a lead time. The commit window is the first steps
after the lead time; a future is *missed* when more than 1 - objective of its requests miss, for either of two reasons.

Load: offered d per capacity, a replica misses some of it, more the higher the load (`miss_curve`).
Queue: what replicas are offered beyond the curve's headroom, kappa' = headroom kappa, waits in a fluid queue,
q[t+1] = max(0, q[t] + (d[t] - kappa' n[t]) dt), and the requests of step t miss when the wait q / (kappa' n[t]) exceeds
the TTFT allowed at the start or at the end of the step.

New replicas serve from the first step that begins after the lead time; replicas given up leave at once. Giving up
replicas also bites before the window, so for fewer replicas than are commanded now the time from now on counts as well.

A queue that is there before any new replica can serve makes misses that no count can avoid, short of one that clears it
in an instant. So a future is *kept* by a count when no more miss than if that queue were worked off evenly over the
commit window: the requests of the window are within the wait on their own, and together with the part of the old queue
that is due by then. Without such a queue kept and not missed are one.

Most futures need no simulation. Served at a constant rate, a queue that began with step i makes the requests of step j
late when that rate is less than (d[i] + ... + d[j]) dt / ((j - i + 1) dt + ttft). The largest of these over the steps
scored is the rate a path needs, whatever the capacity of a replica, and the need of a future is that rate in replicas.
What this does not cover (replicas that arrive meanwhile, an objective so loose that a late step is none) is simulated.
The rate that the load needs is that of `load_rates`, whatever the capacity too.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.capacity.grid import MOST_ALLOWED, headroom, odds_against, share_missed
from model.compiled import compiled
from model.numerics import power, raise_all, roots_of

# One future after the other: does a replica count keep it, step by step? The definition, compiled.
#
# Queues are in requests per step length, so that a rate and what it adds to the queue in a step are one number.


class Scenario(NamedTuple):
    """One workload at its origin: its demand paths, replicas, queue and objective.

    Attributes:
        demand: [H, S], requests/s of each step on each path.
        ready, pending: replicas serving now, and commanded and not yet serving.
        arrived: [H], how many of the pending ones serve from the start of each step at the latest; the others do when
            a replica commanded now would.
        backlog: requests waiting, per step length.
        wait: longest wait that is no miss, in steps.
        slack: share of the window's requests that may miss.
        window: length of the commit window in steps.
        steepness: power of the curve of misses over load.
    """

    demand: Float
    ready: int
    pending: int
    arrived: Whole
    backlog: float
    wait: float
    slack: float
    window: int
    steepness: int


class Future(NamedTuple):
    """A path with a rate at which a replica falls behind and a lead time; `inherited` is the queue when the window
    begins, and `tolerated` the requests/s, summed over steps, that may miss."""

    path: int
    serves: float
    lead: int
    inherited: float
    tolerated: float


@compiled
def greater_of(a: float, b: float) -> float:
    """One machine instruction, where `max` asks for signs and numbers that are none."""
    return a if a > b else b  # noqa: FURB136


@compiled
def fails(scenario: Scenario, future: Future, replicas: int, excused: bool) -> bool:
    """Whether a future is missed with `replicas` (`excused`: not kept).

    Counts below the commanded one bite at once, so every step until the window's end is scored; others change nothing
    before the window.
    """
    commanded = scenario.ready + scenario.pending
    gives_up = replicas < commanded
    late = 0.0
    queue = scenario.backlog if gives_up else future.inherited
    fresh = 0.0
    balance = 0.0
    for t in range(0 if gives_up else future.lead, future.lead + scenario.window):
        serving = scenario.ready + scenario.arrived[t]
        if t >= future.lead:
            serving += scenario.pending - scenario.arrived[-1] + max(replicas - commanded, 0)
        served = min(serving, replicas) * future.serves
        here = scenario.demand[t, future.path]
        after = max(0.0, queue + here - served)
        if excused and not gives_up:
            fresh_after = max(0.0, fresh + here - served)
            balance_after = balance + here - served
            due = (t - future.lead) / scenario.window * future.inherited
            due_after = (t + 1 - future.lead) / scenario.window * future.inherited
            worst = max(fresh, fresh_after, due + balance, due_after + balance_after)
            fresh, balance = fresh_after, balance_after
        else:
            worst = max(queue, after)
        if worst > served * scenario.wait:
            late += here
        queue = after
    return late > future.tolerated


@compiled
def min_replicas_that_serve(scenario: Scenario, future: Future, low: int, high: int, excused: bool) -> int:
    """Fewest replicas of low..high that suffice; `high` is taken to suffice, or stands for none."""
    while low < high:
        middle = (low + high) // 2
        if fails(scenario, future, middle, excused):
            low = middle + 1
        else:
            high = middle
    return low


# The rates that loads need: at which just the share allowed of a stretch's requests misses (`miss_curve`).
#
# With D the p-th powers of the demands d and y = (1/a - 1) r^p, a stretch misses the requests sum d D / (D + y), which
# are to be a times sum d. The sum is that of 1 / (D + y) over masses d D, and two-point Gauss quadrature of those
# masses, by their first moments, turns the equation into one of the second degree in y. Moments are sums over steps:
# the stretches of all lead times share them, so that a lead time costs a square root per path and not a search.
#
# Quadrature says too little, for all even derivatives of 1 / (D + y) are positive: its rate is never too high. How much
# too low it is at most follows from the share allowed and the number of steps alone; where that is too much, Newton's
# method goes on from there.


# Number of moments of d D^k, k from 0.
_NUM_MOMENTS: Final = 5
# Largest relative error of a rate.
_RATE_TOLERANCE: Final = 1e-5
# Relative change at which Newton's method stops; the remaining error is about its square.
_NEWTON_TOLERANCE: Final = 1e-4
# Most steps of Newton's method.
_MAX_NEWTON_STEPS: Final = 24
_TINY: Final = 1e-300


class Loads(NamedTuple):
    """The demand of one workload, prepared for `load_rates`.

    Attributes:
        demand: [T, S], requests/s of each step on each path.
        powered: [T, S], demand in parts of the path's largest, to the power of the steepness.
        largest: [S], requests/s.
        allowed: share of misses.
        steepness: power of the curve.
    """

    demand: Float
    powered: Float
    largest: Float
    allowed: float
    steepness: int


@compiled
def loads_of(demand: Float, steps: int, allowed: float, steepness: int) -> Loads:
    """The first so many steps of a demand [H, S]."""
    paths = demand.shape[1]
    powered, largest = np.empty((steps, paths)), np.zeros(paths)
    for t in range(steps):
        for s in range(paths):
            largest[s] = greater_of(demand[t, s], largest[s])
    part, scale = np.empty(paths), np.empty(paths)
    for s in range(paths):
        scale[s] = 1.0 / largest[s] if largest[s] > 0.0 else 0.0
    for t in range(steps):
        for s in range(paths):
            part[s] = demand[t, s] * scale[s]
        raise_all(part, steepness, powered[t])
    return Loads(demand[:steps], powered, largest, 1.0 / (odds_against(allowed) + 1.0), steepness)


@compiled
def load_rates(loads: Loads, window: int, is_lead: NDArray[np.bool_], since_now: bool) -> tuple[Float, Float]:
    """Rates [leads, S] at which the share allowed misses, by lead time: of its window alone, and also from now on.

    Args:
        window: steps; the window of the last lead time ends with the loads.
        is_lead: [leads], the lead times that are asked for; nothing is said of the others.
        since_now: whether the second is asked for; else it is the first.
    """
    leads, paths = len(is_lead), loads.demand.shape[1]
    inside, until = _sums(loads, window)
    raised = np.empty(paths)
    rates, rates_now = np.empty((leads, paths)), np.empty((leads, paths))
    for lead in range(leads):
        if not is_lead[lead]:
            continue
        _solve(inside[lead], loads.allowed, raised)
        if _gap(loads, window) > _RATE_TOLERANCE:
            _newton_step(loads, lead, lead + window, raised)
        _rates_of(loads, raised, rates[lead])
        if since_now and lead > 0:
            _solve(until[lead], loads.allowed, raised)
            if _gap(loads, lead + window) > _RATE_TOLERANCE:
                _newton_step(loads, 0, lead + window, raised)
            _rates_of(loads, raised, rates_now[lead])
            for s in range(paths):
                rates_now[lead, s] = greater_of(rates_now[lead, s], rates[lead, s])
        else:
            rates_now[lead] = rates[lead]
    return rates, rates_now


@compiled
def _sums(loads: Loads, window: int) -> tuple[Float, Float]:
    """Sums of d D^k [leads, K, S] over the window of each lead time, and from now to its end.

    A window is the end of one block of as many steps and the beginning of the next: nothing is taken away again from a
    sum, so that small ones beside large ones keep their digits.
    """
    steps, paths = loads.demand.shape
    leads = steps - window + 1
    masses, total = np.empty((steps, paths)), np.empty(paths)
    inside, until = np.empty((leads, _NUM_MOMENTS, paths)), np.empty((leads, _NUM_MOMENTS, paths))
    for k in range(_NUM_MOMENTS):
        total[:] = 0.0
        for t in range(steps):
            for s in range(paths):
                masses[t, s] = masses[t, s] * loads.powered[t, s] if k > 0 else loads.demand[t, s]
            _add(masses[t], total)
            if t >= window - 1:
                _copy(total, until[t - window + 1, k])
        for block in range(0, leads, window):
            total[:] = 0.0
            for t in range(block + window - 1, block - 1, -1):
                _add(masses[t], total)
                if t < leads:
                    _copy(total, inside[t, k])
            total[:] = 0.0
            for t in range(block + window, min(block + 2 * window - 1, steps)):
                _add(masses[t], total)
                _add(total, inside[t - window + 1, k])
    return inside, until


@compiled
def _add(more: Float, total: Float) -> None:
    for s in range(len(total)):
        total[s] += more[s]


@compiled
def _copy(source: Float, target: Float) -> None:
    for s in range(len(target)):
        target[s] = source[s]


@compiled
def _solve(sums: Float, allowed: float, raised: Float) -> None:
    """Rates to the power of the steepness [S], in parts of the path's largest demand, by quadrature.

    The masses d D have a mean, a variance and, as if they were two, a second node `far`. From a single mass at the mean
    follows y = alone; the spread adds to it.
    """
    odds = 1.0 / allowed - 1.0
    for s in range(len(raised)):
        share = 1.0 / greater_of(sums[1, s], _TINY)
        mean, square, cube = sums[2, s] * share, sums[3, s] * share, sums[4, s] * share
        variance = greater_of(square - mean * mean, 0.0)
        skew = cube - mean * (3.0 * square - 2.0 * mean * mean)
        far = greater_of(mean + skew / greater_of(variance, _TINY), 0.0)
        alone = sums[1, s] / greater_of(allowed * sums[0, s], _TINY) - mean
        reach = alone + far
        root = math.sqrt(reach * reach + 4.0 * variance)
        more = 2.0 * variance / (root + reach) if reach > 0.0 else 0.5 * (root - reach)
        raised[s] = greater_of((alone + more) / odds, _TINY)


@compiled
def _gap(loads: Loads, steps: int) -> float:
    """By which part of itself a rate found by quadrature is too low at most.

    The largest demand is no less than the mean, so that of its step no more than `allowed * steps` misses: D / y is at
    most x. The polynomial of third degree next to 1 / (D + y) is then as near as Chebyshev says.
    """
    part = loads.allowed * steps
    if part >= 1.0:
        return 1.0
    x = part / (1.0 - part)
    root = math.sqrt(1.0 + x)
    return float(x * ((root - 1.0) / (root + 1.0)) ** 3 * (1.0 + x) / loads.steepness)


@compiled
def _newton_step(loads: Loads, first: int, end: int, raised: Float) -> None:
    """Bring rates, to the power of the steepness, to where the steps [first, end) miss what is allowed.

    Newton's method on the reciprocal of the misses, which is concave in that power: from below every turn comes nearer
    and none goes too far, and one from above, where rounding may have brought quadrature, ends below. All paths turn
    together, which processors do several at a time.
    """
    odds, paths = 1.0 / loads.allowed - 1.0, len(raised)
    most, load, total = np.zeros(paths), np.zeros(paths), np.zeros(paths)
    for t in range(first, end):
        for s in range(paths):
            here = loads.demand[t, s]
            load[s] = loads.powered[t, s] if here > most[s] else load[s]
            most[s] = greater_of(here, most[s])
            total[s] += here
    aim, alone, missed, slope = np.empty(paths), np.empty(paths), np.empty(paths), np.empty(paths)
    for s in range(paths):
        aim[s] = greater_of(total[s] * loads.allowed, _TINY)
        alone[s] = greater_of((most[s] / aim[s] - 1.0) / odds * load[s], _TINY)  # what the largest step needs
        raised[s] = greater_of(alone[s], raised[s])
    for _ in range(_MAX_NEWTON_STEPS):
        missed[:] = 0.0
        slope[:] = 0.0
        for t in range(first, end):
            for s in range(paths):
                inverse = 1.0 / (loads.powered[t, s] + odds * raised[s])
                part = loads.demand[t, s] * loads.powered[t, s] * inverse
                missed[s] += part
                slope[s] += part * inverse
        furthest = 0.0
        for s in range(paths):
            before = raised[s]
            turn = missed[s] * (missed[s] / aim[s] - 1.0) / greater_of(odds * slope[s], _TINY)
            raised[s] = greater_of(before + turn, alone[s])
            furthest = greater_of(abs(raised[s] - before) / raised[s], furthest)
        if furthest < _NEWTON_TOLERANCE:
            break


@compiled
def _rates_of(loads: Loads, raised: Float, rates: Float) -> None:
    """Requests/s."""
    for s in range(len(raised)):
        raised[s] = raised[s] if raised[s] < 1.0 else 1.0  # noqa: FURB136
    roots_of(raised, loads.steepness, rates)
    for s in range(len(raised)):
        rates[s] *= loads.largest[s]


# Requests are counted: at an expected share of misses a window with few requests misses more or less of it by chance.
#
# Of N requests of which a share g is expected to miss, the count that does is taken to be Poisson in clumps of c: what
# meets an engine at the same moment misses together. More than a share a of them miss with the probability that a Gamma
# of shape a N / c + 1/2 lies below g N / c; the half stands for the next whole clump. So a future that is dealt the
# level u of this Gamma is missed just where g exceeds c gamma(u) / N, its *tolerance*, and a rate that keeps the share
# at the allowed one keeps it at the tolerance when it is multiplied by
#
#     the factor ((1 / tolerance - 1) / (1 / allowed - 1)) to the power 1 / p,
#
# p being the steepness of `miss_curve`. With many requests that is 1 at every level.


# Quantile levels of a tolerance, evenly spread; small risks are decided by one level in a few hundred.
TOLERANCE_LEVELS: Final = 256
# Requests that miss together.
CLUMP: Final = 2.0
# Levels by which neighbouring paths, and the draws of one path, differ.
_PATH_LEVEL_STRIDE, _DRAW_LEVEL_STRIDE = 101, 67
# Smallest tolerance, as a share of requests.
_MIN_TOLERANCE: Final = 1e-9
_LEAST_LOG_SHAPE, _MOST_LOG_SHAPE, _SHAPES_PER_LOG = -1.0, 9.0, 8  # a shape is at least a half


def _log_quantiles() -> Float:
    """Logarithms of a Gamma's quantiles in parts of its mean, [shape, level], shapes spread evenly in their logarithm.

    The density of the logarithm is proportional to exp(shape t - exp(t)), smooth and without a pole. The table is
    integrated here, because `scipy.special.gammaincinv` would add a dependency of 100 MB to the worker, a slower start,
    and other bits of every plan, while the error of this table is below 1e-4.
    """
    levels = (np.arange(TOLERANCE_LEVELS) + 0.5) / TOLERANCE_LEVELS
    num_shapes = round((_MOST_LOG_SHAPE - _LEAST_LOG_SHAPE) * _SHAPES_PER_LOG) + 1
    rows = []
    for shape in np.exp(np.linspace(_LEAST_LOG_SHAPE, _MOST_LOG_SHAPE, num_shapes)):
        t = math.log(shape) + np.linspace(-30.0 / min(shape, 1.0), 6.0, 8192) / math.sqrt(max(shape, 1.0))
        log_density = shape * t - np.exp(t)
        density = np.exp(log_density - log_density.max())
        below = np.concatenate(([0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))))
        rows.append(np.interp(levels, below / below[-1], t) - math.log(shape))
    return np.array(rows)


_LOG_QUANTILES: Final = _log_quantiles()


@compiled
def poisson_tolerances(requests: float, allowed: float, steepness: int) -> Float:
    """The Poisson-Gamma tolerances of a window, as factors on the required replicas, [TOLERANCE_LEVELS], largest first.

    A window with few requests misses more or less of them by chance. Each scenario draws a tolerance: the expected miss
    ratio above which its window counts as missed.

    Args:
        requests: expected in the window.
        allowed: share of them that may miss.
    """
    factors = np.ones(TOLERANCE_LEVELS)
    shape = allowed * requests / CLUMP + 0.5
    position = (math.log(shape) - _LEAST_LOG_SHAPE) * _SHAPES_PER_LOG
    if requests <= 0.0 or position > len(_LOG_QUANTILES) - 2:
        return factors
    low = int(position)
    share = position - low
    mean, odds = shape * CLUMP / requests, odds_against(allowed)
    for k in range(TOLERANCE_LEVELS):
        log_part = _LOG_QUANTILES[low, k] * (1.0 - share) + _LOG_QUANTILES[low + 1, k] * share
        tolerance = min(max(mean * math.exp(log_part), _MIN_TOLERANCE), MOST_ALLOWED)
        factors[k] = ((1.0 / tolerance - 1.0) / odds) ** (1.0 / steepness)
    return factors


@compiled
def level_of(future: int, repeat: int) -> int:
    """The level that a future, its path's draw of this number, is dealt: far from its neighbours', for paths may be in
    an order, and from those of its path's other draws."""
    return (future * _PATH_LEVEL_STRIDE + repeat * _DRAW_LEVEL_STRIDE) % TOLERANCE_LEVELS


Float = NDArray[np.float64]
Whole = NDArray[np.int64]

_ROUNDING: Final = 1.0 - 1e-9  # a rate that fills a whole number of replicas needs no more than those
# Largest number of replicas that is computed.
_MAX_RATE: Final = 1e12


class RequiredReplicas(NamedTuple):
    """Of the futures [V] of one workload: fewest replicas within the bounds searched, one above where none suffices.

    Attributes:
        kept: int32, with which the future is kept.
        missed: int32, with which it is not missed; never below `kept`.
        queue: int32, with which the queue alone keeps it.
        load: what the load alone needs, in parts of a replica: so many miss the share allowed.
        load_now: likewise from now on, which counts where fewer than are commanded now are kept; never below `load`.
    """

    kept: NDArray[np.int32]
    missed: NDArray[np.int32]
    queue: NDArray[np.int32]
    load: Float
    load_now: Float


def empty_requirements(draws: int) -> RequiredReplicas:
    """Room for the needs of so many futures."""
    arrays = [np.empty(draws, np.int32) for _ in range(3)]
    return RequiredReplicas(arrays[0], arrays[1], arrays[2], np.empty(draws), np.empty(draws))


@compiled
def rates_needed(scenario: Scenario, leads: int) -> tuple[Float, Float, Float]:
    """Rates [leads, S] with which no step is late, by lead time, and the sums of demand [leads + window, S].

    The first: in the window, from an empty queue at its start on. The second: from now to the window's end, the
    queue there is now included, except for its own wait at the very start.
    """
    demand, paths, window = scenario.demand, scenario.demand.shape[1], scenario.window
    end = leads - 1 + window
    total = np.zeros((end + 1, paths))
    within, now = np.empty((end, paths)), np.empty((leads, paths))
    for t in range(end):
        for s in range(paths):
            total[t + 1, s] = total[t, s] + demand[t, s]
            within[t, s] = demand[t, s] / (1.0 + scenario.wait)
    # All intervals of steps within [t, t + k) are the whole of it, or lie in its first or its last k - 1 steps.
    for k in range(2, window + 1):
        share = 1.0 / (k + scenario.wait)
        for t in range(end - k + 1):
            for s in range(paths):
                rate = greater_of(within[t, s], (total[t + k, s] - total[t, s]) * share)
                within[t, s] = greater_of(rate, within[t + 1, s])
    worst = np.zeros(paths)
    for t in range(end):
        share = 1.0 / (t + 1 + scenario.wait)
        for s in range(paths):
            worst[s] = greater_of(worst[s], (total[t + 1, s] + scenario.backlog) * share)
        lead = t + 1 - window
        if lead < 0:
            continue
        for i in range(1, lead):  # what begins later is no longer than the window
            share = 1.0 / (t + 1 - i + scenario.wait)
            for s in range(paths):
                worst[s] = greater_of(worst[s], (total[t + 1, s] - total[i, s]) * share)
        for s in range(paths):
            worst[s] = greater_of(worst[s], within[lead, s])
        now[lead] = worst
    return within[:leads], now, total


@compiled
def queues_at_lead(scenario: Scenario, serves: Float, lead_steps: Whole, leads: int, queue: Float) -> None:
    """The queues [S] when a replica commanded now would begin to serve, if none is given up; one draw per path."""
    queue[:] = scenario.backlog
    for t in range(leads - 1):
        serving = float(scenario.ready + scenario.arrived[t])
        for s in range(len(queue)):
            after = greater_of(queue[s] + scenario.demand[t, s] - serving * serves[s], 0.0)
            queue[s] = after if lead_steps[s] > t else queue[s]


@compiled
def replicas_for(rate: float, share: float) -> int:
    """`share` is the part of a replica that a request per second takes."""
    filled = rate * share
    return math.ceil(filled) if filled < _MAX_RATE else int(_MAX_RATE)


@compiled
def required_replicas(
    scenario: Scenario,
    capacity: Float,
    lead_steps: Whole,
    tolerances: Float,
    low: int,
    high: int,
    required: RequiredReplicas,
) -> None:
    """Needs of the futures of one row into the first V places of `required`.

    Args:
        capacity: [V], requests/s of one replica; future v takes path v % S.
        lead_steps: [V].
        tolerances: [LEVELS], factors of `poisson_tolerances`.
    """
    queue_requirements(
        scenario, capacity * headroom(scenario.slack, scenario.steepness), lead_steps, low, high, required
    )
    load_requirements(scenario, capacity, lead_steps, low, required)
    commanded, paths = scenario.ready + scenario.pending, scenario.demand.shape[1]
    for repeat in range(len(capacity) // paths):
        for v in range(repeat * paths, (repeat + 1) * paths):
            share = tolerances[level_of(v, repeat)] * _ROUNDING
            count = replicas_for(required.load_now[v], share)
            if count >= commanded:
                count = max(commanded, replicas_for(required.load[v], share))
            count = min(max(count, low), high + 1)
            required.kept[v], required.missed[v] = max(required.queue[v], count), max(required.missed[v], count)


@compiled
def leads_of(lead_steps: Whole) -> int:
    """How many lead times there are to look at: from none to the longest, in steps."""
    leads = 1
    for steps in lead_steps:
        leads = max(leads, steps + 1)
    return int(leads)


@compiled
def load_requirements(
    scenario: Scenario, capacity: Float, lead_steps: Whole, low: int, required: RequiredReplicas
) -> None:
    """What the load of every future needs, in parts of a replica."""
    paths, commanded = scenario.demand.shape[1], scenario.ready + scenario.pending
    leads = leads_of(lead_steps)
    is_lead = np.zeros(leads, np.bool_)
    for lead in lead_steps:
        is_lead[lead] = True
    loads = loads_of(scenario.demand, leads - 1 + scenario.window, scenario.slack, scenario.steepness)
    inside, since_now = load_rates(loads, scenario.window, is_lead, low < commanded)
    for first in range(0, len(capacity), paths):
        for s in range(paths):
            v, lead = first + s, lead_steps[first + s]
            required.load[v] = inside[lead, s] / capacity[v]
            required.load_now[v] = since_now[lead, s] / capacity[v]


@compiled
def queue_requirements(
    scenario: Scenario, serves: Float, lead_steps: Whole, low: int, high: int, required: RequiredReplicas
) -> None:
    """Replicas that keep the queue short, into `queue` and `missed`; `serves` [V] is what one works off, requests/s."""
    queue, missed = required.queue, required.missed
    paths, commanded = scenario.demand.shape[1], scenario.ready + scenario.pending
    leads = leads_of(lead_steps)
    within, now, total = rates_needed(scenario, leads)
    # The step that decides the largest rate holds at least a share 1 / (1 + wait) of the largest demand, so its
    # requests are more than the slack allows, if not very many steps share it.
    strict = scenario.slack * scenario.window * (1.0 + scenario.wait) < _ROUNDING
    plain = strict and scenario.pending == 0
    quiet = plain and scenario.backlog == 0  # without a queue at the lead time nothing else is asked
    inherited = np.empty(paths)
    for first in range(0, len(serves), paths):
        these = slice(first, first + paths)
        queues_at_lead(scenario, serves[these], lead_steps[these], leads, inherited)
        for s in range(paths):
            v = first + s
            lead, left, share = lead_steps[v], inherited[s], _ROUNDING / serves[v]
            tolerated = 0.0 if quiet else (total[lead + scenario.window, s] - total[lead, s]) * scenario.slack
            evenly, at_once, least = within[lead, s], within[lead, s], np.inf
            if left > 0:
                tolerated = (total[lead + scenario.window, s] - total[lead, s]) * scenario.slack
                evenly, at_once, least = rates_to_work_off(scenario, total, s, lead, left, within[lead, s])
            if plain and scenario.backlog <= now[lead, s] * scenario.wait and least > tolerated:
                need = replicas_for(now[lead, s], share)
                up = need
                if need >= commanded:
                    need = max(commanded, replicas_for(evenly, share))
                    up = max(commanded, replicas_for(at_once, share)) if left > 0 else need
                queue[v], missed[v] = min(max(need, low), high + 1), min(max(up, low), high + 1)
            else:
                future = Future(s, serves[v], lead, left, tolerated)
                rates = now[lead, s], within[lead, s], evenly, at_once
                queue[v], missed[v] = requirement_of(scenario, future, rates, low, high, strict and least > tolerated)


@compiled
def requirement_of(
    scenario: Scenario, future: Future, rates: tuple[float, float, float, float], low: int, high: int, strict: bool
) -> tuple[int, int]:
    """Replicas that keep one future, and with which it is not missed.

    Args:
        rates: with which no step is late: from now on, in the window alone, in the window with the inherited queue due
            evenly, and at once.
        strict: whether a late step is one too many.
    """
    now, within, evenly, at_once = rates
    lead, kappa, path = future.lead, future.serves, future.path
    ready, pending, commanded = scenario.ready, scenario.pending, scenario.ready + scenario.pending
    settled = strict
    if scenario.backlog > now * scenario.wait:
        # The queue of now waits too long before anything else is late.
        settled = settled and scenario.demand[0, path] > future.tolerated
        now = scenario.backlog / scenario.wait
    share = _ROUNDING / kappa
    down, inside = replicas_for(now, share), replicas_for(within, share)
    up, up_at_once = max(commanded, replicas_for(evenly, share)), max(commanded, replicas_for(at_once, share))
    if settled and down <= (ready if pending > 0 else commanded - 1):
        up, up_at_once = down, down
    elif scenario.arrived[lead] != scenario.arrived[-1]:
        settled = False
    elif settled and pending > 0 and inside < commanded:
        # Fewer than commanded, more than serve now: the queue may begin before the pending ones are there.
        settled = inside == down and scenario.backlog == 0
        for t in range(lead):
            settled = settled and scenario.demand[t, path] <= (ready + scenario.arrived[t]) * kappa
        up, up_at_once = (down, down) if settled else (up, up_at_once)
    if settled:
        return min(max(up, low), high + 1), min(max(up_at_once, low), high + 1)
    most = max(min(up + pending, high + 1), low)
    serving = min_replicas_that_serve(scenario, future, low, most, excused=True)
    most = max(min(up_at_once + pending, high + 1), serving)
    return serving, min_replicas_that_serve(scenario, future, serving, most, excused=False)


@compiled
def rates_to_work_off(
    scenario: Scenario, total: Float, path: int, lead: int, inherited: float, within: float
) -> tuple[float, float, float]:
    """Rates with which no step of the window is late: the inherited queue due evenly over the window, or at once.

    And the least demand of a step in it, requests/s. `within` is the rate without that queue.
    """
    evenly, at_once, least = within, greater_of(within, inherited / scenario.wait), np.inf
    due = inherited / scenario.window
    for k in range(1, scenario.window + 1):
        requests = total[lead + k, path] - total[lead, path]
        share = 1.0 / (k + scenario.wait)
        evenly = greater_of(evenly, (due * k + requests) * share)
        at_once = greater_of(at_once, (inherited + requests) * share)
        here = scenario.demand[lead + k - 1, path]
        least = here if here < least else least  # noqa: FURB136
    return evenly, at_once, least


# The share of requests that is expected to miss, count by count, over the futures of one workload.
#
# Loads are raised to the power of the curve of misses once, so that a count costs one division per future.


# Smallest expected miss ratio of a scenario whose queue is too long.
_FALLING_BEHIND_MISS_RATIO: Final = 0.5


class ExpectedMisses(NamedTuple):
    """What V futures need.

    Attributes:
        load, load_now: [V], what the load needs, in parts of the largest of these, to the power of the steepness.
        queue: int32 [V], replicas with which the queue alone keeps the future.
        largest: in replicas.
        odds: `odds_against` of the share of misses allowed.
        steepness: power of the curve of misses.
    """

    load: Float
    load_now: Float
    queue: NDArray[np.int32]
    largest: float
    odds: float
    steepness: int


@compiled
def expected_misses(required: RequiredReplicas, first: int, end: int, allowed: float, steepness: int) -> ExpectedMisses:
    """Of the needs of futures first..end - 1."""
    draws = end - first
    alone, now = required.load[first:end], required.load_now[first:end]
    load, load_now = np.empty(draws), np.empty(draws)
    largest = 0.0
    for v in range(draws):
        largest = greater_of(now[v], largest)
    scale = 1.0 / largest if largest > 0.0 else 0.0
    part, differ = np.empty(draws), False
    for v in range(draws):
        part[v] = alone[v] * scale
        differ = differ or now[v] > alone[v]
    raise_all(part, steepness, load)
    if differ:
        for v in range(draws):
            part[v] = greater_of(now[v], alone[v]) * scale
        raise_all(part, steepness, load_now)
    else:
        load_now[:] = load
    return ExpectedMisses(load, load_now, required.queue[first:end], largest, odds_against(allowed), steepness)


@compiled
def expected_share(expected: ExpectedMisses, count: int, commanded: int) -> float:
    """Share of the requests that is expected to miss with `count`, where `commanded` are there or on their way.

    Of a future whose queue is too long at least half is counted: what the curve says where replicas begin to fall
    behind.
    """
    served = power(count / expected.largest, expected.steepness) if expected.largest > 0.0 else 1.0
    loads = expected.load_now if count < commanded else expected.load
    enough, shares = np.int32(count), np.empty(len(loads))
    for v in range(len(loads)):
        least = _FALLING_BEHIND_MISS_RATIO if expected.queue[v] > enough else 0.0
        shares[v] = greater_of(share_missed(loads[v], served, expected.odds), least)
    return float(_sum(shares) / len(loads))


@compiled
def _sum(numbers: Float) -> float:
    """By halves, for one after the other each addition waits for the one before. `numbers` is spent."""
    left = len(numbers)
    while left > 1:
        half = left // 2
        left_half = numbers[left - half : left]
        for v in range(half):
            numbers[v] += left_half[v]
        left -= half
    return float(numbers[0])
