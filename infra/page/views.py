"""What the page shows, as plain data: a row per workload, and everything of one workload. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from agents.records import Decision, Quantiles
from infra.console.text import printable
from infra.explain.views import GUARD_MEANINGS, expected_lines, low_maximum, low_maximum_text, promise_lines
from infra.page import memory as h
from infra.page.memory import Fan, Turn, WorkloadMemory, attainment, short_key
from infra.page.skill import LEVELS, Adoption, Floats, adoption, largest_within, skill

# A decision in one sentence, as an operator would say it.


_LONGEST = 300
# Grounds of the planner.
_PROPOSERS = {
    "cheapest": "replicas and the misses to be expected with them cost least",
    "queue_bound": "with fewer, replicas would fall behind more often than is accepted",
    "maximum": "no count within the bounds is enough: the most there may be",
    "idle": "there is nothing to do, and hardly will be before a replica could come back",
}


def headline(decision: Decision) -> str:
    """What was decided: `grows from 5 to 7 replicas`."""
    now, final = decision.replicas.current, decision.replicas.final
    if decision.action == "retired":
        return "is retired: no telemetry for a whole context"
    if decision.action == "hold" or now is None or final is None:
        if final is None:
            return "holds, with no count to give"
        return f"holds at {_replicas(final)}"
    would = decision.mode != "act"
    verb = {"up": "grow", "down": "shrink"}.get(decision.action, decision.action)
    return f"would {verb} from {now} to {_replicas(final)}" if would else f"{verb}s from {now} to {_replicas(final)}"


def because(decision: Decision) -> str:
    """Why: the guard or proposer that had the last word, in words, with what it said."""
    reason = decision.reason
    detail = next((step.reason for step in reversed(decision.guards) if step.guard == reason), "")
    meaning = GUARD_MEANINGS.get(reason) or _PROPOSERS.get(reason) or printable(reason, 80)
    warning = low_maximum_text(decision)
    if warning is not None:
        return printable(warning, _LONGEST)
    return printable(f"{meaning} ({detail})" if detail else meaning, _LONGEST)


def _with_note(reason: str, note: str) -> str:
    return f"{reason}; telemetry: {note}" if note else reason


def why_this_count(decision: Decision) -> str:
    """Why the count that was proposed and not one fewer, from the risks that the planner measured; "" if unknown."""
    why = _by_risks(decision)
    return "; ".join((why, *expected_lines(decision.forecast), *promise_lines(decision))) if why else why


def _by_risks(decision: Decision) -> str:
    proposed, risk = decision.replicas.proposed, decision.risk
    if proposed is None:
        return ""
    p_this, p_fewer = risk.p_miss.get(str(proposed)), risk.p_miss.get(str(proposed - 1))
    if p_this is None:
        return ""
    here = f"{_replicas(proposed)} miss the objective with probability {percent(p_this)}"
    share, fewer = risk.miss_share.get(str(proposed)), risk.miss_share.get(str(proposed - 1))
    if share is None:
        return here
    expected = f"{here}, and {percent(share)} of the requests are expected to miss"
    if fewer is None or p_fewer is None:
        return expected
    beside = f"{expected}; with {proposed - 1} it would be {percent(fewer)}"
    if decision.proposer == "cheapest":
        return f"{beside}, which costs more than the replica"
    if decision.proposer == "queue_bound":
        return f"{beside}, and replicas would fall behind more often than the accepted {percent(risk.epsilon)}"
    return beside


def percent(ratio: float) -> str:
    """As the page writes risks elsewhere: `0.81 %`, `14.65 %`."""
    value = 100 * ratio
    if value == 0.0:
        return "≈ 0 %"  # none of the drawn futures missed, which does not say that none can
    if value < 0.01:
        return "< 0.01 %"
    return "> 99.99 %" if 99.99 < value < 100.0 else f"{round(value, 2):g} %"


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"


# Points of a row's sparkline, and steps of its fan.
SPARK = 48
SPARK_FAN = 12
# Whole numbers beyond are written as others are: JSON's writer refuses those of more than 64 bits.
_MAX_INTEGER = 2**53


def fleet_row(workload: str, history: WorkloadMemory, note: str = "") -> dict[str, Any]:
    """One row of the fleet view; numbers in base units, None where not known. `note`: what is wrong with telemetry."""
    decision = history.newest
    window = history.window()
    assert decision is not None
    assert window is not None
    first, last = window
    rows = history.ring.read(max(first, last - SPARK + 1), last)  # [<=48, K]
    all_rows = history.ring.read(first, last)
    final = decision.replicas.final
    return {
        "key": short_key(workload),
        "id": workload,
        "mode": decision.mode,
        "action": decision.action,
        "reason": decision.reason,
        "headline": headline(decision),
        "because": _with_note(because(decision), note),
        "origin_ts_ms": decision.origin_ts_ms,
        "load_rps": _rounded(decision.inputs.arrival_rate),
        "spark": _numbers(rows[:, h.LOAD]),
        "fan": None if history.fan is None else _spark_fan(history.fan, decision.origin_ts_ms),
        "ready": decision.replicas.ready,
        "pending": decision.replicas.pending,
        "wanted": final if final is not None else decision.replicas.current,
        "attainment": _rounded(attainment(all_rows), 6),
        "objective": decision.risk.objective,
        "p_miss": _rounded(decision.risk.p_miss.get(str(final))),
        "miss_share": _rounded(decision.risk.miss_share.get(str(final))),
        **_mean_replicas(history, all_rows),
    }


def workload_view(workload: str, history: WorkloadMemory, note: str = "") -> dict[str, Any]:
    """Everything the page shows of one workload; `note` as of `fleet_row`."""
    decision = history.newest
    window = history.window()
    assert decision is not None
    assert window is not None
    first, last = window
    rows = history.ring.read(first, last)  # [T, K]
    forecasts = history.past_forecasts(first, last)
    return {
        "key": short_key(workload),
        "id": workload,
        "step_ms": history.step_ms,
        "headline": headline(decision),
        "because": _with_note(because(decision), note),
        "why": why_this_count(decision),
        "decision": _without_noise(decision),
        "slo": {
            "attainment": _rounded(attainment(rows), 6),
            "objective": decision.risk.objective,
            "slots": int((~np.isnan(rows[:, h.MISS])).sum()),
        },
        "adoption": _adoption_row(_adoption(history, rows)),
        "low_maximum": low_maximum(decision),
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
        "made": _past_forecast(forecasts, decision, history.step_ms),
        "skill": [
            {**asdict(skill(rows[:, h.LOAD], q, ahead)), "ahead_s": ahead * history.step_ms / 1000}
            for ahead, q in forecasts.items()
        ],
        "turns": [_turn(turn) for turn in reversed(history.turns)],
    }


def _adoption(history: WorkloadMemory, rows: Floats) -> Adoption | None:
    """Of the kept steps [T, K]."""
    ours = rows[:, h.FINAL]
    if history.newest is not None and history.newest.mode == "observe":
        ours = largest_within(rows[:, h.PROPOSED], max(1, history.hold_ms // history.step_ms))
    risk = rows[:, h.P_PROPOSED] if ours is not rows[:, h.FINAL] else rows[:, h.P_MISS]
    return adoption(rows[:, h.CURRENT], ours, rows[:, h.REACTIVE], rows[:, h.P_CURRENT], risk, history.step_ms)


def _mean_replicas(history: WorkloadMemory, rows: Floats) -> dict[str, Any]:
    replicas = _adoption(history, rows)
    # What a bound takes away is no saving.
    is_bound = history.newest is not None and low_maximum(history.newest) is not None
    return (
        {"held": None, "ours": None}
        if replicas is None or is_bound
        else {"held": _rounded(replicas.held), "ours": _rounded(replicas.ours)}
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


def _past_forecast(forecasts: dict[int, Floats], decision: Decision, step_ms: int) -> dict[str, Any] | None:
    """What had been forecast about a lead time before: the horizon nearest to the median lead time."""
    if not forecasts:
        return None
    lead = decision.lead_time_s
    lead_steps = 1.0 if lead is None or not lead.values else lead.values[len(lead.values) // 2] * 1000 / step_ms
    ahead = min(forecasts, key=lambda steps: abs(steps - lead_steps))
    q = forecasts[ahead]
    return {
        "ahead_s": ahead * step_ms / 1000,
        "low": _numbers(q[:, 0]),
        "middle": _numbers(q[:, 2]),
        "high": _numbers(q[:, 4]),
    }


def _adoption_row(replicas: Adoption | None) -> dict[str, Any] | None:
    return None if replicas is None else {name: _rounded(value) for name, value in asdict(replicas).items()}


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
        "miss_share": _rounded(d.risk.miss_share.get(str(d.replicas.final))),
        "peak": _quantiles(d.forecast.peak),
        "indicator": d.forecast.indicator,
        "decision_id": d.decision_id,
        "command_id": d.command_id,
    }


def _without_noise(d: Decision) -> dict[str, Any]:
    """The decision as published, with numbers rounded for display."""
    fields: dict[str, Any] = msgspec.to_builtins(d)
    fields["risk"]["p_miss"] = {n: _rounded(p) for n, p in d.risk.p_miss.items()}
    fields["risk"]["miss_share"] = {n: _rounded(share) for n, share in d.risk.miss_share.items()}
    fields["risk"]["promises"] = [
        {"promise": p.promise, "capacity": _quantiles(p.capacity), "miss_share": _rounded(p.miss_share)}
        for p in d.risk.promises
    ]
    fields["forecast"]["peak"] = _quantiles(d.forecast.peak)
    fields["capacity_per_replica"] = _quantiles(d.capacity_per_replica)
    fields["lead_time_s"] = _quantiles(d.lead_time_s)
    return fields


def _quantiles(q: Quantiles | None) -> dict[str, Any] | None:
    return None if q is None else {"levels": q.levels, "values": [_rounded(v) for v in q.values]}


def _numbers(values: Floats) -> list[float | None]:
    return [_rounded(v) for v in values.tolist()]


def _rounded(value: float | None, digits: int = 4) -> float | None:
    """Significant digits, for people; what is not finite is not known."""
    if value is None or not math.isfinite(value):
        return None
    if abs(value) < _MAX_INTEGER and value == int(value):
        return int(value)
    return float(f"{value:.{digits}g}")
