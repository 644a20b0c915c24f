from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster, ConstantLeadTime, LognormalLeadTime
from infra.simulator.ledger import Histogram, Objective, Request, attainment, worst_window_attainment
from infra.simulator.profiles import EngineProfile
from tests.oracles.physics_oracle import Costs, gpu_seconds, simulate

OBJECTIVE = Objective(1.0, 0.25)
# A quarter of a second per iteration, whatever is in it: times are exact, and a request lasts output / 4 seconds.
QUARTER = EngineProfile("quarter", 0.25, 0.0, 0.0, 0.0, 100_000, 64, 10_000, gpus_per_replica=2)


def arrivals(*rows: tuple[float, int, int]) -> Arrivals:
    return Arrivals(
        np.array([r[0] for r in rows]), np.array([r[1] for r in rows]), np.array([r[2] for r in rows], np.int64)
    )


def quarter(replicas: int, *rows: tuple[float, int, int], lead_s: float = 2.0) -> Cluster:
    cluster = Cluster(QUARTER, replicas, ConstantLeadTime(lead_s), OBJECTIVE)
    cluster.feed(arrivals(*rows))
    return cluster


def test_the_least_loaded_replica_takes_a_request_and_ties_go_to_the_lowest_id() -> None:
    cluster = quarter(3, *[(0.0, 10, 8)] * 4, (0.125, 10, 4), (1.25, 10, 1))
    cluster.advance(5.0)
    # At 1.25 replica 1 has finished the short request in the same instant: iteration ends come first.
    assert [r.replica_id for r in cluster.requests] == [0, 1, 2, 0, 1, 1]


def test_without_a_ready_replica_requests_wait_at_the_gateway_until_the_instant_of_readiness() -> None:
    cluster = quarter(0, (0.5, 10, 1), (1.0, 10, 1), (2.0, 10, 1))
    cluster.set_replicas(2, 0.0)
    cluster.advance(1.75)
    assert (len(cluster.gateway), cluster.num_pending, cluster.outstanding) == (2, 2, 2)
    cluster.advance(2.0)
    assert len(cluster.gateway) == 0
    cluster.advance(3.0)
    # Both replicas become ready at 2.0 and share the queue; the arrival of that instant comes after it.
    assert [r.replica_id for r in cluster.requests] == [0, 1, 0]
    assert [r.first_token_s for r in cluster.requests] == [2.25] * 3


def test_scale_down_takes_the_newest_warming_one_first_then_the_least_loaded() -> None:
    cluster = quarter(3, *[(0.0, 10, 40)] * 4, (0.0, 10, 4))
    cluster.advance(0.5)
    assert cluster.set_replicas(5, 0.5).launched == (3, 4)
    cluster.advance(0.75)
    change = cluster.set_replicas(2, 0.75)
    assert (change.cancelled, change.drained) == ((4, 3), (2,))
    assert [r.release_s for r in cluster.replicas[3:]] == [0.75, 0.75]
    assert (cluster.num_current, cluster.num_draining) == (2, 1)
    cluster.advance(20.0)
    assert cluster.replicas[2].release_s == 10.0
    assert cluster.num_draining == 0


def test_a_draining_replica_gets_nothing_new_and_an_idle_one_leaves_at_once() -> None:
    cluster = quarter(2, (0.0, 10, 8), (1.0, 10, 4), (1.0, 10, 4))
    cluster.advance(0.5)
    assert cluster.set_replicas(1, 0.5).drained == (1,)
    assert cluster.replicas[1].release_s == 0.5
    cluster.advance(9.0)
    assert {r.replica_id for r in cluster.requests} == {0}


def test_draining_is_not_undone() -> None:
    cluster = quarter(1, (0.0, 10, 40))
    cluster.advance(1.0)
    cluster.set_replicas(0, 1.0)
    assert cluster.set_replicas(1, 1.0).launched == (1,)
    assert cluster.num_draining == 1


def test_cost_runs_from_command_to_release_and_is_clipped() -> None:
    cluster = quarter(1)
    cluster.advance(4.0)
    cluster.set_replicas(2, 4.0)
    cluster.advance(10.0)
    cluster.set_replicas(1, 10.0)
    cluster.advance(12.0)
    # Two GPUs each: replica 0 all 12 s, replica 1 from its command at 4 to 10, its warm-up included.
    assert cluster.gpu_seconds(0.0, 12.0) == 2 * (12 + 6)
    assert cluster.gpu_seconds(5.0, 8.0) == 2 * (3 + 3)


def test_a_lead_time_of_zero_serves_from_the_command_on() -> None:
    cluster = quarter(0, (0.5, 10, 1), (1.0, 10, 1), lead_s=0.0)
    cluster.advance(1.0)
    cluster.set_replicas(1, 1.0)
    cluster.advance(2.0)
    assert [r.first_token_s for r in cluster.requests] == [1.25, 1.25]


