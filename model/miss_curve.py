"""What share of requests misses at a load: little below capacity, more and more above, all in the end.

A replica that is offered x times its capacity misses the share g(x) = 1 / (1 + (1/a - 1) x^-p) of its requests. `a` is
the share that the objective allows, so that capacity is the load at which just that many miss, and `p`, the steepness,
says how fast misses grow: by a power p of the load at first. At x = (1/a - 1)^(1/p), the *headroom*, half of all miss;
what is offered beyond that is no longer served as fast as it comes, and queues.

On a stretch of steps with demands d the share that misses when rate r can be served within the SLO is the mean of
g(d / r) weighted by d. The rate at which it is just `a` is what the stretch needs (`load_rates`); served by another
rate its share is taken to be g(needed / rate), which is exact for a steady demand.
"""

from __future__ import annotations

from typing import Final

from model.compiled import compiled

LEAST_ALLOWED: Final = 1e-4  # an objective of all requests cannot be told from one of nearly all by what is seen
MOST_ALLOWED: Final = 0.5


@compiled
def odds_against(allowed: float) -> float:
    """1/a - 1, of a share of misses allowed."""
    return 1.0 / min(max(allowed, LEAST_ALLOWED), MOST_ALLOWED) - 1.0


@compiled
def headroom(allowed: float, steepness: int) -> float:
    """How many times its capacity a replica can be offered before it falls behind; at least 1."""
    return float(odds_against(allowed) ** (1.0 / steepness))


@compiled
def share_missed(needed: float, served: float, odds: float) -> float:
    """Share of requests that miss where `needed` would have to be served and `served` is; 0 without demand.

    Args:
        needed, served: requests/s, or replicas, to the power of the steepness.
        odds: `odds_against` of the share of misses allowed.
    """
    return needed / (needed + odds * served) if needed > 0.0 else 0.0
