"""The fewest replicas whose P(miss) is at most epsilon, and the risks of the counts around it.

Every demand path is followed under draws of capacity and lead time. The needs of these futures say at once what every
count risks: all counts share their random numbers. The first thousand draws decide, unless more of them could change
the answer; which paths there are is settled by the forecast, so that their spread is stated and not drawn away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.capacity.draws import capacity_strata, lead_strata, orders
from model.compiled import compiled
from model.planning.queue_kernel import (
    ExpectedMisses,
    Needs,
    Place,
    expected_misses,
    expected_share,
    lucks,
    no_needs,
    row_needs,
)

# What the search for a count is asked, and what it answers, as arrays over B workloads.


GROUNDS: Final = ("chance_constrained", "recovery", "maximum", "trial")
TRIAL: Final = GROUNDS.index("trial")


class Outlook(NamedTuple):
    """B workloads at their origins, with everything a draw of their futures needs.

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
        bearable: float64 [B], shares of requests that may be expected to miss.
        doubt: float64 [B], part of the capacities believed possible, from the least on, that a trial leaves out.
        untroubled: float64 [B], replicas from which on nothing is remembered to have missed at the load of each:
            fewer are not tried.
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
    bearable: Float
    doubt: Float
    untroubled: Float
    on_trial: NDArray[np.bool_]
    others: Whole
    seeds: Whole
    window_steps: int
    step_s: float


class Chances(NamedTuple):
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


# What the needs of futures say of replica counts: how many need more, and the fewest that suffice.


Counts = NDArray[np.int32]


@compiled
def over(needs: Counts, count: int) -> int:
    """How many futures need more than `count` replicas."""
    enough, total = np.int32(count), np.int32(0)
    for need in needs:
        total = np.int32(total + (need > enough))
    return int(total)


@compiled
def fewest(needs: Counts, low: int, high: int, epsilon: float) -> int:
    """The fewest of low..high + 1 replicas that at most a share epsilon of the futures needs more than."""
    while low <= high:
        middle = (low + high) // 2
        if over(needs, middle) / len(needs) > epsilon:
            low = middle + 1
        else:
            high = middle - 1
    return low


@compiled
def risk_of(needs: Counts, paths: int, count: int) -> tuple[float, float, float]:
    """P(need > count), its standard error over paths, and the part of that which more draws per path would remove.

    Futures on one demand path are not independent. Where no spread is seen the error is that of a single miss.
    """
    draws = len(needs)
    repeats = draws // paths
    hits = np.zeros(paths, np.int32)
    enough = np.int32(count)
    for first in range(0, draws, paths):
        these = needs[first : first + paths]
        for s in range(paths):
            hits[s] += these[s] > enough
    total, squares = 0, 0
    for hit in hits:
        total += int(hit)
        squares += int(hit) * int(hit)
    single = (1.0 - 1.0 / draws) / draws**2
    spread = (squares / paths - (total / paths) ** 2) / repeats**2
    stderr = math.sqrt(max(spread / paths, single))
    drawn = math.sqrt((total * repeats - squares) / (draws * draws * max(repeats - 1, 1)))
    return total / draws, stderr, drawn if repeats > 1 else stderr


Float = NDArray[np.float64]
Whole = NDArray[np.int64]

_FIRST_DRAWS: Final = 1024  # of every row; the rest only where the answer is in doubt
_BESIDE: Final = 2  # counts on either side of the answer whose risk is stated
_LITTLE: Final = 10  # one in so many replicas more, or one, is little to pay for keeping the stated risk
_TO_STAY: Final = 2.0  # times the bearable share, for the count in force
_TO_LEAVE: Final = 0.5  # and for one below it
_SURE: Final = 1.0  # errors of independent draws from epsilon at which it is not; draws spread evenly err by half
_MATTERS: Final = 0.5  # part of the whole standard error from which on that of the draws is worth reducing


