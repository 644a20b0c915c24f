"""A forecaster that is wrong again and again loses its workload, and every record says who answers since."""

from __future__ import annotations

import asyncio

import msgspec

from agents.micro_batcher import MicroBatcher
from agents.plan_codec import decode_plan
from agents.records import ForecastRecord
from model.contract import ContextBatch, ForecastBatch
from model.forecast_trust import REACTIVE
from model.seasonal_naive import SeasonalNaiveForecaster
from tests.monitoring.memory_loop import MemoryLoop

SLOTS = 140


async def _naive(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
    made = SeasonalNaiveForecaster().forecast(batch, horizon, num_paths)
    return ForecastBatch(made.paths * 0 + 1e-3, made.sources, made.fingerprint)


def test_from_the_first_forecaster_to_the_second_to_the_reactive_rule() -> None:
    async def scene() -> MemoryLoop:
        loop = MemoryLoop(("a",))
        loop.forecast._engine._crowd = (10, MicroBatcher(_naive, deadline_s=0, buckets=()))  # type: ignore[attr-defined]
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
    assert loop.forecast._states["a"].trust.tier == REACTIVE
