"""The choice of a count in words: on the page and in `harmony explain` one reads what its neighbours would miss."""

from __future__ import annotations

import pytest

from agents.records import Decision, LevelRisk
from infra.explain.views import explanation
from infra.page.views import because, why_this_count
from tests.agents.decide.decide_runs import run
from tests.agents.planning.plan_samples import log, plan, policy, record, spec
from tests.infra.shown import text_of

RISKS = (LevelRisk(4, 0.3, 0.01, 4.0, 0.04), LevelRisk(5, 0.02, 0.004, 5.0, 0.0005))


def decided(proposer: str, price: float | None = 120.0) -> Decision:
    told = plan("a", 4, 5, proposer=proposer, risks=RISKS, miss_price=price, epsilon=0.2)
    (decision,), _ = run(log(record(0, told)), policy(spec("a")))
    return decision


def shown(decision: Decision) -> str:
    return text_of(explanation(decision), width=240)


def test_what_each_count_would_miss_is_told_beside_what_the_objective_allows_and_the_price() -> None:
    text = shown(decided("cheapest"))
    assert "with 5 replicas: 2 % ± 0.4 %" in text
    assert "risk by replicas: 4: 30 %, 5: 2 %" in text
    assert "requests expected to miss: 4: 4 %, 5: 0.05 %; the objective allows 1 %" in text
    assert "a replica's worth of missed requests costs 120 replicas" in text
    assert "expected to miss" not in shown(decided("cheapest", price=None))


@pytest.mark.parametrize(
    ("proposer", "ground", "end"),
    [
        ("cheapest", "cost least", ", which costs more than the replica"),
        ("queue_bound", "fall behind more often", ", and replicas would fall behind more often than the accepted 20 %"),
        ("maximum", "the most there may be", ""),
    ],
)
def test_the_page_says_what_one_replica_less_would_do(proposer: str, ground: str, end: str) -> None:
    decision = decided(proposer)
    assert ground in because(decision)
    assert why_this_count(decision) == (
        "5 replicas miss the objective with probability 2 %, and 0.05 % of the requests are expected to miss; "
        f"with 4 it would be 4 %{end}"
    )
