"""Discrete-event simulation of one policy under one load.

A policy sees delayed readings of the metrics endpoints (`View`). A controller asks it and sets the replica count. All
policies of a seed meet the same arrivals and lead times (common random numbers).

Source: Law, "Simulation Modeling and Analysis" (2015), chapter 11, for common random numbers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agents.actuation.guard import ApplyGuard
from agents.policy import Policy
from agents.records import Decision
from infra.lab.replay.loop import MemoryLoop, StateOverride
from infra.lab.replay.setting import DelayLine, Setting, Telemetry, fault_at
from infra.simulator.cluster import Cluster, Replica
from infra.simulator.ledger import Request, worst_window_attainment
from infra.simulator.telemetry import DeviceModel, SlotTelemetry, TelemetrySampler
from model.contract import Forecaster
from streams.config import StreamConfig

# What a policy sees: readings of the metrics endpoints up to now, never the future.


Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """One look at all metrics endpoints. Totals count since second 0; `ttfts_s` and `tpots_s` since the last look.

    Attributes:
        running, waiting, kv_ratio: per ready replica.
        gateway: requests that wait for a first replica.
        arrived_total: requests that reached the router.
        ended: (prompt tokens, output tokens) of requests finished since the last look.
        prompt_tokens_total, prompt_squares_total: of requests that reached the router; the latter sums their squares.
    """

    at_s: float
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    kv_ratio: tuple[float, ...]
    gateway: int
    draining_outstanding: int
    arrived_total: int
    ttfts_s: tuple[float, ...]
    tpots_s: tuple[float, ...]
    ended: tuple[tuple[int, int], ...]
    prompt_tokens_total: int = 0
    prompt_squares_total: float = 0.0

    @property
    def num_waiting(self) -> int:
        return sum(self.waiting) + self.gateway

    @property
    def num_running(self) -> int:
        return sum(self.running)

    @property
    def concurrency(self) -> int:
        """Requests in the system, draining replicas included."""
        return self.num_waiting + self.num_running + self.draining_outstanding


class View:
    """The readings that have reached the policy, newest last.

    Attributes:
        now_s: the present instant, seconds.
        ready: ready replicas; current: ready and pending ones. Both come from the orchestrator without delay.
    """

    def __init__(self, cluster: Cluster, telemetry: Telemetry, keep_s: float, seed: int) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._keep_s = keep_s
        self._readings: deque[MetricsReading] = deque()
        self._sent: DelayLine[MetricsReading] = DelayLine(telemetry.faults, telemetry.delay_s)
        self._last: MetricsReading | None = None
        self._noise = np.random.default_rng([seed, 20_260])
        self._firsts: list[Request] = []
        self._ends: list[Request] = []
        self._num_summed, self._prompt_total, self._prompt_squares = 0, 0, 0.0
        cluster.watch(self._firsts, self._ends)
        self.now_s = cluster.now_s
        self.ready = cluster.num_ready
        self.current = cluster.num_current

    def scrape(self) -> None:
        """Read every endpoint at the cluster's present instant."""
        c, fault = self._cluster, fault_at(self._telemetry.faults, self._cluster.now_s)
        if fault is not None and fault.kind == "gap":
            return
        if fault is not None and fault.kind == "frozen" and self._last is not None:
            self._send(replace(self._last, at_s=c.now_s, ttfts_s=(), tpots_s=(), ended=()))
            return
        states_read = [(c.state_of(r), fault is None or fault.reads(r.replica_id)) for r in c.ready]
        states = [state for state, readable in states_read if readable]
        serving = sum(state.running + state.waiting for state, _ in states_read)
        for request in c.requests[self._num_summed : c.num_arrived]:
            self._prompt_total += request.prompt_tokens
            self._prompt_squares += float(request.prompt_tokens) ** 2
        self._num_summed = c.num_arrived
        noise = self._telemetry.noise
        jitter = np.maximum(0.0, 1 + noise * self._noise.standard_normal(2 * len(states))) if noise > 0 else None

        def with_noise(value: int, k: int) -> int:
            return value if jitter is None else round(value * float(jitter[k]))

        firsts, ends = (
            [r for r in requests if fault is None or fault.reads(r.replica_id)]
            for requests in (self._firsts, self._ends)
        )
        self._send(
            MetricsReading(
                at_s=c.now_s,
                running=tuple(with_noise(s.running, k) for k, s in enumerate(states)),
                waiting=tuple(with_noise(s.waiting, k + len(states)) for k, s in enumerate(states)),
                kv_ratio=tuple(s.kv_usage_ratio for s in states),
                gateway=len(c.gateway),
                draining_outstanding=c.outstanding - len(c.gateway) - serving,
                arrived_total=c.num_arrived,
                ttfts_s=tuple(r.ttft_s for r in firsts),
                tpots_s=tuple(r.tpot_s for r in ends),
                ended=tuple((r.prompt_tokens, r.output_tokens) for r in ends),
                prompt_tokens_total=self._prompt_total,
                prompt_squares_total=self._prompt_squares,
            )
        )
        self._firsts.clear()
        self._ends.clear()

    def _send(self, reading: MetricsReading) -> None:
        self._last = reading
        self._sent.send(reading.at_s, reading)

    def advance(self) -> None:
        """Take in what has arrived by the cluster's present instant."""
        self.now_s = self._cluster.now_s
        self.ready, self.current = self._cluster.num_ready, self._cluster.num_current
        self._readings.extend(self._sent.arrived(self.now_s))
        oldest_s = self.now_s - self._telemetry.delay_s - self._keep_s
        while len(self._readings) > 1 and self._readings[1].at_s <= oldest_s:
            self._readings.popleft()

    @property
    def newest(self) -> MetricsReading | None:
        """None before the first reading has arrived."""
        return self._readings[-1] if self._readings else None

    def within(self, window_s: float) -> list[MetricsReading]:
        """Readings less than `window_s` older than the newest, newest included."""
        if not self._readings:
            return []
        since_s = self._readings[-1].at_s - window_s + 1e-9
        readings = []
        for reading in reversed(self._readings):
            if reading.at_s < since_s:
                break
            readings.append(reading)
        return readings[::-1]

    def arrivals_within(self, window_s: float) -> float | None:
        """Requests/s over the last `window_s`, or over as much of it as has been seen; None before two readings."""
        if len(self._readings) < 2:
            return None
        newest = self._readings[-1]
        base = self._readings[0]
        for reading in reversed(self._readings):
            base = reading
            if reading.at_s <= newest.at_s - window_s + 1e-9:
                break
        span_s = newest.at_s - base.at_s
        return (newest.arrived_total - base.arrived_total) / span_s if span_s > 0 else None

    def lengths_within(self, window_s: float) -> tuple[float, float] | None:
        """Mean prompt and output tokens of requests finished within the window; None without any."""
        ended = [e for r in self.within(window_s) for e in r.ended]
        if not ended:
            return None
        return sum(p for p, _ in ended) / len(ended), sum(o for _, o in ended) / len(ended)


