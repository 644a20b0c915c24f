"""A decision in one sentence, as an operator would say it."""

from __future__ import annotations

from agents.records import Decision
from infra.console.text import printable
from infra.explain.views import GUARD_WORDS, if_it_carries, words_of_expected
from infra.promise_words import words_of_promises

_LONGEST = 300
# Grounds of the planner.
_PROPOSERS = {
    "chance_constrained": "the cheapest count within the allowed risk",
    "trial": "the error budget has room to learn whether this count carries the load",
    "recovery": "a queue stands already: the count that keeps the futures from here on within the allowed risk",
    "maximum": "no count keeps the allowed risk: the most there may be",
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
    said = next((step.reason for step in reversed(decision.guards) if step.guard == reason), "")
    meaning = GUARD_WORDS.get(reason) or _PROPOSERS.get(reason) or printable(reason, 80)
    return printable(f"{meaning} ({said})" if said else meaning, _LONGEST)


def why_this_count(decision: Decision) -> str:
    """Why the count that was proposed and not one fewer, from the risks that the planner measured; "" if unknown."""
    why = _by_risks(decision)
    return "; ".join((why, *words_of_expected(decision.forecast), *words_of_promises(decision))) if why else why


def _by_risks(decision: Decision) -> str:
    proposed, risk = decision.replicas.proposed, decision.risk
    if proposed is None:
        return ""
    p_this, p_fewer = risk.p_miss.get(str(proposed)), risk.p_miss.get(str(proposed - 1))
    if p_this is None:
        return ""
    allowed = percent(risk.epsilon)
    here = f"{_replicas(proposed)} miss the objective with probability {percent(p_this)}"
    if risk.trial is not None:
        hoped = f"{percent(risk.trial.p_miss)} {if_it_carries(risk.trial)}"
        return f"{here}, but only {hoped}: tried, for that is within the allowed {allowed}"
    if p_this > risk.epsilon:
        return f"{here}: more than the allowed {allowed}, and the least that was found"
    if p_fewer is None:
        return f"{here}, within the allowed {allowed}"
    if p_fewer > risk.epsilon:
        return f"{here}, within the allowed {allowed}; {proposed - 1} would miss it with {percent(p_fewer)}"
    share = risk.miss_share.get(str(proposed - 1))
    if share is not None and risk.bearable_share is not None:
        expected = (
            f"but {percent(share)} of the requests would be expected to miss, of which {percent(risk.bearable_share)}"
        )
        return f"{here}, within the allowed {allowed}; {proposed - 1} would too ({percent(p_fewer)}), {expected} may"
    return f"{here}, within the allowed {allowed}; {proposed - 1} would too ({percent(p_fewer)}), at a higher cost"


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
