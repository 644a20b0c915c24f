"""What is the least that could have been held, for one who knows the arrivals, or only their rate."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.lab.replay.oracle import Schedule, find_schedule, run_schedule, schedule_for_rate
from infra.lab.replay.policies.catalogue import controller_of
from infra.lab.replay.run import tune
from infra.lab.replay.setting import ScoredLoad, Setting
from infra.lab.replay.simulation import simulate
from infra.simulator.arrivals import Arrivals
from tests.infra.lab.replay.replay_setting import KNOWN, poisson, setting


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(0, 5))
def test_an_ordered_schedule_is_the_least_that_is_ready_in_time(ready: list[int], bins: int) -> None:
    ordered = Schedule(1.0, np.asarray(ready)).ordered(float(bins)).tolist()
    padded = ready + [0] * bins
    assert ordered == [max(padded[k : k + bins + 1]) for k in range(len(ready))]


def test_the_oracle_keeps_the_objective_for_less_than_any_constant() -> None:
    s = setting()
    found = find_schedule(s, 0, budget=60)
    free = find_schedule(s, 0, free_moves=True, budget=60)
    assert found is not None
    assert free is not None
    assert found.run.attainment >= s.share
    static, _ = tune("static-peak", s, s, KNOWN, 0)
    peak = simulate(s, controller_of(static, KNOWN), 0)
    assert peak.attainment >= s.share
    assert free.run.gpu_hours <= found.run.gpu_hours * 1.02 < peak.gpu_hours


def test_no_oracle_where_even_the_most_replicas_do_not_suffice() -> None:
    assert find_schedule(setting(max_replicas=1), 0, budget=30) is None


def drawn(seed: int) -> Setting:
    """Another draw of the same rates for every seed."""
    parts = [(1.0, 300.0, 0.0), (5.0, 600.0, 300.0), (1.0, 900.0, 600.0)]
    arrivals = [poisson(rate, end_s, 7 * seed + k, start_s) for k, (rate, end_s, start_s) in enumerate(parts)]
    return setting().with_load(ScoredLoad("steps", Arrivals.joined(arrivals), (60.0, 900.0)))


def test_a_schedule_for_the_rate_alone_keeps_the_objective_on_draws_that_it_was_not_searched_on() -> None:
    found = schedule_for_rate(drawn, budget=40)
    assert found is not None
    runs = [run_schedule(found.schedule, drawn(seed), seed) for seed in range(10)]
    assert np.mean([run.attainment for run in runs]) >= drawn(0).share - 0.02
    kept = next(run for run in runs if run.attainment >= drawn(0).share)
    clairvoyant = find_schedule(kept.setting, kept.seed, budget=60)
    assert clairvoyant is not None
    assert clairvoyant.run.gpu_hours <= 1.02 * kept.gpu_hours
    again = schedule_for_rate(drawn, budget=40)
    assert again is not None
    assert np.array_equal(again.schedule.ready, found.schedule.ready)


def test_a_load_of_one_draw_has_no_rate_to_know() -> None:
    only = setting()
    assert schedule_for_rate(lambda _: only, budget=40) is None
