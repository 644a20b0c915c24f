"""The queue simulation against a plain loop, on hand-worked cases, and its laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from model.planning.search import risk_of
from tests.model.planning.futures import Futures, path_needs, queue_path_needs
from tests.oracles.queue_oracle import Case, looped

Whole = NDArray[np.int64]


def random_case(rng: np.random.Generator) -> Case:
    horizon, window = 12, 4
    level = rng.integers(0, 40) / 4
    steps = rng.integers(-6, 7, horizon) / 4 + rng.choice([0.0, level], horizon)
    pending = int(rng.integers(0, 4))
    known = int(rng.integers(0, pending + 1))
    arrivals = rng.integers(0, horizon, known)
    return Case(
        demand=[max(0.0, float(level + s)) for s in steps],
        capacity=float(rng.integers(2, 17) / 4),
        lead=int(rng.integers(0, horizon - window + 1)),
        ready=int(rng.integers(0, 8)),
        pending=pending,
        arrived=[int((arrivals <= t).sum()) for t in range(horizon)],
        backlog=float(rng.choice([0, 0, rng.integers(0, 160) / 4])),
        ttft_s=float(rng.choice([0.5, 2.0, 4.0])),
        objective=float(rng.choice([0.5, 0.875, 1.0])),
        window=window,
        step_s=2.0,
    )


def stacked(cases: list[Case]) -> Futures:
    """Cases as one batch, one path and one draw per row."""
    first = cases[0]
    return Futures(
        demand=np.array([[c.demand] for c in cases]),
        capacity=np.array([[c.capacity] for c in cases]),
        lead_steps=np.array([[c.lead] for c in cases]),
        ready=np.array([c.ready for c in cases]),
        pending=np.array([c.pending for c in cases]),
        arrived=np.array([c.arrived for c in cases]),
        backlog=np.array([c.backlog for c in cases]),
        ttft_s=np.array([c.ttft_s for c in cases]),
        objective=np.array([c.objective for c in cases]),
        steepness=np.full(len(cases), 10),
        window_steps=first.window,
        step_s=first.step_s,
    )


def steady(demand: list[float], capacity: float, lead: int, ready: int) -> Case:
    return Case(demand, capacity, lead, ready, 0, [0] * len(demand), 0.0, 2.0, 0.99, 4, 15.0)


def risky_futures(seed: int, rows: int = 6, paths: int = 32, repeats: int = 3, horizon: int = 16) -> Futures:
    """Rows in every situation: idle, in step, falling behind, with queues and pending replicas."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(5, 40, (rows, 1, 1))
    walk = np.exp(np.cumsum(rng.normal(0, 0.08, (rows, paths, horizon)), axis=2))
    pending = rng.integers(0, 3, rows)
    return Futures(
        demand=base * walk,
        capacity=rng.lognormal(np.log(3), 0.2, (rows, paths * repeats)),
        lead_steps=rng.integers(0, horizon - 3, (rows, paths * repeats)),
        ready=rng.integers(0, 16, rows),
        pending=pending,
        arrived=np.minimum(pending[:, None], (np.arange(horizon) > 5)[None] * 1),
        backlog=rng.choice([0.0, 3.0, 400.0], rows),
        ttft_s=np.full(rows, 2.0),
        objective=np.full(rows, 0.99),
        steepness=rng.choice([4, 10, 33], rows),
        window_steps=4,
        step_s=15.0,
    )


def bounds(rows: int, low: int, high: int) -> tuple[Whole, Whole]:
    return np.full(rows, low), np.full(rows, high)


def shares(needs: Whole, counts: range) -> NDArray[np.float64]:
    """Share [B, C] of futures that need more than each count."""
    return np.array([[(row > n).mean() for n in counts] for row in needs])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_queue_equals_a_plain_loop_at_every_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cases = [random_case(rng) for _ in range(300)]
    futures = stacked(cases)
    needs = queue_path_needs(futures, *bounds(len(cases), 0, 24))
    seen: set[bool] = set()
    for replicas in range(0, 25, 3):
        expected = [looped(c, replicas, excused=False) for c in cases]
        kept = [not looped(c, replicas, excused=True) for c in cases]
        assert (needs.missed[:, 0] > replicas).tolist() == expected
        assert (needs.kept[:, 0] <= replicas).tolist() == kept
        seen |= set(expected) | {k == e for k, e in zip(kept, expected, strict=True)}
    assert seen == {True, False}


def test_a_steady_load_needs_its_share() -> None:
    needs = queue_path_needs(stacked([steady([10.0] * 12, 2.5, 3, 8)]), *bounds(1, 1, 20))
    assert needs.missed.tolist() == needs.kept.tolist() == [[4]]


