"""Which promise gives way first, in words: in `harmony explain`, and in the page's answer to why that many."""

from __future__ import annotations

import msgspec
import pytest

from agents.records import Decision, LevelRisk, PromiseCapacity, Quantiles
from infra.explain.views import explanation
from infra.page.views import why_this_count
from tests.agents.decide.decide_runs import run
from tests.agents.planning.plan_samples import log, plan, policy, record, spec
from tests.infra.shown import text_of


def within(promise: str, low: float, middle: float, high: float, missed: float = 0.0) -> PromiseCapacity:
    return PromiseCapacity(promise, Quantiles((0.05, 0.1, 0.5, 0.9, 0.95), (low, low, middle, high, high)), missed)


SOON, LATE, NEAR = (
    within("tpot", 1.9, 2.104, 2.4, 0.00414),
    within("ttft", 2.6, 3.0, 3.9),
    within("ttft", 2.0, 2.3, 2.8),
)
FIRST = "TPOT gives way first: a replica keeps it up to 2.1 req/s (1.9 to 2.4)"
UNSURE = "it is not clear which promise gives way first: a replica keeps TPOT up to 2.1 req/s (1.9 to 2.4)"
TOLD = [
    ((SOON, LATE), f"{FIRST}, TTFT up to 3 (2.6 to 3.9); missed at the expected peak: TPOT by 0.41 %, TTFT by 0.00 %"),
    ((SOON,), f"{FIRST}; TTFT is not known to have been missed; missed at the expected peak: TPOT by 0.41 %"),
    ((SOON, NEAR), f"{UNSURE}, TTFT up to 2.3 (2 to 2.8)"),
    ((LATE,), "TTFT gives way first: a replica keeps it up to 3 req/s (2.6 to 3.9); TPOT is not known to have been"),
]


def decided(*promises: PromiseCapacity, indicator: str | None = None) -> Decision:
    risks = (LevelRisk(4, 0.3, 0.01, 4.0, 0.004), LevelRisk(5, 0.02, 0.004, 5.0, 0.0005))
    told = plan("a", 4, 5, proposer="cheapest", risks=risks, promises=promises, epsilon=0.2, indicator=indicator)
    (decision,), _ = run(log(record(0, told)), policy(spec("a")))
    return decision


@pytest.mark.parametrize(("promises", "words"), TOLD)
def test_it_is_told_which_promise_gives_way_first_and_how_sure_that_is(
    promises: tuple[PromiseCapacity, ...], words: str
) -> None:
    decision = decided(*promises)
    assert decision.risk.promises == promises
    assert words in text_of(explanation(decision), width=240)
    assert f"; with 4 it would be 0.4 %, which costs more than the replica; {words}" in why_this_count(decision)


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert "gives way" not in text_of(explanation(decided()), width=240)
    assert "gives way" not in why_this_count(decided())


def test_tokens_are_called_so() -> None:
    told = text_of(explanation(decided(SOON, indicator="request.output_token_rate")), width=240)
    assert "up to 2.1 tokens/s (1.9 to 2.4)" in told


def test_a_decision_of_an_earlier_release_says_nothing_of_promises() -> None:
    body = msgspec.to_builtins(decided(SOON))
    del body["risk"]["promises"]
    assert msgspec.convert(body, Decision).risk.promises == ()
