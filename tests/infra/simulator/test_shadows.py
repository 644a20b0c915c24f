from __future__ import annotations

import math

import numpy as np
import pytest

from infra.simulator.arrivals import Arrivals, GeneratedLoad, LoadShape, TokenShape
from infra.simulator.cluster import Cluster, ConstantLeadTime
from infra.simulator.ledger import Objective
from infra.simulator.profiles import BUILT_IN_PROFILES, EngineProfile
from infra.simulator.shadows import HpaRule, HpaSettings, Shadow, StaticRule
from infra.simulator.sizing import HPA_RATIOS, fixed_need, peak_need, tuned_hpa_target

# A quarter of a second per iteration, whatever is in it: a request of n tokens is outstanding for n / 4 seconds.
QUARTER = EngineProfile("quarter", 0.25, 0.0, 0.0, 0.0, 10_000_000, 10_000, 1_000_000)
OBJECTIVE = Objective(2.0, 1.0)


def hpa(initial: int, lead_s: float = 0.0, target: float = 10.0, least: int = 1, most: int = 100) -> Shadow:
    cluster = Cluster(QUARTER, initial, ConstantLeadTime(lead_s), OBJECTIVE)
    return Shadow("hpa", cluster, HpaRule(HpaSettings(target, least, most)))


def hold(shadow: Shadow, at_s: float, requests: int, for_s: float) -> None:
    """So many requests, outstanding from `at_s` for `for_s` seconds."""
    n = np.full(requests, 1)
    shadow.feed(Arrivals(np.full(requests, at_s), n * 10, n * int(for_s * 4)))


def test_the_desired_count_is_total_over_target_rounded_up() -> None:
    shadow = hpa(4)
    hold(shadow, 1.0, 55, 1_000)
    shadow.advance(14.999)
    assert shadow.cluster.num_current == 4
    shadow.advance(15.0)
    assert shadow.cluster.num_current == 6


@pytest.mark.parametrize(("requests", "wanted"), [(43, 4), (45, 5), (36, 4), (35, 4)])
def test_within_the_tolerance_nothing_changes(requests: int, wanted: int) -> None:
    shadow = hpa(4)
    hold(shadow, 1.0, requests, 1_000)
    shadow.advance(15.0)
    assert shadow.cluster.num_current == wanted


def test_scale_up_is_limited_to_double_or_four_per_period() -> None:
    shadow = hpa(1)
    hold(shadow, 1.0, 1_000, 10_000)
    counts = []
    for k in range(1, 6):
        shadow.advance(15.0 * k)
        counts.append(shadow.cluster.num_current)
    assert counts == [5, 10, 20, 40, 80]


def test_bounds_hold() -> None:
    shadow = hpa(3, least=2, most=7)
    hold(shadow, 1.0, 1_000, 100)
    shadow.advance(15.0)
    assert shadow.cluster.num_current == 7
    shadow.advance(800.0)
    assert shadow.cluster.num_current == 2


def test_scale_down_waits_for_the_highest_recommendation_of_five_minutes() -> None:
    shadow = hpa(2)
    hold(shadow, 1.0, 80, 88)
    shadow.advance(90.0)
    assert shadow.cluster.num_current == 8
    # The last tick with load is at 75 s; its recommendation leaves the window 300 s later.
    shadow.advance(374.0)
    assert shadow.cluster.num_current == 8
    shadow.advance(375.0)
    assert shadow.cluster.num_current == 1


def test_replicas_on_their_way_count_as_idle_so_that_it_does_not_overshoot() -> None:
    shadow = hpa(2, lead_s=100.0)
    hold(shadow, 1.0, 60, 1_000)
    for k in range(1, 6):
        shadow.advance(15.0 * k)
        assert shadow.cluster.num_current == 6
    assert shadow.cluster.num_ready == 2


def test_with_no_ready_replica_it_holds() -> None:
    shadow = hpa(0, lead_s=100.0)
    shadow.cluster.set_replicas(2, 0.0)
    shadow.advance(60.0)
    assert shadow.cluster.num_current == 2