class ScalingPolicy(Protocol):
    """Interface of all policies: every `period_s` it returns the wanted replicas; it reads the last `looks_back_s`."""

    @property
    def period_s(self) -> float: ...

    @property
    def looks_back_s(self) -> float: ...

    def desired_replicas(self, view: View) -> int: ...


# Controllers bind a policy to a cluster.


WORKLOAD = "replay/load"


class Controller(Protocol):
    """Acts on its cluster at the instants that it names."""

    @property
    def next_s(self) -> float: ...

    def act(self) -> None:
        """Read the cluster at `next_s`, change it, and name the next instant."""
        ...


class RuleController:
    """Controller of a policy that reads the metrics endpoints."""

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
            desired = self._policy.desired_replicas(self._view)
            bounded = min(max(desired, self._setting.min_replicas), self._setting.max_replicas)
            if bounded != self._cluster.num_current:
                self._cluster.set_replicas(bounded, now_s)
        self.next_s = min(self._scrapes * self._scrape_s, self._ticks * self._policy.period_s)


class HarmonyController:
    """Controller that runs the worker's stages on the cluster's telemetry; the apply-time guard checks its commands.

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
        state_override: StateOverride | None = None,
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
        self._loop = MemoryLoop(policy, stream, forecaster, state_override)
        self._guard = ApplyGuard(setting.max_replicas)
        self._slot = 0
        self._phase = 0
        self._past = setting.past
        self._faults = setting.telemetry.faults
        self._facts: tuple[bytes, ...] = ()
        self._sent: DelayLine[tuple[bytes, ...]] = DelayLine(self._faults)
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
            self._sampler.sample(fault.reads)
        elif fault.kind == "frozen":
            self._sampler.repeat()

    def _send(self, slot: SlotTelemetry) -> None:
        """What engines tell is on its way; what the orchestrator tells is known at once."""
        num_engine_records = len(slot.requests) - slot.num_facts
        self._sent.send(self.next_s, slot.requests[:num_engine_records])
        self._facts = slot.requests[num_engine_records:]

    def _close_slot(self) -> None:
        self._slot += 1
        end_ms = self._start_ts_ms + self._slot * self._step_ms
        telemetry = [value for values in (*self._sent.arrived(self.next_s), self._facts) for value in values]
        commands = self._loop.close_slot(WORKLOAD, telemetry, end_ms)
        if self._past is not None and WORKLOAD in self._loop.forecast.table:
            self._loop.restore_history(WORKLOAD, self._past, self._start_ts_ms)
            self._past = None
        for command in commands:
            verdict = self._guard.check(command, end_ms, self._cluster.num_current)
            if verdict.apply:
                change = self._cluster.set_replicas(command.replicas, self._cluster.now_s)
                self._sampler.outcome(command.command_id, "applied", self._cluster.now_s)
                self._sampler.launched(command.command_id, change.launched)


DRAIN_S = 600.0
"""A request that is unfinished this long after the end of the load counts as missed."""
HOUR_S = 3_600.0
_WATCHES = 300

NewController = Callable[[Setting, Cluster, int], Controller]


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """Figures of one run over the scored interval; `requests` and `replicas` hold everything from second 0 on.

    Attributes:
        worst_window_attainment: over whole windows of 600 s (loads of about an hour) or 3600 s.
        switches_per_hour: changes of the wanted count.
        ttft_s, tpot_s: median and 99th percentile, seconds.
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