def test_a_wait_within_the_ttft_is_no_miss() -> None:
    """At 3 of the 4 replicas needed 2.5/s queue up: after the 7 steps to the window's end 262 requests wait 35 s.

    At 2 it is 525 requests and 105 s.
    """
    case = steady([10.0] * 12, 2.5, 3, 3)
    patience = (2.0, 36.0, 106.0)
    needs = [queue_path_needs(stacked([replace(case, ttft_s=s)]), *bounds(1, 1, 20)).kept.item() for s in patience]
    assert needs == [5, 3, 2]


def test_a_step_within_the_window_is_bought_and_one_beyond_is_not() -> None:
    """Demand doubles from step 5 on. Lead 5, window 4: steps 5..8 are answered for."""
    inside = steady([10.0] * 5 + [20.0] * 7, 2.5, 5, 4)
    beyond = steady([10.0] * 9 + [20.0] * 3, 2.5, 5, 4)
    needs = queue_path_needs(stacked([inside, beyond]), *bounds(2, 1, 20))
    assert needs.missed.tolist() == [[8], [4]]


def test_an_inherited_queue_is_worked_off_over_the_window() -> None:
    """Two replicas short for 3 steps leave 5/s x 45 s = 225 requests.

    Evenly over the 4 steps of the window that is 3.75/s more than the 15/s that arrive: 18.75/s = 7.5 replicas of 2.5.
    Cleared within 2 s at once, as not missing asks for, it takes 112.5/s = 45 replicas.
    """
    needs = queue_path_needs(stacked([steady([15.0] * 12, 2.5, 3, 4)]), *bounds(1, 1, 100))
    assert (needs.kept.item(), needs.missed.item()) == (8, 45)


def test_pending_replicas_come_when_they_are_known_to() -> None:
    """Load for 8 from step 2 on; 4 serve, 4 are pending; a new one would come at step 6."""
    demand = [10.0] * 2 + [20.0] * 10
    late = replace(steady(demand, 2.5, 6, 4), pending=4)
    in_time = replace(late, arrived=[0] * 2 + [4] * 10)
    needs = queue_path_needs(stacked([late, in_time]), *bounds(2, 1, 100))
    assert needs.missed[1].item() == needs.kept[1].item() == 8
    assert needs.kept[0].item() > 8
    # Withdrawing a pending replica is giving one up: it bites before the window.
    assert queue_path_needs(stacked([in_time]), *bounds(1, 1, 7)).missed.item() == 8


def test_giving_up_replicas_answers_for_the_time_before_the_window() -> None:
    """Load for 8 now, for 4 by the time a new replica could serve: 4 would do for the window, not for now."""
    falling = steady([20.0] * 4 + [5.0] * 8, 2.5, 8, 8)
    assert queue_path_needs(stacked([falling]), *bounds(1, 1, 20)).missed.item() == 8


def test_no_demand_needs_nothing_and_any_demand_something() -> None:
    idle, busy = steady([0.0] * 12, 2.5, 3, 0), steady([0.125] * 12, 2.5, 3, 0)
    needs = queue_path_needs(stacked([idle, busy]), *bounds(2, 0, 3))
    assert needs.missed[:, 0].tolist()[0] == 0
    assert needs.kept[:, 0].tolist() == [0, 1]


def test_one_above_the_bound_where_nothing_suffices() -> None:
    needs = queue_path_needs(stacked([steady([100.0] * 12, 2.5, 3, 4)]), *bounds(1, 1, 5))
    assert needs.kept.item() == needs.missed.item() == 6


@pytest.mark.parametrize("seed", range(5))
def test_risk_never_rises_with_replicas_nor_falls_with_demand_or_lost_capacity(seed: int) -> None:
    futures = risky_futures(seed)
    counts, wide = range(41), bounds(6, 0, 40)
    needs = path_needs(futures, *wide)
    risk = shares(needs.missed, counts)
    assert risk.max() == 1.0
    assert risk.min() < 0.5
    doubled = path_needs(replace(futures, demand=futures.demand * 2, backlog=futures.backlog * 2), *wide)
    weaker = path_needs(replace(futures, capacity=futures.capacity * 0.5), *wide)
    for worse in (doubled, weaker):
        assert (worse.missed >= needs.missed).all()
        assert (worse.kept >= needs.kept).all()
    assert (needs.kept <= needs.missed).all()


