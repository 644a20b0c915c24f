"""One policy through one load: what it kept, what it cost, and how it moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from infra.lab.replay.setting import Setting
from infra.replay.controllers import Controller
from infra.simulator.cluster import Cluster, Replica
from infra.simulator.ledger import worst_window_attainment
from infra.simulator.request import Request

DRAIN_S = 600.0  # a request unfinished this long after the end of the load is a miss
HOUR_S = 3_600.0

NewController = Callable[[Setting, Cluster, int], Controller]


@dataclass(frozen=True, slots=True, eq=False)
class Lived:
    """One run. `requests` and `replicas` hold everything from second 0 on; the figures are of the scored interval.

    Attributes:
        worst_window_attainment: over whole windows of 600 s (loads of about an hour) or 3600 s.
        switches: replicas launched, cancelled or drained, each change of the count counted once.
    """

    setting: Setting
    seed: int
    attainment: float
    worst_window_attainment: float
    gpu_hours: float
    mean_replicas: float
    switches_per_hour: float
    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]
    requests: list[Request]
    replicas: list[Replica]


def live(setting: Setting, new_controller: NewController, seed: int) -> Lived:
    """Run a policy from second 0 to the end of the scored interval, then let open requests finish."""
    load = setting.load
    cluster = Cluster(setting.profile, setting.initial_replicas, setting.lead_time(seed), setting.objective)
    cluster.feed(load.arrivals)
    controller = new_controller(setting, cluster, seed)
    while controller.next_s < load.end_s:
        cluster.advance(controller.next_s)
        controller.act()
    cluster.advance(load.end_s + DRAIN_S)
    return score(setting, cluster, seed)


def score(setting: Setting, cluster: Cluster, seed: int) -> Lived:
    """The figures of a finished run."""
    start_s, end_s = setting.load.score
    scored = [r for r in cluster.requests if start_s <= r.arrival_s < end_s]
    good = sum(setting.objective.met(r) for r in scored)
    gpu_s = cluster.gpu_seconds(start_s, end_s)
    worst = worst_window_attainment(scored, setting.objective, start_s, end_s, window_s(start_s, end_s))
    ttfts = [r.ttft_s for r in scored if not math.isnan(r.first_token_s)]
    tpots = [r.tpot_s for r in scored if not math.isnan(r.finish_s)]
    return Lived(
        setting=setting,
        seed=seed,
        attainment=good / len(scored) if scored else math.nan,
        worst_window_attainment=math.nan if worst is None else worst,
        gpu_hours=gpu_s / HOUR_S,
        mean_replicas=gpu_s / setting.profile.gpus_per_replica / (end_s - start_s),
        switches_per_hour=_switches(cluster.replicas, start_s, end_s) / ((end_s - start_s) / HOUR_S),
        ttft_s=_median_and_p99(ttfts),
        tpot_s=_median_and_p99(tpots),
        requests=cluster.requests,
        replicas=cluster.replicas,
    )


def window_s(start_s: float, end_s: float) -> float:
    """Length of the windows that a load is looked at in."""
    return 600.0 if end_s - start_s < 2 * HOUR_S else HOUR_S


def _switches(replicas: list[Replica], start_s: float, end_s: float) -> int:
    """Instants at which the wanted count changed."""
    instants = {r.command_s for r in replicas}
    for r in replicas:
        instants.add(r.drain_s if not math.isnan(r.drain_s) else r.release_s if math.isnan(r.ready_s) else math.nan)
    return sum(start_s <= t < end_s and t > 0 for t in instants)


def _median_and_p99(values: list[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    middle, tail = np.quantile(np.asarray(values), (0.5, 0.99))
    return float(middle), float(tail)