def chances(outlook: Outlook, max_draws: int) -> Chances:
    """Choose the count of every row.

    Args:
        max_draws: futures per row, at most; at least one per path.
    """
    rows, paths = len(outlook.row), outlook.demand.shape[2]
    most = paths * max(max_draws // paths, 1)
    first = min(paths * max(_FIRST_DRAWS // paths, 1), most)
    width = 2 * _BESIDE + 1 + 3 * outlook.others.shape[1]
    found = Chances(
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
    _solve(outlook, first, *orders(first, paths), most, *orders(most, paths), no_needs(most), found)
    return found


@compiled
def _solve(
    outlook: Outlook,
    first: int,
    first_capacity: Whole,
    first_lead: Whole,
    most: int,
    most_capacity: Whole,
    most_lead: Whole,
    needs: Needs,
    found: Chances,
) -> None:
    for b in range(len(outlook.row)):
        demand = _demand(outlook, b)
        draws = first
        requests = demand.mean() * outlook.per_unit[b] * outlook.window_steps * outlook.step_s
        luck = lucks(requests, 1.0 - outlook.objective[b], outlook.steepness[b])
        _needs(outlook, b, demand, luck, first, first_capacity, first_lead, needs)
        expected = _expected(outlook, b, needs, 0, first)
        doubtful = _choose(outlook, b, needs, expected, first, found)
        if doubtful and most > first:
            draws = most
            _needs(outlook, b, demand, luck, most, most_capacity, most_lead, needs)
            expected = _expected(outlook, b, needs, 0, most)
            _choose(outlook, b, needs, expected, most, found)
        _try_fewer(outlook, b, needs, draws, found)
        _state_risks(outlook, b, needs, expected, draws, found)


@compiled
def _demand(outlook: Outlook, b: int) -> Float:
    """Requests/s [H, S] of one row; which path meets which draw is the row's own."""
    paths, horizon = outlook.demand.shape[2], outlook.horizon[b]
    demand = np.empty((horizon, paths))
    shift = outlook.seeds[b, 0] % paths
    for t in range(horizon):
        rates = outlook.demand[outlook.row[b], t]
        for s in range(paths - shift):
            rate = rates[s + shift]
            demand[t, s] = rate if rate > 0 else 0.0
        for s in range(shift):
            rate = rates[s]
            demand[t, paths - shift + s] = rate if rate > 0 else 0.0
    return demand


@compiled
def _needs(
    outlook: Outlook,
    b: int,
    demand: Float,
    luck: Float,
    draws: int,
    order: Whole,
    lead_order: Whole,
    needs: Needs,
) -> None:
    """Needs of the row's futures under this many draws."""
    paths, window = demand.shape[1], outlook.window_steps
    table = outlook.student[b]
    capacities = capacity_strata(draws, outlook.log_first[b], outlook.spacing, outlook.cumulative[b])
    leads = lead_strata(
        draws,
        outlook.location[b],
        outlook.scale[b],
        outlook.values[table],
        outlook.probabilities[table],
        outlook.delay_s,
        outlook.step_s,
        outlook.horizon[b] - window,
    )
    capacity, lead_steps = np.empty(draws), np.empty(draws, np.int64)
    shift = outlook.seeds[b, 1] % paths
    for first in range(0, draws, paths):
        these, others = order[first : first + paths], lead_order[first : first + paths]
        for s in range(paths):
            capacity[first + s] = capacities[these[s]]
            lead_steps[first + s] = leads[others[s + shift if s + shift < paths else s + shift - paths]]
    place = Place(
        demand,
        outlook.ready[b],
        outlook.pending[b],
        outlook.arrived[b, : outlook.horizon[b]],
        outlook.waiting[b] / outlook.step_s,
        outlook.ttft_s[b] / outlook.step_s,
        1.0 - outlook.objective[b],
        window,
        outlook.steepness[b],
    )
    row_needs(place, capacity, lead_steps, luck, outlook.low[b], outlook.high[b], needs)


@compiled
def _choose(outlook: Outlook, b: int, needs: Needs, expected: ExpectedMisses, draws: int, found: Chances) -> bool:
    """Choose the row's count; whether more draws might change it."""
    paths = outlook.demand.shape[2]
    low, high, epsilon = outlook.low[b], outlook.high[b], outlook.epsilon[b]
    kept, missed = needs.kept[:draws], needs.missed[:draws]
    enough = fewest(kept, low, high, epsilon)
    while enough <= high and _share(outlook, b, expected, enough) > _bearable(outlook, b, enough):
        enough += 1
    if enough > high:
        chosen, ground = high, 2
    else:
        chosen, ground = enough, 1
        for count in range(enough, min(enough + max(1, enough // _LITTLE), high) + 1):
            if over(missed, count) / draws <= epsilon:
                chosen, ground = count, 0
                break
    found.replicas[b], found.ground[b], found.kept[b] = chosen, ground, min(enough, high)
    for count in range(max(enough - 1, low), chosen + 1):
        for asked in (kept, missed):
            p, stderr, drawn = risk_of(asked, paths, count)
            if abs(p - epsilon) < _SURE * drawn and drawn > _MATTERS * stderr:
                return True
    return False


@compiled
def _bearable(outlook: Outlook, b: int, count: int) -> float:
    """Share that may be expected to miss with `count`: a move must be worth it, for both ways cost a start."""
    commanded = outlook.ready[b] + outlook.pending[b]
    if count == commanded:
        return float(outlook.bearable[b] * _TO_STAY)
    return float(outlook.bearable[b] * (_TO_LEAVE if count < commanded else 1.0))


@compiled
def _try_fewer(outlook: Outlook, b: int, needs: Needs, draws: int, found: Chances) -> None:
    """Give a replica up that would not be missed if replicas carry no less than is hoped for, or go on without it.

    Not where misses are remembered of such a load, for there the doubt is knowledge; and what was not tried before is
    not begun where more replicas are wanted than there are. Futures stand in the order of their capacities, path by
    path, so that those of larger ones are the last.
    """
    paths, low = outlook.demand.shape[2], outlook.low[b]
    commanded, wanted = outlook.ready[b] + outlook.pending[b], found.replicas[b]
    begins = wanted == commanded and outlook.pending[b] == 0
    goes_on = outlook.on_trial[b] and wanted == commanded + 1
    count, repeats = wanted - 1, draws // paths
    left_out = int(outlook.doubt[b] * repeats)
    if left_out == 0 or found.ground[b] != 0 or not (begins or goes_on) or count < max(low, outlook.untroubled[b]):
        return
    first = left_out * paths
    missed = needs.missed[first:draws]
    share = _share(outlook, b, _expected(outlook, b, needs, first, draws), count)
    p, stderr, _ = risk_of(missed, paths, count)
    if p <= outlook.epsilon[b] and share <= _bearable(outlook, b, count):
        found.replicas[b], found.ground[b] = count, TRIAL
        found.trial[b, 0], found.trial[b, 1] = p, stderr
        found.trial[b, 2], found.trial[b, 3] = share, left_out / repeats


@compiled
def _expected(outlook: Outlook, b: int, needs: Needs, first: int, end: int) -> ExpectedMisses:
    return expected_misses(needs, first, end, 1.0 - outlook.objective[b], outlook.steepness[b])


@compiled
def _share(outlook: Outlook, b: int, expected: ExpectedMisses, count: int) -> float:
    return expected_share(expected, count, outlook.ready[b] + outlook.pending[b])


@compiled
def _state_risks(outlook: Outlook, b: int, needs: Needs, expected: ExpectedMisses, draws: int, found: Chances) -> None:
    """Risks of the counts around the chosen one, of the others asked for and of those beside them."""
    paths = outlook.demand.shape[2]
    low, high, chosen = outlook.low[b], outlook.high[b], found.replicas[b]
    counts = found.counts[b]
    number = 0
    for count in range(max(chosen - _BESIDE, low), min(chosen + _BESIDE, high) + 1):
        counts[number] = count
        number += 1
    for other in outlook.others[b]:
        if other < 0:
            continue
        for beside in (-1, 0, 1):
            count = min(max(min(max(other, low), high) + beside, low), high)
            known = False
            for k in range(number):
                known = known or counts[k] == count
            if not known:
                counts[number] = count
                number += 1
    counts[:number].sort()
    found.num_counts[b] = number
    for k in range(number):
        found.p_miss[b, k], found.stderr[b, k], _ = risk_of(needs.missed[:draws], paths, counts[k])
        found.shares[b, k] = _share(outlook, b, expected, counts[k])


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
    place = np.clip(np.asarray(levels) * (most + 2) - 1.0, 0.0, most)
    low = place.astype(np.int64)
    below = ordered[:, low].astype(np.float64)
    quantiles: Float = below + (place - low) * (ordered[:, np.minimum(low + 1, most)] - below)
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
