"""Replicas of one workload behind a router: lead times, warm-up, drains, gateway queue, cost and request results."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

import numpy as np

from infra.simulator.arrivals import Arrivals
from infra.simulator.engine import NEVER_S, ReplicaEngine
from infra.simulator.ledger import EngineState, Objective, ReplicaLedger, Request, Scoreboard
from infra.simulator.profiles import EngineProfile

# Lead times: from the command to a ready replica.


class LeadTime(Protocol):
    """Command -> ready time of the next launch, one draw per launch."""

    def next_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class ConstantLeadTime:
    """Every launch takes `mean_s`."""

    mean_s: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean_s) or self.mean_s < 0:
            raise ValueError(f"lead time must be a finite number of seconds >= 0, got {self.mean_s}")

    def next_s(self) -> float:
        return self.mean_s


class LognormalLeadTime:
    """Launches of mean `mean_s`; `sigma_log` is the standard deviation of the logarithm."""

    def __init__(self, mean_s: float, sigma_log: float, seed: int) -> None:
        if not (math.isfinite(mean_s) and mean_s > 0 and math.isfinite(sigma_log) and sigma_log >= 0):
            raise ValueError(f"lead time needs mean > 0 and sigma >= 0, got {mean_s} and {sigma_log}")
        self._mu = math.log(mean_s) - sigma_log * sigma_log / 2
        self._sigma = sigma_log
        self._draws = np.random.default_rng(seed)

    def next_s(self) -> float:
        return float(math.exp(self._mu + self._sigma * self._draws.standard_normal()))


@dataclass(frozen=True, slots=True)
class MixedStarts:
    """Warm and cold launches: `slow_share` of them take `slow_s`, the others `quick_s`, a few percent more or less."""

    quick_s: float
    slow_s: float
    slow_share: float

    @property
    def mean_s(self) -> float:
        return self.quick_s + self.slow_share * (self.slow_s - self.quick_s)


class MixedLeadTime:
    """Launches of two kinds, each by itself of either."""

    _SIGMA_LOG = 0.05

    def __init__(self, kinds: MixedStarts, seed: int) -> None:
        values = (kinds.quick_s, kinds.slow_s, kinds.slow_share)
        if not (all(map(math.isfinite, values)) and 0 < kinds.quick_s <= kinds.slow_s and 0 <= kinds.slow_share <= 1):
            raise ValueError(f"kinds of starts need 0 < quick <= slow and a share within 0..1, got {kinds}")
        self._kinds = kinds
        self._draws = np.random.default_rng(seed)

    def next_s(self) -> float:
        slow = self._draws.random() < self._kinds.slow_share
        wobble = math.exp(self._SIGMA_LOG * self._draws.standard_normal())
        return (self._kinds.slow_s if slow else self._kinds.quick_s) * wobble


class Replica:
    """One replica's life. Times NaN until they happen; `lead_s` is drawn at launch."""

    __slots__ = ("command_s", "drain_s", "engine", "lead_s", "ledger", "ready_s", "release_s", "replica_id")

    def __init__(self, replica_id: int, command_s: float, lead_s: float, profile: EngineProfile) -> None:
        self.replica_id = replica_id
        self.command_s = command_s
        self.lead_s = lead_s
        self.ready_s = math.nan
        self.drain_s = math.nan
        self.release_s = math.nan
        self.engine = ReplicaEngine(profile)
        self.ledger = ReplicaLedger()

    def __lt__(self, other: Replica) -> bool:
        return self.replica_id < other.replica_id


class Change(NamedTuple):
    """What `set_replicas` did, as replica ids."""

    launched: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    drained: tuple[int, ...] = ()


def replica_seconds(replicas: Iterable[Replica], start_s: float, end_s: float) -> float:
    """Seconds that replicas were held from command to release, clipped to the interval."""
    total_s = 0.0
    for replica in replicas:
        release_s = end_s if math.isnan(replica.release_s) else replica.release_s
        total_s += max(0.0, min(release_s, end_s) - max(replica.command_s, start_s))
    return total_s


