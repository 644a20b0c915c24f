"""Trials: with budget to spare a replica fewer is tried where it is not known whether it is needed, and one learns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from agents.planning.planner import PlanInput, PlanResult
from agents.policy import Policy
from model.calibration.budget import ErrorBudget
from model.capacity.posterior import CapacityPosterior, SlotEvidence
from tests.agents.planning.test_planner import HORIZON, POLICY, STEP_MS, learned, request, single

BELIEVED = 2.5  # requests/s of a replica, as declared


class UpperHalf(CapacityPosterior):
    """What is believed of a capacity of which it is known to be above its median."""

    def cumulative(self) -> tuple[float, NDArray[np.float64]]:
        log_first, cells = super().cumulative()
        return log_first, np.maximum(2.0 * cells - 1.0, 0.0)


class Remembering(CapacityPosterior):
    """The same belief, of which are remembered misses at a load and that another has been carried for long."""

    clear, carried = math.inf, 2.5

    @property
    def clear_rps(self) -> float:
        return self.clear

    @property
    def carried_rps(self) -> float:
        return self.carried


def asked(ready: int, rate: float, **changes: object) -> PlanInput:
    return request(ready=ready, rate=rate, **({"capacity": Remembering(BELIEVED)} | changes))


def steady(rate: float, spread: float = 0.05, num_paths: int = 64) -> Tensor:
    noise = torch.randn(num_paths, HORIZON, generator=torch.Generator().manual_seed(7)) * spread
    return (rate * noise.exp())[None, :, :, None]


def stated(result: PlanResult) -> dict[int, float]:
    return {risk.replicas: risk.p_miss for risk in result.risks}


def test_one_replica_is_given_up_to_learn_whether_it_was_needed() -> None:
    cautious = single(asked(2, 2.0), steady(2.0))
    bold = single(asked(2, 2.0, exploration=0.5), steady(2.0))
    assert (cautious.proposed, cautious.proposer, cautious.trial) == (2, "chance_constrained", None)
    assert (bold.proposed, bold.proposer) == (1, "trial")
    assert bold.trial is not None
    assert (bold.trial.replicas, bold.trial.doubt_ratio) == (1, 0.5)
    assert bold.trial.p_miss <= bold.epsilon < stated(bold)[1]
    assert stated(bold)[1] == stated(cautious)[1]
    assert bold.proposals["chance_constrained"] == 2


def test_a_trial_goes_on_but_is_not_begun_by_not_growing() -> None:
    """A load that rises past what is believed is no time to try."""
    tried = {"last_replicas": 1, "last_was_trial": True}
    result = single(asked(1, 2.0, exploration=0.5, **tried), steady(2.0))
    assert (result.proposed, result.proposer) == (1, "trial")
    for known in (
        asked(1, 2.0, exploration=0.5, last_replicas=1),
        asked(1, 2.0, exploration=0.5, last_was_trial=True, last_replicas=2),
        asked(1, 2.0, **tried),
        asked(1, 4.0, exploration=0.5, **tried),
    ):
        result = single(known, steady(known.arrival_rate_now or 0.0))
        assert result.proposed is not None
        assert (result.proposed > 1, result.trial) == (True, None)


def test_nothing_is_tried_of_a_load_at_which_misses_are_remembered_or_that_is_new() -> None:
    def tried(misses_at: float, carried: float) -> bool:
        capacity = Remembering(BELIEVED)
        capacity.clear, capacity.carried = misses_at, carried
        return single(asked(2, 2.0, capacity=capacity, exploration=0.5), steady(2.0)).trial is not None

    assert tried(math.inf, 1.2)
    assert tried(2.6, 1.2)
    assert not tried(2.0, 1.2)
    assert not tried(math.inf, 0.9)


def test_what_was_carried_and_what_missed_is_remembered_at_its_load() -> None:
    capacity = CapacityPosterior(BELIEVED, smoothing_s=0.0)
    assert (capacity.clear_rps, capacity.carried_rps) == (math.inf, 0.0)
    for k, miss_ratio in enumerate((0.0,) * 100 + (0.03,) * 10):
        slot = SlotEvidence(
            end_ts_ms=(k + 1) * STEP_MS, step_s=15.0, arrival_rate=26.0 if miss_ratio else 15.0, waiting=None,
            miss_ratio=miss_ratio, ready=10, pending=0, draining=0, ttft_s=2.0, objective=0.99,
        )  # fmt: skip
        capacity.observe(slot)
    assert capacity.clear_rps == pytest.approx(2.6, rel=0.05)
    assert capacity.carried_rps == pytest.approx(1.5, rel=0.05)


def test_nothing_is_tried_while_replicas_are_on_their_way() -> None:
    assert single(asked(1, 2.0, pending=1, exploration=0.5), steady(2.0)).trial is None


@given(
    rate=st.floats(1.0, 60.0),
    ready=st.integers(1, 40),
    doubt=st.sampled_from((0.25, 0.5, 0.75)),
    pending=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_a_trial_is_one_replica_at_most_and_within_what_is_hoped(
    rate: float, ready: int, doubt: float, pending: int
) -> None:
    known = asked(ready, rate, pending=pending)
    cautious = single(known, steady(rate))
    bold = single(replace(known, exploration=doubt), steady(rate))
    assert cautious.proposed is not None
    assert bold.proposed is not None
    assert bold.proposals["chance_constrained"] == cautious.proposals["chance_constrained"]
    if bold.trial is None:
        assert (bold.proposed, bold.proposer) == (cautious.proposed, cautious.proposer)
    else:
        assert pending == 0
        assert bold.proposed == ready - 1 == cautious.proposed - 1
        assert bold.trial.replicas == bold.proposed
        assert bold.trial.p_miss <= bold.epsilon
        assert bold.trial.p_miss <= stated(bold)[bold.proposed] + 1e-12
        assert bold.trial.miss_share <= 2.0 * (bold.bearable_share or 0.0)


def test_its_risk_is_that_of_a_replica_known_to_carry_more_than_the_median() -> None:
    """Told so instead of hoping so, the planner states the same risk, but for other strata of the same half."""
    for rate in (1.8, 2.0, 2.2):
        bold = single(asked(2, rate, exploration=0.5), steady(rate))
        told = single(asked(2, rate, capacity=UpperHalf(BELIEVED)), steady(rate))
        assert bold.trial is not None
        assert bold.trial.p_miss == pytest.approx(stated(told)[1], abs=0.02)


def test_nothing_is_tried_of_what_is_known_or_while_a_queue_stands() -> None:
    assert single(asked(2, 2.9, capacity=learned(BELIEVED), exploration=0.5), steady(2.9)).proposed == 2
    queued = single(asked(2, 2.0, exploration=0.5, waiting_now=400.0), steady(2.0))
    assert queued.trial is None
    assert queued.proposer == "recovery"


def test_a_quarter_of_the_draws_is_the_least_doubt_that_counts() -> None:
    assert single(asked(2, 2.0, exploration=0.05), steady(2.0)).trial is None


def test_who_accepts_little_risk_gets_no_trials() -> None:
    assert Policy().doubt(0.15) == 0.5
    assert Policy().doubt(0.01) == pytest.approx(0.04)
    assert Policy(doubt_ratio=0.0).doubt(0.9) == 0.0


class Service:
    """A load that only jitters on replicas whose capacity is not what is declared, by the minute."""

    def __init__(self, rate: float, carries: float) -> None:
        self.rate, self.carries = rate, carries
        self.capacity, self.budget = CapacityPosterior(BELIEVED, smoothing_s=0.0), ErrorBudget()
        self.replicas, self.minute, self.tried = 2, 0, False
        self.missed = 0.0
        self.jitter = np.random.Generator(np.random.PCG64(3))

    def run(self, minutes: int, doubt_ratio: float) -> list[int]:
        counts = []
        for _ in range(minutes):
            self.minute += 1
            rate = self.rate * math.exp(0.05 * self.jitter.standard_normal())
            over = rate > self.replicas * self.carries
            miss_ratio = 0.3 if over else 0.0
            slot = SlotEvidence(
                end_ts_ms=self.minute * 60_000, step_s=60.0, arrival_rate=rate, waiting=0.0, miss_ratio=miss_ratio,
                ready=self.replicas, pending=0, draining=0, ttft_s=2.0, objective=0.99,
            )  # fmt: skip
            self.capacity.observe(slot)
            self.budget.observe(self.minute * 60_000, rate * 60.0, miss_ratio)
            self.missed += miss_ratio
            request = asked(
                self.replicas,
                self.rate,
                capacity=self.capacity,
                epsilon=self.budget.scaled_by_budget(POLICY.epsilon, 0.99),
                max_expected_miss_ratio=self.budget.scaled_by_budget(POLICY.bearable_share(0.99), 0.99),
                exploration=self.budget.exploration(doubt_ratio, 0.99),
                last_replicas=self.replicas,
                last_was_trial=self.tried,
            )
            result = single(request, steady(self.rate))
            assert result.proposed is not None
            self.replicas, self.tried = result.proposed, result.trial is not None
            counts.append(self.replicas)
        return counts


def test_a_trial_that_holds_saves_the_replica_for_good() -> None:
    """One would do: without trials two are held all day, with them one from the time on that budget is to spare."""
    with_trials = Service(2.2, carries=3.0)
    counts = with_trials.run(1200, POLICY.doubt_ratio)
    assert counts[:60] == [2] * 60
    assert counts[-240:] == [1] * 240
    assert with_trials.missed == 0.0
    assert Service(2.2, carries=3.0).run(240, 0.0) == [2] * 240


def test_a_trial_that_fails_is_short_and_not_soon_repeated() -> None:
    """One does not do: the misses of a trial teach it, and over the day they are a small part of the budget."""
    service = Service(2.2, carries=2.0)
    counts = service.run(1440, POLICY.doubt_ratio)
    assert 0 < counts.count(1) <= 10
    assert service.missed / 1440 < 0.002
    assert counts[-360:] == [2] * 360
