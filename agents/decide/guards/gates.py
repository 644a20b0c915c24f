"""Guards that answer "may the count change at all": gates that end the chain, and doubts that forbid a scale-down.

Source: the rules of the Kubernetes HorizontalPodAutoscaler (HPA) for missing metrics. The doubts answer published
outages in which a scaler trusted a zero, a cliff or old data.
"""

from __future__ import annotations

import math
from typing import Final

from agents.decide.situation import Situation
from agents.records import GuardStep


def pin(s: Situation, value: int) -> GuardStep | None:
    """An operator's pin wins over every other guard, bounds and kill switch included."""
    if s.pin is None:
        return None
    until = "until unpinned" if s.pin.until_ts_ms is None else f"until {s.pin.until_ts_ms} ms"
    who = f" by {s.pin.by}" if s.pin.by else ""
    why = f": {s.pin.reason}" if s.pin.reason else ""
    return GuardStep("pin", value, s.pin.replicas, f"pinned at {s.pin.replicas} {until}{who}{why}")


def kill_switch(s: Situation, value: int) -> GuardStep | None:
    """Hold while an operator has paused the fleet or the workload."""
    if s.paused is None:
        return None
    return GuardStep("kill_switch", value, s.current, f"paused for the {s.paused}")


def mode(s: Situation, value: int) -> GuardStep | None:
    """Record that there will be no command; the chain goes on, so that the decision shows what would be done."""
    if s.mode == "act":
        return None
    return GuardStep("mode", value, value, s.mode_reason or "observe: no command is published")


def expired(s: Situation, value: int) -> GuardStep | None:
    """Hold where the plan was read after its lease ran out."""
    if s.overdue_ms is None:
        return None
    return GuardStep("expired", value, s.current, f"read {s.overdue_ms} ms after its lease had run out")


def refused(s: Situation, value: int) -> GuardStep | None:
    """Hold where there is no plan, for the reason of the forecast stage."""
    why = s.plan.refused
    if why is None:
        return None
    return GuardStep("warm_up" if why == "warming_up" else why, value, s.current, f"no plan: {why}")


def warm_up(s: Situation, value: int) -> GuardStep | None:
    """Hold until enough steps have been observed."""
    if s.seen_steps >= s.limits.warm_up_steps:
        return None
    return GuardStep("warm_up", value, s.current, f"{s.seen_steps} of {s.limits.warm_up_steps} steps observed")


def _not_down(guard: str, s: Situation, value: int, reason: str) -> GuardStep | None:
    return GuardStep(guard, value, s.current, reason) if value < s.current else None


def freshness(s: Situation, value: int) -> GuardStep | None:
    """No scale-down on old telemetry, or on old facts of the fleet."""
    age, limit_ms = s.plan.inputs.oldest_age_ms, s.limits.max_age_s * 1000.0
    if age is None:
        return _not_down("freshness", s, value, "no source has been heard")
    if age > limit_ms:
        return _not_down("freshness", s, value, f"telemetry is {age} ms old, limit {limit_ms:.0f} ms")
    facts = s.plan.facts_age_ms
    if facts is not None and facts > limit_ms:
        return _not_down("freshness", s, value, f"fleet facts are {facts} ms old, limit {limit_ms:.0f} ms")
    return None


def coverage(s: Situation, value: int) -> GuardStep | None:
    """No scale-down when too few sources report, or too little of the context was observed."""
    need = s.limits.min_coverage_ratio
    for name, ratio in (("sources", s.plan.inputs.coverage_ratio), ("context", s.plan.inputs.observed_ratio)):
        if not ratio >= need:
            return _not_down("coverage", s, value, f"{ratio:.2f} of the {name} observed, {need:.2f} needed")
    return None


def sanity(s: Situation, value: int) -> GuardStep | None:
    """No scale-down on a sudden zero, a cliff, a flat line, or a censored rate.

    A workload that the idle rule proposes for has been at zero for its declared time by every source: no sudden zero.
    """
    facts = s.plan.inputs
    sudden = facts.zero_after_nonzero and s.plan.proposer != "idle"
    for name, doubtful, reason in (
        ("zero_after_nonzero", sudden, "the arrival rate is exactly zero and was not before"),
        ("cliff", facts.cliff, f"the arrival rate fell by more than {s.limits.cliff_ratio:.0%} in one step"),
        ("flat", facts.flat, "the arrival rate has not moved for a suspicious time"),
        ("censored", facts.censored, "the arrival rate is known from completions only"),
    ):
        if doubtful:
            return _not_down(name, s, value, reason)
    return None


def missing_metric(s: Situation, value: int) -> GuardStep | None:
    """On the way down a silent source counts as fully loaded, on the way up as idle (the HPA's rule)."""
    if value >= s.current:
        return None
    if s.plan.inputs.arrival_rate is None:
        return GuardStep("missing_metric", value, s.current, "the arrival rate was not observed in the last step")
    ratio = s.plan.inputs.coverage_ratio
    if ratio >= 1.0 or s.plan.proposed is None:
        return None
    # A silent source may have a request, so the last replica stays.
    need = s.current if ratio <= 0.0 else min(s.current, max(math.ceil(s.plan.proposed / ratio), 1))
    if need <= value:
        return None
    reason = f"only {ratio:.2f} of the sources spoke; the others count as loaded"
    return GuardStep("missing_metric", value, need, reason)


# Doubts about telemetry; nothing is given up while one of them applies.
DOUBTS: Final = (freshness, coverage, sanity, missing_metric)


def horizon(s: Situation, value: int) -> GuardStep | None:
    """No scale-down where most starts take longer than the plan could see."""
    for limit in s.plan.standing:
        if limit.guard == "horizon" and limit.low is not None:
            return _not_down("horizon", s, value, limit.reason)
    return None


def fence(s: Situation, value: int) -> GuardStep | None:
    """A plan that is not newer than the newest decision of its workload changes nothing."""
    if s.newest_ts_ms is None or s.origin_ts_ms > s.newest_ts_ms:
        return None
    return GuardStep("fence", value, s.current, f"a decision of {s.newest_ts_ms} ms is already in the log")
