"""Guards that answer "how far and how fast": bounds, the fleet's budgets, step limits, windows, declared floors.

Only `bounds` may take a workload below what is in force when nothing asked for less. Step limits, stabilization and
tolerance follow the Kubernetes HorizontalPodAutoscaler (HPA), `behavior` of autoscaling/v2.

The declared limits (first request, batch, schedule) come last, so that neither steps nor windows delay what must be
there in time. Bounds and what the fleet has (GPUs, power) still hold. A ceiling need not be reached at once: it gives
up what doubts, fleet and pace allow, whatever the risk.
"""

from __future__ import annotations

import math

from agents.decide.guards.gates import DOUBTS
from agents.decide.situation import Situation
from agents.records import GuardStep


def bounds(s: Situation, value: int) -> GuardStep | None:
    """Within the declared minimum and maximum; an undeclared workload has no maximum."""
    low, high = (0, None) if s.spec is None else (s.spec.min_replicas, s.spec.max_replicas)
    after = max(low, value)
    if high is not None:
        after = min(high, after)
    return _step("bounds", value, after, f"allowed are {low} to {'any' if high is None else high}")


def fleet_budget(s: Situation, value: int) -> GuardStep | None:
    """Cap growth at the fleet's GPU budget; never take away what runs."""
    if s.gpus_left is None:
        return None
    each = 1 if s.spec is None else s.spec.gpus_per_replica
    reserved_text = f"; {s.reserved_gpus} more are kept for higher priorities" if s.reserved_gpus else ""
    reason = f"{max(s.current * each, s.gpus_left)} GPUs are left in the fleet, {each} per replica{reserved_text}"
    return _step("fleet_budget", value, _affordable(s, value, s.gpus_left, each), reason)


def fleet_power(s: Situation, value: int) -> GuardStep | None:
    """Cap growth at the fleet's power ceiling, by declared and measured draws; never take away what runs."""
    if s.power_left_w is None:
        return None
    each, declared = s.power_w_per_replica, None if s.spec is None else s.spec.power_w_per_replica
    how = " as measured" if each > (declared or 0.0) else ""
    reason = f"{s.power_left_w:.0f} W are left in the fleet, {each:.0f} per replica{how}"
    return _step("fleet_power", value, _affordable(s, value, s.power_left_w, each), reason)


def fleet_floor(s: Situation, value: int) -> GuardStep | None:
    """Keep the fleet at its minimum number of replicas."""
    if value >= s.current:
        return None
    after = min(s.current, max(value, s.fleet_need))
    return _step("fleet_floor", value, after, f"the fleet keeps at least {s.limits.fleet_min_replicas} replicas")


def step_limit(s: Situation, value: int) -> GuardStep | None:
    """At most a number, or a share, of replicas per period; the larger of the two counts (`selectPolicy: Max`)."""
    g = s.limits
    if value > s.current:
        start = max(0, s.current - s.added)
        most = max(s.current, start + max(g.up_replicas, math.floor(start * g.up_ratio)))
        reason = f"at most +{g.up_ratio:.0%} or +{g.up_replicas} per {g.up_period_s:g} s"
        return _step("step_limit", value, min(value, most), reason)
    if value < s.current:
        start = s.current + s.removed
        least = min(s.current, start - max(g.down_replicas, math.floor(start * g.down_ratio)))
        reason = f"at most -{g.down_ratio:.0%} or -{g.down_replicas} per {g.down_period_s:g} s"
        return _step("step_limit", value, max(value, least), reason)
    return None


def removal_limit(s: Situation, value: int) -> GuardStep | None:
    """Keep to the number of replicas that the whole fleet may lose per minute."""
    if s.removals_left is None or value >= s.current:
        return None
    after = max(value, s.current - max(0, s.removals_left))
    reason = f"{s.removals_left} of {s.limits.fleet_removals_per_minute} removals per minute are left to the fleet"
    return _step("removal_limit", value, after, reason)


def stabilization(s: Situation, value: int) -> GuardStep | None:
    """Down to the largest proposal of the down window, up to the smallest one of the up window."""
    if value < s.current and s.window_max is not None:
        after = min(s.current, max(value, s.window_max))
        reason = f"{s.window_max} was proposed within {s.limits.stabilization_down_s:g} s"
        return _step("stabilization", value, after, reason)
    if value > s.current and s.window_min is not None:
        after = max(s.current, min(value, s.window_min))
        reason = f"{s.window_min} was proposed within {s.limits.stabilization_up_s:g} s"
        return _step("stabilization", value, after, reason)
    return None


