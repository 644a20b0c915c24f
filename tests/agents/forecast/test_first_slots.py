"""The same telemetry gives the same decisions, whether workers stood before it came or find all of it as a backlog."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from agents.planning.codec import decode_plan
from agents.policy import TargetRef, WorkloadSpec
from infra.lab.bench.scale import Planning
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord, OutRecord
from streams.pages.chain import PageJoin
from streams.topics import Topics
from tests.streams.ingest.random_logs import random_log

STREAM = StreamConfig(step_ms=1_000, grace_ms=1_500, skew_ms=300, context_steps=8)
TOPICS = Topics(partitions=1)
SPECS = tuple(
    WorkloadSpec(f"team/w-{n}", TargetRef(name=f"w-{n}"), max_replicas=9, mode="act", capacity_rps=2.0)
    for n in range(3)
)
SEEDS = range(20)
SLOTS = 24


def chains_of(seed: int) -> dict[Source, list[tuple[int, list[OutRecord]]]]:
    """Per source its pages in order, each with the broker stamp of the record that closed it."""
    chains: dict[Source, list[tuple[int, list[OutRecord]]]] = {}
    for number, source in enumerate(SOURCES):
        kernel = IngestKernel(0, source, STREAM, DEFAULT_CATALOGUE, TOPICS)
        log = random_log(2 * seed + number, source, STREAM.step_ms, STREAM.grace_ms, STREAM.skew_ms, SLOTS)
        chains[source] = [
            (emission.closed_stamp_ms or 0, [out])
            for record in log
            for emission in kernel.fold([LogRecord(*record)])
            for out in emission.commits
        ]
    return chains


def orders_of(chains: dict[Source, list[tuple[int, list[OutRecord]]]], rng: random.Random) -> list[list[OutRecord]]:
    """The pages topic as workers before the telemetry write it, and as workers on a backlog may."""
    gpu, requests = ([outs for _, outs in chains[source]] for source in ("gpu", "requests"))
    by_stamp = [outs for _, outs in sorted([*chains["gpu"], *chains["requests"]], key=lambda page: page[0])]
    left, mixed = [list(gpu), list(requests)], []
    while any(left):
        one = rng.choice([pages for pages in left if pages])
        mixed += [one.pop(0) for _ in range(min(len(one), rng.randint(1, 9)))]
    one_first = [*gpu, *requests] if rng.random() < 0.5 else [*requests, *gpu]
    return [[out for outs in order for out in outs] for order in (by_stamp, one_first, mixed)]


def decided(planning: Planning, pages: Sequence[OutRecord]) -> list[bytes]:
    """Every decision and command on these pages, in order."""

    async def plans() -> list[LogRecord]:
        records = [LogRecord(n, 0, out.key, out.value) for n, out in enumerate(pages)]
        return planning.plans_of([emission async for emission in planning.forecast.fold(records)], 0)

    told = asyncio.run(plans())
    outs = [out for plan in told for group in planning.decide.fold(plan).outputs for out in group]
    slots = [decode_plan(plan.value).slot for plan in told]
    assert slots == sorted(set(slots))
    return [out.value or b"" for out in outs]


def answers_of(seed: int) -> list[list[bytes]]:
    rng, answers = random.Random(seed), []
    for pages in orders_of(chains_of(seed), rng):
        planning = Planning(SPECS, STREAM, TOPICS)
        try:
            answers.append(decided(planning, pages))
        finally:
            planning.close()
    return answers


@pytest.mark.parametrize("seed", SEEDS)
def test_a_backlog_is_decided_as_it_would_have_been_while_it_came(seed: int) -> None:
    early, *late = answers_of(seed)
    assert len(early) > SLOTS
    for answer in late:
        assert answer == early


def test_the_comparison_finds_a_source_that_is_given_up_after_three_pages() -> None:
    impatient = patch.object(PageJoin.__init__, "__defaults__", (3, SOURCES))
    with impatient:
        early, *late = answers_of(1)
    assert any(answer != early for answer in late)
