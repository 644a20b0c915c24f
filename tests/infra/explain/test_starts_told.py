"""The lead time of a decision in words: what it was learned from, or that it is only declared."""

from __future__ import annotations

import pytest

from agents.records import LEVELS, Quantiles
from infra.explain.views import explanation
from tests.agents.decide.decide_runs import run
from tests.agents.planning.plan_samples import log, plan, policy, record, spec
from tests.infra.shown import text_of

LEAD = Quantiles(LEVELS, (40.0, 42.0, 55.0, 66.0, 70.0))


@pytest.mark.parametrize(
    ("starts", "words"),
    [(0, "as declared, no start yet"), (1, "learned from 1 start"), (23, "learned from 23 starts")],
)
def test_it_is_told_what_the_lead_time_was_learned_from(starts: int, words: str) -> None:
    told = plan("a", 4, 5, lead_time_s=LEAD, lead_time_starts=starts)
    (decision,), _ = run(log(record(0, told)), policy(spec("a")))
    assert decision.lead_time_starts == starts
    assert f"a new replica serves after p5 40, p50 55, p95 70 s ({words})" in text_of(explanation(decision), width=240)