def picked(futures: Futures, rows: list[int]) -> Futures:
    names = (
        "demand",
        "capacity",
        "lead_steps",
        "ready",
        "pending",
        "arrived",
        "backlog",
        "ttft_s",
        "objective",
        "steepness",
    )
    return replace(futures, **{n: getattr(futures, n)[rows] for n in names})


def test_a_row_does_not_depend_on_its_batch() -> None:
    futures = risky_futures(3)
    needs = path_needs(futures, *bounds(6, 0, 40))
    for rows in ([5, 2, 0], [1], [3, 4]):
        alone = path_needs(picked(futures, rows), *bounds(len(rows), 0, 40))
        assert np.array_equal(alone.kept, needs.kept[rows])
        assert np.array_equal(alone.missed, needs.missed[rows])


def test_bounds_that_enclose_the_need_do_not_change_it() -> None:
    futures = risky_futures(4)
    wide, narrow = path_needs(futures, *bounds(6, 0, 200)), path_needs(futures, *bounds(6, 5, 12))
    assert np.array_equal(narrow.missed, wide.missed.clip(5, 13))
    assert np.array_equal(narrow.kept, wide.kept.clip(5, 13))


def test_the_standard_error_counts_paths_not_draws() -> None:
    """Eight paths, of which one misses under every draw: as uncertain as eight draws, however often it is drawn."""
    needs = np.tile(np.where(np.arange(8) == 0, 9, 3), 100)
    risks = [risk_of(needs, 8, count) for count in (2, 3, 9)]
    assert [p for p, _ in risks] == [1.0, 0.125, 0.0]
    assert risks[1][1] == pytest.approx((0.125 * 0.875 / 8) ** 0.5)
    assert all(stderr > 0 for _, stderr in risks)


def share_missed(demand: NDArray[np.float64], rate: float, allowed: float, steepness: int) -> float:
    """The mean of the curve over the steps, weighted by demand."""
    return float((demand / (1.0 + (1.0 / allowed - 1.0) * (rate / demand) ** steepness)).sum() / demand.sum())


@pytest.mark.parametrize("seed", range(3))
def test_at_the_rate_that_the_load_needs_just_the_allowed_share_misses(seed: int) -> None:
    futures = risky_futures(seed)
    needs = path_needs(futures, *bounds(6, 0, 200))
    paths = futures.demand.shape[1]
    for b in range(6):
        commanded = futures.ready[b] + futures.pending[b]
        for v in range(0, futures.capacity.shape[1], 7):
            path, lead = futures.demand[b, v % paths], futures.lead_steps[b, v]
            end, curve = lead + futures.window_steps, (0.01, int(futures.steepness[b]))
            inside = share_missed(path[lead:end], needs.load[b, v] * futures.capacity[b, v], *curve)
            assert inside == pytest.approx(0.01, rel=1e-4)
            since = [
                share_missed(path[k:end], needs.load_now[b, v] * futures.capacity[b, v], *curve) for k in (0, lead)
            ]
            assert max(since) == pytest.approx(0.01, rel=1e-4) or commanded == 0
            assert needs.load_now[b, v] >= needs.load[b, v]
            assert needs.missed[b, v] >= min(np.floor(needs.load[b, v]), 201)


def test_a_burst_of_one_step_asks_for_less_than_its_peak() -> None:
    """Three steps at 10/s and one at 20/s: with a curve of power 10 the mean matters, with one of 200 the peak does."""
    burst = steady([10.0] * 6 + [20.0] + [10.0] * 5, 2.5, 3, 4)
    soft, hard = (
        path_needs(replace(stacked([burst]), steepness=np.array([power])), *bounds(1, 1, 20)) for power in (10, 200)
    )
    assert soft.load.item() * 2.5 == pytest.approx(18.3, abs=0.3)
    assert hard.load.item() * 2.5 == pytest.approx(20.0, abs=0.1)


def test_all_that_is_needed_to_lose_nothing_or_half() -> None:
    """Objectives at the ends of what a curve can tell."""
    load = stacked([replace(steady([10.0] * 12, 2.5, 3, 4), objective=o) for o in (1.0, 0.5, 0.0)])
    needs = path_needs(load, *bounds(3, 0, 20))
    assert needs.load[:, 0].tolist() == pytest.approx([4.0, 4.0, 4.0])


def test_shapes_that_do_not_fit_are_named() -> None:
    futures = risky_futures(0)
    with pytest.raises(ValueError, match="lead_steps must be"):
        replace(futures, capacity=futures.capacity[:, :5])
    with pytest.raises(ValueError, match="window_steps must be in"):
        replace(futures, window_steps=99)
