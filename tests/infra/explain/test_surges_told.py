"""Surges and jumps that are expected in words: in `harmony explain`, and in the page's answer to why that many."""

from __future__ import annotations

import msgspec
import pytest

from agents.records import Decision, JumpsAhead, LevelRisk, SurgeAhead
from infra.explain.views import explanation
from infra.page.views import why_this_count
from tests.agents.decide.decide_runs import run
from tests.agents.planning.plan_samples import log, plan, policy, record, spec
from tests.infra.shown import text_of

AHEAD = SurgeAhead(1_763_640_000_000, begun=False, chance=0.8, period_s=3600.0, length_s=300.0, arrival_rate=6.04,
                   seen=4, due=4)  # fmt: skip
WORDS = (
    "a surge every 1 h is expected at 12:00:00Z with probability 80 %: "
    "6.04 requests/s more for 5 min, came 4 of 4 times"
)

JUMPS = JumpsAhead(per_hour=0.4, arrival_rate=6.04, seen=5)
BESIDE = "; with 4 it would be 0.4 %, which costs more than the replica"
JUMP_WORDS = "jumps that nothing foretells come one in 2.5 h, 6.04 requests/s more (5 remembered)"


def decided(surge: SurgeAhead | None, jumps: JumpsAhead | None = None) -> Decision:
    risks = (LevelRisk(4, 0.3, 0.01, 4.0, 0.004), LevelRisk(5, 0.02, 0.004, 5.0, 0.0005))
    told = plan("a", 4, 5, proposer="cheapest", risks=risks, surge=surge, jumps=jumps, epsilon=0.2)
    (decision,), _ = run(log(record(0, told)), policy(spec("a")))
    return decision


def shown(surge: SurgeAhead | None, jumps: JumpsAhead | None = None) -> str:
    return text_of(explanation(decided(surge, jumps)), width=240)


def test_it_is_told_what_comes_again_and_how_often_it_came() -> None:
    assert decided(AHEAD).forecast.surge == AHEAD
    assert WORDS in shown(AHEAD)
    assert why_this_count(decided(AHEAD)).endswith(f"{BESIDE}; {WORDS}")
    assert "surge" not in shown(None)
    assert "surge" not in why_this_count(decided(None))


def test_one_under_way_and_long_periods_have_words_of_their_own() -> None:
    begun = msgspec.structs.replace(AHEAD, begun=True, chance=1.0, period_s=86_400.0 * 7, length_s=45.0)
    assert "a surge every 7 days is under way since 12:00:00Z: 6.04 requests/s more for 45 s" in shown(begun)
    assert "every 24 h" in shown(msgspec.structs.replace(AHEAD, period_s=86_400.0))


def test_it_is_told_how_often_jumps_come_and_what_they_add() -> None:
    assert decided(None, JUMPS).forecast.jumps == JUMPS
    assert JUMP_WORDS in shown(None, JUMPS)
    assert why_this_count(decided(None, JUMPS)).endswith(f"{BESIDE}; {JUMP_WORDS}")
    assert why_this_count(decided(AHEAD, JUMPS)).endswith(f"; {WORDS}; {JUMP_WORDS}")
    assert "jumps" not in shown(AHEAD)
    assert "jumps" not in why_this_count(decided(AHEAD))


@pytest.mark.parametrize(
    ("per_hour", "words"), [(1.0, "come 1 an hour"), (12.34, "come 12 an hour"), (0.04, "in 25 h")]
)
def test_often_and_rare_ones_have_words_of_their_own(per_hour: float, words: str) -> None:
    assert words in shown(None, msgspec.structs.replace(JUMPS, per_hour=per_hour))
