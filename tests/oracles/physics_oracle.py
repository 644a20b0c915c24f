"""The replay's physics, one iteration at a time: an independent reading, slow and plain."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Costs:
    base_s: float
    prefill_token_s: float
    prefill_token_sq_s: float
    sequence_s: float
    kv_token_s: float
    kv_capacity_tokens: int
    max_batch: int
    max_prefill_tokens: int
    admission_watermark: float


@dataclass
class Job:
    arrival_s: float
    prompt: int
    output: int
    f: int = 0
    g: int = 0
    target: int = 0
    first_token_s: float = math.nan
    finish_s: float = math.nan
    refused: bool = False
    server: int = -1

    @property
    def prefilling(self) -> bool:
        return self.f < self.target

    @property
    def in_cache(self) -> int:
        return self.f if self.prefilling else self.prompt + self.g

    @property
    def reserved(self) -> int:
        return self.target + 1 if self.prefilling else self.prompt + self.g


@dataclass
class Events:
    """How often each rule was met."""

    preemptions: int = 0
    blocked_by_watermark: int = 0
    blocked_by_batch: int = 0


@dataclass
class Server:
    """One replica. Between two iterations `end_s` is None."""

    costs: Costs
    events: Events
    number: int = 0
    command_s: float = 0.0
    ready_s: float = math.nan
    drain_s: float = math.nan
    release_s: float = math.nan
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)  # decoding ones first, each part oldest first
    end_s: float | None = None
    chunks: list[tuple[Job, int]] = field(default_factory=list)
    decoding: list[Job] = field(default_factory=list)

    @property
    def outstanding(self) -> int:
        return len(self.waiting) + len(self.running)

    def take(self, job: Job) -> None:
        job.server = self.number
        if job.prompt + job.output > self.costs.kv_capacity_tokens:
            job.refused = True
        else:
            self.waiting.append(job)

    def begin(self, t: float) -> None:
        c, running, waiting = self.costs, self.running, self.waiting
        preempted = False
        while len(running) > 1:
            decoding = [j for j in running if not j.prefilling]
            if sum(j.reserved for j in running) + len(decoding) <= c.kv_capacity_tokens:
                break
            newest = running.pop()
            newest.f = newest.target = 0
            waiting.insert(0, newest)
            self.events.preemptions += 1
            preempted = True

        self.decoding = [j for j in running if not j.prefilling]
        kv = sum(j.in_cache for j in running)
        budget = c.max_prefill_tokens
        self.chunks = []
        for job in running:
            if job.prefilling and budget > 0:
                chunk = min(budget, job.target - job.f)
                self.chunks.append((job, chunk))
                budget -= chunk
        while waiting and not preempted and budget > 0:
            if len(running) >= c.max_batch:
                self.events.blocked_by_batch += 1
                break
            head = waiting[0]
            target = head.prompt + head.g
            held = sum(j.reserved for j in running) + len(self.decoding)
            if running and held + target + 1 > (1 - c.admission_watermark) * c.kv_capacity_tokens:
                self.events.blocked_by_watermark += 1
                break
            waiting.pop(0)
            head.f, head.target = 0, target
            running.append(head)
            chunk = min(budget, target)
            self.chunks.append((head, chunk))
            budget -= chunk

        total = sum(chunk for _, chunk in self.chunks)
        squares = sum(chunk * (job.f + chunk) for job, chunk in self.chunks)
        self.end_s = t + (
            c.base_s
            + c.prefill_token_s * total
            + c.prefill_token_sq_s * squares
            + c.sequence_s * len(self.decoding)
            + c.kv_token_s * kv
        )

    def end(self) -> None:
        assert self.end_s is not None
        t, self.end_s = self.end_s, None
        for job in self.decoding:
            job.g += 1
        for job, chunk in self.chunks:
            job.f += chunk
            if job.f == job.target:
                if job.g == 0:
                    job.first_token_s = t
                job.g += 1
        for job in list(self.running):
            if job.g == job.output:
                job.finish_s = t
                self.running.remove(job)
        self.running.sort(key=lambda job: job.prefilling)  # stable: decoding ones are older than prefilling ones
        if not math.isnan(self.drain_s) and self.outstanding == 0:
            self.release_s = t


@dataclass
class Outcome:
    jobs: list[Job]
    servers: list[Server]
    events: Events


def simulate(
    costs: Costs,
    arrivals: list[tuple[float, int, int]],
    initial: int = 1,
    actions: list[tuple[float, int]] | None = None,
    lead_s: float = 0.0,
) -> Outcome:
    """Serve `(arrival_s, prompt, output)` until everything has finished; `actions` are `(time, wanted replicas)`."""
    out = Outcome([Job(*a) for a in arrivals], [], Events())
    servers = out.servers
    servers += [Server(costs, out.events, k, ready_s=0.0) for k in range(initial)]
    coming, orders = list(out.jobs), list(actions or [])
    gateway: list[Job] = []
    t = 0.0
    while True:
        times = [s.end_s for s in servers if s.end_s is not None]
        times += [s.command_s + lead_s for s in servers if math.isnan(s.ready_s) and math.isnan(s.release_s)]
        times += [job.arrival_s for job in coming[:1]] + [at_s for at_s, _ in orders[:1]]
        if not times:
            return out
        t = min(times)
        for server in servers:
            if server.end_s == t:
                server.end()
        for server in servers:
            if math.isnan(server.ready_s) and math.isnan(server.release_s) and server.command_s + lead_s == t:
                server.ready_s = t
        if any(_takes(s) for s in servers):
            for job in gateway:
                _route(servers, job)
            gateway.clear()
        while coming and coming[0].arrival_s == t:
            job = coming.pop(0)
            if any(_takes(s) for s in servers):
                _route(servers, job)
            else:
                gateway.append(job)
        while orders and orders[0][0] == t:
            _scale(out, costs, orders.pop(0)[1], t)
        for server in servers:
            if server.end_s is None and server.outstanding:
                server.begin(t)


def gpu_seconds(out: Outcome, start_s: float, end_s: float, gpus: int) -> float:
    total = 0.0
    for s in out.servers:
        last_s = end_s if math.isnan(s.release_s) else s.release_s
        total += max(0.0, min(end_s, last_s) - max(start_s, s.command_s))
    return total * gpus


def _takes(server: Server) -> bool:
    return not math.isnan(server.ready_s) and math.isnan(server.drain_s)


def _route(servers: list[Server], job: Job) -> None:
    min((s for s in servers if _takes(s)), key=lambda s: (s.outstanding, s.number)).take(job)


def _scale(out: Outcome, costs: Costs, wanted: int, t: float) -> None:
    def warming() -> list[Server]:
        return [s for s in out.servers if math.isnan(s.ready_s) and math.isnan(s.release_s)]

    def ready() -> list[Server]:
        return [s for s in out.servers if _takes(s)]

    while len(warming()) + len(ready()) < wanted:
        out.servers.append(Server(costs, out.events, len(out.servers), command_s=t))
    while len(warming()) + len(ready()) > wanted:
        if warming():
            warming()[-1].release_s = t
            continue
        leaving = min(ready(), key=lambda s: (s.outstanding, -s.number))
        leaving.drain_s = t
        if leaving.outstanding == 0:
            leaving.release_s = t
