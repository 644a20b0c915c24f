"""Rivals at full strength: the quantile of work, Dynamo's loops, and tuning that no end of a range limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from infra.lab.replay import run
from infra.lab.replay.oracle import SurpriseOptions
from infra.lab.replay.policies.catalogue import (
    Axis,
    PolicyChoice,
    candidates,
    controller_of,
    neighbours,
    towards_cheaper,
    with_floors,
)
from infra.lab.replay.policies.dynamo import DynamoDualLoop, ProfileBook
from infra.lab.replay.policies.predictive import BIN_S, DAY_S
from infra.lab.replay.policies.work import PERIOD_S, WorkLaw, WorkQuantile
from infra.lab.replay.prepare import CellOptions, day_cell, rate_cell
from infra.lab.replay.results import Row, Trial, as_json, equal_attainment, equal_texts, print_results
from infra.lab.replay.run import run_cell, scored_trials, search
from infra.lab.replay.simulation import simulate
from infra.simulator.arrivals import RateProfile, Tokens
from infra.simulator.ledger import Objective
from infra.simulator.profiles import BUILT_IN_PROFILES, EngineProfile
from tests.infra.lab.replay.replay_setting import HALF, KNOWN, setting
from tests.infra.lab.replay.test_replay_policies import FakeView, reading

# Work counts in round numbers: 1 ms per prompt token, 10 ms per generated one, and iterations of 100 ms.
ROUND = EngineProfile("round", 0.1, 0.001, 0.01, 0.0, 1_000_000, 64, 100)
OBJECTIVE = Objective(2.0, 0.2)
LAW = WorkLaw(ROUND, OBJECTIVE)
SLOW = Objective(6.0, 1.0)


def test_work_is_the_time_that_a_request_adds_to_iterations() -> None:
    assert LAW.request_s(100.0, 10_000.0, 10.0) == pytest.approx(0.2)
    squared = WorkLaw(replace(ROUND, prefill_token_sq_s=1e-5, kv_token_s=1e-6), OBJECTIVE)
    assert squared.request_s(100.0, 20_000.0, 10.0) == pytest.approx(0.2 + 0.1 + 10 * 1e-6 * 105)


def test_sustainable_work_is_what_the_iterations_leave() -> None:
    # An iteration of 200 ms, the objective, leaves half of its time.
    assert LAW.sustainable(100.0, 10_000.0, 10.0) == pytest.approx(0.5)
    # A full chunk with its share of decoding takes 100 + 20 ms, less than the objective: a sixth is left.
    small = WorkLaw(replace(ROUND, max_prefill_tokens=10), OBJECTIVE)
    assert small.sustainable(100.0, 10_000.0, 10.0) == pytest.approx(1 - 0.1 / 0.12)
    # Two requests at once, each 100 ms of fixed time per token beside 20 ms of work.
    few = WorkLaw(replace(ROUND, max_batch=2), OBJECTIVE)
    assert few.sustainable(100.0, 10_000.0, 10.0) == pytest.approx(2 / (2 + 10 / 0.2 * 0.1))


def _arrivals(policy: WorkQuantile, rates: list[float], current: int = 1) -> list[int]:
    """Counts that a policy wants while requests of 100 and 10 tokens arrive at these rates, one per tick."""
    total, wanted = 0, []
    for k, rate in enumerate(rates):
        total += round(rate * PERIOD_S)
        now = reading(
            at_s=k * PERIOD_S, arrived_total=total, prompt_tokens_total=100 * total,
            prompt_squares_total=1e4 * total, ended=((100, 10),),
        )  # fmt: skip
        view = FakeView(now_s=k * PERIOD_S, ready=current, current=current, readings=[now])
        current = policy.desired_replicas(view)  # type: ignore[arg-type]
        wanted.append(current)
    return wanted


def test_a_steady_load_needs_its_work_by_the_sustainable_part() -> None:
    # 20 requests/s of 0.2 s are 4 replicas' time, of which one sustains half.
    assert _arrivals(WorkQuantile(LAW, 0.5, 1.0, 60.0), [20.0] * 60)[-1] == 8
    assert _arrivals(WorkQuantile(LAW, 0.5, 0.5, 60.0), [20.0] * 60)[-1] == 16


def test_a_higher_quantile_of_past_growth_holds_more() -> None:
    steps = [*[20.0] * 40, *[40.0] * 40] * 2
    low, high = (_arrivals(WorkQuantile(LAW, q, 1.0, 60.0), steps)[-1] for q in (0.5, 0.95))
    assert low < high


def test_the_largest_past_growth_may_be_asked_for() -> None:
    assert _arrivals(WorkQuantile(LAW, 1.0, 1.0, 60.0), [20.0] * 60)[-1] == 8


def test_down_goes_to_the_largest_proposal_of_the_window() -> None:
    wanted = _arrivals(WorkQuantile(LAW, 0.5, 1.0, 300.0), [20.0] * 60 + [0.0] * 40)
    fallen = next(k for k, count in enumerate(wanted[60:]) if count < wanted[59])
    assert (fallen + 1) * PERIOD_S > 300.0
    assert wanted[-1] == 1


def test_yesterday_raises_the_level_of_today_within_limits() -> None:
    bins = round(DAY_S / BIN_S)
    yesterday = np.full(bins, 10.0)
    yesterday[24:] = 100.0  # from minute twelve on; ten times as much, but two times is believed
    on_days = WorkQuantile(LAW, 0.5, 1.0, 60.0, yesterday)
    before_it, close = 30, 46
    wanted = _arrivals(on_days, [10.0] * 48)
    assert wanted[before_it] == 4
    assert wanted[close] == 8


def test_queued_work_is_cleared_in_two_minutes() -> None:
    policy = WorkQuantile(LAW, 0.5, 1.0, 60.0)
    _arrivals(policy, [20.0] * 60)
    now = reading(waiting=3_000, arrived_total=60 * 300, prompt_tokens_total=60 * 30_000, prompt_squares_total=60 * 3e6)
    view = FakeView(now_s=900.0, ready=8, current=8, readings=[now])
    assert policy.desired_replicas(view) >= 8 + 3_000 * 0.2 / 120 - 2  # type: ignore[arg-type]


def test_long_prompts_are_limited_by_the_prefill_budget() -> None:
    book = ProfileBook(BUILT_IN_PROFILES["llama2-70b-h100-tp8"], Objective(30.0, 0.3))
    p = book.profile
    chunk_s = p.base_s + p.max_prefill_tokens * (p.prefill_token_s + p.prefill_token_sq_s * 15_000 / 2)
    assert book.engine_rps(15_000.0, 150.0) <= p.max_prefill_tokens / 15_000 / chunk_s
    assert book.engine_rps(100_000.0, 1.0) <= p.max_prefill_tokens / 100_000 / chunk_s


def test_a_tighter_ttft_lowers_the_rate_of_an_engine() -> None:
    profile = BUILT_IN_PROFILES["opt13b-a100"]
    loose, tight = (ProfileBook(profile, Objective(ttft_s, 0.12)).engine_rps(1_000.0, 200.0) for ttft_s in (10.0, 0.2))
    assert tight < loose


def _dual(**changes: float) -> DynamoDualLoop:
    return DynamoDualLoop(ProfileBook(ROUND, OBJECTIVE), **changes)


def _loop_view(running: tuple[int, ...], waiting: tuple[int, ...]) -> FakeView:
    class View(FakeView):
        def arrivals_within(self, _: float) -> float:
            return 0.1

        def lengths_within(self, _: float) -> tuple[float, float]:
            return 100.0, 10.0

    n = len(running)
    return View(ready=n, current=n, readings=[replace(reading(), running=running, waiting=waiting)])


@pytest.mark.parametrize(
    ("running", "waiting", "wanted"),
    [
        ((1, 1), (40, 40), 3),  # queues of 4,000 prompt tokens, 40 chunks, on every engine
        ((1, 1), (40, 0), 2),  # on one of two
        ((1, 1), (0, 0), 1),  # one engine would do for both
        ((5, 5), (0, 0), 2),  # one engine with ten requests would come too close to 200 ms
    ],
)
def test_the_load_loop_moves_by_one(running: tuple[int, ...], waiting: tuple[int, ...], wanted: int) -> None:
    assert _dual().desired_replicas(_loop_view(running, waiting)) == wanted  # type: ignore[arg-type]


def test_the_load_loop_may_be_told_a_tighter_objective() -> None:
    view = _loop_view((2, 2), (10, 10))  # a prompt then waits for eleven chunks of 220 ms... of a budget of 100 tokens
    assert _dual(target=10.0).desired_replicas(view) <= 2  # type: ignore[arg-type]
    assert _dual(target=0.5).desired_replicas(view) == 3  # type: ignore[arg-type]


# Tuning.


def test_an_axis_reaches_beyond_its_core() -> None:
    axis = Axis((2.0, 3.0), (1.0,), (4.0, 5.0))
    assert axis.values == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert axis.times(2.0) == Axis((4.0, 6.0), (2.0,), (8.0, 10.0))


def test_neighbours_lie_beyond_what_was_tried() -> None:
    s = setting()
    offered = candidates("kpa", s, KNOWN)
    inside = next(c for c in offered if dict(c.params)["target"] == pytest.approx(0.7 * 0.5 * KNOWN.concurrency))
    assert {
        name for c in neighbours(inside, offered, s, KNOWN) for name, v in c.params if (name, v) not in inside.params
    } == {"min_replicas"}
    beyond = neighbours(offered[-1], offered, s, KNOWN)
    targets = sorted({dict(c.params)["target"] for c in beyond})
    assert targets == pytest.approx([0.7 * share * KNOWN.concurrency for share in (0.2, 0.28)])


def test_tuning_goes_on_where_the_best_lies_at_the_end() -> None:
    s = setting()

    def trial(choice: PolicyChoice) -> Trial:
        share = dict(choice.params)["target"] / KNOWN.concurrency
        return Trial(choice, 1.0 - share / 10, 1.0 / share + dict(choice.params)["min_replicas"])

    best, trials = search(candidates("hpa", s, KNOWN), trial, s, KNOWN, 0.985)
    assert dict(best.params)["target"] == pytest.approx(0.14 * KNOWN.concurrency)
    assert len(trials) <= 12 + run.EXTENSIONS + 4  # floors are bisected


def test_a_rival_that_cannot_keep_the_objective_gets_a_floor() -> None:
    s = setting()

    def trial(choice: PolicyChoice) -> Trial:
        floor = dict(choice.params)["min_replicas"]
        return Trial(choice, 0.99 if floor >= 4 else 0.2, floor)

    best, _ = search(candidates("dynamo-dual", s, KNOWN), trial, s, KNOWN, 0.985)
    assert dict(best.params)["min_replicas"] == 4
    assert [dict(c.params)["min_replicas"] for c in with_floors(best, s, KNOWN)][-1] <= s.max_replicas


def test_hindsight_looks_between_the_values_of_the_first_axis() -> None:
    s = setting()
    at_the_end, later = (candidates("hpa", s, KNOWN)[k] for k in (0, 2))
    targets = [dict(c.params)["target"] / KNOWN.concurrency for c in towards_cheaper(later, s, KNOWN)]
    assert targets == pytest.approx([0.8**0.75, 0.8**0.5, 0.8**0.25])
    cheapest = PolicyChoice(
        "hpa", tuple(sorted((dict(at_the_end.params) | {"target": 2.5 * KNOWN.concurrency}).items()))
    )
    assert towards_cheaper(cheapest, s, KNOWN) == ()


def test_a_floor_is_kept() -> None:
    s = setting()
    choice = with_floors(candidates("hpa", s, KNOWN)[0], s, KNOWN)[1]
    floor = dict(choice.params)["min_replicas"]
    result = simulate(s, controller_of(choice, KNOWN), 0)
    assert result.mean_replicas >= floor - 0.2


def test_the_training_part_has_the_days_before_itself() -> None:
    hours = 72
    rates = np.repeat(np.arange(1.0, hours + 1), 1)
    profile = RateProfile(
        "days", np.arange(hours + 1) * 3_600.0, rates, (Tokens(20.0),) * hours, (Tokens(8.0),) * hours
    )
    options = CellOptions(ROUND, Objective(20.0, 1.0), 0.9, 100.0, 0.0, 1, 16, 15.0)
    known = day_cell(profile, 2, 0.01, options).knowledge
    trained = known.for_training()
    assert len(known.history) - len(trained.history) == round(DAY_S / 2 / BIN_S)
    assert trained.history[-1] < known.history[-1]
    assert (known.day_offset_s, trained.day_offset_s) == (22 * 3_600.0, 10 * 3_600.0)
    assert KNOWN.for_training() is KNOWN


# Hindsight.


def row(attainment: float, hours: float) -> Row:
    return Row("harmony", 0, "", attainment, attainment, hours, 1.0, 0.0, 1.0, 1.0, 0.1, 0.1, {}, {})


def _trial(attainment: float, *hours: float) -> Trial:
    return Trial(PolicyChoice("hpa", (("target", hours[0]),)), attainment, sum(hours) / len(hours), hours)


def test_at_equal_attainment_the_cheapest_that_keeps_as_much_counts() -> None:
    harmony = [row(0.99, 6.0), row(0.98, 5.0)]
    found = equal_attainment([_trial(0.97, 1.0, 1.0), _trial(0.985, 3.0, 2.0), _trial(1.0, 6.0, 6.0)], harmony)
    assert found is not None
    assert (found.wanted, found.attainment, found.gpu_hours) == (pytest.approx(0.985), 0.985, 2.5)
    assert found.harmony_ratios == (2.0, 2.5)
    assert equal_texts(found)[2] == "2.25 (2.00-2.50)"
    assert equal_attainment([_trial(0.97, 1.0, 1.0)], harmony) is None
    assert equal_texts(None)[0] == "not reached"


def test_one_run_stands_for_seeds_that_are_the_same() -> None:
    found = equal_attainment([_trial(0.99, 2.0)], [row(0.99, 3.0), row(0.99, 4.0)])
    assert found is not None
    assert found.harmony_ratios == (1.5, 2.0)


def test_trials_on_the_scored_part_reach_what_is_wanted() -> None:
    s = setting()
    trials = scored_trials("static-peak", [s, s], KNOWN, 0.95)
    assert max(trial.attainment for trial in trials) >= 0.95
    assert {len(trial.hours_by_seed) for trial in trials} == {1}


def test_a_replay_says_what_rivals_cost_at_equal_attainment(capsys: pytest.CaptureFixture[str]) -> None:
    edges, law = np.asarray([0.0, 600.0]), (Tokens(20.0),)
    options = CellOptions(HALF, SLOW, 0.9, 20.0, 0.0, 1, 6, 15.0)
    cell = rate_cell(RateProfile("short", edges, np.asarray([1.5]), law, (Tokens(8.0),)), options)
    result = run_cell(
        cell, ("harmony", "static-peak"), 2, tuned=False, oracle_budget=0, rate_budget=0,
        surprises=SurpriseOptions(), log_dir=None, jobs=1, progress=lambda *_: None, equal=True,
    )  # fmt: skip
    told = as_json(result, options)["equal_attainment_in_hindsight"]
    assert list(told) == ["static-peak"]
    assert set(told["static-peak"]["harmony_ratio"]) == {"median", "min", "max"}
    print_results(result, 0.9)
    assert "in hindsight, at HARMONY's attainment" in capsys.readouterr().out
