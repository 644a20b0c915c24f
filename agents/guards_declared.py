"""Guards that keep what was declared beside the bounds: the plan names each limit with its reason.

They speak last, so that neither steps nor windows delay what must be there by then; the declared bounds and what the
fleet has (GPUs, power) still hold. A ceiling need not be reached at once: it gives up what the doubts, the fleet and
the pace allow, whatever is risked by it.
"""

from __future__ import annotations

from agents.decide.guards.gates import DOUBTS
from agents.decide.guards.limits import bounds, fleet_budget, fleet_floor, fleet_power, removal_limit, step_limit
from agents.records import GuardStep
from agents.situation import Situation


def first_request(s: Situation, value: int) -> GuardStep | None:
    """Requests that nobody is there to serve bring the first replica at once.

    Also where the plan would have to be held: nothing is given up by it, and nobody can be served before.
    """
    limit = next((x for x in s.plan.standing if x.guard == "first_request" and x.low is not None), None)
    stale = s.newest_ts_ms is not None and s.origin_ts_ms <= s.newest_ts_ms
    if limit is None or limit.low is None or s.current > 0 or stale:
        return None
    first = affordable(s, under_ceiling(s, limit.low))
    held = s.plan.refused is not None or s.seen_steps < s.limits.warm_up_steps
    return GuardStep("first_request", value, first, limit.reason) if first > 0 and (held or value < first) else None


def batch(s: Situation, value: int) -> GuardStep | None:
    """Work with deadlines: not fewer than do it in time."""
    for limit in s.plan.standing:
        if limit.guard == "batch" and limit.low is not None:
            after = affordable(s, under_ceiling(s, limit.low))
            return GuardStep("batch", value, after, limit.reason) if value < after else None
    return None


def schedule(s: Situation, value: int) -> GuardStep | None:
    """The calendar and known events: a ceiling, and a floor that wins over it."""
    after, reasons = value, []
    for limit in s.plan.standing:
        if limit.guard == "schedule" and limit.high is not None and after > limit.high:
            least, why = _at_pace(s, limit.high)
            after = min(after, least)
            reasons += [limit.reason, *why]
    for limit in s.plan.standing:
        if limit.guard == "schedule" and limit.low is not None and after < affordable(s, limit.low):
            after = affordable(s, limit.low)
            reasons = [limit.reason]
    return GuardStep("schedule", value, after, "; ".join(reasons)) if reasons else None


def _at_pace(s: Situation, count: int) -> tuple[int, list[str]]:
    """How far down to a count it may go by now, and why not further."""
    why: list[str] = []
    for guard in (*DOUBTS, fleet_floor, step_limit, removal_limit) if count < s.current else ():
        step = guard(s, count)
        if step is not None:
            count, why = step.after, [step.reason]
    return count, why


def under_ceiling(s: Situation, count: int) -> int:
    """No more than the schedule allows now."""
    ceilings = [limit.high for limit in s.plan.standing if limit.guard == "schedule" and limit.high is not None]
    return min([count, *ceilings])


def affordable(s: Situation, count: int) -> int:
    """As much of a floor as bounds and budgets of the fleet allow."""
    for limit in (bounds, fleet_budget, fleet_power):
        step = limit(s, count)
        count = count if step is None else step.after
    return count