@pytest.mark.parametrize("seed", range(40))
def test_a_scaled_fleet_does_what_the_oracle_does_however_time_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    profile = EngineProfile(
        "random",
        base_s=rng.uniform(0.01, 0.05),
        prefill_token_s=rng.uniform(0, 4e-4),
        sequence_s=rng.uniform(0, 6e-4),
        kv_token_s=rng.uniform(0, 2e-6),
        kv_capacity_tokens=rng.randint(600, 5000),
        max_batch=rng.randint(2, 20),
        max_prefill_tokens=rng.choice([32, 256]),
        gpus_per_replica=2,
        admission_watermark=0.01,
    )
    rows, t = [], 0.0
    for _ in range(80):
        t += rng.expovariate(rng.choice([1.0, 8.0]))
        rows.append((t, 1 + int(rng.expovariate(1 / 200)), 1 + int(rng.expovariate(1 / 60))))
    actions = sorted((rng.uniform(0, t), rng.randint(0, 5)) for _ in range(8))
    actions.append((t + 1.0, 1))
    lead_s, end_s = rng.uniform(0.1, 10.0), t + 2_000.0
    costs = Costs(**{f.name: getattr(profile, f.name) for f in dataclasses.fields(Costs)})
    expected = simulate(costs, rows, 2, actions, lead_s)

    cluster = Cluster(profile, 2, ConstantLeadTime(lead_s), OBJECTIVE)
    cluster.feed(arrivals(*rows))
    for at_s, wanted in actions:
        for cut_s in sorted(rng.uniform(cluster.now_s, at_s) for _ in range(rng.randint(0, 20))):
            cluster.advance(cut_s)
        cluster.advance(at_s)
        cluster.set_replicas(wanted, at_s)
    cluster.advance(end_s)

    for mine, theirs in zip(cluster.requests, expected.jobs, strict=True):
        assert (mine.replica_id, mine.refused) == (theirs.server, theirs.refused)
        for a, b in ((mine.first_token_s, theirs.first_token_s), (mine.finish_s, theirs.finish_s)):
            assert math.isclose(a, b, rel_tol=1e-9) or (math.isnan(a) and math.isnan(b))
    for replica, server in zip(cluster.replicas, expected.servers, strict=True):
        for a, b in ((replica.ready_s, server.ready_s), (replica.release_s, server.release_s)):
            assert math.isclose(a, b, rel_tol=1e-9) or (math.isnan(a) and math.isnan(b))
    cost = gpu_seconds(expected, 10.0, t, profile.gpus_per_replica)
    assert cluster.gpu_seconds(10.0, t) == pytest.approx(cost, rel=1e-9)
    good = sum(OBJECTIVE.met(r) for r in cluster.requests)
    assert cluster.scores.num_good == good == sum(r.ledger.slo_good_total for r in cluster.replicas)
    assert cluster.scores.attainment == attainment(cluster.requests, OBJECTIVE, 0.0, math.inf)


def test_a_request_that_can_never_fit_is_a_miss_and_counted_as_over() -> None:
    cluster = quarter(1, (0.0, 100_000, 5), (0.0, 10, 1))
    cluster.advance(5.0)
    ledger = cluster.replicas[0].ledger
    assert (ledger.requests_started_total, ledger.requests_finished_total, ledger.slo_total) == (2, 2, 2)
    assert ledger.slo_good_total == 1
    assert cluster.scores.attainment == 0.5


def test_scores_count_by_arrival_from_the_given_instant_on() -> None:
    cluster = Cluster(QUARTER, 1, ConstantLeadTime(0.0), OBJECTIVE, score_from_s=1.0, keep_requests=False)
    cluster.feed(arrivals((0.875, 10, 1), (1.0, 10, 1), (2.0, 10, 4_000)))
    cluster.advance(10.0)
    assert (cluster.scores.num_arrived, cluster.scores.num_good) == (2, 1)
    assert (cluster.scores.so_far, cluster.scores.attainment) == (1.0, 0.5)
    assert cluster.requests == []


def test_the_objective_includes_its_bounds() -> None:
    request = Request(0, 1.0, 10, 5)
    request.first_token_s, request.finish_s = 2.0, 3.0
    assert OBJECTIVE.met(request)
    request.finish_s = 3.0001
    assert not OBJECTIVE.met(request)
    assert not OBJECTIVE.met(Request(1, 0.0, 10, 1))


def test_worst_window_takes_the_remainder_in_and_leaves_thin_windows_out() -> None:
    def request(arrival_s: float, good: bool) -> Request:
        r = Request(0, arrival_s, 1, 1)
        r.first_token_s = r.finish_s = arrival_s + (0.5 if good else 5.0)
        return r

    requests = [request(k * 0.1, good=k % 10 != 0) for k in range(100)]
    requests += [request(25.0, good=False), request(25.5, good=False)]
    # Windows of 10 s in [0, 26): [0, 10) holds 100 requests, [10, 26) two, under 5 % of the mean of 51.
    assert worst_window_attainment(requests, OBJECTIVE, 0.0, 26.0, 10.0) == 0.9
    requests.append(request(25.6, good=True))
    assert worst_window_attainment(requests, OBJECTIVE, 0.0, 26.0, 10.0) == pytest.approx(1 / 3)
    assert worst_window_attainment([], OBJECTIVE, 0.0, 26.0, 10.0) is None


def test_histogram_bounds_belong_to_their_bucket() -> None:
    h = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        h.observe(value)
    assert (h.cumulative(), h.count, h.sum) == ([2, 4], 5, 14.0)


def test_lognormal_lead_times_have_the_stated_mean_and_repeat() -> None:
    first, again = LognormalLeadTime(50.0, 0.3, 7), LognormalLeadTime(50.0, 0.3, 7)
    draws = [first.next_s() for _ in range(20_000)]
    assert draws[:100] == [again.next_s() for _ in range(100)]
    assert np.mean(draws) == pytest.approx(50.0, rel=0.01)
    assert np.std(np.log(draws)) == pytest.approx(0.3, rel=0.03)


def test_time_does_not_go_back() -> None:
    cluster = quarter(1)
    cluster.advance(5.0)
    with pytest.raises(ValueError, match="cannot go back"):
        cluster.advance(4.0)
    with pytest.raises(ValueError, match="out of order"):
        cluster.feed(arrivals((4.0, 1, 1)))
    with pytest.raises(ValueError, match="advance it first"):
        cluster.set_replicas(1, 6.0)
    with pytest.raises(ValueError, match=">= 0"):
        cluster.set_replicas(-1, 5.0)
