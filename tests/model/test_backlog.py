"""The queue simulation against a plain loop, on hand-worked cases, and its laws."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from model.backlog import miss_risk, path_misses, path_needs, risk_of
from model.futures import Futures, lead_steps


@dataclass(frozen=True)
class Case:
    """One future in plain numbers; eighths throughout, so that float32 and float64 agree to the bit."""

    demand: list[float]
    capacity: float
    lead: int
    ready: int
    pending: int
    arrived: list[int]
    backlog: float
    ttft_s: float
    objective: float
    window: int
    step_s: float


def looped(case: Case, replicas: int, *, excused: bool) -> bool:
    """Whether a future is missed (or not kept): the definition, one request step after the other."""
    commanded = case.ready + case.pending
    queue, inherited = case.backlog, 0.0
    missed = total = 0.0
    for t, rate in enumerate(case.demand):
        if t == case.lead:
            inherited = queue
        serving = case.ready + case.arrived[t]
        if t >= case.lead:
            serving += case.pending - case.arrived[-1]
        serving = min(replicas, serving)
        if t >= case.lead and replicas > commanded:
            serving += replicas - commanded
        capacity = case.capacity * serving
        after = max(0.0, queue + (rate - capacity) * case.step_s)
        inside = case.lead <= t < case.lead + case.window
        excuse_before = excuse_after = 0.0
        if excused and inside and replicas >= commanded:
            elapsed = t - case.lead
            excuse_before = inherited * (case.window - elapsed) / case.window
            excuse_after = inherited * (case.window - elapsed - 1) / case.window
        allowed = capacity * case.ttft_s
        late = queue - excuse_before > allowed or after - excuse_after > allowed
        scored = inside or (replicas < commanded and t < case.lead)
        missed += rate * case.step_s if late and scored else 0.0
        total += rate * case.step_s if inside else 0.0
        queue = after
    return missed > total * (1.0 - case.objective)


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
        demand=torch.tensor([[c.demand] for c in cases]),
        capacity=torch.tensor([[c.capacity] for c in cases]),
        lead_steps=torch.tensor([[c.lead] for c in cases]),
        ready=torch.tensor([c.ready for c in cases]),
        pending=torch.tensor([c.pending for c in cases]),
        arrived=torch.tensor([c.arrived for c in cases]),
        backlog=torch.tensor([c.backlog for c in cases]),
        ttft_s=torch.tensor([c.ttft_s for c in cases]),
        objective=torch.tensor([c.objective for c in cases], dtype=torch.float64),
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
        demand=torch.tensor(base * walk, dtype=torch.float32),
        capacity=torch.tensor(rng.lognormal(np.log(3), 0.2, (rows, paths * repeats)), dtype=torch.float32),
        lead_steps=torch.tensor(rng.integers(0, horizon - 3, (rows, paths * repeats))),
        ready=torch.tensor(rng.integers(0, 16, rows)),
        pending=torch.tensor(pending),
        arrived=torch.tensor(np.minimum(pending[:, None], (np.arange(horizon) > 5)[None] * 1)),
        backlog=torch.tensor(rng.choice([0.0, 3.0, 400.0], rows), dtype=torch.float32),
        ttft_s=torch.full((rows,), 2.0),
        objective=torch.full((rows,), 0.99, dtype=torch.float64),
        window_steps=4,
        step_s=15.0,
    )


def bounds(rows: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    return torch.full((rows,), low), torch.full((rows,), high)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_a_plain_loop_at_every_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cases = [random_case(rng) for _ in range(300)]
    futures = stacked(cases)
    needs = path_needs(futures, *bounds(len(cases), 0, 24))
    seen: set[bool] = set()
    for replicas in range(0, 25, 3):
        expected = [looped(c, replicas, excused=False) for c in cases]
        kept = [not looped(c, replicas, excused=True) for c in cases]
        assert path_misses(futures, torch.full((len(cases),), replicas))[:, 0].tolist() == expected
        assert (needs.missed[:, 0] > replicas).tolist() == expected
        assert (needs.kept[:, 0] <= replicas).tolist() == kept
        seen |= set(expected) | {k == e for k, e in zip(kept, expected, strict=True)}
    assert seen == {True, False}


def test_a_steady_load_needs_its_share() -> None:
    needs = path_needs(stacked([steady([10.0] * 12, 2.5, 3, 8)]), *bounds(1, 1, 20))
    assert needs.missed.tolist() == needs.kept.tolist() == [[4]]


def test_a_wait_within_the_ttft_is_no_miss() -> None:
    """At 3 of the 4 replicas needed 2.5/s queue up: after the 7 steps to the window's end 262 requests wait 35 s.

    At 2 it is 525 requests and 105 s.
    """
    case = steady([10.0] * 12, 2.5, 3, 3)
    needs = [path_needs(stacked([replace(case, ttft_s=s)]), *bounds(1, 1, 20)).kept.item() for s in (2.0, 36.0, 106.0)]
    assert needs == [5, 3, 2]


def test_a_step_within_the_window_is_bought_and_one_beyond_is_not() -> None:
    """Demand doubles from step 5 on. Lead 5, window 4: steps 5..8 are answered for."""
    inside = steady([10.0] * 5 + [20.0] * 7, 2.5, 5, 4)
    beyond = steady([10.0] * 9 + [20.0] * 3, 2.5, 5, 4)
    needs = path_needs(stacked([inside, beyond]), *bounds(2, 1, 20))
    assert needs.missed.tolist() == [[8], [4]]


def test_an_inherited_queue_is_worked_off_over_the_window() -> None:
    """Two replicas short for 3 steps leave 5/s x 45 s = 225 requests.

    Evenly over the 4 steps of the window that is 3.75/s more than the 15/s that arrive: 18.75/s = 7.5 replicas of 2.5.
    Cleared within 2 s at once, as not missing asks for, it takes 112.5/s = 45 replicas.
    """
    needs = path_needs(stacked([steady([15.0] * 12, 2.5, 3, 4)]), *bounds(1, 1, 100))
    assert (needs.kept.item(), needs.missed.item()) == (8, 45)


def test_pending_replicas_come_when_they_are_known_to() -> None:
    """Load for 8 from step 2 on; 4 serve, 4 are pending; a new one would come at step 6."""
    demand = [10.0] * 2 + [20.0] * 10
    late = replace(steady(demand, 2.5, 6, 4), pending=4)
    in_time = replace(late, arrived=[0] * 2 + [4] * 10)
    needs = path_needs(stacked([late, in_time]), *bounds(2, 1, 100))
    assert needs.missed[1].item() == needs.kept[1].item() == 8
    assert needs.kept[0].item() > 8
    # Withdrawing a pending replica is giving one up: it bites before the window.
    assert path_misses(stacked([in_time]), torch.tensor([7])).item()


def test_giving_up_replicas_answers_for_the_time_before_the_window() -> None:
    """Load for 8 now, for 4 by the time a new replica could serve: 4 would do for the window, not for now."""
    falling = steady([20.0] * 4 + [5.0] * 8, 2.5, 8, 8)
    assert path_needs(stacked([falling]), *bounds(1, 1, 20)).missed.item() == 8


def test_no_demand_needs_nothing_and_any_demand_something() -> None:
    idle, busy = steady([0.0] * 12, 2.5, 3, 0), steady([0.125] * 12, 2.5, 3, 0)
    needs = path_needs(stacked([idle, busy]), *bounds(2, 0, 3))
    assert needs.missed[:, 0].tolist()[0] == 0
    assert needs.kept[:, 0].tolist() == [0, 1]


def test_one_above_the_bound_where_nothing_suffices() -> None:
    needs = path_needs(stacked([steady([100.0] * 12, 2.5, 3, 4)]), *bounds(1, 1, 5))
    assert needs.kept.item() == needs.missed.item() == 6


@pytest.mark.parametrize("seed", range(5))
def test_risk_never_rises_with_replicas_nor_falls_with_demand_or_lost_capacity(seed: int) -> None:
    futures = risky_futures(seed)
    counts = torch.arange(0, 41).expand(6, -1)
    risk = miss_risk(futures, counts).p_miss
    assert (risk.diff(dim=1) <= 0).all()
    assert (risk >= 0).all()
    assert (risk <= 1).all()
    assert risk.max() == 1.0
    assert risk.min() < 0.5
    doubled = replace(futures, demand=futures.demand * 2, backlog=futures.backlog * 2)
    assert (miss_risk(doubled, counts).p_miss >= risk).all()
    weaker = replace(futures, capacity=futures.capacity * 0.5)
    assert (miss_risk(weaker, counts).p_miss >= risk).all()
    needs = path_needs(futures, *bounds(6, 0, 40))
    assert (needs.kept <= needs.missed).all()


def test_one_pass_and_bisection_agree() -> None:
    futures = risky_futures(7)
    needs = path_needs(futures, *bounds(6, 0, 40))
    for replicas in (0, 3, 7, 12, 25, 40):
        assert torch.equal(path_misses(futures, torch.full((6,), replicas)), needs.missed > replicas)


def picked(futures: Futures, rows: list[int]) -> Futures:
    index = torch.tensor(rows)
    tensors = {n: getattr(futures, n)[index] for n in ("demand", "capacity", "lead_steps", "ready", "pending")}
    more = {n: getattr(futures, n)[index] for n in ("arrived", "backlog", "ttft_s", "objective")}
    return replace(futures, **tensors, **more)


def test_a_row_does_not_depend_on_its_batch() -> None:
    futures = risky_futures(3)
    needs = path_needs(futures, *bounds(6, 0, 40))
    for rows in ([5, 2, 0], [1], [3, 4]):
        alone = path_needs(picked(futures, rows), *bounds(len(rows), 0, 40))
        assert torch.equal(alone.kept, needs.kept[rows])
        assert torch.equal(alone.missed, needs.missed[rows])


def test_bounds_that_enclose_the_need_do_not_change_it() -> None:
    futures = risky_futures(4)
    wide, narrow = path_needs(futures, *bounds(6, 0, 200)), path_needs(futures, *bounds(6, 5, 12))
    assert torch.equal(narrow.missed, wide.missed.clamp(5, 13))
    assert torch.equal(narrow.kept, wide.kept.clamp(5, 13))


def test_the_standard_error_counts_paths_not_draws() -> None:
    """Eight paths, of which one misses under every draw: as uncertain as eight draws, however often it is drawn."""
    needs = torch.where(torch.arange(8) == 0, 9, 3).repeat(100)[None]
    risk = risk_of(needs, torch.tensor([[2, 3, 9]]), 8)
    assert risk.p_miss[0].tolist() == [1.0, 0.125, 0.0]
    assert risk.stderr[0, 1].item() == pytest.approx((0.125 * 0.875 / 8) ** 0.5)
    assert (risk.stderr > 0).all()


def test_lead_times_are_whole_steps_and_leave_room_for_the_window() -> None:
    steps = lead_steps(torch.tensor([[0.0, 15.0, 15.1, 900.0]]), 15.0, 4, torch.tensor([20]))
    assert steps.tolist() == [[0, 1, 2, 16]]


def test_shapes_that_do_not_fit_are_named() -> None:
    futures = risky_futures(0)
    with pytest.raises(ValueError, match="lead_steps must be"):
        replace(futures, capacity=futures.capacity[:, :5])
    with pytest.raises(ValueError, match="window_steps must be in"):
        replace(futures, window_steps=99)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_needs() -> None:
    futures = risky_futures(5)
    names = ("demand", "capacity", "lead_steps", "ready", "pending", "arrived", "backlog", "ttft_s", "objective")
    on_gpu = replace(futures, **{n: getattr(futures, n).cuda() for n in names})
    low, high = bounds(6, 0, 40)
    here, there = path_needs(futures, low, high), path_needs(on_gpu, low.cuda(), high.cuda())
    assert (here.missed == there.missed.cpu()).double().mean() > 0.999
