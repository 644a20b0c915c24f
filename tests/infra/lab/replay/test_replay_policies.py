"""The public policies do what their documents say, and see nothing but the past."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from infra.lab.replay.policies.predictive import BIN_S, OptScalerLike, SeasonalNaive
from infra.lab.replay.policies.reactive import Behaviour, Hpa, KedaQueue, Kpa, LlmdSlo, Stabilizer, ratio_rule
from infra.lab.replay.setting import Telemetry
from infra.lab.replay.simulation import MetricsReading, View
from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster, ConstantLeadTime
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile

QUARTER = EngineProfile("quarter", 0.25, 0.0, 0.0, 0.0, 10_000_000, 10_000, 1_000_000)
OBJECTIVE = Objective(2.0, 1.0)


@dataclass
class FakeView:
    """Hand-made readings."""

    now_s: float = 0.0
    ready: int = 4
    current: int = 4
    readings: list[MetricsReading] = field(default_factory=list)

    @property
    def newest(self) -> MetricsReading | None:
        return self.readings[-1] if self.readings else None

    def within(self, window_s: float) -> list[MetricsReading]:
        return [r for r in self.readings if r.at_s > self.now_s - window_s]


def reading(
    at_s: float = 0.0, running: int = 0, waiting: int = 0, kv: float = 0.0, **changes: object
) -> MetricsReading:
    values: dict[str, object] = {
        "at_s": at_s,
        "running": (running,),
        "waiting": (waiting,),
        "kv_ratio": (kv,),
        "gateway": 0,
        "draining_outstanding": 0,
        "arrived_total": 0,
        "ttfts_s": (),
        "tpots_s": (),
        "ended": (),
    }
    return MetricsReading(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ready", "current", "needed", "wanted"),
    [
        (4, 4, 4.39, 4),
        (4, 4, 4.41, 5),
        (4, 4, 3.61, 4),
        (4, 4, 3.59, 4),
        (4, 4, 2.2, 3),
        (2, 6, 6.2, 6),
        (2, 6, 7.1, 8),
    ],
)
def test_the_ratio_rule_has_its_tolerance_and_counts_pending_replicas_as_idle(
    ready: int, current: int, needed: float, wanted: int
) -> None:
    assert ratio_rule(ready, current, needed) == wanted


def test_going_down_waits_for_the_largest_recommendation_of_the_window() -> None:
    stabilizer = Stabilizer(Behaviour(down_window_s=60.0))
    assert stabilizer.apply(0.0, 5, 5) == 5
    assert [stabilizer.apply(15.0 * k, 5, 2) for k in range(1, 4)] == [5, 5, 5]
    assert stabilizer.apply(60.0, 5, 2) == 2


def test_going_up_is_limited_per_period() -> None:
    stabilizer = Stabilizer(Behaviour(up_ratio=0.5, up_replicas=1, up_period_s=60.0))
    assert stabilizer.apply(0.0, 4, 100) == 6
    assert stabilizer.apply(15.0, 6, 100) == 6
    assert stabilizer.apply(60.0, 6, 100) == 9


def test_hpa_scales_on_all_requests_in_the_system() -> None:
    assert Hpa(10.0).desired_replicas(FakeView(readings=[reading(running=50, waiting=5)])) == 6
    assert Hpa(10.0).desired_replicas(FakeView(ready=0, readings=[reading()])) == 4


def test_keda_takes_the_larger_of_its_triggers() -> None:
    by_queue = KedaQueue(0.5, 5.0).desired_replicas(FakeView(readings=[reading(waiting=31, kv=0.1)]))
    by_cache = KedaQueue(0.1, 5.0).desired_replicas(FakeView(readings=[reading(waiting=0, kv=0.8)]))
    assert (by_queue, by_cache) == (7, 8)


def test_kpa_panics_at_twice_its_capacity_and_then_does_not_go_down() -> None:
    policy = Kpa(10.0)
    calm = [reading(at_s=float(t), running=40) for t in range(0, 60, 2)]
    assert policy.desired_replicas(FakeView(now_s=58.0, readings=calm)) == 4
    burst = [*calm, *(reading(at_s=float(t), running=100) for t in (60, 62, 64))]
    assert policy.desired_replicas(FakeView(now_s=64.0, readings=burst)) == 10
    later = [reading(at_s=float(t), running=1) for t in range(66, 100, 2)]
    assert policy.desired_replicas(FakeView(now_s=98.0, ready=10, current=10, readings=later)) == 10
    after = [reading(at_s=float(t), running=1) for t in range(100, 160, 2)]
    assert policy.desired_replicas(FakeView(now_s=158.0, ready=10, current=10, readings=after)) == 5


def test_the_slo_rule_credits_replicas_on_their_way() -> None:
    slow = [reading(at_s=0.0, ttfts_s=(1.65,) * 10)]  # 0.825 of the objective, 1.5 times the upper threshold
    full = LlmdSlo(OBJECTIVE)
    waited = [full.desired_replicas(FakeView(now_s=15.0 * k, readings=slow)) for k in range(3)]
    assert waited[-1] == 6
    credited = LlmdSlo(OBJECTIVE)
    for k in range(3):
        last = credited.desired_replicas(FakeView(now_s=15.0 * k, ready=4, current=6, readings=slow))
    assert last == 6


def test_a_season_ago_says_what_comes() -> None:
    season_s = 40 * BIN_S
    history = np.concatenate((np.full(20, 1.0), np.full(20, 9.0)))
    policy = SeasonalNaive(2.0, history, lead_s=60.0, season_s=season_s)
    view = FakeView(readings=[reading(at_s=BIN_S, arrived_total=30)], now_s=BIN_S)
    # The next bins repeat the low half of the season.
    assert policy.desired_replicas(view) == 4  # type: ignore[arg-type]
    assert policy._rates.season_ago(season_s, 0.0, 120.0) == 1.0
    assert policy._rates.season_ago(season_s, 18 * BIN_S, 22 * BIN_S) == 9.0


def test_the_chance_constraint_adds_more_for_less_risk() -> None:
    counts = []
    for epsilon in (0.3, 0.05, 0.001):
        policy = OptScalerLike(1.0, epsilon, lead_s=60.0)
        total, wanted = 0, 4
        for k in range(1, 80):
            total += 300 if (k // 8) % 2 else 150
            now = [reading(at_s=k * BIN_S, arrived_total=total)]
            view = FakeView(now_s=k * BIN_S, current=wanted, readings=now)
            wanted = policy.desired_replicas(view)  # type: ignore[arg-type]
        counts.append(wanted)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_reading_arrives_late_and_holds_nothing_of_the_future() -> None:
    cluster = Cluster(QUARTER, 1, ConstantLeadTime(0.0), OBJECTIVE)
    times = np.arange(0.5, 40.5, 1.0)
    cluster.feed(Arrivals(times, np.full(40, 10), np.full(40, 4)))
    view = View(cluster, Telemetry(delay_s=10.0), 100.0, 0)
    for now_s in (5.0, 10.0, 15.0, 20.0):
        cluster.advance(now_s)
        view.scrape()
        view.advance()
    newest = view.newest
    assert newest is not None
    assert (newest.at_s, newest.arrived_total) == (10.0, 10)
    assert view.arrivals_within(5.0) == pytest.approx(1.0)
    seen = [t for r in view.within(100.0) for t in r.ttfts_s]
    assert len(seen) == 10


def test_noise_moves_gauges_and_repeats_with_its_seed() -> None:
    def look(seed: int) -> tuple[int, ...]:
        cluster = Cluster(QUARTER, 2, ConstantLeadTime(0.0), OBJECTIVE)
        cluster.feed(Arrivals(np.full(200, 1.0), np.full(200, 10), np.full(200, 400)))
        cluster.advance(2.0)
        view = View(cluster, Telemetry(noise=0.2), 100.0, seed)
        view.scrape()
        view.advance()
        assert view.newest is not None
        return view.newest.running

    assert look(1) == look(1) != look(2)
