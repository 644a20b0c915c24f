"""The planner against brute force in plain Python: the risks it states, and that its count is the cheapest."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agents.planning.planner import PlanInput, PlanResult, plan
from agents.policy import Policy, Slo, WorkloadSpec
from model.calibration.budget import ErrorBudget
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from tests.oracles.planner_oracle import (
    Choice,
    Future,
    Risk,
    Workload,
    choose,
    futures_of,
    lead_in_steps,
    risk,
    stretch_misses,
)

STEP_MS = 15_000
HORIZON = 16
LEVELS = [(k + 0.5) / 512 for k in range(512)]
SIGMAS = 4.0
HOPELESS = 0.3  # share of misses from which on a count is too small whatever misses cost


@dataclass(frozen=True)
class Case:
    """A workload in plain numbers; `growth` per step, `spread` and `walk` of the paths' levels and steps.

    Attributes:
        factor: on the price of a miss before any was seen.
    """

    name: str
    rate: float
    ready: int
    remaining_s: tuple[float, ...] = ()
    unknown_pending: int = 0
    waiting: float = 0.0
    growth: float = 1.0
    spread: float = 0.1
    walk: float = 0.05
    ttft_s: float = 2.0
    objective: float = 0.99
    lead_outcomes: int = 20
    capacity_slots: int = 60
    epsilon: float = 0.05
    factor: float = 1.0
    highest: int = 40
    seed: int = 0


CASES = [
    Case("steady", rate=20.0, ready=12),
    Case("idle fleet", rate=6.0, ready=20),
    Case("growing", rate=15.0, ready=8, growth=1.06),
    Case("falling", rate=25.0, ready=14, growth=0.93),
    Case("pending in time", rate=16.0, ready=5, remaining_s=(10.0, 20.0, 200.0), growth=1.02),
    Case("pending, who knows when", rate=16.0, ready=6, unknown_pending=3, growth=1.03),
    Case("queue", rate=10.0, ready=6, waiting=150.0),
    Case("overload", rate=30.0, ready=9, waiting=20.0),
    Case("nothing suffices", rate=30.0, ready=8, highest=9),
    Case("capacity unsure", rate=12.0, ready=8, capacity_slots=0),
    Case("lead time unsure", rate=12.0, ready=6, growth=1.08, lead_outcomes=0),
    Case("loose objective", rate=15.0, ready=7, objective=0.6, walk=0.2),
    Case("patient", rate=15.0, ready=5, ttft_s=20.0, growth=1.03),
    Case("from zero", rate=5.0, ready=0),
    Case("dear misses", rate=20.0, ready=12, factor=4.0),
    Case("cheap misses", rate=20.0, ready=12, factor=1.0 / 6.0),
    Case("cheap misses and little risk of a queue", rate=20.0, ready=12, factor=1.0 / 6.0, objective=0.8, epsilon=0.01),
    Case(
        "a queue that is rarely too long",
        rate=18.54014459139553,
        ready=0,
        remaining_s=(119.4802640442499, 66.313802522522, 55.013310496676176),
        unknown_pending=2,
        waiting=100.0,
        growth=0.9441963146907122,
        objective=0.95,
        capacity_slots=40,
        epsilon=0.01,
        seed=346,
    ),
]


def paths_of(case: Case, num_paths: int) -> list[list[float]]:
    """Paths as float32 holds them, so that both sides see the same numbers."""
    rng = random.Random(case.seed + 1)
    paths = []
    for _ in range(num_paths):
        level, path = case.rate * math.exp(rng.gauss(0.0, case.spread)), []
        for _ in range(HORIZON):
            level *= case.growth * math.exp(rng.gauss(0.0, case.walk))
            path.append(level)
        paths.append(torch.tensor(path, dtype=torch.float32).tolist())
    return paths


def capacity_of(case: Case) -> CapacityPosterior:
    """About 2 requests/s, more or less well known."""
    posterior = CapacityPosterior(2.0, smoothing_s=0.0)
    for k in range(case.capacity_slots):
        factor = 0.7 + 0.6 * (k % 20) / 20
        posterior.observe(
            SlotEvidence(
                end_ts_ms=(k + 1) * STEP_MS,
                step_s=15.0,
                arrival_rate=2.0 * factor * 10,
                waiting=None,
                miss_ratio=0.0 if factor < 1.0 else 0.4,
                ready=10,
                pending=0,
                draining=0,
                ttft_s=2.0,
                objective=0.99,
            )
        )
    return posterior


def lead_of(case: Case) -> LeadTimePosterior:
    """About 50 s, more or less well known."""
    posterior = LeadTimePosterior(50.0)
    for k in range(case.lead_outcomes):
        posterior.update(50.0 * (1.0 + 0.1 * (k % 5 - 2)))
    return posterior


def price_of(case: Case) -> float:
    return case.factor * ErrorBudget().miss_price(case.objective)


def planned(case: Case, paths: list[list[float]]) -> PlanResult:
    slo = Slo(ttft_s=case.ttft_s, objective=case.objective)
    request = PlanInput(
        workload=case.name,
        origin_ts_ms=1_763_636_400_000 + case.seed * STEP_MS,
        step_ms=STEP_MS,
        spec=WorkloadSpec(case.name, min_replicas=1, max_replicas=case.highest, slo=slo),
        ready=case.ready,
        pending=len(case.remaining_s) + case.unknown_pending,
        draining=0,
        arrival_rate_now=case.rate,
        waiting_now=case.waiting,
        capacity=capacity_of(case),
        lead=lead_of(case),
        pending_remaining_s=case.remaining_s,
        price=price_of(case),
    )
    (result,) = plan([request], torch.tensor(paths)[None, ..., None], Policy(epsilon=case.epsilon))
    return result


def horizon_of(case: Case) -> int:
    return math.ceil((lead_of(case).quantile(0.95) + Policy().commit_s) / STEP_MS * 1000)


def plain(case: Case, paths: list[list[float]], draws: int) -> tuple[Workload, list[Future]]:
    """The same workload and draws of its futures, for the oracle."""
    step_s = STEP_MS / 1000
    window = math.ceil(Policy().commit_s / step_s)
    lead, horizon = lead_of(case), horizon_of(case)
    arrivals = [math.ceil(s / step_s) for s in case.remaining_s]
    known = [a if a < horizon else None for a in arrivals]  # beyond it: as one commanded now
    workload = Workload(
        ready=case.ready,
        arrivals=(*known, *(None,) * case.unknown_pending),
        waiting=case.waiting,
        ttft_s=case.ttft_s,
        objective=case.objective,
        window_steps=window,
        step_s=step_s,
        steepness=capacity_of(case).steepness,
    )
    capacities = capacity_of(case).quantiles(LEVELS).tolist()
    leads = [lead_in_steps(s, step_s, window, horizon) for s in lead.quantiles(LEVELS).tolist()]
    requests = fmean(rate for path in paths for rate in path[:horizon]) * window * step_s
    bearing = requests, (1.0 - case.objective) * requests
    return workload, futures_of(paths, capacities, leads, draws, case.seed, bearing)


def agrees(case: Case, num_paths: int = 64, draws: int = 16) -> None:
    """All stated risks within the error of the oracle's draws, and no count costs less that is safe from queues."""
    paths = paths_of(case, num_paths)
    result = planned(case, paths)
    workload, futures = plain(case, paths, draws)
    assert result.refused is None
    assert result.proposed is not None
    for stated in result.risks:
        truth = few = risk(workload, futures, stated.replicas)
        assert stated.miss_share is not None
        apart = abs(stated.p_miss - truth.missed), abs(stated.miss_share - truth.share)
        if apart[0] > _risk_error(few, truth) or apart[1] > _share_error(truth.shares):
            # What is rare comes from few futures; where few draws happened to hold too few of them, so many more tell.
            truth = risk(workload, plain(case, paths, 16 * draws)[1], stated.replicas)
        assert stated.p_miss == pytest.approx(truth.missed, abs=_risk_error(few, truth)), (stated, truth)
        assert stated.miss_share == pytest.approx(truth.share, abs=_share_error(truth.shares)), (stated, truth)
    found = choose(workload, futures, price_of(case), case.epsilon, 1, case.highest, horizon_of(case))
    _same_cost(case, workload, futures, found, result.proposals["cheapest"])
    _same_bound(case, workload, futures, found, result)


