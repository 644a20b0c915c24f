"""Records as the stages publish them, for fleets of any size: a function of workload, step and seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from agents.decide.decision import decision_id
from agents.decide.records import encode_decision
from agents.planning.codec import encode_plan
from agents.records import (
    Decision,
    Fingerprint,
    ForecastRecord,
    ForecastView,
    GuardStep,
    InputFacts,
    PlanRecord,
    Quantiles,
    ReplicaView,
    RiskView,
    WorkloadPlan,
)
from streams.topics import Topics

TOPICS = Topics()
STEP_MS = 15_000
START_TS_MS = 1_760_000_010_000 // STEP_MS * STEP_MS
HORIZON = 16
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
_Z = (-1.645, -1.282, -0.674, 0.0, 0.674, 1.282, 1.645, 1.96, 2.326)


def load_at(seed: int, step: int) -> float:
    """Requests/s: a wave and noise, above zero."""
    noise = random.Random(seed * 1_000_003 + step).gauss(0.0, 0.4)
    return round(max(0.1, 8 + seed % 7 + 4 * math.sin((step + 5 * seed) / 20) + noise), 4)


def inputs(load: float | None, **changes: Any) -> InputFacts:
    facts = InputFacts(
        arrival_rate=load,
        observed_ratio=1.0,
        observed_steps=128,
        oldest_age_ms=900,
        coverage_ratio=1.0,
        censored=False,
        flat=False,
        cliff=False,
        zero_after_nonzero=False,
        offsets={"gpu": 4, "requests": 9},
    )
    return msgspec.structs.replace(facts, **changes)


def decision(workload: str, step: int, seed: int = 0, **changes: Any) -> Decision:
    """The decision at the end of the step; it grows by one at every 40th."""
    load = load_at(seed, step)
    now = 4 + seed % 3 + step // 40
    final = now + 1 if step % 40 == 39 else now
    origin = START_TS_MS + step * STEP_MS
    made = Decision(
        decision_id=decision_id("test", workload, origin, "p", "m"),
        workload=workload,
        origin_ts_ms=origin,
        mode="act" if seed % 4 else "observe",
        action="up" if final > now else "hold",
        reason="cheapest" if final > now else "stabilization",
        replicas=ReplicaView(ready=now, pending=0, current=now, proposed=max(1, final - 1), final=final),
        risk=RiskView(
            0.01,
            0.99,
            {str(n): min(1.0, 0.6 ** (4 * (n - final) + 10)) for n in range(1, final + 3)},
            0.0005,
            miss_share={str(n): min(1.0, 0.5 ** (2 * (n - final) + 9)) for n in range(1, final + 3)},
            miss_price=120.0,
        ),
        forecast=ForecastView(
            "fallback-test",
            "ridge",
            "request.arrival_rate",
            "1/s",
            120.0,
            Quantiles((0.05, 0.5, 0.95), (7.0, 9.0, 11.5)),
        ),
        capacity_per_replica=Quantiles((0.05, 0.5, 0.95), (2.0, 2.6, 3.9)),
        lead_time_s=Quantiles((0.05, 0.5, 0.95), (90.0, 120.0, 160.0)),
        proposer="cheapest",
        guards=(GuardStep("stabilization", max(1, final - 1), final, f"{final} was proposed within 300 s"),),
        shadow={"reactive": max(1, now - 2), "last_plan": now, "yesterday": now + 9},
        inputs=inputs(load),
        fingerprint=Fingerprint("a6b1961c4dc64cc4", "fallback-test"),
        command_id="c0ffee" if seed % 4 else None,
    )
    return msgspec.structs.replace(made, **changes)


def forecast(workload: str, step: int, seed: int = 0, horizon: int = HORIZON) -> ForecastRecord:
    """Quantiles around the true wave, wider with the distance."""
    rows = tuple(
        tuple(round(max(0.0, load_at(seed, step) * 0.9 + 0.8 + 0.4 * math.sqrt(h) * z), 4) for z in _Z)
        for h in range(1, horizon + 1)
    )
    targets = {"request.arrival_rate": rows, "request.prompt_token_rate": rows, "request.output_token_rate": rows}
    origin = START_TS_MS + step * STEP_MS
    return ForecastRecord(
        "f" * 24, workload, origin, STEP_MS, "ridge", "fallback-test", LEVELS, targets,
        {"request.arrival_rate": tuple(9.0 + z for z in _Z)}, 120.0,
    )  # fmt: skip


def plan(workloads: dict[str, float | None], step: int) -> PlanRecord:
    """A plan record that tells only miss ratios."""
    told = tuple(WorkloadPlan(w, None, inputs(1.0), slo_miss_ratio=miss) for w, miss in workloads.items())
    return PlanRecord(0, step, START_TS_MS + step * STEP_MS, STEP_MS, "m", "p", told)


def name(seed: int) -> str:
    return f"team-{seed % 12:02d}/service-{seed:04d}"


def step_records(num_workloads: int, step: int) -> Iterator[tuple[str, bytes]]:
    """(topic, value) of everything that a fleet publishes at one step."""
    names = {seed: name(seed) for seed in range(num_workloads)}
    for seed, workload in names.items():
        yield TOPICS.forecasts, msgspec.json.encode(forecast(workload, step, seed))
    misses = {w: 0.03 if seed % 9 == 5 and step % 10 == 0 else 0.0005 for seed, w in names.items()}
    yield TOPICS.plans, encode_plan(plan(misses, step))
    for seed, workload in names.items():
        yield TOPICS.decisions, encode_decision(decision(workload, step, seed))