class Cluster:
    """The replicas of one workload from second 0 on.

    Same-instant order: iteration ends, readiness, arrivals, then whatever the caller does at that instant.

    Args:
        profile: of every replica.
        initial_replicas: commanded and ready at `start_s`.
        lead_time: draws one value per launch.
        objective: what a good request is.
        score_from_s: requests arriving from here on are scored.
        keep_requests: keep every request in `requests` (arrival order); off for endless runs.
    """

    def __init__(
        self,
        profile: EngineProfile,
        initial_replicas: int,
        lead_time: LeadTime,
        objective: Objective,
        *,
        start_s: float = 0.0,
        score_from_s: float = 0.0,
        keep_requests: bool = True,
    ) -> None:
        self.profile = profile
        self.objective = objective
        self.now_s = start_s
        self.scores = Scoreboard(objective, score_from_s)
        self.requests: list[Request] = []
        self.replicas: list[Replica] = []
        self.gateway: deque[Request] = deque()
        self._keep = keep_requests
        self._lead_time = lead_time
        self._ready: list[Replica] = []
        self._warming: list[tuple[float, int, Replica]] = []
        self._draining: list[Replica] = []
        self._coming: deque[Request] = deque()
        self._num_requests = 0
        self._num_launched = 0
        self._last_fed_s = -math.inf
        self._watchers: tuple[list[Request], list[Request]] | None = None
        for _ in range(initial_replicas):
            replica = self._launch(0.0)
            replica.ready_s = start_s
            self._ready.append(replica)

    @property
    def ready(self) -> tuple[Replica, ...]:
        """Replicas that take requests, by id."""
        return tuple(self._ready)

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def num_pending(self) -> int:
        """Launched and still warming."""
        return len(self._warming)

    @property
    def num_draining(self) -> int:
        return len(self._draining)

    @property
    def num_current(self) -> int:
        """Ready and warming: what `set_replicas` compares with."""
        return len(self._ready) + len(self._warming)

    @property
    def outstanding(self) -> int:
        """Requests that arrived and have not finished."""
        return len(self.gateway) + sum(r.engine.outstanding for r in self._ready + self._draining)

    @property
    def num_arrived(self) -> int:
        """Requests that have arrived so far."""
        return self._num_requests - len(self._coming)

    def watch(self, first_tokens: list[Request], finished: list[Request]) -> None:
        """From now on append every request to these when it gets its first token, and when it finishes."""
        self._watchers = (first_tokens, finished)

    def feed(self, arrivals: Arrivals) -> None:
        """Add requests that arrive after now and after everything fed before.

        Raises:
            ValueError: they lie in the past or out of order.
        """
        if not len(arrivals):
            return
        first_s = float(arrivals.arrival_s[0])
        if first_s < self.now_s or first_s < self._last_fed_s or bool(np.any(np.diff(arrivals.arrival_s) < 0)):
            raise ValueError(f"arrivals from {first_s} s are out of order: now is {self.now_s} s")
        columns = (arrivals.arrival_s.tolist(), arrivals.prompt_tokens.tolist(), arrivals.output_tokens.tolist())
        for arrival_s, prompt, output in zip(*columns, strict=True):
            request = Request(self._num_requests, arrival_s, prompt, output)
            self._num_requests += 1
            self._coming.append(request)
            if self._keep:
                self.requests.append(request)
        self._last_fed_s = float(arrivals.arrival_s[-1])

    def advance(self, until_s: float) -> None:
        """Live through everything up to and including `until_s`.

        Raises:
            ValueError: `until_s` lies in the past.
        """
        if until_s < self.now_s:
            raise ValueError(f"cannot go back from {self.now_s} s to {until_s} s")
        coming, warming = self._coming, self._warming
        while True:
            arrival_s = coming[0].arrival_s if coming else NEVER_S
            ready_s = warming[0][0] if warming else NEVER_S
            if min(arrival_s, ready_s) > until_s:
                break
            if ready_s <= arrival_s:
                self._become_ready(ready_s)
            else:
                request = coming.popleft()
                self.scores.arrived(request)
                self._route(request, arrival_s)
        for replica in self._ready:
            replica.engine.advance(until_s)
        for replica in self._draining:
            replica.engine.advance(until_s)
        self.now_s = until_s
        self._collect()

    def set_replicas(self, replicas: int, now_s: float) -> Change:
        """Launch, cancel and drain until ready + warming equals `replicas`.

        Raises:
            ValueError: a negative count, or `now_s` is not the instant advanced to.
        """
        if replicas < 0:
            raise ValueError(f"replicas must be >= 0, got {replicas}")
        if now_s != self.now_s:
            raise ValueError(f"the cluster stands at {self.now_s} s, not at {now_s} s; advance it first")
        launched, cancelled, drained = [], [], []
        while self.num_current < replicas:
            replica = self._launch(self._lead_time.next_s())
            heappush(self._warming, (now_s + replica.lead_s, replica.replica_id, replica))
            launched.append(replica.replica_id)
        while self.num_current > replicas:
            if self._warming:
                newest = max(self._warming, key=lambda entry: entry[1])
                self._warming.remove(newest)
                newest[2].release_s = now_s
                cancelled.append(newest[1])
            else:
                drained.append(self._drain(now_s))
        if cancelled:
            self._warming.sort()
        return Change(tuple(launched), tuple(cancelled), tuple(drained))

    def replace_failed(self, count: int) -> None:
        """Take ready replicas from service at this instant, and launch as many, as a Deployment does."""
        for _ in range(min(count, len(self._ready))):
            self._drain(self.now_s)
            replica = self._launch(self._lead_time.next_s())
            heappush(self._warming, (self.now_s + replica.lead_s, replica.replica_id, replica))

    def gpu_seconds(self, start_s: float, end_s: float) -> float:
        """GPU-seconds held from command to release, clipped to the interval."""
        return replica_seconds(self.replicas, start_s, end_s) * self.profile.gpus_per_replica

    def state_of(self, replica: Replica) -> EngineState:
        """A replica's engine as of now."""
        return replica.engine.state(self.now_s)

    def serving(self) -> list[Replica]:
        """Replicas that hold a running engine: ready and draining, by id."""
        return sorted(self._ready + self._draining)

    def warming(self) -> list[Replica]:
        """Replicas that hold devices but do not serve yet, by id."""
        return sorted(entry[2] for entry in self._warming)

    def _launch(self, lead_s: float) -> Replica:
        replica = Replica(self._num_launched, self.now_s, lead_s, self.profile)
        self._num_launched += 1
        self.replicas.append(replica)
        return replica

    def _become_ready(self, ready_s: float) -> None:
        # All that become ready at this instant do so before the gateway's queue is shared out among them.
        while self._warming and self._warming[0][0] == ready_s:
            _, _, replica = heappop(self._warming)
            replica.ready_s = ready_s
            insort(self._ready, replica)
        while self.gateway:
            self._route(self.gateway.popleft(), ready_s)

    def _route(self, request: Request, now_s: float) -> None:
        best: Replica | None = None
        fewest = 0
        for replica in self._ready:
            engine = replica.engine
            if engine.due_s <= now_s:
                engine.advance(now_s)
            if best is None or engine.outstanding < fewest:
                best, fewest = replica, engine.outstanding
        if best is None:
            self.gateway.append(request)
            return
        request.replica_id = best.replica_id
        best.ledger.requests_started_total += 1
        if not best.engine.dispatch(request, now_s):
            best.ledger.refused()
            self.scores.refused(request)

    def _drain(self, now_s: float) -> int:
        replica = min(self._ready, key=lambda r: (r.engine.outstanding, -r.replica_id))
        self._ready.remove(replica)
        replica.drain_s = now_s
        if replica.engine.outstanding:
            self._draining.append(replica)
        else:
            replica.release_s = now_s
        return replica.replica_id

    def _collect(self) -> None:
        """Book first tokens and finishes, and release drained replicas."""
        for replica in self._ready:
            if replica.engine.first_tokens or replica.engine.finished:
                self._book(replica)
        released = False
        for replica in self._draining:
            last_s = replica.engine.finished[-1].finish_s if replica.engine.finished else math.nan
            self._book(replica)
            if replica.engine.outstanding == 0:
                replica.release_s = last_s
                released = True
        if released:
            self._draining = [r for r in self._draining if r.engine.outstanding]

    def _book(self, replica: Replica) -> None:
        engine = replica.engine
        replica.ledger.book(engine.first_tokens, engine.finished, self.objective)
        for request in engine.finished:
            self.scores.finished(request)
        if self._watchers is not None:
            self._watchers[0].extend(engine.first_tokens)
            self._watchers[1].extend(engine.finished)
        engine.first_tokens.clear()
        engine.finished.clear()