def _same_cost(case: Case, workload: Workload, futures: list[Future], found: Choice, cheapest: int) -> None:
    """The planner's cheapest count, or one from which neither neighbour costs less, within the error of the draws.

    Where a queue may grow, several counts can be such ones.
    """
    if cheapest == min(found.cheapest, case.highest):
        return
    least, most = max(cheapest - 1, 1), min(cheapest + 1, case.highest)
    fewer, own, further = (risk(workload, futures, count) for count in (least, cheapest, most))
    worth = price_of(case) * found.load
    error = worth * max(_share_error(each.shares) for each in (fewer, own, further))
    is_needed = least == cheapest or fewer.share > HOPELESS - error or worth * (fewer.share - own.share) >= 1.0 - error
    if is_needed and worth * (own.share - further.share) <= 1.0 + error:
        return
    assert found.cheapest <= case.highest
    best, other = (risk(workload, futures, count) for count in (found.cheapest, cheapest))
    dearer = [b - a for a, b in zip(best.shares, other.shares, strict=True)]
    more = cheapest - found.cheapest + price_of(case) * found.load * fmean(dearer)
    assert more <= price_of(case) * found.load * _share_error(dearer), (found, cheapest, more)


def _same_bound(case: Case, workload: Workload, futures: list[Future], found: Choice, result: PlanResult) -> None:
    """So many that replicas fall behind in a share epsilon of the futures at most, and no more than that asks for."""
    assert result.proposed is not None
    cheapest = result.proposals["cheapest"]
    assert result.proposed >= cheapest
    if result.proposer == "cheapest":
        assert result.proposed == cheapest
    wrong = range(result.proposed, min(found.bound, case.highest))  # more are asked for by the oracle
    if result.proposed > cheapest:
        wrong = range(min(found.bound, result.proposed), min(max(found.bound, result.proposed), case.highest))
    for count in wrong:
        truth = risk(workload, futures, count)
        # Judged by the error that epsilon would have: one future of 512 has next to none.
        assert abs(truth.behind - case.epsilon) <= SIGMAS * truth.stderr(case.epsilon), (count, found, result.proposer)


