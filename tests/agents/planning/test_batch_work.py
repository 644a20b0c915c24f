"""Batch work with deadlines: from what sources say, or the file, to a floor with its reason; the law is the model's."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from agents.decide.guards.chain import run_guards
from agents.planning.limits import batch_limit
from agents.policy import UNIT_OF, BatchRule, NightlyBatch, Policy, Schedule, WorkloadSpec
from agents.records import Limit
from agents.workload.state import LearnedState, new_law
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.capacity.law import EngineSlot
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.records.facts import BatchJob, BatchQueue, FleetFacts
from streams.records.schema import encode_batch, encode_fleet, encode_sample
from streams.windows.table import RecentFacts, Window
from tests.agents.planning.plan_samples import policy, situation, spec

NOW = round(datetime.fromisoformat("2026-03-02T22:00:00+01:00").timestamp() * 1000)
HOUR = 3_600_000
REACH_MS = 120_000
TWO = FleetFacts(NOW, ready=2, pending=0, draining=0)
EVERY_DAY = tuple(range(7))


def state_of(capacity: float | None = 2.0, **changes: Any) -> LearnedState:
    declared = WorkloadSpec("w", min_replicas=1, max_replicas=40, schedule=Schedule("Europe/Berlin"), **changes)
    posterior, lead = CapacityPosterior(capacity), LeadTimePosterior(60.0)
    unit = UNIT_OF[declared.role]
    law = new_law(declared)
    return LearnedState(declared, declared=True, since_slot=0, capacity=posterior, lead=lead, law=law, unit=unit)


def window_of(rate: float = 1.0, tokens: float = 200.0, *queues: BatchQueue, yesterday: float | None = None) -> Window:
    columns = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
    values, observed = np.zeros((50, len(columns)), np.float32), np.zeros((50, len(columns)), np.bool_)
    for name, value in (("request.arrival_rate", rate), ("request.output_token_rate", tokens)):
        values[:, columns[name]], observed[:, columns[name]] = value, True
    coarse = np.full((1008, 3), yesterday or 0.0, np.float32), np.full((1008, 3), yesterday is not None)
    return Window("w", columns, values, observed, RecentFacts(None, None, {}, {}, queues), lambda: coarse)


def floor(state: LearnedState, window: Window, fleet: FleetFacts | None = TWO, at: int = NOW) -> Limit | None:
    limits = batch_limit(state, window, fleet, at, REACH_MS)
    return limits[0] if limits else None


def queue(tokens: float, due_ts_ms: int, source: str = "nightly") -> BatchQueue:
    return BatchQueue(source, NOW, (BatchJob(due_ts_ms, tokens),))


def test_the_floor_is_online_load_plus_what_deadlines_need() -> None:
    """200 tokens a request and 10 hours: 7.2 million tokens are one request/s more."""
    state = state_of()
    carried = float(state.capacity.quantiles((0.1,))[0])
    found = floor(state, window_of(1.0, 200.0, queue(7.2e6, NOW + 10 * HOUR)))
    assert found is not None
    assert found.guard == "batch"
    assert found.low == np.ceil(2.0 / carried)
    assert found.reason == "7.2e+06 tokens of batch work, the first due Tue 2026-03-03 08:00 CET"
    more = floor(state, window_of(1.0, 200.0, queue(7.2e6, NOW + 10 * HOUR), queue(7.2e6, NOW + 5 * HOUR, "more")))
    assert more is not None
    assert more.low == np.ceil(1.0 / carried + 3.0 / carried)


def test_yesterday_says_what_the_online_load_of_the_night_will_be() -> None:
    state, work = state_of(), queue(7.2e6, NOW + 10 * HOUR)
    quiet = floor(state, window_of(6.0, 1200.0, work, yesterday=0.0))
    busy = floor(state, window_of(6.0, 1200.0, work))
    assert quiet is not None
    assert busy is not None
    assert (quiet.low or 0) < (busy.low or 0)


def test_what_cannot_be_done_in_time_says_so() -> None:
    late = floor(state_of(), window_of(1.0, 200.0, queue(1e4, NOW - HOUR)))
    assert late is not None
    assert late.reason.endswith("; it cannot all be done in time")
    assert (late.low or 0) < 5
    flood = floor(state_of(), window_of(1.0, 200.0, queue(1e12, NOW + HOUR)))
    assert flood is not None
    assert flood.low == 40


def test_without_knowledge_there_is_no_floor() -> None:
    work = queue(7.2e6, NOW + HOUR)
    assert floor(state_of(), window_of()) is None
    assert floor(state_of(), window_of(1.0, 200.0, queue(0.0, NOW + HOUR))) is None
    assert floor(state_of(None), window_of(1.0, 200.0, work)) is None
    assert floor(state_of(), window_of(1.0, 200.0, work), fleet=None) is None
    assert floor(state_of(), window_of(0.0, 0.0, work)) is None
    # ... unless it is said what a replica generates.
    four = FleetFacts(NOW, ready=4, pending=0, draining=0)
    declared = floor(state_of(batch=BatchRule(tokens_per_s=500.0)), window_of(0.0, 0.0, work), four)
    assert declared is not None
    assert declared.low == 4  # 2,000 tokens/s


def test_in_a_night_without_online_requests_a_token_weighs_as_in_the_week_and_else_as_usual() -> None:
    state, work = state_of(), queue(7.2e6, NOW + 10 * HOUR)
    silent = window_of(0.0, 0.0, work)
    means, seen = np.zeros((1008, 3), np.float32), np.zeros((1008, 3), np.bool_)
    means[:40], seen[:40] = (1.0, 0.0, 200.0), True  # six days ago
    week = floor(state, replace(silent, read_coarse=lambda: (means, seen)))
    for _ in range(100):
        state.law.observe(EngineSlot(15.0, 2, 1.0, 100.0, 200.0, 4.0, 0.0, 0.1))
    usual = floor(state, silent)
    assert week is not None
    assert week == usual
    assert week.low == np.ceil(1.0 / float(state.capacity.quantiles((0.1,))[0]))


def test_a_decode_pool_does_it_by_its_tokens_and_a_prefill_pool_has_no_part_in_it() -> None:
    work = queue(7.2e6, NOW + 10 * HOUR)  # 200 tokens/s beside 200 of online load
    decode = floor(state_of(100.0, role="decode"), window_of(1.0, 200.0, work))
    carried = float(CapacityPosterior(100.0).quantiles((0.1,))[0])
    assert decode is not None
    assert decode.low == np.ceil(400.0 / carried)
    assert floor(state_of(100.0, role="prefill"), window_of(1.0, 200.0, work)) is None


NIGHT = NightlyBatch("nightly", 7.2e6, EVERY_DAY, 22 * 60, 8 * 60)


def test_a_nightly_batch_counts_from_its_time_on_and_is_worked_off_evenly() -> None:
    state = state_of(batch=BatchRule(jobs=(NIGHT,)))
    plain = window_of(1.0, 200.0)
    begin, middle = floor(state, plain), floor(state, plain, at=NOW + 5 * HOUR)
    assert begin is not None
    assert middle is not None
    assert (
        begin.low
        == middle.low
        == (floor(state_of(), window_of(1.0, 200.0, queue(7.2e6, NOW + 10 * HOUR))) or begin).low
    )
    assert floor(state, plain, at=NOW - REACH_MS) is not None
    assert floor(state, plain, at=NOW - REACH_MS - 1) is None
    assert floor(state, plain, at=NOW + 10 * HOUR) is None
    # A source of that name knows better.
    done = floor(state, window_of(1.0, 200.0, BatchQueue("nightly", NOW, ())))
    assert done is None


def test_the_floor_holds_against_the_plan_within_budgets_and_ceilings() -> None:
    work = Limit("batch", 9, None, "work")
    guarded = run_guards(situation(proposed=3, standing=(work,)))
    assert (guarded.final, guarded.reason, guarded.steps[-1].reason) == (9, "batch", "work")
    assert run_guards(situation(proposed=3, standing=(work,), gpus_left=6)).final == 6
    capped = situation(proposed=3, standing=(work, Limit("schedule", None, 7, "night")))
    assert run_guards(capped).final == 7


def test_a_batch_rule_is_part_of_the_fingerprint() -> None:
    rules = [BatchRule(), BatchRule(500.0), BatchRule(jobs=(NIGHT,))]
    assert len({Policy(workloads=(spec(batch=rule),)).fingerprint() for rule in rules}) == 3


@pytest.mark.parametrize("told", [True, False])
def test_queued_work_in_the_log_becomes_a_guard_step(told: bool) -> None:
    declared = policy(spec(capacity_rps=2.0, lead_time_s=20.0), paths_screen=32)
    stream = StreamConfig(step_ms=5_000, grace_ms=0, skew_ms=0, context_steps=32)
    loop = MemoryLoop(declared, stream, SeasonalNaiveForecaster())
    started = 0
    for k in range(40):
        begin = NOW + k * 5_000
        values = []
        for ts_ms in (begin + 1_000, begin + 4_900):
            started += 5
            counters = {**dict.fromkeys(("requests_started_total", "prompt_tokens_total"), float(started))}
            counters["generation_tokens_total"] = 200.0 * started
            values.append(encode_sample("requests", "w", "engine", ts_ms, counters))
        values.append(encode_fleet("w", "k8s", FleetFacts(begin + 4_900, 2, 0, 0)))
        if told and k == 30:
            values.append(encode_batch("w", "nightly", begin + 4_900, [BatchJob(NOW + 2 * HOUR, 1e7)]))
        loop.close_slot("w", values, begin + 5_000)
    last = loop.decisions[-1]
    loop.close()
    steps = [step for step in last.guards if step.guard == "batch"]
    assert bool(steps) == (last.reason == "batch") == told
    if told:
        assert "1e+07 tokens of batch work, the first due Mon 2026-03-02 23:00 UTC" in steps[0].reason
        assert str(steps[0].after) in last.risk.p_miss
