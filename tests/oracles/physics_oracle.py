"""One replica, one iteration at a time: an independent reading of the replay's physics, slow and plain."""

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
class Outcome:
    jobs: list[Job]
    preemptions: int = 0
    iterations: int = 0
    blocked_by_watermark: int = 0
    blocked_by_batch: int = 0
    ends_s: list[float] = field(default_factory=list)


def simulate(costs: Costs, arrivals: list[tuple[float, int, int]]) -> Outcome:
    """Serve `(arrival_s, prompt, output)`, sorted by time, on one replica until everything has finished."""
    out = Outcome([Job(*a) for a in arrivals])
    pending = list(out.jobs)
    waiting: list[Job] = []
    running: list[Job] = []  # decoding ones first, each part oldest first
    t = 0.0
    while pending or waiting or running:
        if not waiting and not running:
            t = max(t, pending[0].arrival_s)
        while pending and pending[0].arrival_s <= t:
            job = pending.pop(0)
            if job.prompt + job.output > costs.kv_capacity_tokens:
                job.refused = True
            else:
                waiting.append(job)
        if not waiting and not running:
            continue
        t = _iterate(costs, out, waiting, running, t)
    return out


def _iterate(costs: Costs, out: Outcome, waiting: list[Job], running: list[Job], t: float) -> float:
    out.iterations += 1
    preempted = False
    while len(running) > 1:
        decoding = [j for j in running if not j.prefilling]
        if sum(j.reserved for j in running) + len(decoding) <= costs.kv_capacity_tokens:
            break
        newest = running.pop()
        newest.f = 0
        newest.target = 0
        waiting.insert(0, newest)
        out.preemptions += 1
        preempted = True

    decoding = [j for j in running if not j.prefilling]
    kv = sum(j.in_cache for j in running)
    budget = costs.max_prefill_tokens
    chunks: list[tuple[Job, int]] = []
    for job in running:
        if job.prefilling and budget > 0:
            chunk = min(budget, job.target - job.f)
            chunks.append((job, chunk))
            budget -= chunk
    while waiting and not preempted and budget > 0:
        if len(running) >= costs.max_batch:
            out.blocked_by_batch += 1
            break
        head = waiting[0]
        target = head.prompt + head.g
        held = sum(j.reserved for j in running)
        if running and held + len(decoding) + target + 1 > (1 - costs.admission_watermark) * costs.kv_capacity_tokens:
            out.blocked_by_watermark += 1
            break
        waiting.pop(0)
        head.f, head.target = 0, target
        running.append(head)
        chunk = min(budget, target)
        chunks.append((head, chunk))
        budget -= chunk

    total = sum(chunk for _, chunk in chunks)
    squares = sum(chunk * (job.f + chunk) for job, chunk in chunks)
    t += (
        costs.base_s
        + costs.prefill_token_s * total
        + costs.prefill_token_sq_s * squares
        + costs.sequence_s * len(decoding)
        + costs.kv_token_s * kv
    )
    out.ends_s.append(t)
    for job in decoding:
        job.g += 1
    for job, chunk in chunks:
        job.f += chunk
        if job.f == job.target:
            if job.g == 0:
                job.first_token_s = t
            job.g += 1
    for job in list(running):
        if job.g == job.output:
            job.finish_s = t
            running.remove(job)
    running.sort(key=lambda job: job.prefilling)  # stable: decoding ones are older than prefilling ones
    return t