def _risk_error(few: Risk, truth: Risk) -> float:
    """Of two sets of draws on the same paths, the planner's no fewer than the oracle's first."""
    return SIGMAS * math.sqrt(2.0) * few.stderr(truth.missed)


def _share_error(shares: Sequence[float]) -> float:
    """Of two means over draws on the same paths, the planner's no fewer than the oracle's.

    A future that is rare may be among them or not.
    """
    middle, number = fmean(shares), len(shares)
    rare = max(0.5, *(abs(share - middle) for share in shares)) / number
    return SIGMAS * math.sqrt(2.0) * ((pstdev(shares) + 1e-4) / math.sqrt(number) + rare)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_risks_and_count_agree_with_brute_force(case: Case) -> None:
    agrees(case)


@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(
    rate=st.floats(0.5, 30.0),
    ready=st.integers(0, 16),
    remaining_s=st.lists(st.floats(1.0, 120.0), max_size=3).map(tuple),
    unknown_pending=st.integers(0, 2),
    waiting=st.sampled_from([0.0, 0.0, 5.0, 100.0]),
    growth=st.floats(0.93, 1.08),
    ttft_s=st.sampled_from([0.5, 2.0, 10.0]),
    objective=st.sampled_from([0.8, 0.95, 0.99, 1.0]),
    capacity_slots=st.sampled_from([0, 40]),
    lead_outcomes=st.sampled_from([0, 20]),
    epsilon=st.sampled_from([0.01, 0.05, 0.2]),
    factor=st.sampled_from([1.0 / 6.0, 1.0, 4.0]),
    seed=st.integers(0, 1000),
)
def test_any_workload_agrees_with_brute_force(seed: int, **numbers: object) -> None:
    agrees(replace(Case("any", rate=1.0, ready=1), seed=seed, **numbers), num_paths=32)  # type: ignore[arg-type]


