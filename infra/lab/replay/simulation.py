"""One policy through one load: what it kept, what it cost, and how it moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agents.actuation.guard import ApplyGuard
from agents.policy import Policy
from agents.records import Decision
from infra.lab.replay.loop import Certainty, MemoryLoop
from infra.lab.replay.setting import OnItsWay, Setting, fault_at
from infra.lab.replay.view import ScalingPolicy, View
from infra.simulator.cluster import Cluster, Replica
from infra.simulator.gpu import DeviceModel
from infra.simulator.ledger import Request, worst_window_attainment
from infra.simulator.telemetry import SlotTelemetry, TelemetrySampler
from model.contract import Forecaster
from streams.config import StreamConfig

# How a policy is bound to a cluster: when it is asked, what it is shown, and how its word is carried out.


WORKLOAD = "replay/load"


class Controller(Protocol):
    """Called at the instants that it names; it acts on the cluster it was made with."""

    @property
    def next_s(self) -> float: ...

    def act(self) -> None:
        """The cluster stands at `next_s`: look, act, and name the next instant."""
        ...


class RuleController:
    """A policy that looks at readings of the metrics endpoints."""

    def __init__(self, setting: Setting, cluster: Cluster, policy: ScalingPolicy, seed: int) -> None:
        self._setting, self._cluster, self._policy = setting, cluster, policy
        telemetry = setting.telemetry
        keep_s = policy.looks_back_s + 2 * policy.period_s
        self._view = View(cluster, telemetry, keep_s, seed)
        self._scrape_s = telemetry.scrape_s or policy.period_s
        self._ticks = self._scrapes = 0
        self.next_s = 0.0

    def act(self) -> None:
        now_s = self.next_s
        if now_s >= self._scrapes * self._scrape_s:
            self._view.scrape()
            self._scrapes += 1
        if now_s >= self._ticks * self._policy.period_s:
            self._ticks += 1
            self._view.advance()
            wanted = self._policy.wanted(self._view)
            bounded = min(max(wanted, self._setting.min_replicas), self._setting.max_replicas)
            if bounded != self._cluster.num_current:
                self._cluster.set_replicas(bounded, now_s)
        self.next_s = min(self._scrapes * self._scrape_s, self._ticks * self._policy.period_s)


class HarmonyController:
    """The worker's own stages, fed by the cluster's telemetry records, its commands judged by the apply-time guard.

    Attributes:
        decisions: all of them, in order.
    """

    def __init__(
        self,
        setting: Setting,
        cluster: Cluster,
        policy: Policy,
        forecaster: Forecaster,
        seed: int,
        certainty: Certainty | None = None,
    ) -> None:
        step_ms = round(setting.step_s * 1000)
        stream = StreamConfig(step_ms=step_ms, grace_ms=0, skew_ms=0)
        self._cluster, self._step_s, self._step_ms = cluster, setting.step_s, step_ms
        self._start_ts_ms = setting.start_ts_ms - setting.start_ts_ms % step_ms
        self._sampler = TelemetrySampler(
            WORKLOAD,
            cluster,
            DeviceModel(),
            seed,
            self._start_ts_ms,
            setting.step_s,
            with_devices=False,
            with_gateway=setting.min_replicas == 0,
        )
        self._loop = MemoryLoop(policy, stream, forecaster, certainty)
        self._guard = ApplyGuard(setting.max_replicas)
        self._slot = 0
        self._phase = 0
        self._past = setting.past
        self._faults = setting.telemetry.faults
        self._facts: tuple[bytes, ...] = ()
        self._sent: OnItsWay[tuple[bytes, ...]] = OnItsWay(self._faults)
        self.next_s = self._instant()

    @property
    def decisions(self) -> list[Decision]:
        return self._loop.decisions

    @property
    def loop(self) -> MemoryLoop:
        """The stages, to read."""
        return self._loop

    def act(self) -> None:
        if self._phase < 2:
            self._sample()
        if self._phase == 1:
            # Packed within the slot: facts stamped at its end would belong to the next one.
            self._send(self._sampler.take(self._cluster.num_current))
        if self._phase == 2:
            self._close_slot()
        self._phase = (self._phase + 1) % 3
        self.next_s = self._instant()

    def close(self) -> None:
        """Release the threads of the loop."""
        self._loop.close()

    def _instant(self) -> float:
        """Samples are taken in the middle of a slot and at its last millisecond; commands at its end."""
        start_s = self._slot * self._step_s
        return start_s + (self._step_s / 2, self._step_s - 0.001, self._step_s)[self._phase]

    def _sample(self) -> None:
        fault = fault_at(self._faults, self.next_s)
        if fault is None:
            self._sampler.sample()
        elif fault.kind in ("delayed", "silent"):
            self._sampler.sample(fault.hears)
        elif fault.kind == "frozen":
            self._sampler.repeat()

    def _send(self, slot: SlotTelemetry) -> None:
        """What engines tell is on its way; what the orchestrator tells is known at once."""
        told = len(slot.requests) - slot.num_facts
        self._sent.send(self.next_s, slot.requests[:told])
        self._facts = slot.requests[told:]

    def _close_slot(self) -> None:
        self._slot += 1
        end_ms = self._start_ts_ms + self._slot * self._step_ms
        telemetry = [value for values in (*self._sent.arrived(self.next_s), self._facts) for value in values]
        commands = self._loop.close_slot(WORKLOAD, telemetry, end_ms)
        if self._past is not None and WORKLOAD in self._loop.forecast.table:
            self._loop.know_past(WORKLOAD, self._past, self._start_ts_ms)
            self._past = None
        for command in commands:
            verdict = self._guard.check(command, end_ms, self._cluster.num_current)
            if verdict.apply:
                change = self._cluster.set_replicas(command.replicas, self._cluster.now_s)
                self._sampler.outcome(command.command_id, "applied", self._cluster.now_s)
                self._sampler.launched(command.command_id, change.launched)


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