def simulate(
    setting: Setting, new_controller: NewController, seed: int, watch: Callable[[float], None] = lambda _: None
) -> RunResult:
    """Return the result of a policy from second 0 to the end of the scored interval; open requests may then finish.

    Args:
        watch: takes the share of the load that is behind, a few hundred times.
    """
    load = setting.load
    cluster = Cluster(setting.profile, setting.initial_replicas, setting.lead_time(seed), setting.objective)
    cluster.feed(load.arrivals)
    controller = new_controller(setting, cluster, seed)
    next_watch_s = 0.0
    while controller.next_s < load.end_s:
        if controller.next_s >= next_watch_s:
            watch(controller.next_s / load.end_s)
            next_watch_s = controller.next_s + load.end_s / _WATCHES
        cluster.advance(controller.next_s)
        controller.act()
    cluster.advance(load.end_s + DRAIN_S)
    return score(setting, cluster, seed)


def score(setting: Setting, cluster: Cluster, seed: int) -> RunResult:
    """Return the figures of a finished run."""
    start_s, end_s = setting.load.score
    scored = [r for r in cluster.requests if start_s <= r.arrival_s < end_s]
    good = sum(setting.objective.met(r) for r in scored)
    gpu_s = cluster.gpu_seconds(start_s, end_s)
    worst = worst_window_attainment(scored, setting.objective, start_s, end_s, window_s(start_s, end_s))
    ttfts = [r.ttft_s for r in scored if not math.isnan(r.first_token_s)]
    tpots = [r.tpot_s for r in scored if not math.isnan(r.finish_s)]
    return RunResult(
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
    """Return the length of the windows by which a load is scored, seconds."""
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