def test_ticks_do_not_depend_on_how_time_is_cut() -> None:
    load = GeneratedLoad(LoadShape(8.0, TokenShape(700, 0.6), TokenShape(100, 0.6)), 3).between(0.0, 600.0)
    lives = []
    for step_s in (600.0, 5.0, 7.3):
        cluster = Cluster(BUILT_IN_PROFILES["dense-13b"], 2, ConstantLeadTime(40.0), OBJECTIVE)
        shadow = Shadow("hpa", cluster, HpaRule(HpaSettings(8.0, 1, 20)))
        shadow.feed(load)
        for k in range(1, math.ceil(600 / step_s) + 1):
            shadow.advance(min(600.0, k * step_s))
        lives.append([(r.command_s, r.ready_s, r.drain_s) for r in cluster.replicas])
    assert str(lives[0]) == str(lives[1]) == str(lives[2])
    assert len(lives[0]) > 3


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="target"):
        HpaSettings(0.0, 1, 2)
    with pytest.raises(ValueError, match="bounds"):
        HpaSettings(1.0, 3, 2)


def test_scores_and_cost_cover_the_same_interval() -> None:
    cluster = Cluster(QUARTER, 2, ConstantLeadTime(0.0), OBJECTIVE, score_from_s=100.0)
    shadow = Shadow("static", cluster, StaticRule(2))
    hold(shadow, 50.0, 3, 1)
    hold(shadow, 150.0, 4, 1)
    shadow.advance(200.0)
    shadow.settle(300.0)
    assert shadow.score(200.0, final=True) == (1.0, 2 * 100 / 3600)
    assert cluster.scores.num_arrived == 4


@pytest.mark.parametrize("seed", range(3))
def test_peak_need_is_the_fewest_that_keep_the_busiest_minutes(seed: int) -> None:
    profile = BUILT_IN_PROFILES["dense-13b"]
    shape = LoadShape(8.0, TokenShape(900, 0.6), TokenShape(100, 0.6), 1_800.0, (0.6,), (0.0,))
    load = GeneratedLoad(shape, seed).between(0.0, 1_800.0)
    need = peak_need(profile, load, OBJECTIVE, 0.99, 30)

    def attained(replicas: int) -> float:
        """In the five minutes around the crest, a quarter into the wave."""
        cluster = Cluster(profile, replicas, ConstantLeadTime(0.0), OBJECTIVE, score_from_s=300.0)
        cluster.feed(load.between(0.0, 600.0))
        cluster.advance(2_000.0)
        return cluster.scores.attainment or 0.0

    assert attained(need + 1) >= 0.99 > attained(need - 2)


def test_fixed_need_is_minimal_and_capped() -> None:
    profile = BUILT_IN_PROFILES["dense-13b"]
    load = GeneratedLoad(LoadShape(6.0, TokenShape(900, 0.6), TokenShape(100, 0.6)), 1).between(0.0, 400.0)
    need = fixed_need(profile, load, OBJECTIVE, 0.95, 100.0, 400.0, 30)
    for replicas, enough in ((need, True), (need - 1, False)):
        cluster = Cluster(profile, replicas, ConstantLeadTime(0.0), OBJECTIVE, score_from_s=100.0)
        cluster.feed(load)
        cluster.advance(1_000.0)
        assert ((cluster.scores.attainment or 0.0) >= 0.95) == enough
    assert fixed_need(profile, load, OBJECTIVE, 0.95, 100.0, 400.0, 2) == 2
    assert peak_need(profile, Arrivals.empty(), OBJECTIVE, 0.99, 5) == 1


def test_the_hpa_target_is_the_cheapest_that_kept_the_objective() -> None:
    profile = BUILT_IN_PROFILES["dense-13b"]
    load = GeneratedLoad(LoadShape(5.0, TokenShape(600, 0.5), TokenShape(80, 0.5), noise=0.02), 2).between(0.0, 2_000.0)
    generous = tuned_hpa_target(profile, load, Objective(1e3, 1e3), 0.99, (1, 30), 3, 30.0)
    strict = tuned_hpa_target(profile, load, Objective(1e-3, 0.2), 0.99, (1, 30), 3, 30.0)
    mean = float(load.prompt_tokens.mean()), float(load.output_tokens.mean())
    assert strict < generous
    assert strict == pytest.approx(max(1.0, HPA_RATIOS[-1] * profile.steady_concurrency(*mean, 0.2)), rel=0.02)
    assert tuned_hpa_target(profile, Arrivals.empty(), OBJECTIVE, 0.99, (1, 30), 3, 30.0) == 1.0
