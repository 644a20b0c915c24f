"""Decisions of a large plan leave so many at a time: they are the same, also where a crash comes in between."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from agents.decide import agent as decide_agent
from agents.decide import kernel as decide_kernel
from agents.decide.agent import DecideLane
from agents.decide.kernel import DecideKernel
from agents.decide.records import decode_decision
from agents.policy import Policy
from infra.observability.metrics import PrometheusMeter
from infra.observability.stage_metrics import DecideMetrics
from streams.log import Emission, LogRecord, OutRecord
from tests.agents.decide.decide_runs import kernel
from tests.agents.planning.plan_samples import FREE, STREAM, TOPICS, log, plan, policy, record, spec

WORKLOADS = tuple("abcdefghij")
PRIORITIES = {w: n % 3 for n, w in enumerate(WORKLOADS)}


def fleet() -> Policy:
    return policy(*(spec(w, priority=PRIORITIES[w]) for w in WORKLOADS), guards=replace(FREE, fleet_max_gpus=60))


def plans(slots: int = 3) -> list[LogRecord]:
    rng = random.Random(7)
    return log(*(record(s, *(plan(w, 5, rng.randint(4, 8)) for w in WORKLOADS)) for s in range(slots)))


def outs(emissions: list[Emission]) -> list[OutRecord]:
    return [out for e in emissions for group in e.outputs for out in group]


@pytest.mark.parametrize("piece", [1, 3, 10])
def test_pieces_say_what_the_whole_says_most_important_first(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    rows = plans()
    whole = kernel(fleet())
    expected = [whole.fold(r) for r in rows]
    monkeypatch.setattr(decide_kernel, "_PIECE_WORKLOADS", piece)
    together, apart = kernel(fleet()), kernel(fleet())
    for r, all_of_it in zip(rows, expected, strict=True):
        assert together.fold(r) == all_of_it
        pieces, before = list[Emission](), apart.state
        for emission in apart.decide(r):
            pieces.append(emission)
            assert (apart.state is before) == (emission.resume_offset == r.offset)
        assert [e.closed_stamp_ms is not None for e in pieces] == [False] * (len(pieces) - 1) + [True]
        assert all(len(group) <= piece for e in pieces for group in e.outputs)
        assert sorted(outs(pieces)) == sorted(outs([all_of_it]))
        ranks = [[PRIORITIES[(o.key or b"").decode()] for o in outs([e])] for e in pieces]
        assert all(min(earlier) >= max(later) for earlier, later in pairwise(ranks))
        assert apart.seal() == list(all_of_it.commits)


@pytest.mark.parametrize("told", range(5))
def test_a_crash_between_pieces_leaves_the_decisions_of_a_life_without_one(
    monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    rows = plans(1)
    whole = kernel(fleet()).fold(rows[0])
    monkeypatch.setattr(decide_kernel, "_PIECE_WORKLOADS", 2)
    first_life = list(kernel(fleet()).decide(rows[0]))[:told]
    log_of_decisions = [o.value or b"" for o in outs(first_life) if o.topic == TOPICS.decisions]
    second_life = DecideKernel.restore(fleet(), STREAM, TOPICS, commit=None, published=log_of_decisions)
    later = [second_life.fold(rows[0])]
    decided = [o for o in outs([*first_life, *later]) if o.topic == TOPICS.decisions]
    assert sorted(decided) == sorted(o for o in outs([whole]) if o.topic == TOPICS.decisions)
    ordered = {o for o in outs([*first_life, *later]) if o.topic == TOPICS.commands}
    assert ordered == {o for o in outs([whole]) if o.topic == TOPICS.commands}
    assert second_life.state == kernel_state_after(rows[0])


def kernel_state_after(row: LogRecord) -> object:
    k = kernel(fleet())
    k.fold(row)
    return k.state


def test_of_a_large_plan_not_all_is_kept_until_it_is_told_and_totals_are_those_of_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide_kernel, "_PIECE_WORKLOADS", 1)
    monkeypatch.setattr(decide_agent, "_MAX_UNOBSERVED", 4)
    meter = PrometheusMeter(strict=True)
    metrics = DecideMetrics(meter, TOPICS, fleet="test", epoch=1)
    seen = list[str]()

    def observe(emission: Emission) -> None:
        metrics(emission)
        seen.extend((o.key or b"").decode() for o in outs([emission]) if o.topic == TOPICS.decisions)

    async def scene() -> list[OutRecord]:
        lane, emissions = DecideLane(kernel(fleet()), observe), list[Emission]()
        async for emission in lane.fold(plans(2)):
            emissions.append(emission)
            assert len(emissions) - len(seen) <= 5
        assert lane.num_deferred == 2
        sealed = [e async for e in lane.flush_deferred()]
        assert [e.resume_offset for e in sealed] == [2]
        return [o for o in outs(emissions) if o.topic == TOPICS.decisions]

    decided = [decode_decision(o.value or b"") for o in asyncio.run(scene())]
    assert sorted(seen) == sorted(d.workload for d in decided)
    newest = {d.workload: d.replicas for d in decided}
    for state, total in (("ready", 5 * len(WORKLOADS)), ("wanted", sum(r.final or 0 for r in newest.values()))):
        assert meter.registry.get_sample_value("harmony_replicas", {"state": state}) == total