def tolerance(s: Situation, value: int) -> GuardStep | None:
    """No change that is small beside the count in force."""
    ratio = s.limits.tolerance_ratio
    if value == s.current or abs(value - s.current) > ratio * s.current:
        return None
    return _step("tolerance", value, s.current, f"within {ratio:.0%} of {s.current}")


def model_guard(s: Situation, value: int) -> GuardStep | None:
    """Never below what the load of now needs, as far as bounds, budgets and step limits let it grow."""
    need = s.plan.reactive_replicas
    if need is None or value >= need:
        return None
    for limit in (bounds, fleet_budget, fleet_power, step_limit):
        step = limit(s, need)
        need = need if step is None else step.after
    return _step("model_guard", value, max(value, need), f"the load of now needs {s.plan.reactive_replicas}")


def reclaim(s: Situation, value: int) -> GuardStep | None:
    """Give up replicas for workloads of higher priority that lack GPUs, whatever the risk, down to `min_replicas`.

    It happens at once, for the others wait; but not in doubt, nor below the fleet's floor, nor beyond its removals.
    """
    if s.reclaim_gpus <= 0 or s.spec is None or s.spec.gpus_per_replica <= 0:
        return None
    left = max(s.spec.min_replicas, s.current - math.ceil(s.reclaim_gpus / s.spec.gpus_per_replica))
    for guard in (*DOUBTS, fleet_floor, removal_limit):
        step = guard(s, left)
        left = left if step is None else step.after
    reason = f"{s.reclaim_gpus} GPUs are given up for {s.reclaim_for}, of higher priority"
    return _step("reclaim", value, min(value, left), reason)


def _affordable(s: Situation, value: int, left: float, each: float) -> int:
    if value <= s.current or each <= 0:
        return value
    return max(s.current, min(value, math.floor(max(0.0, left) / each)))


def _step(guard: str, before: int, after: int, reason: str) -> GuardStep | None:
    return None if after == before else GuardStep(guard, before, after, reason)


def first_request(s: Situation, value: int) -> GuardStep | None:
    """Start the first replica at once when requests wait and none runs.

    This holds also where the plan would have to be held: it gives nothing up, and nobody can be served before.
    """
    limit = next((x for x in s.plan.standing if x.guard == "first_request" and x.low is not None), None)
    stale = s.newest_ts_ms is not None and s.origin_ts_ms <= s.newest_ts_ms
    if limit is None or limit.low is None or s.current > 0 or stale:
        return None
    first = affordable(s, under_ceiling(s, limit.low))
    blocked = s.plan.refused is not None or s.seen_steps < s.limits.warm_up_steps
    return GuardStep("first_request", value, first, limit.reason) if first > 0 and (blocked or value < first) else None


def batch(s: Situation, value: int) -> GuardStep | None:
    """At least the replicas that do the work with deadlines in time."""
    for limit in s.plan.standing:
        if limit.guard == "batch" and limit.low is not None:
            after = affordable(s, under_ceiling(s, limit.low))
            return GuardStep("batch", value, after, limit.reason) if value < after else None
    return None


def schedule(s: Situation, value: int) -> GuardStep | None:
    """Within the ceiling and the floor of calendar and known events; the floor wins over the ceiling."""
    after, reasons = value, []
    for limit in s.plan.standing:
        if limit.guard == "schedule" and limit.high is not None and after > limit.high:
            reached, doubts = _at_pace(s, limit.high)
            after = min(after, reached)
            reasons += [limit.reason, *doubts]
    for limit in s.plan.standing:
        if limit.guard == "schedule" and limit.low is not None and after < affordable(s, limit.low):
            after = affordable(s, limit.low)
            reasons = [limit.reason]
    return GuardStep("schedule", value, after, "; ".join(reasons)) if reasons else None


def _at_pace(s: Situation, count: int) -> tuple[int, list[str]]:
    """The count reached on the way down to `count` by now, and the reason why it is no lower."""
    reasons: list[str] = []
    for guard in (*DOUBTS, fleet_floor, step_limit, removal_limit) if count < s.current else ():
        step = guard(s, count)
        if step is not None:
            count, reasons = step.after, [step.reason]
    return count, reasons


def under_ceiling(s: Situation, count: int) -> int:
    """`count`, or the schedule's ceiling of now where that is lower."""
    ceilings = [limit.high for limit in s.plan.standing if limit.guard == "schedule" and limit.high is not None]
    return min([count, *ceilings])


def affordable(s: Situation, count: int) -> int:
    """`count`, or the part of it that bounds and the fleet's budgets allow."""
    for limit in (bounds, fleet_budget, fleet_power):
        step = limit(s, count)
        count = count if step is None else step.after
    return count
