"""The fewest replicas whose P(miss) is at most epsilon, and the risks of the counts around it.

Every demand path is followed under draws of capacity and lead time. The needs of these futures say at once what every
count risks: all counts share their random numbers. The first thousand draws decide, unless more of them could change
the answer; which paths there are is settled by the forecast, so that their spread is stated and not drawn away.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.capacity.draws import capacity_strata, lead_strata, orders
from model.compiled import compiled
from model.counted_misses import lucks
from model.expected_misses import ExpectedMisses, expected_misses, expected_share
from model.need_counts import fewest, over, risk_of
from model.outlook import TRIAL, Chances, Outlook
from model.planning.queue_kernel import Needs, no_needs, row_needs
from model.queue_paths import Place

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