def test_rare_futures_are_held_against_as_many_draws_as_show_them() -> None:
    """With 512 draws the oracle holds one of the eight futures that are to be expected."""
    rare = Case("any", 26.07421846193212, 6, (47.68563399885052, 78.79961309540668, 53.13350498506248), growth=0.99999)
    agrees(replace(rare, ttft_s=0.5, capacity_slots=0, epsilon=0.2, seed=467), num_paths=32)


def test_one_miss_of_few_draws_may_as_well_be_epsilon() -> None:
    """The oracle holds one of the five futures that are to be expected of 512 at a risk of one in a hundred."""
    near = Case("any", 26.500105671585974, 3, growth=0.9646965806061585, unknown_pending=1, waiting=5.0, ttft_s=10.0)
    agrees(replace(near, objective=0.8, capacity_slots=0, lead_outcomes=0, epsilon=0.01, seed=83), num_paths=32)


def test_the_oracle_itself_on_a_hand_worked_case() -> None:
    """Two replicas short for 3 steps leave 5/s x 45 s = 225 requests; worked off in 60 s that is 7.5 replicas more.

    With a curve so steep that a replica carries all or nothing, so that its headroom is none.
    """
    workload = Workload(4, (), 0.0, 2.0, 0.99, 4, 15.0, 10**6)
    futures = [Future([15.0] * 12, 2.5, 3)]
    assert [risk(workload, futures, n).behind for n in (7, 8)] == [1.0, 0.0]
    assert [risk(workload, futures, n).missed for n in (8, 44, 45)] == [1.0, 1.0, 0.0]
    assert choose(workload, futures, 36.0, 0.01, 1, 20, 7) == Choice(8, 8, 8.0, 6.0)
    assert choose(workload, futures, 36.0, 0.01, 1, 7, 7) == Choice(8, 8, math.inf, 6.0)
    # One future of two has twice the demand; at its capacity one request in a hundred misses.
    two = [Future([rate] * 12, 2.5, 3) for rate in (5.0, 10.0)]
    assert choose(workload, two, 36.0, 0.01, 1, 20, 7) == Choice(4, 4, pytest.approx(4.0 + 36.0 * 3.0 * 0.005), 3.0)
    # Replicas given up are missed from now on, but half of the futures may have a queue.
    assert choose(workload, two, 1.0, 0.5, 1, 20, 7).bound == 2


def test_the_oracle_itself_on_a_load_that_varies() -> None:
    """Power 10, one request in a hundred: at capacity one step in four misses 1 %, at a tenth above it 2.5 %."""
    workload = Workload(4, (), 0.0, 2.0, 0.99, 4, 15.0, 10)
    steady, bump = Future([10.0] * 12, 2.5, 3), Future([10.0] * 3 + [11.0] + [10.0] * 8, 2.5, 3)
    assert risk(workload, [steady], 4).share == pytest.approx(0.01, rel=1e-6)
    at_bump = 11.0 / (1 + 99 * (10 / 11) ** 10)
    assert stretch_misses((0.01, 10), bump.demand[3:7], 10.0) == pytest.approx((30.0 * 0.01 + at_bump) / 41.0)
    assert [risk(workload, [future], 4).missed for future in (steady, bump)] == [0.0, 1.0]
    assert workload.works_off(2.5) == pytest.approx(2.5 * 99**0.1)
