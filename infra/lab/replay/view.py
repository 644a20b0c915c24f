"""What a policy may see: readings of the fleet's metrics endpoints up to now, never the future."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infra.lab.replay.setting import OnItsWay, Telemetry, fault_at
from infra.simulator.cluster import Cluster
from infra.simulator.ledger import Request

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at all metrics endpoints. Totals count since second 0; `ttfts_s` and `tpots_s` since the last look.

    Attributes:
        running, waiting, kv_ratio: per ready replica.
        gateway: requests that wait for a first replica.
        arrived_total: requests that reached the router.
        ended: (prompt tokens, output tokens) of requests finished since the last look.
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
        now_s, ready, current: instant, ready replicas, ready + pending (the orchestrator's word, always fresh).
    """

    def __init__(self, cluster: Cluster, telemetry: Telemetry, keep_s: float, seed: int) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._keep_s = keep_s
        self._readings: deque[Reading] = deque()
        self._sent: OnItsWay[Reading] = OnItsWay(telemetry.faults, telemetry.delay_s)
        self._last: Reading | None = None
        self._noise = np.random.default_rng([seed, 20_260])
        self._firsts: list[Request] = []
        self._ends: list[Request] = []
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
        read = [(c.state_of(r), fault is None or fault.hears(r.replica_id)) for r in c.ready]
        states = [state for state, heard in read if heard]
        serving = sum(state.running + state.waiting for state, _ in read)
        noise = self._telemetry.noise
        jitter = np.maximum(0.0, 1 + noise * self._noise.standard_normal(2 * len(states))) if noise > 0 else None

        def shown(value: int, k: int) -> int:
            return value if jitter is None else round(value * float(jitter[k]))

        firsts, ends = (
            [r for r in seen if fault is None or fault.hears(r.replica_id)] for seen in (self._firsts, self._ends)
        )
        self._send(
            Reading(
                at_s=c.now_s,
                running=tuple(shown(s.running, k) for k, s in enumerate(states)),
                waiting=tuple(shown(s.waiting, k + len(states)) for k, s in enumerate(states)),
                kv_ratio=tuple(s.kv_usage_ratio for s in states),
                gateway=len(c.gateway),
                draining_outstanding=c.outstanding - len(c.gateway) - serving,
                arrived_total=c.num_arrived,
                ttfts_s=tuple(r.ttft_s for r in firsts),
                tpots_s=tuple(r.tpot_s for r in ends),
                ended=tuple((r.prompt_tokens, r.output_tokens) for r in ends),
            )
        )
        self._firsts.clear()
        self._ends.clear()

    def _send(self, reading: Reading) -> None:
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
    def newest(self) -> Reading | None:
        """None before the first reading has arrived."""
        return self._readings[-1] if self._readings else None

    def within(self, window_s: float) -> list[Reading]:
        """Readings less than `window_s` older than the newest, newest included."""
        if not self._readings:
            return []
        since_s = self._readings[-1].at_s - window_s + 1e-9
        found = []
        for reading in reversed(self._readings):
            if reading.at_s < since_s:
                break
            found.append(reading)
        return found[::-1]

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


# The one interface of every policy in a replay.


class ScalingPolicy(Protocol):
    """Asked every `period_s` how many replicas there shall be; `looks_back_s` is how much of the past it reads."""

    @property
    def period_s(self) -> float: ...

    @property
    def looks_back_s(self) -> float: ...

    def wanted(self, view: View) -> int: ...
