"""Whether a queue is served in time with a replica count, said again in plain Python: one future, step after step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One future in plain numbers; eighths throughout, so that float32 and float64 agree to the bit."""

    demand: list[float]
    capacity: float
    lead: int
    ready: int
    pending: int
    arrived: list[int]
    backlog: float
    ttft_s: float
    objective: float
    window: int
    step_s: float


def looped(case: Case, replicas: int, *, excused: bool) -> bool:
    """Whether a future is missed (or not kept): the definition, one request step after the other."""
    commanded = case.ready + case.pending
    queue, inherited = case.backlog, 0.0
    fresh = balance = missed = total = 0.0
    for t, rate in enumerate(case.demand):
        if t == case.lead:
            inherited = queue
        serving = case.ready + case.arrived[t]
        if t >= case.lead:
            serving += case.pending - case.arrived[-1]
        serving = min(replicas, serving)
        if t >= case.lead and replicas > commanded:
            serving += replicas - commanded
        capacity = case.capacity * serving
        after = max(0.0, queue + (rate - capacity) * case.step_s)
        inside = case.lead <= t < case.lead + case.window
        waiting = [queue, after]
        if excused and inside and replicas >= commanded:
            fresh_after = max(0.0, fresh + (rate - capacity) * case.step_s)
            balance_after = balance + (rate - capacity) * case.step_s
            due, due_after = (inherited * (k - case.lead) / case.window for k in (t, t + 1))
            waiting = [fresh, fresh_after, due + balance, due_after + balance_after]
            fresh, balance = fresh_after, balance_after
        late = max(waiting) > capacity * case.ttft_s
        scored = inside or (replicas < commanded and t < case.lead)
        missed += rate * case.step_s if late and scored else 0.0
        total += rate * case.step_s if inside else 0.0
        queue = after
    return missed > total * (1.0 - case.objective)
