"""Prefill and decode on GPUs of their own, or together: which mode serves more requests per GPU within the SLO?

Both modes pass the load test of `infra.simulator.sizing`. Together, each replica does both. Split, a prefill pool makes
the first token and a decode pool the others. The decode pool takes over the cache of the prompt, which takes time, and
a request that waits there waits within its time per token. Each mode has the chunk of prompt tokens that suits it best.

Source: Zhong et al., "DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model
Serving", OSDI 2024, for goodput per GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster, ConstantLeadTime
from infra.simulator.ledger import Objective, Request
from infra.simulator.profiles import EngineProfile
from infra.simulator.sizing import DRAIN_S, POOL, TEST_S, drawn_load, settled_s

CHUNKS = (512, 1024, 2048, 4096, 8192)
"""Prompt tokens per iteration that are tried beside the profile's."""
# Parts of the allowed misses that the prefill pool may have; the decode pool has the others.
_PREFILL_PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)
# Bisections of a rate, and the factor about a first guess within which it lies.
_STEPS = 7
_RANGE = 64.0
# Prompt tokens per iteration of a decode pool: caches that are handed over cost no computation.
_ALL_AT_ONCE = 10**9


@dataclass(frozen=True, slots=True)
class ServingModes:
    """Requests/s within the SLO.

    Attributes:
        together_rps: of a replica that does both; None: it cannot keep the SLO.
        prefill_rps, decode_rps: of a replica of either pool; None: it cannot keep its part of the SLO.
        together_chunk, prefill_chunk: prompt tokens per iteration with which these were found.
        gpus_per_replica: in either mode.
    """

    together_rps: float | None
    prefill_rps: float | None
    decode_rps: float | None
    together_chunk: int
    prefill_chunk: int
    gpus_per_replica: int

    @property
    def together_per_gpu_rps(self) -> float:
        return (self.together_rps or 0.0) / self.gpus_per_replica

    @property
    def split_per_gpu_rps(self) -> float:
        """With as many replicas in each pool as the other can feed."""
        if self.prefill_rps is None or self.decode_rps is None:
            return 0.0
        return 1.0 / (1.0 / self.prefill_rps + 1.0 / self.decode_rps) / self.gpus_per_replica

    def gpus(self, rate_rps: float) -> dict[str, int]:
        """GPUs in whole replicas for a load, by mode; modes that cannot keep the SLO are left out."""
        counts = {}
        if self.together_rps is not None:
            counts["together"] = _count(rate_rps, self.together_rps)
        if self.prefill_rps is not None and self.decode_rps is not None:
            counts["split"] = _count(rate_rps, self.prefill_rps) + _count(rate_rps, self.decode_rps)
        return {mode: count * self.gpus_per_replica for mode, count in counts.items()}

    def better(self, rate_rps: float | None = None) -> str:
        """`together` or `split`: fewer GPUs for a load, or more requests/s per GPU. Ties are for together."""
        if rate_rps is not None:
            return min(self.gpus(rate_rps).items(), key=lambda mode: mode[1])[0]
        return "split" if self.split_per_gpu_rps > self.together_per_gpu_rps else "together"


def serving_modes(
    profile: EngineProfile,
    lengths: Arrivals,
    objective: Objective,
    share: float,
    seed: int,
    handover_token_s: float = 0.0,
    chunks: Sequence[int] = CHUNKS,
) -> ServingModes:
    """Load tests of both modes.

    Args:
        lengths: requests whose token counts are drawn from, with replacement; their times do not matter.
        share: of the requests that must be good.
        handover_token_s: time to hand over the cache of a prompt token.
    """

    def in_time(request: Request) -> bool:
        return request.ttft_s <= objective.ttft_s

    def at_pace(request: Request) -> bool:
        handed_s = request.arrival_s - handover_token_s * request.prompt_tokens
        return request.finish_s - handed_s <= objective.tpot_s * request.output_tokens

    prompts = replace(lengths, output_tokens=np.ones_like(lengths.output_tokens))
    goes_on = lengths.output_tokens > 1
    answers = Arrivals(lengths.arrival_s[goes_on], lengths.prompt_tokens[goes_on], lengths.output_tokens[goes_on] - 1)
    sizes = sorted({profile.max_prefill_tokens, *chunks})
    tried = [replace(profile, max_prefill_tokens=size) for size in sizes]
    together = [_goodput(one, lengths, objective.met, share, seed) for one in tried]
    decoder = replace(profile, prefill_token_s=0.0, prefill_token_sq_s=0.0, max_prefill_tokens=_ALL_AT_ONCE)
    best = _best(together)
    modes = []
    for part in _PREFILL_PARTS:
        may_miss = part * (1.0 - share), (1.0 - part) * (1.0 - share)
        prefill = [_goodput(one, prompts, in_time, 1.0 - may_miss[0], seed) for one in tried]
        decode = _goodput(decoder, answers, at_pace, 1.0 - may_miss[1], seed) if len(answers) else math.inf
        fast = _best(prefill)
        modes.append(
            ServingModes(together[best], prefill[fast], decode, sizes[best], sizes[fast], profile.gpus_per_replica)
        )
    return max(modes, key=lambda mode: mode.split_per_gpu_rps)


def _best(rates: Sequence[float | None]) -> int:
    return max(range(len(rates)), key=lambda k: rates[k] or 0.0)


def _count(rate_rps: float, each_rps: float) -> int:
    return max(1, math.ceil(rate_rps / each_rps - 1e-9))


def _goodput(
    profile: EngineProfile, lengths: Arrivals, is_good: Callable[[Request], bool], share: float, seed: int
) -> float | None:
    """Largest Poisson rate per replica of a pool with which the share is good; None: not even a slow one."""
    mean = float(lengths.prompt_tokens.mean()), float(lengths.output_tokens.mean())
    start = math.log(profile.steady_rate(*mean, 4.0 * profile.base_s))
    low, high = start - math.log(_RANGE), start + math.log(_RANGE)
    if _good_share(profile, lengths, is_good, math.exp(low), seed) < share:
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = _good_share(profile, lengths, is_good, math.exp(middle), seed) >= share
        low, high = (middle, high) if enough else (low, middle)
    return math.exp(low)


def _good_share(
    profile: EngineProfile, lengths: Arrivals, is_good: Callable[[Request], bool], rate_rps: float, seed: int
) -> float:
    pool_rps = rate_rps * POOL
    load = drawn_load(lengths, pool_rps, max(200, min(6_000, int(pool_rps * TEST_S))), seed)
    cluster = Cluster(profile, POOL, ConstantLeadTime(0.0), Objective(math.inf, math.inf))
    cluster.feed(load)
    cluster.advance(float(load.arrival_s[-1]) + DRAIN_S)
    from_s = settled_s(load)
    scored = [request for request in cluster.requests if request.arrival_s >= from_s]
    return sum(map(is_good, scored)) / len(scored)
