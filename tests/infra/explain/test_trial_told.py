"""A trial in words: on the page and in `harmony explain` one reads why fewer than the allowed risk asks for."""

from __future__ import annotations

import msgspec

from agents.records import Decision, LevelRisk, Trial
from infra.explain.views import explanation
from infra.page.views import because, why_this_count
from tests.agents.decide.decide_runs import run
from tests.agents.planning.plan_samples import log, plan, policy, record, spec
from tests.infra.shown import text_of

HOPED = Trial(replicas=4, p_miss=0.05, p_miss_stderr=0.004, miss_share=0.001, doubt_ratio=0.5)
RISKS = (LevelRisk(4, 0.3, 0.01, 4.0, 0.004), LevelRisk(5, 0.02, 0.004, 5.0, 0.0005))


def decided(trial: Trial | None) -> Decision:
    tried = plan("a", 5, 4, proposer="trial" if trial else "chance_constrained", risks=RISKS, trial=trial, epsilon=0.2)
    (decision,), _ = run(log(record(0, tried)), policy(spec("a")))
    return decision


def shown(decision: Decision) -> str:
    return text_of(explanation(decision), width=240)


def test_a_replica_is_given_up_on_trial_though_its_whole_risk_is_above_what_is_allowed() -> None:
    decision = decided(HOPED)
    assert (decision.replicas.final, decision.action, decision.reason) == (4, "down", "trial")
    assert decision.risk.trial == HOPED
    assert decided(None).replicas.final == 5


def test_it_is_told_what_the_trial_hopes_for() -> None:
    decision = decided(HOPED)
    text = shown(decision)
    assert "on trial: 4 replicas, for their risk is 5 % ± 0.4 % if a replica carries no less than the median" in text
    assert "risk by replicas: 4: 30 %, 5: 2 %" in text
    assert "budget has room to learn" in because(decision)
    assert why_this_count(decision) == (
        "4 replicas miss the objective with probability 30 %, but only 5 % if a replica carries no less than the "
        "median of what is believed of it: tried, for that is within the allowed 20 %"
    )
    assert "25 % quantile" in shown(decided(msgspec.structs.replace(HOPED, doubt_ratio=0.25)))
    assert "trial" not in shown(decided(None))
