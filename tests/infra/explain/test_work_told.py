"""What requests ask of a replica, in words: tokens, the limit that binds first, and how heavy they may become."""

from __future__ import annotations

import msgspec
import pytest

from agents.records import Decision, WorkView
from infra.explain.views import explanation, work_lines
from tests.agents.decide.decide_runs import run
from tests.agents.planning.plan_samples import log, plan, policy, record, spec
from tests.infra.shown import text_of

WORK = WorkView(1152.4, 246.0, 0.3124, "tpot", 0.7, 2.345)


def decided(work: WorkView | None) -> Decision:
    (decision,), _ = run(log(record(0, plan("a", 4, 5, work=work))), policy(spec("a")))
    return decision


def test_a_decision_says_what_requests_ask_of_a_replica() -> None:
    decision = decided(WORK)
    assert decision.work == WORK
    assert work_lines(decision) == [
        (
            "a request: 1,152 prompt and 246 generated tokens, 0.312 s of a replica; "
            "the time per token reaches its limit first, at 70 % utilization"
        ),
        "requests may become 2.35 times as heavy in that time (p95)",
    ]


@pytest.mark.parametrize("heavier", [None, 1.02, 0.4])
def test_requests_that_stay_as_they_are_need_no_word(heavier: float | None) -> None:
    (only,) = work_lines(decided(msgspec.structs.replace(WORK, binding="kv_cache", heavier_ratio=heavier)))
    assert "the cache reaches its limit first" in only


def test_engines_that_report_too_little_have_no_line() -> None:
    assert work_lines(decided(None)) == []
    assert "a request:" not in text_of(explanation(decided(None)), width=240)
