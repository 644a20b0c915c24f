"""The load that requests put on an engine while they stay, against the arrivals that bring it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.planning.rows import served_load
from model.numerics import decayed_mean
from streams.windows.table import Window

STEP_MS = 15_000
NAMES = {"request.arrival_rate": 0, "engine.running": 1}


def window(rate: float | list[float], running: float) -> Window:
    """Eighty slots that end with `rate`; by Little's law requests stay for running / rate."""
    newest = [rate] if isinstance(rate, float) else rate
    values = np.full((80, 2), newest[0], dtype=np.float32)
    values[-len(newest) :, 0] = newest
    values[:, 1] = running
    return Window("w", NAMES, values, np.ones((80, 2), dtype=bool), None, None)  # type: ignore[arg-type]


def test_a_steady_load_stays_as_it_is() -> None:
    demand = torch.full((1, 3, 8), 4.0)
    assert torch.allclose(served_load(demand, [window(4.0, 200.0)], STEP_MS), demand)


def test_a_burst_is_shared_by_the_time_that_requests_stay() -> None:
    demand = torch.full((1, 1, 16), 4.0)
    demand[:, :, 2] = 12.0
    load = served_load(demand, [window(4.0, 240.0)], STEP_MS)  # a minute
    assert float(load.max()) < 5.0
    assert float((load - 4.0).sum()) == pytest.approx(8.0, rel=0.25)  # spread, not lost


def test_the_longer_requests_stay_the_slower_the_load_follows_a_change_of_level() -> None:
    demand = torch.full((3, 1, 12), 8.0)
    load = served_load(demand, [window(4.0, r) for r in (20.0, 120.0, 400.0)], STEP_MS)[:, 0]
    assert bool((load.diff(dim=-1) >= 0).all())
    assert bool((load[0] > load[1]).all())
    assert bool((load[1] > load[2]).all())
    assert bool((load > 4.0).all())
    assert bool((load <= 8.0).all())


def test_without_requests_that_stay_paths_are_as_they_were() -> None:
    demand = torch.rand(2, 4, 6)
    nothing = window(4.0, 0.0)
    assert torch.equal(served_load(demand, [nothing, nothing], STEP_MS), demand)


def test_a_row_does_not_depend_on_its_batch() -> None:
    demand = torch.rand(3, 4, 6)
    windows = [window([3.0, 5.0], 50.0), window(2.0, 9.0), window(7.0, 900.0)]
    whole = served_load(demand, windows, STEP_MS)
    for i in range(3):
        assert torch.equal(served_load(demand[i : i + 1], windows[i : i + 1], STEP_MS)[0], whole[i])


def test_more_demand_is_never_less_load() -> None:
    demand = torch.rand(1, 4, 6)
    more = demand.clone()
    more[:, :, 3] += 0.5
    w = [window(0.5, 20.0)]
    assert bool((served_load(more, w, STEP_MS) >= served_load(demand, w, STEP_MS)).all())


def test_requests_that_stay_for_an_instant_leave_the_last_load_known() -> None:
    short = window([4.0, 6.0], 0.02)  # five milliseconds, a slot of fifteen seconds later nothing is left of them
    short.observed[-1] = False
    load = served_load(torch.full((1, 2, 3), 8.0), [short], STEP_MS)
    assert torch.equal(load, torch.full((1, 2, 3), 8.0))


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 400.0))
def test_the_past_is_averaged_as_numpy_averages_it(seed: int, stay_s: float) -> None:
    """Over the slots that were observed, by weights that fall with their age."""
    rng = np.random.default_rng(seed)
    past = window(rng.gamma(2.0, 3.0, 60).tolist(), 1.0)
    past.observed[:, 0] = rng.random(80) < 0.7
    (known,) = np.nonzero(past.observed[:, 0])
    weights = np.exp(-15.0 / stay_s * (known[-1:] - known))
    told = decayed_mean(past.values, past.observed, 0, 15.0 / stay_s)
    assert told[0] == bool(len(known))
    if len(known):
        average = weights @ past.values[known, 0].astype(np.float64) / weights.sum()
        assert told[1] == pytest.approx(float(average), rel=1e-12)
