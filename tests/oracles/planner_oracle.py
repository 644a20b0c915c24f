"""What a replica count risks, said again in plain Python: numbers and lists, brute force, no shared code.

One workload at its origin. Time runs in steps of `step_s` seconds from the origin on. A *future* is a demand path
(requests/s of each step), a capacity (requests/s one replica carries) and a lead time in whole steps. The queue is a
fluid one, q[t+1] = max(0, q[t] + (d[t] - works_off * serving[t]) * step_s), from `waiting` on.

Who serves: the ready ones from the start, each pending one from its own step on (one of unknown arrival when a replica
commanded now would), replicas added now from step `lead` on; replicas given up leave at once, and count as given up by
an upper limit on those that serve.

A replica that is offered x times its capacity misses 1 / (1 + (1/a - 1) x^-p) of its requests, `a` being the share
that the objective allows (from one in ten thousand to a half) and `p` the steepness. What a stretch of steps *needs* is
the rate at which, weighted by the demand, `a` of it misses; at another rate it misses as a steady demand of that much
would. Its load is *too high* when that share is more than the future's *tolerance*: `a`, or, where requests are
counted, the share at which just as many clumps of two as chance has dealt the future make up (1 - objective) of the
window's requests and half a clump. What is offered beyond the load at which half would miss queues: that load is what
a replica works off.

The requests of step t are *late* when the queue at its start or at its end takes longer than `ttft_s` to serve. With at
least as many replicas as are commanded now the window, `window_steps` steps from `lead` on, is scored; with fewer every
step from now to the window's end. A future is *missed* when the late requests of the scored steps are more than
1 - objective of the requests of the window, or when the load of the window, or with fewer replicas that from now to its
end, is too high.

No count can avoid a queue that stands at `lead`, before an added replica can serve. Replicas *fall behind* in a future
when more than that share is late though that queue is to be worked off evenly over the window. At each time the
requests of the window must be within the wait on their own, and together with the part of the old queue that is due by
then.

A count costs its replicas, and the requests that are expected to miss with it: their share, in parts of the mean demand
over the mean capacity, times a price.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

# Largest share of the requests that may be expected to miss.
HOPELESS = 0.3


@dataclass(frozen=True)
class Workload:
    """`arrivals` holds one entry per pending replica: the first step from which it serves, None = unknown."""

    ready: int
    arrivals: tuple[int | None, ...]
    waiting: float
    ttft_s: float
    objective: float
    window_steps: int
    step_s: float
    steepness: int

    @property
    def allowed(self) -> float:
        return min(max(1.0 - self.objective, 1e-4), 0.5)

    def works_off(self, capacity: float) -> float:
        return capacity * (1.0 / self.allowed - 1.0) ** (1.0 / self.steepness)

    @property
    def commanded(self) -> int:
        return self.ready + len(self.arrivals)


@dataclass(frozen=True)
class Future:
    demand: Sequence[float]
    capacity: float
    lead: int
    tolerance: float | None = None


@dataclass(frozen=True)
class Risk:
    """What a replica count brings.

    Attributes:
        missed, behind: shares of the futures that are missed, and in which replicas fall behind.
        shares: of requests expected to miss, future by future.
    """

    missed: float
    behind: float
    shares: tuple[float, ...]

    @property
    def futures(self) -> int:
        return len(self.shares)

    @property
    def share(self) -> float:
        return fmean(self.shares)

    def stderr(self, share: float) -> float:
        """Standard error of a share for independent draws on given paths; of one draw where none or all are hit."""
        near = min(max(share, 1.0 / self.futures), 1.0 - 1.0 / self.futures)
        return math.sqrt(near * (1.0 - near) / self.futures)


def serving(workload: Workload, lead: int, replicas: int, step: int) -> int:
    there = workload.ready
    for arrival in workload.arrivals:
        there += step >= (lead if arrival is None else arrival)
    if step >= lead:
        there += max(0, replicas - workload.commanded)
    return min(there, replicas)


def is_missed(workload: Workload, future: Future, replicas: int, late: bool) -> bool:
    """Whether one future is missed with `replicas`, where too many requests are late or not."""
    tolerance = workload.allowed if future.tolerance is None else future.tolerance
    return late or load_misses(workload, future, replicas) > tolerance * (1.0 + 1e-6)


def queue_verdict(workload: Workload, future: Future, replicas: int) -> tuple[bool, bool]:
    """(missed, kept) of one future for the queue alone."""
    w, lead, end = workload, future.lead, future.lead + workload.window_steps
    gives_up = replicas < w.commanded
    works_off = w.works_off(future.capacity)
    queue, inherited, fresh, balance = w.waiting, 0.0, 0.0, 0.0
    late = late_anyway = 0.0
    for t in range(end):
        if t == lead:
            inherited = queue
        demand = future.demand[t] * w.step_s
        served = works_off * serving(w, lead, replicas, t) * w.step_s
        allowed = served / w.step_s * w.ttft_s
        after = max(0.0, queue + demand - served)
        over = max(queue, after) > allowed
        over_anyway = over
        if t >= lead:
            fresh_after = max(0.0, fresh + demand - served)
            balance_after = balance + demand - served
            due, due_after = ((k - lead) / w.window_steps * inherited for k in (t, t + 1))
            worst = max(fresh, fresh_after, due + balance, due_after + balance_after)
            if not gives_up:
                over_anyway = worst > allowed
            fresh, balance = fresh_after, balance_after
        if t >= lead or gives_up:
            late += demand if over else 0.0
            late_anyway += demand if over_anyway else 0.0
        queue = after
    tolerated = (1.0 - w.objective) * sum(future.demand[lead:end]) * w.step_s
    return late > tolerated, late_anyway <= tolerated


def stretches(workload: Workload, future: Future, replicas: int) -> list[Sequence[float]]:
    """Demands of the stretches of steps whose load is asked for."""
    end = future.lead + workload.window_steps
    window = [future.demand[future.lead : end]]
    return [*window, future.demand[:end]] if replicas < workload.commanded else window


def load_misses(workload: Workload, future: Future, replicas: int) -> float:
    """Share of requests that misses for the load: as of a steady demand for what the worst stretch needs."""
    curve = workload.allowed, workload.steepness
    needed = max(needed_rate(curve, tuple(demand)) for demand in stretches(workload, future, replicas))
    return stretch_misses(curve, [needed], future.capacity * replicas)


def stretch_misses(curve: tuple[float, float], demand: Sequence[float], rate: float) -> float:
    allowed, steepness = curve
    odds = 1.0 / allowed - 1.0
    total = sum(demand)
    if total <= 0:
        return 0.0
    if rate <= 0:
        return 1.0
    # A power in logarithms, so that a steep curve of all or nothing overflows nowhere.
    powers = [math.exp(min(steepness * math.log(rate / d), 700.0)) if d > 0 else math.inf for d in demand]
    return sum(d / (1.0 + odds * p) for d, p in zip(demand, powers, strict=True)) / total


@lru_cache(maxsize=8192)
def needed_rate(curve: tuple[float, float], demand: tuple[float, ...]) -> float:
    """The rate at which just the allowed share of a stretch misses, by bisection; whatever the count, so kept."""
    low, high = 0.0, max(demand)
    for _ in range(60):
        middle = (low + high) / 2
        if stretch_misses(curve, demand, middle) > curve[0]:
            low = middle
        else:
            high = middle
    return high


def risk(workload: Workload, futures: Sequence[Future], replicas: int) -> Risk:
    """What `replicas` bring over the futures; where replicas fall behind at least half is expected to miss."""
    missed, behind, shares = 0, 0, []
    for future in futures:
        late, in_time = queue_verdict(workload, future, replicas)
        missed += is_missed(workload, future, replicas, late)
        behind += not in_time
        share = load_misses(workload, future, replicas)
        shares.append(share if in_time else max(share, 0.5))
    return Risk(missed / len(futures), behind / len(futures), tuple(shares))


@dataclass(frozen=True)
class Choice:
    """The cheapest count and the fewest with which replicas seldom fall behind; one above the bounds: none.

    Attributes:
        cost: of the cheapest count, in replicas.
        load: in replicas, that all missed requests together are worth.
    """

    cheapest: int
    bound: int
    cost: float
    load: float


def choose(
    workload: Workload, futures: Sequence[Future], price: float, epsilon: float, low: int, high: int, horizon: int
) -> Choice:
    """Try all counts of low..high.

    A count costs its replicas, and the requests that are expected to miss at their price. With none of the counts that
    are tried more than three in ten requests may be expected to miss.

    Args:
        price: replicas, of a replica's worth of missed requests.
        horizon: steps of which the demand is the mean.
    """
    demand = fmean(rate for future in futures for rate in future.demand[:horizon])
    load = demand * fmean(1.0 / future.capacity for future in futures)
    cheapest, bound, least = high + 1, high + 1, math.inf
    for count in range(low, high + 1):
        if count > least and bound <= high:
            break
        at = risk(workload, futures, count)
        cost = count + price * load * at.share
        if at.share <= HOPELESS and cost < least:
            cheapest, least = count, cost
        if at.behind <= epsilon:
            bound = min(bound, count)
    return Choice(cheapest, bound, least, load)


def lead_in_steps(lead_s: float, step_s: float, window_steps: int, horizon_steps: int) -> int:
    """First step that begins after the lead time, cut so that the window ends within the horizon."""
    return min(max(math.ceil(lead_s / step_s - 1e-9), 0), max(horizon_steps - window_steps, 0))


def futures_of(
    paths: Iterable[Sequence[float]],
    capacities: Sequence[float],
    leads: Sequence[int],
    draws_per_path: int,
    seed: int,
    bearing: tuple[float, float] | None = None,
) -> list[Future]:
    """Each path with independent draws from two lists of equally likely values.

    Args:
        bearing: requests of the window, and how many of them may miss; None: they are too many to be counted.
    """
    rng = random.Random(seed)

    def tolerance() -> float | None:
        if bearing is None:
            return None
        requests, may_miss = bearing
        return min(2.0 * rng.gammavariate(may_miss / 2.0 + 0.5, 1.0) / requests, 0.5)

    return [
        Future(path, rng.choice(capacities), rng.choice(leads), tolerance())
        for path in paths
        for _ in range(draws_per_path)
    ]
