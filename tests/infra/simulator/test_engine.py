from __future__ import annotations

import dataclasses
import math
import random

import pytest

from infra.simulator.engine import ReplicaEngine
from infra.simulator.ledger import Request
from infra.simulator.profiles import BUILT_IN_PROFILES, EngineProfile
from tests.oracles.physics_oracle import Costs, Outcome, simulate

SMALL = EngineProfile(
    "small",
    0.03,
    2e-4,
    4e-4,
    8e-7,
    kv_capacity_tokens=3000,
    max_batch=12,
    max_prefill_tokens=128,
    prefill_token_sq_s=3e-9,
)


def costs_of(profile: EngineProfile) -> Costs:
    values = dataclasses.asdict(profile)
    return Costs(**{f.name: values[f.name] for f in dataclasses.fields(Costs)})


def serve(profile: EngineProfile, arrivals: list[tuple[float, int, int]]) -> list[Request]:
    engine = ReplicaEngine(profile)
    requests = [Request(i, *a) for i, a in enumerate(arrivals)]
    for request in requests:
        engine.advance(request.arrival_s)
        engine.dispatch(request, request.arrival_s)
    engine.advance(1e9)
    assert engine.outstanding == 0
    assert sorted(r.request_id for r in engine.finished) == [r.request_id for r in requests if not r.refused]
    return requests


def workload(rng: random.Random, n: int, rate: float, prompt: int, output: int) -> list[tuple[float, int, int]]:
    t, arrivals = 0.0, []
    for _ in range(n):
        t += rng.expovariate(rate) if rng.random() > 0.1 else 0.0
        arrivals.append((t, 1 + int(rng.expovariate(1 / prompt)), 1 + int(rng.expovariate(1 / output))))
    return arrivals


def assert_same(requests: list[Request], outcome: Outcome) -> None:
    for mine, theirs in zip(requests, outcome.jobs, strict=True):
        assert mine.refused == theirs.refused
        for a, b in ((mine.first_token_s, theirs.first_token_s), (mine.finish_s, theirs.finish_s)):
            assert math.isclose(a, b, rel_tol=1e-9) or (math.isnan(a) and math.isnan(b))


