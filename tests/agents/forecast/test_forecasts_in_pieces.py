"""Forecasts wait for the plan, and those of a large partition are never all in memory; what they say is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from agents.forecast import kernel as forecast_kernel
from agents.forecast.workloads import ForecastTask, PlannedSlot
from agents.workload.state import Subject
from streams.log import Emission, LogRecord
from tests.infra.observability.memory_loop import MemoryLoop

WORKLOADS = tuple("abcdefg")
SLOTS = 4


async def _pages() -> list[LogRecord]:
    loop = MemoryLoop(WORKLOADS)
    for _ in range(SLOTS):
        await loop.publish_slot()
    return loop.logs[loop.topics.pages]


async def _answered(pages: Sequence[LogRecord]) -> tuple[MemoryLoop, list[Emission], list[str]]:
    """What a new kernel says to them, and in which order plans left and forecasts began."""
    loop, events = MemoryLoop(WORKLOADS), list[str]()
    engine = loop.forecast._engine
    plan = engine.plan

    def noted(make: ForecastTask) -> ForecastTask:
        def making() -> object:
            events.append("forecasts")
            return make()

        return making  # type: ignore[return-value]

    async def watched(subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool, size: int) -> PlannedSlot:
        answers = await plan(subjects, origin_ts_ms, with_forecast, size)
        return PlannedSlot(answers.plans, [noted(make) for make in answers.forecasts])

    engine.plan = watched  # type: ignore[method-assign]
    emissions = []
    async for emission in loop.forecast.fold(pages):
        emissions.append(emission)
        events.extend("plan" for group in emission.outputs for r in group if r.topic == loop.topics.plans)
    return loop, emissions, events


def _published(emissions: Sequence[Emission]) -> list[tuple[str, bytes | None, bytes | None]]:
    return [(r.topic, r.key, r.value) for e in emissions for group in (*e.outputs, e.commits) for r in group]


@pytest.mark.parametrize("futures", [0, 1024])
@pytest.mark.parametrize(("at_a_time", "piece"), [(256, 1), (256, 3), (2, 1), (2, 3), (7, 100)])
def test_any_pieces_say_the_same_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, at_a_time: int, piece: int, futures: int
) -> None:
    pages = asyncio.run(_pages())
    _, whole, _ = asyncio.run(_answered(pages))
    monkeypatch.setattr(forecast_kernel, "_WORKLOADS_PER_BATCH", at_a_time)
    monkeypatch.setattr(forecast_kernel, "_MAX_DEFERRED_WORKLOADS", futures)
    monkeypatch.setattr(forecast_kernel, "_RECORDS_PER_EMISSION", piece)
    monkeypatch.setattr(forecast_kernel, "_WORKLOADS_PER_SLICE", 1)
    loop, emissions, _ = asyncio.run(_answered(pages))
    assert _published(emissions) == _published(whole)
    told = [sum(r.topic == loop.topics.forecasts for group in e.outputs for r in group) for e in emissions]
    assert sum(told) >= len(WORKLOADS) > max(told[0], 1)
    assert max(told) <= piece
    assert all(e.commits or e.resume_offset == after.resume_offset for e, after in pairwise(emissions))


def test_forecasts_begin_when_the_plan_is_out_unless_futures_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = asyncio.run(_pages())
    _, _, events = asyncio.run(_answered(pages))
    assert events[-2:] == ["plan", "forecasts"]
    monkeypatch.setattr(forecast_kernel, "_WORKLOADS_PER_BATCH", 4)
    monkeypatch.setattr(forecast_kernel, "_MAX_DEFERRED_WORKLOADS", 6)
    _, _, events = asyncio.run(_answered(pages))
    assert events[-3:] == ["forecasts", "forecasts", "plan"]
