"""A forecaster that is wrong again and again loses its workload, and every record says who answers since."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch

from agents.forecast.batcher import MicroBatcher
from agents.forecast.bursts import WidenedPaths, recent_levels
from agents.forecast.engine import PlanningPaths
from agents.planning.codec import decode_plan
from agents.records import ForecastRecord
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, ForecastBatch
from streams.windows.table import RecentFacts, Window
from tests.infra.observability.memory_loop import MemoryLoop

SLOTS = 140


async def _naive(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
    made = SeasonalNaiveForecaster().forecast(batch, horizon, num_paths)
    return ForecastBatch(made.paths * 0 + 1e-3, made.sources, made.fingerprint)


def test_from_the_first_forecaster_to_the_second_to_the_reactive_rule() -> None:
    async def scene() -> MemoryLoop:
        loop = MemoryLoop(("a",))
        loop.forecast._engine._crowd = (10, MicroBatcher(_naive, deadline_s=0))  # type: ignore[attr-defined]
        for slot in range(SLOTS):
            await loop.publish_slot(rate=10.0 + 5.0 * (slot % 3))
        return loop

    loop = asyncio.run(scene())
    forecasts = [msgspec.json.decode(r.value or b"", type=ForecastRecord) for r in loop.logs[loop.topics.forecasts]]
    assert list(dict.fromkeys(record.source for record in forecasts)) == ["last_value", "seasonal_naive"]
    plans = [plan for record in loop.logs[loop.topics.plans] for plan in decode_plan(record.value).workloads]
    sources = list(dict.fromkeys(plan.forecast_source for plan in plans if plan.forecast_source))
    assert sources == ["last_value", "seasonal_naive", "reactive"]
    assert all(plan.proposed is not None for plan in plans if plan.forecast_source == "reactive")
    assert not loop.forecast._workloads._states["a"].trust.trusts("seasonal_naive")


def test_without_a_trusted_forecaster_the_plan_follows_the_load_down_again() -> None:
    async def scene() -> MemoryLoop:
        loop = MemoryLoop(("a",))
        loop.forecast._engine._crowd = (10, MicroBatcher(_naive, deadline_s=0))  # type: ignore[attr-defined]
        for slot in range(SLOTS):
            await loop.publish_slot(rate=10.0 + 5.0 * (slot % 3))
        assert not loop.forecast._workloads._states["a"].trust.trusts("seasonal_naive")
        for _ in range(40):
            await loop.publish_slot(rate=1.0)
        return loop

    loop = asyncio.run(scene())
    plans = [plan for record in loop.logs[loop.topics.plans] for plan in decode_plan(record.value).workloads]
    busy, quiet = plans[SLOTS - 1], plans[-1]
    assert busy.forecast_source == quiet.forecast_source == "reactive"
    assert busy.risks
    assert (quiet.proposed or 0) < (busy.proposed or 0)


def test_levels_are_those_of_the_newest_slots() -> None:
    values = np.arange(200, dtype=np.float32).reshape(100, 2)
    observed = np.ones((100, 2), bool)
    observed[99, 0] = observed[98, 1] = False
    facts = RecentFacts(None, None, {}, {})
    window = Window("w", {"a": 0, "b": 1}, values, observed, facts, lambda: (values[:0], observed[:0]))
    first, second = (recent_levels(window, column, 40) for column in (0, 1))
    assert first is not None
    assert second is not None
    assert first.shape == second.shape == (40,)
    assert (first[0], second[0]) == (196.0, 195.0)  # slot 98, whose second value is that of slot 97
    assert (first[32], second[32]) == (first[0], second[0])
    observed[:, 0] = False
    assert recent_levels(window, 1, 40) is None


def test_bursts_that_are_expected_are_added_to_the_recent_load_too() -> None:
    values, observed = np.full((100, 1), 3.0, np.float32), np.ones((100, 1), bool)
    window = Window(
        "w", {"a": 0}, values, observed, RecentFacts(None, None, {}, {}), lambda: (values[:0], observed[:0])
    )
    forecast = torch.full((2, 4, 5, 1), 7.0)  # [B, S, H, N]
    bursts = torch.zeros(4, 5, 1)
    bursts[:2, 3:] = 8.0  # half of the paths surge from the fourth step on
    batch: Any = SimpleNamespace(lower=torch.zeros(1), upper=torch.full((1,), np.inf))
    futures = WidenedPaths(forecast, [1.0, 1.0], batch)
    subject: Any = SimpleNamespace(window=window)
    paths = PlanningPaths(futures, [subject, subject], {1: bursts}, (0, 1), frozenset({0})).paths(0)
    assert (paths[0] == 7.0).all(), "a trusted forecast is as it was"
    assert (paths[1] == 3.0 + bursts[..., 0]).all()
