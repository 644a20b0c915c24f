"""The planner: the cheapest count, bought in time, sensible at the edges, the same in any batch."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.planning.planner import LEVELS, PlanInput, PlanResult, horizon_steps, plan, reactive_replicas
from agents.policy import Policy, Slo, WorkloadSpec
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior, SlotEvidence

STEP_MS = 15_000
POLICY = Policy()
HORIZON = 24


def learned(capacity_rps: float, num_slots: int = 400) -> CapacityPosterior:
    """A capacity well known: good slots up to it, bad ones beyond."""
    return deepcopy(_learned(capacity_rps, num_slots))


@cache
def _learned(capacity_rps: float, num_slots: int) -> CapacityPosterior:
    posterior = CapacityPosterior(capacity_rps, smoothing_s=0.0)
    for k in range(num_slots):
        factor = 0.7 + 0.6 * (k % 40) / 40
        slot = SlotEvidence(
            end_ts_ms=(k + 1) * STEP_MS, step_s=15.0, arrival_rate=capacity_rps * factor * 10, waiting=None,
            miss_ratio=0.0 if factor < 1.0 else 0.4, ready=10, pending=0, draining=0, ttft_s=2.0, objective=0.99,
        )  # fmt: skip
        posterior.observe(slot)
    return posterior


def punctual(lead_s: float) -> LeadTimePosterior:
    """A lead time well known."""
    return deepcopy(_punctual(lead_s))


@cache
def _punctual(lead_s: float) -> LeadTimePosterior:
    posterior = LeadTimePosterior(lead_s)
    for _ in range(300):
        posterior.update(lead_s)
    return posterior


def request(workload: str = "chat", *, ready: int = 4, rate: float = 10.0, **changes: object) -> PlanInput:
    known = PlanInput(
        workload=workload,
        origin_ts_ms=1_763_636_400_000,
        step_ms=STEP_MS,
        spec=WorkloadSpec(workload, min_replicas=1, max_replicas=64, gpus_per_replica=2),
        ready=ready,
        pending=0,
        draining=0,
        arrival_rate_now=rate,
        waiting_now=0.0,
        capacity=learned(2.5),
        lead=punctual(60.0),
        last_replicas=ready,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def bounded(low: int, high: int, workload: str = "chat") -> WorkloadSpec:
    return WorkloadSpec(workload, min_replicas=low, max_replicas=high)


def level(rate: float | list[float], num_paths: int = 64, rows: int = 1) -> Tensor:
    """Paths [rows, S, H, 1] that all say the same."""
    steps = torch.tensor(rate if isinstance(rate, list) else [rate] * HORIZON)
    return steps.expand(rows, num_paths, -1)[..., None].clone()


def walks(seed: int, rates: list[float], num_paths: int = 128, spread: float = 0.08) -> Tensor:
    steps = torch.randn(len(rates), num_paths, HORIZON, generator=torch.Generator().manual_seed(seed)) * spread
    return (torch.tensor(rates)[:, None, None] * steps.cumsum(-1).exp())[..., None]


def single(known: PlanInput, paths: Tensor, policy: Policy = POLICY) -> PlanResult:
    (result,) = plan([known], paths, policy)
    return result


def test_a_step_of_demand_ahead_of_the_lead_time_is_bought_in_time() -> None:
    """Load for 4 now, for 8 from 75 s on; the lead time is 60 s, so replicas must be commanded now and not earlier."""
    now = single(request(ready=5), level([10.0] * 5 + [20.0] * (HORIZON - 5)))
    later = single(request(ready=5), level([10.0] * 10 + [20.0] * (HORIZON - 10)))
    assert now.proposer == "cheapest"
    assert now.proposed in (8, 9)
    assert later.proposed in (4, 5)


def test_stays_with_a_steady_load_and_gives_up_what_is_idle() -> None:
    assert single(request(ready=5), level(10.0)).proposed in (4, 5)
    assert single(request(ready=12), level(10.0)).proposed in (4, 5)


def test_keeps_what_is_needed_before_a_new_replica_could_serve() -> None:
    """The load falls in 30 s; until then 8 are needed, though the window itself asks for 4."""
    falling = level([19.0] * 2 + [10.0] * (HORIZON - 2))
    assert single(request(ready=9, rate=19.0), falling).proposed in (8, 9)


@pytest.mark.parametrize("seed", range(4))
def test_neither_a_replica_more_nor_one_less_costs_less(seed: int) -> None:
    rates = [6.0, 12.0, 25.0, 60.0]
    requests = [request(f"w{i}", ready=math.ceil(r / 1.4) + 1, rate=r, price=120.0) for i, r in enumerate(rates)]
    paths = walks(seed, rates)
    for row, result in enumerate(plan(requests, paths, POLICY)):
        assert result.proposed is not None
        assert (result.proposer, result.miss_price) == ("cheapest", 120.0)
        share = {r.replicas: r.miss_share for r in result.risks}
        load = float(paths[row, :, : math.ceil(120.0 / 15.0)].mean()) / 2.5
        cost = {n: n + 120.0 * load * s for n, s in share.items()}
        assert cost[result.proposed] <= 1.01 * min(cost[result.proposed - 1], cost[result.proposed + 1])
        assert [r.replicas for r in result.risks] == sorted(share)
        assert all(a.p_miss >= b.p_miss for a, b in zip(result.risks, result.risks[1:], strict=False))
        assert all(a.miss_share >= b.miss_share for a, b in zip(result.risks, result.risks[1:], strict=False))
        assert all(r.cost_gpu_hours == pytest.approx(r.replicas * 2 * 60 / 3600) for r in result.risks)
        assert all(r.p_miss_stderr > 0 for r in result.risks)


def test_a_higher_price_of_misses_needs_more_replicas() -> None:
    counts = [
        single(request(ready=40, rate=60.0, price=price), walks(0, [60.0])).proposed or 0
        for price in (5.0, 40.0, 120.0, 1000.0)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_heavier_requests_are_planned_like_more_of_them_and_the_forecast_stays_as_it_is() -> None:
    work = np.full((HORIZON, 64), 1.5, np.float32)
    work[: HORIZON // 3] = 1.0
    load = [10.0] * (HORIZON // 3) + [15.0] * (HORIZON - HORIZON // 3)
    (heavier,) = plan([request()], level(10.0), POLICY, work={0: work})
    (more,) = plan([request()], level(load), POLICY)
    (same,) = plan([request()], level(10.0), POLICY)
    assert heavier.proposed == more.proposed > same.proposed
    assert heavier.peak == same.peak


def test_a_smaller_risk_of_a_queue_needs_more_replicas_where_misses_are_cheap() -> None:
    cheap = request(ready=40, rate=60.0, price=2.0)
    results = [single(cheap, walks(0, [60.0]), replace(POLICY, epsilon=e)) for e in (0.9, 0.2, 0.05, 0.002)]
    counts = [result.proposed or 0 for result in results]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert (results[0].proposer, results[-1].proposer) == ("cheapest", "queue_bound")
    assert {result.proposals["cheapest"] for result in results} == {counts[0]}
    own = single(replace(cheap, epsilon=0.9), walks(0, [60.0]))
    assert (own.proposed, own.epsilon) == (counts[0], 0.9)


def test_no_price_lets_a_third_of_the_requests_miss() -> None:
    result = single(request(ready=4, price=1e-6, epsilon=0.999), level(10.0))
    assert result.proposed is not None
    assert next(r.miss_share for r in result.risks if r.replicas == result.proposed) <= 0.3


def test_less_certainty_of_capacity_or_lead_time_needs_more_replicas() -> None:
    paths = level([10.0] * 6 + [20.0] * (HORIZON - 6))
    sure = single(request(), paths).proposed or 0
    unsure = single(request(capacity=CapacityPosterior(2.5)), paths).proposed or 0
    assert unsure > sure
    slow = replace(POLICY, max_horizon=HORIZON)
    late = level([10.0] * 7 + [20.0] * (HORIZON - 7))
    assert (single(request(lead=LeadTimePosterior(60.0)), late, slow).proposed or 0) > (
        single(request(lead=punctual(40.0)), late, slow).proposed or 0
    )


def test_few_requests_miss_more_by_chance_than_many_at_the_same_load() -> None:
    """At a share of misses below the allowed one a window with few requests may still have too many."""

    def risks(per_unit: float) -> dict[int, float]:
        return {r.replicas: r.p_miss for r in single(request(ready=5, per_unit=per_unit), level(11.5)).risks}

    few, some, many = risks(0.2), risks(1.0), risks(1000.0)
    assert many[5] == 0.0
    assert 0.0 < some[5] < few[5]
    assert few[6] < few[5]


def test_a_queue_that_cannot_be_avoided_is_worked_off_not_cleared_at_any_price() -> None:
    """600 requests wait at a load for 4: evenly over 60 s that is 10/s more, with what replicas carry at their most."""
    result = single(request(ready=4, waiting_now=600.0, spec=bounded(1, 1024)), level(9.0))
    assert result.refused is None
    assert result.proposed is not None
    assert 6 <= result.proposed <= 9
    assert {r.replicas: r.p_miss for r in result.risks}[result.proposed] > 0.5


def test_the_most_there_is_when_nothing_suffices() -> None:
    result = single(request(spec=bounded(1, 6)), level(100.0))
    assert (result.proposed, result.proposer) == (6, "maximum")
    assert result.risks[-1].p_miss == 1.0


def test_pending_replicas_count_when_they_are_known_to_come() -> None:
    paths = level([9.0] * 2 + [18.0] * (HORIZON - 2))
    soon = single(request(ready=4, pending=4, pending_remaining_s=(10.0,) * 4), paths)
    unknown = single(request(ready=4, pending=4), paths)
    assert soon.proposed == 8
    assert (unknown.proposed or 0) > 8


def test_no_demand() -> None:
    assert single(request(rate=0.0), level(0.0)).proposed == 1
    zero = single(request(rate=0.0, spec=bounded(0, 8)), level(0.0))
    assert (zero.proposed, zero.reactive_replicas) == (0, 0)
    assert single(request(rate=0.0, ready=0, spec=bounded(0, 8)), level(0.0)).proposed == 0
    assert (single(request(rate=5.0, ready=0, spec=bounded(0, 8)), level(5.0)).proposed or 0) >= 2


def test_one_replica_and_fixed_bounds() -> None:
    assert single(request(ready=1, rate=1.0), level(1.0)).proposed == 1
    fixed = single(request(spec=bounded(3, 3)), level(100.0))
    assert fixed.proposed == 3
    assert [r.replicas for r in fixed.risks] == [3]
    assert single(request(ready=50, arrival_rate_now=1.0, spec=bounded(2, 6)), level(1.0)).proposed == 2


def test_undeclared_workloads_have_the_defaults() -> None:
    result = single(request(spec=None), level(9.0))
    assert result.proposed in (4, 5)


def test_unknown_capacity_keeps_what_there_is() -> None:
    unknown = CapacityPosterior(None)
    result = single(request(ready=3, pending=1, capacity=unknown), level(10.0))
    assert (result.proposed, result.proposer, result.capacity, result.risks) == (4, "capacity_unknown", None, ())
    assert result.reactive_replicas is None
    assert single(request(ready=0, capacity=unknown, spec=bounded(0, 4)), level(10.0)).proposed == 1
    assert single(request(ready=0, rate=0.0, capacity=unknown, spec=bounded(0, 4)), level(0.0)).proposed == 0
    assert single(request(ready=9, capacity=unknown, spec=bounded(1, 4)), level(10.0)).proposed == 4


def test_refuses_a_forecast_that_is_none() -> None:
    broken = level(10.0)
    broken[0, 3, 5] = math.nan
    results = plan([request("a"), request("b")], torch.cat((broken, level(10.0))), POLICY)
    assert [r.refused for r in results] == ["forecast", None]
    assert single(request(arrival_rate_now=0.0), -level(10.0)).proposed == 1


def test_unobserved_present_values() -> None:
    result = single(request(rate=math.nan, arrival_rate_now=None, waiting_now=None), level(9.0))
    assert result.reactive_replicas is None
    assert result.proposed in (4, 5)


def test_reactive_need_drains_the_queue_within_the_commit_time() -> None:
    assert reactive_replicas(request(rate=9.0, ready=1), 60.0) in (4, 5)
    assert reactive_replicas(request(rate=9.0, waiting_now=600.0), 60.0) in (8, 9)


def test_quantiles_and_window() -> None:
    result = single(request(), walks(1, [10.0], 256))
    assert result.peak is not None
    assert result.capacity is not None
    assert result.lead_time_s is not None
    for quantiles in (result.peak, result.capacity, result.lead_time_s):
        assert quantiles.levels == LEVELS
        assert list(quantiles.values) == sorted(quantiles.values)
    assert result.window_s == pytest.approx(result.lead_time_s.values[4] - result.lead_time_s.values[2] + 60.0)
    # Only what lies in the window counts: a spike before the lead time does not.
    spike = single(request(), level([90.0] + [10.0] * (HORIZON - 1)))
    assert spike.peak is not None
    assert spike.peak.values[-1] == 10.0


def test_proposals_are_within_bounds_and_named() -> None:
    result = single(request(ready=4, last_replicas=90), level(30.0))
    assert set(result.proposals) == {"cheapest", "quantile", "reactive", "last_plan"}
    assert result.proposals["last_plan"] == 64
    assert result.proposals["quantile"] in (12, 13)


def test_a_row_does_not_depend_on_its_batch() -> None:
    rates = [3.0, 9.0, 20.0, 45.0, 0.0, 14.0]
    requests = [request(f"w{i}", ready=max(1, round(r / 2)), rate=r) for i, r in enumerate(rates)]
    requests[1] = replace(requests[1], waiting_now=300.0)
    requests[2] = replace(requests[2], lead=LeadTimePosterior(90.0))
    requests[3] = replace(requests[3], pending=3, pending_remaining_s=(20.0, 40.0))
    requests[5] = replace(requests[5], capacity=CapacityPosterior(None))
    paths = walks(5, rates)
    together = plan(requests, paths, Policy())
    order = [4, 2, 0, 5, 3, 1]
    shuffled = plan([requests[i] for i in order], paths[order], Policy())
    assert [shuffled[order.index(i)] for i in range(6)] == together
    longer = torch.cat((paths, paths.flip(2)), dim=2)  # steps beyond a row's horizon are not its own
    assert [plan([r], longer[i : i + 1], Policy())[0] for i, r in enumerate(requests)] == together


def test_draws_depend_on_workload_origin_and_seed() -> None:
    paths = walks(2, [10.0])
    base = single(request(capacity=CapacityPosterior(2.5)), paths)
    changed = [
        single(request(capacity=CapacityPosterior(2.5), workload="other"), paths),
        single(request(capacity=CapacityPosterior(2.5), origin_ts_ms=1_763_636_415_000), paths),
        single(request(capacity=CapacityPosterior(2.5)), paths, replace(POLICY, seed=1)),
    ]
    assert single(request(capacity=CapacityPosterior(2.5)), paths) == base
    assert all(c.risks != base.risks for c in changed)
    assert all(abs((c.proposed or 0) - (base.proposed or 0)) <= 2 for c in changed)


def test_the_other_indicators_are_not_read() -> None:
    paths = torch.cat((level(500.0), level(9.0)), dim=-1)
    (result,) = plan([request()], paths, POLICY, indicator=1)
    assert result.proposed in (4, 5)


def test_a_delay_before_the_command_counts_as_lead_time() -> None:
    """Replicas commanded 30 s after the origin answer for later steps."""
    paths = level([10.0] * 9 + [20.0] * (HORIZON - 9))
    assert single(request(), paths).proposed in (4, 5)
    (delayed,) = plan([request()], paths, POLICY, delay_s=30.0)
    assert delayed.proposed in (8, 9)


def test_a_strict_objective_needs_more_than_a_loose_one() -> None:
    """One step in four of the window is over: a quarter of its requests."""
    bump = level([10.0] * 5 + [20.0] + [10.0] * (HORIZON - 6))
    loose = WorkloadSpec("chat", max_replicas=64, slo=Slo(objective=0.3))
    assert (single(request(spec=loose), bump).proposed or 0) < (single(request(), bump).proposed or 0)


@pytest.mark.parametrize(
    ("lead_s", "step_ms", "expected"), [(120.0, 15_000, 12), (121.0, 15_000, 13), (1e6, 15_000, None), (0.0, 60_000, 1)]
)
def test_horizon(lead_s: float, step_ms: int, expected: int | None) -> None:
    assert horizon_steps(lead_s, 60.0, step_ms, 64) == expected


def test_paths_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"paths must be \[2, S, H, N\]"):
        plan([request(), request()], level(1.0), POLICY)
    with pytest.raises(ValueError, match="share one step length"):
        plan([request(), request(step_ms=5_000)], level(1.0, rows=2), POLICY)
    assert plan([], torch.zeros(0, 8, HORIZON, 1), POLICY) == []
