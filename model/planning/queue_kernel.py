"""The load and the queue ahead: on which futures does a replica count keep the SLO?

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

from model.compiled import compiled
from model.counted_misses import level_of
from model.load_rates import load_rates, loads_of
from model.miss_curve import headroom
from model.queue_paths import Future, Place, fewest_that_serve, larger

Float = NDArray[np.float64]
Whole = NDArray[np.int64]

_ROUNDING: Final = 1.0 - 1e-9  # a rate that fills a whole number of replicas needs no more than those
_MOST: Final = 1e12


class Needs(NamedTuple):
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


def no_needs(draws: int) -> Needs:
    """Room for the needs of so many futures."""
    whole = [np.empty(draws, np.int32) for _ in range(3)]
    return Needs(whole[0], whole[1], whole[2], np.empty(draws), np.empty(draws))


@compiled
def rates_needed(place: Place, leads: int) -> tuple[Float, Float, Float]:
    """Rates [leads, S] with which no step is late, by lead time, and the sums of demand [leads + window, S].

    The first: in the window, from an empty queue at its start on. The second: from now to the window's end, the
    queue there is now included, except for its own wait at the very start.
    """
    demand, paths, window = place.demand, place.demand.shape[1], place.window
    end = leads - 1 + window
    total = np.zeros((end + 1, paths))
    within, now = np.empty((end, paths)), np.empty((leads, paths))
    for t in range(end):
        for s in range(paths):
            total[t + 1, s] = total[t, s] + demand[t, s]
            within[t, s] = demand[t, s] / (1.0 + place.wait)
    # All intervals of steps within [t, t + k) are the whole of it, or lie in its first or its last k - 1 steps.
    for k in range(2, window + 1):
        share = 1.0 / (k + place.wait)
        for t in range(end - k + 1):
            for s in range(paths):
                rate = larger(within[t, s], (total[t + k, s] - total[t, s]) * share)
                within[t, s] = larger(rate, within[t + 1, s])
    worst = np.zeros(paths)
    for t in range(end):
        share = 1.0 / (t + 1 + place.wait)
        for s in range(paths):
            worst[s] = larger(worst[s], (total[t + 1, s] + place.backlog) * share)
        lead = t + 1 - window
        if lead < 0:
            continue
        for i in range(1, lead):  # what begins later is no longer than the window
            share = 1.0 / (t + 1 - i + place.wait)
            for s in range(paths):
                worst[s] = larger(worst[s], (total[t + 1, s] - total[i, s]) * share)
        for s in range(paths):
            worst[s] = larger(worst[s], within[lead, s])
        now[lead] = worst
    return within[:leads], now, total


@compiled
def queues_at_lead(place: Place, serves: Float, lead_steps: Whole, leads: int, queue: Float) -> None:
    """The queues [S] when a replica commanded now would begin to serve, if none is given up; one draw per path."""
    queue[:] = place.backlog
    for t in range(leads - 1):
        serving = float(place.ready + place.arrived[t])
        for s in range(len(queue)):
            after = larger(queue[s] + place.demand[t, s] - serving * serves[s], 0.0)
            queue[s] = after if lead_steps[s] > t else queue[s]


@compiled
def replicas_for(rate: float, share: float) -> int:
    """`share` is the part of a replica that a request per second takes."""
    filled = rate * share
    return math.ceil(filled) if filled < _MOST else int(_MOST)


@compiled
def row_needs(place: Place, capacity: Float, lead_steps: Whole, luck: Float, low: int, high: int, needs: Needs) -> None:
    """Needs of the futures of one row into the first V places of `needs`.

    Args:
        capacity: [V], requests/s of one replica; future v takes path v % S.
        lead_steps: [V].
        luck: of `counted_misses.lucks`, by level.
    """
    queue_needs(place, capacity * headroom(place.slack, place.steepness), lead_steps, low, high, needs)
    load_needs(place, capacity, lead_steps, low, needs)
    commanded, paths = place.ready + place.pending, place.demand.shape[1]
    for repeat in range(len(capacity) // paths):
        for v in range(repeat * paths, (repeat + 1) * paths):
            share = luck[level_of(v, repeat)] * _ROUNDING
            count = replicas_for(needs.load_now[v], share)
            if count >= commanded:
                count = max(commanded, replicas_for(needs.load[v], share))
            count = min(max(count, low), high + 1)
            needs.kept[v], needs.missed[v] = max(needs.queue[v], count), max(needs.missed[v], count)


@compiled
def leads_of(lead_steps: Whole) -> int:
    """How many lead times there are to look at: from none to the longest, in steps."""
    leads = 1
    for steps in lead_steps:
        leads = max(leads, steps + 1)
    return int(leads)


@compiled
def load_needs(place: Place, capacity: Float, lead_steps: Whole, low: int, needs: Needs) -> None:
    """What the load of every future needs, in parts of a replica."""
    paths, commanded = place.demand.shape[1], place.ready + place.pending
    leads = leads_of(lead_steps)
    asked = np.zeros(leads, np.bool_)
    for lead in lead_steps:
        asked[lead] = True
    loads = loads_of(place.demand, leads - 1 + place.window, place.slack, place.steepness)
    inside, since_now = load_rates(loads, place.window, asked, low < commanded)
    for first in range(0, len(capacity), paths):
        for s in range(paths):
            v, lead = first + s, lead_steps[first + s]
            needs.load[v] = inside[lead, s] / capacity[v]
            needs.load_now[v] = since_now[lead, s] / capacity[v]


@compiled
def queue_needs(place: Place, serves: Float, lead_steps: Whole, low: int, high: int, needs: Needs) -> None:
    """Replicas that keep the queue short, into `queue` and `missed`; `serves` [V] is what one works off, requests/s."""
    queue, missed = needs.queue, needs.missed
    paths, commanded = place.demand.shape[1], place.ready + place.pending
    leads = leads_of(lead_steps)
    within, now, total = rates_needed(place, leads)
    # The step that decides the largest rate holds at least a share 1 / (1 + wait) of the largest demand, so its
    # requests are more than the slack allows, if not very many steps share it.
    strict = place.slack * place.window * (1.0 + place.wait) < _ROUNDING
    plain = strict and place.pending == 0
    quiet = plain and place.backlog == 0  # without a queue at the lead time nothing else is asked
    inherited = np.empty(paths)
    for first in range(0, len(serves), paths):
        these = slice(first, first + paths)
        queues_at_lead(place, serves[these], lead_steps[these], leads, inherited)
        for s in range(paths):
            v = first + s
            lead, left, share = lead_steps[v], inherited[s], _ROUNDING / serves[v]
            tolerated = 0.0 if quiet else (total[lead + place.window, s] - total[lead, s]) * place.slack
            evenly, at_once, least = within[lead, s], within[lead, s], np.inf
            if left > 0:
                tolerated = (total[lead + place.window, s] - total[lead, s]) * place.slack
                evenly, at_once, least = rates_to_work_off(place, total, s, lead, left, within[lead, s])
            if plain and place.backlog <= now[lead, s] * place.wait and least > tolerated:
                need = replicas_for(now[lead, s], share)
                up = need
                if need >= commanded:
                    need = max(commanded, replicas_for(evenly, share))
                    up = max(commanded, replicas_for(at_once, share)) if left > 0 else need
                queue[v], missed[v] = min(max(need, low), high + 1), min(max(up, low), high + 1)
            else:
                future = Future(s, serves[v], lead, left, tolerated)
                rates = now[lead, s], within[lead, s], evenly, at_once
                queue[v], missed[v] = need_of(place, future, rates, low, high, strict and least > tolerated)


@compiled
def need_of(
    place: Place, future: Future, rates: tuple[float, float, float, float], low: int, high: int, strict: bool
) -> tuple[int, int]:
    """Replicas that keep one future, and with which it is not missed.

    Args:
        rates: with which no step is late: from now on, in the window alone, in the window with the inherited queue due
            evenly, and at once.
        strict: whether a late step is one too many.
    """
    now, within, evenly, at_once = rates
    lead, kappa, path = future.lead, future.serves, future.path
    ready, pending, commanded = place.ready, place.pending, place.ready + place.pending
    settled = strict
    if place.backlog > now * place.wait:
        # The queue of now waits too long before anything else is late.
        settled = settled and place.demand[0, path] > future.tolerated
        now = place.backlog / place.wait
    share = _ROUNDING / kappa
    down, inside = replicas_for(now, share), replicas_for(within, share)
    up, up_at_once = max(commanded, replicas_for(evenly, share)), max(commanded, replicas_for(at_once, share))
    if settled and down <= (ready if pending > 0 else commanded - 1):
        up, up_at_once = down, down
    elif place.arrived[lead] != place.arrived[-1]:
        settled = False
    elif settled and pending > 0 and inside < commanded:
        # Fewer than commanded, more than serve now: the queue may begin before the pending ones are there.
        settled = inside == down and place.backlog == 0
        for t in range(lead):
            settled = settled and place.demand[t, path] <= (ready + place.arrived[t]) * kappa
        up, up_at_once = (down, down) if settled else (up, up_at_once)
    if settled:
        return min(max(up, low), high + 1), min(max(up_at_once, low), high + 1)
    most = max(min(up + pending, high + 1), low)
    kept = fewest_that_serve(place, future, low, most, excused=True)
    most = max(min(up_at_once + pending, high + 1), kept)
    return kept, fewest_that_serve(place, future, kept, most, excused=False)


@compiled
def rates_to_work_off(
    place: Place, total: Float, path: int, lead: int, inherited: float, within: float
) -> tuple[float, float, float]:
    """Rates with which no step of the window is late: the inherited queue due evenly over the window, or at once.

    And the least demand of a step in it, requests/s. `within` is the rate without that queue.
    """
    evenly, at_once, least = within, larger(within, inherited / place.wait), np.inf
    due = inherited / place.window
    for k in range(1, place.window + 1):
        requests = total[lead + k, path] - total[lead, path]
        share = 1.0 / (k + place.wait)
        evenly = larger(evenly, (due * k + requests) * share)
        at_once = larger(at_once, (inherited + requests) * share)
        here = place.demand[lead + k - 1, path]
        least = here if here < least else least  # noqa: FURB136
    return evenly, at_once, least
