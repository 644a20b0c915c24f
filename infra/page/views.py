"""What the page shows, as plain data: a row per workload, and everything of one workload. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from agents.records import Decision, Quantiles
from infra.page import history as h
from infra.page.adoption import Adoption, adoption, largest_within
from infra.page.history import Fan, Turn, WorkloadHistory, attainment
from infra.page.memory import short_key
from infra.page.skill import LEVELS, Floats, skill
from infra.page.words import because, headline, why_this_count

# Points of a row's sparkline, and steps of its fan.
SPARK = 48
SPARK_FAN = 12
# Whole numbers beyond are written as others are: JSON's writer refuses those of more than 64 bits.
_WHOLE = 2**53


def fleet_row(workload: str, history: WorkloadHistory) -> dict[str, Any]:
    """One row of the fleet view; numbers in base units, None where not known."""
    decision = history.newest
    window = history.window()
    assert decision is not None
    assert window is not None
    first, last = window
    rows = history.ring.read(max(first, last - SPARK + 1), last)  # [<=48, K]
    kept = history.ring.read(first, last)
    final = decision.replicas.final
    return {
        "key": short_key(workload),
        "id": workload,
        "mode": decision.mode,
        "action": decision.action,
        "reason": decision.reason,
        "headline": headline(decision),
        "because": because(decision),
        "origin_ts_ms": decision.origin_ts_ms,
        "load_rps": _rounded(decision.inputs.arrival_rate),
        "spark": _numbers(rows[:, h.LOAD]),
        "fan": None if history.fan is None else _spark_fan(history.fan, decision.origin_ts_ms),
        "ready": decision.replicas.ready,
        "pending": decision.replicas.pending,
        "wanted": final if final is not None else decision.replicas.current,
        "attainment": _rounded(attainment(kept), 6),
        "objective": decision.risk.objective,
        "p_miss": _rounded(None if final is None else decision.risk.p_miss.get(str(final))),
        "epsilon": decision.risk.epsilon,
        "on_trial": _on_trial(decision),
        **_beside(history, kept),
    }


def _on_trial(decision: Decision) -> bool:
    """Whether the decided count is above the allowed risk on purpose."""
    trial = decision.risk.trial
    return trial is not None and trial.replicas == decision.replicas.final


def workload_view(workload: str, history: WorkloadHistory) -> dict[str, Any]:
    """Everything the page shows of one workload."""
    decision = history.newest
    window = history.window()
    assert decision is not None
    assert window is not None
    first, last = window
    rows = history.ring.read(first, last)  # [T, K]
    made = history.made(first, last)
    return {
        "key": short_key(workload),
        "id": workload,
        "step_ms": history.step_ms,
        "headline": headline(decision),
        "because": because(decision),
        "why": why_this_count(decision),
        "decision": _without_noise(decision),
        "slo": {
            "attainment": _rounded(attainment(rows), 6),
            "objective": decision.risk.objective,
            "slots": int((~np.isnan(rows[:, h.MISS])).sum()),
        },
        "adoption": _told_adoption(_adoption(history, rows)),
        "history": {
            "ts_ms": [slot * history.step_ms for slot in range(first, last + 1)],
            "load_rps": _numbers(rows[:, h.LOAD]),
            "miss_ratio": _numbers(rows[:, h.MISS]),
            "ready": _numbers(rows[:, h.READY]),
            "pending": _numbers(rows[:, h.PENDING]),
            "proposed": _numbers(rows[:, h.PROPOSED]),
            "wanted": _numbers(rows[:, h.FINAL]),
            "reactive": _numbers(rows[:, h.REACTIVE]),
            "p_miss": _numbers(rows[:, h.P_MISS]),
            "capacity_rps": _numbers(rows[:, h.CAPACITY] * rows[:, h.READY]),
        },
        "fan": None if history.fan is None else _full_fan(history.fan),
        "made": _made(made, decision, history.step_ms),
        "skill": [
            {**asdict(skill(rows[:, h.LOAD], q, ahead)), "ahead_s": ahead * history.step_ms / 1000}
            for ahead, q in made.items()
        ],
        "turns": [_turn(turn) for turn in reversed(history.turns)],
    }


def _adoption(history: WorkloadHistory, rows: Floats) -> Adoption | None:
    """Of the kept steps [T, K]."""
    ours = rows[:, h.FINAL]
    if history.newest is not None and history.newest.mode == "observe":
        ours = largest_within(rows[:, h.PROPOSED], max(1, history.hold_ms // history.step_ms))
    risk = rows[:, h.P_PROPOSED] if ours is not rows[:, h.FINAL] else rows[:, h.P_MISS]
    return adoption(rows[:, h.CURRENT], ours, rows[:, h.REACTIVE], rows[:, h.P_CURRENT], risk, history.step_ms)


def _beside(history: WorkloadHistory, rows: Floats) -> dict[str, Any]:
    found = _adoption(history, rows)
    return (
        {"held": None, "ours": None} if found is None else {"held": _rounded(found.held), "ours": _rounded(found.ours)}
    )


def _spark_fan(fan: Fan, origin_ts_ms: int) -> dict[str, Any] | None:
    """Low, median and high at the first steps of the newest forecast; None when it is older than the decision."""
    if fan.origin_ts_ms < origin_ts_ms - 2 * fan.step_ms:
        return None
    count = len(fan.quantiles)
    picked = np.unique(np.linspace(0, count - 1, min(SPARK_FAN, count)).round().astype(int))
    q = fan.quantiles[picked]
    return {"at": [int(i) + 1 for i in picked], **{n: _numbers(q[:, i]) for n, i in (("lo", 0), ("mid", 2), ("hi", 4))}}


def _full_fan(fan: Fan) -> dict[str, Any]:
    ends = [fan.origin_ts_ms + (i + 1) * fan.step_ms for i in range(len(fan.quantiles))]
    return {
        "origin_ts_ms": fan.origin_ts_ms,
        "source": fan.source,
        "model": fan.model,
        "levels": LEVELS,
        "ts_ms": ends,
        "quantiles": [_numbers(fan.quantiles[:, i]) for i in range(len(LEVELS))],
    }


def _made(made: dict[int, Floats], decision: Decision, step_ms: int) -> dict[str, Any] | None:
    """What had been forecast about a lead time before: the horizon nearest to the median lead time."""
    if not made:
        return None
    lead = decision.lead_time_s
    wanted = 1.0 if lead is None or not lead.values else lead.values[len(lead.values) // 2] * 1000 / step_ms
    ahead = min(made, key=lambda steps: abs(steps - wanted))
    q = made[ahead]
    return {
        "ahead_s": ahead * step_ms / 1000,
        "low": _numbers(q[:, 0]),
        "middle": _numbers(q[:, 2]),
        "high": _numbers(q[:, 4]),
    }


def _told_adoption(found: Adoption | None) -> dict[str, Any] | None:
    return None if found is None else {name: _rounded(value) for name, value in asdict(found).items()}


def _turn(turn: Turn) -> dict[str, Any]:
    d = turn.decision
    return {
        "from_ts_ms": turn.from_ts_ms,
        "until_ts_ms": d.origin_ts_ms,
        "count": turn.reasons.total(),
        "reasons": dict(turn.reasons.most_common(4)),
        "action": d.action,
        "mode": d.mode,
        "headline": headline(d),
        "because": because(d),
        "current": d.replicas.current,
        "proposed": d.replicas.proposed,
        "proposer": d.proposer,
        "final": d.replicas.final,
        "guards": [msgspec.to_builtins(step) for step in d.guards],
        "p_miss": _rounded(d.risk.p_miss.get(str(d.replicas.final))),
        "epsilon": d.risk.epsilon,
        "peak": _quantiles(d.forecast.peak),
        "indicator": d.forecast.indicator,
        "decision_id": d.decision_id,
        "command_id": d.command_id,
    }


def _without_noise(d: Decision) -> dict[str, Any]:
    """The decision as published, with numbers rounded for display."""
    told: dict[str, Any] = msgspec.to_builtins(d)
    told["risk"]["p_miss"] = {n: _rounded(p) for n, p in d.risk.p_miss.items()}
    told["risk"]["promises"] = [
        {"promise": p.promise, "capacity": _quantiles(p.capacity), "miss_share": _rounded(p.miss_share)}
        for p in d.risk.promises
    ]
    told["forecast"]["peak"] = _quantiles(d.forecast.peak)
    told["capacity_per_replica"] = _quantiles(d.capacity_per_replica)
    told["lead_time_s"] = _quantiles(d.lead_time_s)
    return told


def _quantiles(q: Quantiles | None) -> dict[str, Any] | None:
    return None if q is None else {"levels": q.levels, "values": [_rounded(v) for v in q.values]}


def _numbers(values: Floats) -> list[float | None]:
    return [_rounded(v) for v in values.tolist()]


def _rounded(value: float | None, digits: int = 4) -> float | None:
    """Significant digits, for people; what is not finite is not known."""
    if value is None or not math.isfinite(value):
        return None
    if abs(value) < _WHOLE and value == int(value):
        return int(value)
    return float(f"{value:.{digits}g}")
