"""Sizing by simulation with knowledge of the future: the replicas a load needs, and the rate of one replica."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster, ConstantLeadTime
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile
from infra.simulator.shadows import HpaRule, HpaSettings, Shadow

WINDOW_S = 300.0
LEAD_IN_S = 120.0
# Shares of the sustainable concurrency that an operator would try, the cheapest first.
HPA_RATIOS = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
HPA_TRIAL_S = 1_800.0
SETTLE_S = 600.0
_BIN_S = 10.0


def fixed_need(
    profile: EngineProfile,
    arrivals: Arrivals,
    objective: Objective,
    share: float,
    start_s: float,
    end_s: float,
    most: int,
) -> int:
    """Fewest replicas that, held constant, keep `share` of the requests of `[start_s, end_s)` good.

    Requests of the two minutes before are served too, unscored. `most` when even that many do not suffice.
    """
    begin_s = max(0.0, start_s - LEAD_IN_S)
    load = arrivals.between(begin_s, end_s)

    def suffices(replicas: int) -> bool:
        cluster = Cluster(
            profile,
            replicas,
            ConstantLeadTime(0.0),
            objective,
            start_s=begin_s,
            score_from_s=start_s,
            keep_requests=False,
        )
        cluster.feed(load)
        cluster.advance(end_s + SETTLE_S)
        attained = cluster.scores.attainment
        return attained is None or attained >= share

    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle + 1, high)
    return low


def peak_need(profile: EngineProfile, arrivals: Arrivals, objective: Objective, share: float, most: int) -> int:
    """Fewest replicas that keep the objective in the busiest five minutes of a load."""
    if not len(arrivals):
        return 1
    start_s = _busiest_start_s(profile, arrivals)
    return fixed_need(profile, arrivals, objective, share, start_s, start_s + WINDOW_S, most)


def tuned_hpa_target(
    profile: EngineProfile,
    arrivals: Arrivals,
    objective: Objective,
    share: float,
    bounds: tuple[int, int],
    initial_replicas: int,
    lead_time_s: float,
) -> float:
    """The cheapest target (running + waiting per replica) with which a plain HPA kept the objective in a trial.

    The trial is the load's own first half hour: more than an operator could know, so that the comparison is not against
    a badly set one. The most careful target when none suffices.
    """
    trial = arrivals.between(0.0, HPA_TRIAL_S)
    if not len(trial):
        return 1.0
    tokens = float(trial.prompt_tokens.mean()), float(trial.output_tokens.mean())
    concurrency = profile.steady_concurrency(*tokens, objective.tpot_s)

    def suffices(target: float) -> bool:
        lead_time = ConstantLeadTime(lead_time_s)
        cluster = Cluster(profile, initial_replicas, lead_time, objective, keep_requests=False)
        hpa = Shadow("trial", cluster, HpaRule(HpaSettings(target, *bounds)))
        hpa.feed(trial)
        hpa.advance(HPA_TRIAL_S)
        hpa.settle(HPA_TRIAL_S + SETTLE_S)
        attained = cluster.scores.attainment
        return attained is not None and attained >= share

    # Attainment grows as the target shrinks, so bisection finds the first that suffices.
    low, high = 0, len(HPA_RATIOS) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(HPA_RATIOS[middle] * concurrency) else (middle + 1, high)
    return max(1.0, HPA_RATIOS[low] * concurrency)


def _busiest_start_s(profile: EngineProfile, arrivals: Arrivals) -> float:
    """Start of the five minutes that bring the most work, counted as time on an otherwise busy engine."""
    tokens = arrivals.prompt_tokens + arrivals.output_tokens / 2
    attention_s = profile.prefill_token_sq_s * arrivals.prompt_tokens**2 / 2
    work_s: NDArray[np.float64] = (
        profile.prefill_token_s * arrivals.prompt_tokens
        + attention_s
        + arrivals.output_tokens * (profile.sequence_s + profile.kv_token_s * tokens)
    )
    first_s = math.floor(arrivals.arrival_s[0] / _BIN_S) * _BIN_S
    bins = np.bincount(((arrivals.arrival_s - first_s) // _BIN_S).astype(np.int64), weights=work_s)
    width = min(len(bins), int(WINDOW_S / _BIN_S))
    sums = np.convolve(bins, np.ones(width), mode="valid")
    return float(first_s + int(np.argmax(sums)) * _BIN_S)


# Load test: the requests/s per replica at which a small pool just meets the objective.


POOL = 4
TEST_S, LOAD_TEST_SETTLE_S, DRAIN_S = 900.0, 120.0, 300.0
_STEPS = 8


def benchmark_rps(
    profile: EngineProfile, lengths: Arrivals, objective: Objective, share: float, seed: int
) -> float | None:
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


def lone_attainment(profile: EngineProfile, lengths: Arrivals, objective: Objective, seed: int) -> float:
    """Share of requests that are good when each has a replica to itself."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(lengths), min(200, len(lengths)))
    spacing_s = 10.0 + float(lengths.output_tokens[chosen].max()) * (profile.base_s + profile.sequence_s) * 2
    times = np.arange(len(chosen), dtype=np.float64) * np.float64(spacing_s)
    load = Arrivals(times, lengths.prompt_tokens[chosen], lengths.output_tokens[chosen])
    return _served(profile, load, objective, 1, 0.0)


def _attainment(
    profile: EngineProfile, lengths: Arrivals, objective: Objective, rate_rps: float, replicas: int, seed: int
) -> float:
    load = drawn_load(lengths, rate_rps, max(50, min(20_000, int(rate_rps * TEST_S))), seed)
    return _served(profile, load, objective, replicas, settled_s(load))


def drawn_load(lengths: Arrivals, rate_rps: float, count: int, seed: int) -> Arrivals:
    """Poisson arrivals with token counts drawn with replacement."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate_rps, count))
    chosen = rng.integers(0, len(lengths), count)
    return Arrivals(times, lengths.prompt_tokens[chosen], lengths.output_tokens[chosen])


def settled_s(load: Arrivals) -> float:
    """When a load test begins to count: the engines have filled."""
    return min(LOAD_TEST_SETTLE_S, float(load.arrival_s[-1]) / 4)


def _served(profile: EngineProfile, load: Arrivals, objective: Objective, replicas: int, from_s: float) -> float:
    cluster = Cluster(profile, replicas, ConstantLeadTime(0.0), objective, score_from_s=from_s, keep_requests=False)
    cluster.feed(load)
    cluster.advance(float(load.arrival_s[-1]) + DRAIN_S)
    return cluster.scores.attainment or 0.0
