"""What an operator's load test would say: requests/s per replica at which a small pool just keeps the objective."""

from __future__ import annotations

import math

import numpy as np

from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster
from infra.simulator.lead_time import ConstantLeadTime
from infra.simulator.ledger import Objective
from infra.simulator.profiles import Profile

POOL = 4
TEST_S, SETTLE_S, DRAIN_S = 900.0, 120.0, 300.0
_STEPS = 8


def benchmark_rps(profile: Profile, lengths: Arrivals, objective: Objective, share: float, seed: int) -> float | None:
    """Largest Poisson rate per replica of a pool of four with which `share` of the requests is good.

    Args:
        lengths: requests whose token counts are drawn from, with replacement; their times do not matter.

    Returns:
        None when not even one request at a time is good often enough: the objective cannot be kept by this engine.
    """
    if not len(lengths) or lone_attainment(profile, lengths, objective, seed) < share:
        return None
    mean = float(lengths.prompt_tokens.mean()), float(lengths.output_tokens.mean())
    start = profile.steady_rate(*mean, max(objective.tpot_s, 1.5 * profile.base_s))
    low, high = math.log(start / 8), math.log(start * 4)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        good = _attainment(profile, lengths, objective, math.exp(middle) * POOL, POOL, seed)
        low, high = (middle, high) if good >= share else (low, middle)
    return math.exp(low)


def lone_attainment(profile: Profile, lengths: Arrivals, objective: Objective, seed: int) -> float:
    """Share of requests that are good when each has a replica to itself."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(lengths), min(200, len(lengths)))
    spacing_s = 10.0 + float(lengths.output_tokens[chosen].max()) * (profile.base_s + profile.sequence_s) * 2
    times = np.arange(len(chosen), dtype=np.float64) * np.float64(spacing_s)
    load = Arrivals(times, lengths.prompt_tokens[chosen], lengths.output_tokens[chosen])
    return _served(profile, load, objective, 1, 0.0)


def _attainment(
    profile: Profile, lengths: Arrivals, objective: Objective, rate_rps: float, replicas: int, seed: int
) -> float:
    rng = np.random.default_rng(seed)
    count = max(50, min(20_000, int(rate_rps * TEST_S)))
    times = np.cumsum(rng.exponential(1 / rate_rps, count))
    chosen = rng.integers(0, len(lengths), count)
    load = Arrivals(times, lengths.prompt_tokens[chosen], lengths.output_tokens[chosen])
    return _served(profile, load, objective, replicas, min(SETTLE_S, float(times[-1]) / 4))


def _served(profile: Profile, load: Arrivals, objective: Objective, replicas: int, from_s: float) -> float:
    cluster = Cluster(profile, replicas, ConstantLeadTime(0.0), objective, score_from_s=from_s, keep_requests=False)
    cluster.feed(load)
    cluster.advance(float(load.arrival_s[-1]) + DRAIN_S)
    return cluster.scores.attainment or 0.0
