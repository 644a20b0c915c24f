"""What the search for a count is asked, and what it answers, as arrays over B workloads."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Whole = NDArray[np.int64]

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
