"""One future after the other: does a replica count keep it, step by step? The definition, compiled.

Queues are in requests per step length, so that a rate and what it adds to the queue in a step are one number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.compiled import compiled

Float = NDArray[np.float64]
Whole = NDArray[np.int64]


class Place(NamedTuple):
    """One workload at its origin.

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
def larger(a: float, b: float) -> float:
    """One machine instruction, where `max` asks for signs and numbers that are none."""
    return a if a > b else b  # noqa: FURB136


@compiled
def fails(place: Place, future: Future, replicas: int, excused: bool) -> bool:
    """Whether a future is missed with `replicas` (`excused`: not kept).

    Counts below the commanded one bite at once, so every step until the window's end is scored; others change nothing
    before the window.
    """
    commanded = place.ready + place.pending
    gives_up = replicas < commanded
    late = 0.0
    queue = place.backlog if gives_up else future.inherited
    fresh = 0.0
    balance = 0.0
    for t in range(0 if gives_up else future.lead, future.lead + place.window):
        serving = place.ready + place.arrived[t]
        if t >= future.lead:
            serving += place.pending - place.arrived[-1] + max(replicas - commanded, 0)
        served = min(serving, replicas) * future.serves
        here = place.demand[t, future.path]
        after = max(0.0, queue + here - served)
        if excused and not gives_up:
            fresh_after = max(0.0, fresh + here - served)
            balance_after = balance + here - served
            due = (t - future.lead) / place.window * future.inherited
            due_after = (t + 1 - future.lead) / place.window * future.inherited
            worst = max(fresh, fresh_after, due + balance, due_after + balance_after)
            fresh, balance = fresh_after, balance_after
        else:
            worst = max(queue, after)
        if worst > served * place.wait:
            late += here
        queue = after
    return late > future.tolerated


@compiled
def fewest_that_serve(place: Place, future: Future, low: int, high: int, excused: bool) -> int:
    """Fewest replicas of low..high that suffice; `high` is taken to suffice, or stands for none."""
    while low < high:
        middle = (low + high) // 2
        if fails(place, future, middle, excused):
            low = middle + 1
        else:
            high = middle
    return low
