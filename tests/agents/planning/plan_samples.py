"""Plans, policies and situations for the tests of the decide stage: one healthy workload, changed where it matters."""

from __future__ import annotations

from typing import Any

import msgspec

from agents.decide.situation import Situation, build_context
from agents.decide.state import WorkloadHistory
from agents.planning.codec import encode_plan
from agents.policy import GuardLimits, Policy, TargetRef, WorkloadSpec
from agents.records import InputFacts, LevelRisk, PlanRecord, WorkloadPlan
from streams.config import StreamConfig
from streams.log import LogRecord
from streams.records.facts import Control, FleetFacts
from streams.topics import Topics

STEP_MS = 5_000
STREAM = StreamConfig(step_ms=STEP_MS, grace_ms=5_000, skew_ms=1_000)
TOPICS = Topics(prefix="t.")
FREE = GuardLimits(
    warm_up_steps=0,
    stabilization_down_s=0.0,
    up_ratio=100.0,
    up_replicas=10_000,
    down_ratio=1.0,
    down_replicas=10_000,
)


def inputs(**changes: Any) -> InputFacts:
    healthy = InputFacts(
        arrival_rate=10.0,
        observed_ratio=1.0,
        observed_steps=128,
        oldest_age_ms=3_000,
        coverage_ratio=1.0,
        censored=False,
        flat=False,
        cliff=False,
        zero_after_nonzero=False,
        offsets={"requests": 17},
    )
    return msgspec.structs.replace(healthy, **changes)


def facts(current: int, **changes: Any) -> FleetFacts:
    return msgspec.structs.replace(FleetFacts(0, ready=current, pending=0, draining=0, desired=current), **changes)


def plan(workload: str = "w", current: int | None = 5, proposed: int | None = 5, **changes: Any) -> WorkloadPlan:
    healthy = WorkloadPlan(
        workload=workload,
        refused=None,
        inputs=changes.pop("inputs", inputs()),
        fleet=None if current is None else facts(current),
        facts_age_ms=2_000,
        reactive_replicas=changes.pop("reactive", 1),
        proposed=proposed,
        proposer="chance",
        risks=tuple(LevelRisk(n, 1.0 / (n + 1), 0.001, float(n)) for n in range(1, 12)),
        forecast_source="model",
    )
    return msgspec.structs.replace(healthy, **changes)


def spec(workload: str = "w", **changes: Any) -> WorkloadSpec:
    settings = {"min_replicas": 1, "max_replicas": 100, "mode": "act", "target": TargetRef(name=workload), **changes}
    return WorkloadSpec(id=workload, **settings)


def policy(*specs: WorkloadSpec, guards: GuardLimits = FREE, **changes: Any) -> Policy:
    return Policy(fleet="test", workloads=specs or (spec(),), guards=guards, **changes)


def record(
    slot: int, *plans: WorkloadPlan, partition: int = 0, controls: tuple[Control, ...] = (), model: str = "m1"
) -> PlanRecord:
    return PlanRecord(
        partition=partition,
        slot=slot,
        origin_ts_ms=(slot + 1) * STEP_MS,
        step_ms=STEP_MS,
        model_fingerprint=model,
        policy_fingerprint="p",
        workloads=plans,
        controls=controls,
    )


def log(*records: PlanRecord, stamp_ms: int = 0) -> list[LogRecord]:
    return [LogRecord(i, stamp_ms, None, encode_plan(r)) for i, r in enumerate(records)]


_CONTEXT = build_context(record(0), policy(), "p", STREAM, None)


def situation(current: int = 5, limits: GuardLimits = FREE, **changes: Any) -> Situation:
    """A healthy `act` workload; keywords of Situation go there, all others to its plan."""
    own = {k: changes.pop(k) for k in list(changes) if k in Situation.__dataclass_fields__ and k != "plan"}
    healthy: dict[str, Any] = {"spec": spec(), "mode": "act", "seen_steps": 128}
    history = WorkloadHistory(STEP_MS, 0, observed=current)
    return Situation(
        _CONTEXT, history, plan(current=current, **changes), limits=limits, current=current, **{**healthy, **own}
    )