def random_profile(rng: random.Random) -> EngineProfile:
    return EngineProfile(
        "random",
        base_s=rng.uniform(0.005, 0.06),
        prefill_token_s=rng.uniform(0, 4e-4),
        sequence_s=rng.uniform(0, 6e-4),
        kv_token_s=rng.choice([0.0, rng.uniform(0, 2e-6)]),
        kv_capacity_tokens=rng.randint(300, 8000),
        max_batch=rng.randint(1, 40),
        max_prefill_tokens=rng.choice([1, 16, 64, 256, 1024]),
        prefill_token_sq_s=rng.choice([0.0, rng.uniform(0, 1e-8)]),
        admission_watermark=rng.choice([0.0, 0.01, 0.2]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_same_times_as_the_iteration_by_iteration_oracle(seed: int) -> None:
    rng = random.Random(seed)
    profile = random_profile(rng)
    arrivals = workload(rng, 60, rng.choice([0.5, 3.0, 20.0]), rng.choice([20, 150, 600]), rng.choice([1, 30, 200]))
    assert_same(serve(profile, arrivals), simulate(costs_of(profile), arrivals))


def test_the_random_workloads_reach_every_rule() -> None:
    preemptions = watermark = batch = refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        profile = random_profile(rng)
        arrivals = workload(rng, 60, rng.choice([0.5, 3.0, 20.0]), rng.choice([20, 150, 600]), rng.choice([1, 30, 200]))
        outcome = simulate(costs_of(profile), arrivals)
        preemptions += outcome.events.preemptions
        watermark += outcome.events.blocked_by_watermark
        batch += outcome.events.blocked_by_batch
        refused += sum(job.refused for job in outcome.jobs)
    assert min(preemptions, watermark, batch, refused) > 20


@pytest.mark.parametrize("name", sorted(BUILT_IN_PROFILES))
def test_built_in_profiles_against_the_oracle(name: str) -> None:
    profile = BUILT_IN_PROFILES[name]
    arrivals = workload(random.Random(7), 60, 3.0, 900, 100)
    assert_same(serve(profile, arrivals), simulate(costs_of(profile), arrivals))


# Dyadic costs make every sum exact in binary, so that ties are real ties.
DYADIC = EngineProfile(
    "dyadic", 0.25, 0.0, 0.0, 0.0, kv_capacity_tokens=1000, max_batch=4, max_prefill_tokens=100, admission_watermark=0.0
)


def test_a_request_sent_at_an_iteration_boundary_joins_there() -> None:
    first, second = serve(DYADIC, [(0.0, 10, 8), (0.5, 10, 1)])
    assert (first.first_token_s, first.finish_s) == (0.25, 2.0)
    assert second.first_token_s == 0.75


def test_a_request_sent_within_an_iteration_waits_for_its_end() -> None:
    _, second = serve(DYADIC, [(0.0, 10, 8), (0.5625, 10, 1)])
    assert second.first_token_s == 1.0


def test_requests_of_one_instant_share_the_first_iteration() -> None:
    a, b = serve(DYADIC, [(3.0, 10, 1), (3.0, 10, 1)])
    assert a.first_token_s == b.first_token_s == 3.25


def test_long_prompts_are_chunked_and_decoding_goes_on() -> None:
    decoding, long = serve(DYADIC, [(0.0, 10, 8), (0.25, 250, 1)])
    assert decoding.finish_s == 2.0
    assert long.first_token_s == 1.0


def test_nothing_finishes_early_for_the_router() -> None:
    engine = ReplicaEngine(DYADIC)
    engine.advance(0.0)
    engine.dispatch(Request(0, 0.0, 10, 3), 0.0)
    for now_s, outstanding in ((0.0, 1), (0.6, 1), (0.749, 1), (0.75, 0)):
        engine.advance(now_s)
        assert engine.outstanding == outstanding


def test_a_single_request_may_fill_the_cache_and_a_larger_one_is_refused() -> None:
    fits, not_fits = serve(DYADIC, [(0.0, 990, 10), (0.0, 990, 11)])
    assert not math.isnan(fits.finish_s)
    assert not_fits.refused
    assert math.isnan(not_fits.finish_s)


@pytest.mark.parametrize("seed", range(5))
def test_state_counts_tokens_of_ended_iterations_only(seed: int) -> None:
    rng = random.Random(100 + seed)
    arrivals = workload(rng, 30, 3.0, 150, 60)
    reference = simulate(costs_of(SMALL), arrivals)
    engine = ReplicaEngine(SMALL)
    pending = [Request(i, *a) for i, a in enumerate(arrivals)]
    last_s = max(job.finish_s for job in reference.jobs if not job.refused)
    generated = [0]
    for now_s in sorted(rng.uniform(0, last_s) for _ in range(40)):
        while pending and pending[0].arrival_s <= now_s:
            request = pending.pop(0)
            engine.advance(request.arrival_s)
            engine.dispatch(request, request.arrival_s)
        engine.advance(now_s)
        state = engine.state(now_s)
        assert state.running + state.waiting == engine.outstanding
        assert 0.0 <= state.kv_usage_ratio <= 1.0
        assert 0.0 <= state.prefill_s <= state.busy_s <= now_s
        generated.append(state.generation_tokens_total)
        # Looking must not move anything: the next samples agree with a run that was never looked at.
        assert engine.state(now_s) == state
    assert generated == sorted(generated)
    for request in pending:
        engine.advance(request.arrival_s)
        engine.dispatch(request, request.arrival_s)
    engine.advance(1e9)
    assert engine.generation_tokens_total == sum(a[2] for a in arrivals)
    assert engine.prompt_tokens_total == sum(a[1] for a in arrivals)
    assert engine.busy_s <= last_s
