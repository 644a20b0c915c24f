"""A partition with more workloads than the network may answer for is forecast by the baselines, whatever the clock."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agents.forecast import kernel as forecast_kernel
from agents.forecast.batcher import MicroBatcher
from agents.records import ForecastRecord
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, ForecastBatch
from tests.infra.observability.memory_loop import MemoryLoop


async def _naive(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
    return SeasonalNaiveForecaster().forecast(batch, horizon, num_paths)


@pytest.mark.parametrize("at_a_time", [1, 256])
@pytest.mark.parametrize(("limit", "source"), [(1, "seasonal_naive"), (2, "last_value")])
def test_the_number_of_workloads_decides_who_forecasts(
    monkeypatch: pytest.MonkeyPatch, limit: int, source: str, at_a_time: int
) -> None:
    monkeypatch.setattr(forecast_kernel, "_WORKLOADS_PER_BATCH", at_a_time)

    async def scene() -> set[str]:
        loop = MemoryLoop(("a", "b"))
        engine = loop.forecast._engine
        engine._crowd = (limit, MicroBatcher(_naive, deadline_s=0))  # type: ignore[attr-defined]
        for _ in range(4):
            await loop.publish_slot()
        records = [msgspec.json.decode(r.value or b"", type=ForecastRecord) for r in loop.logs[loop.topics.forecasts]]
        return {record.source for record in records}

    assert asyncio.run(scene()) == {source}


def test_undeclared_workloads_take_no_network_from_declared_ones() -> None:
    async def scene() -> dict[str, str]:
        loop = MemoryLoop(("a",))
        loop.workloads = ("a", "made-up-1", "made-up-2")
        loop.forecast._engine._crowd = (1, MicroBatcher(_naive, deadline_s=0))  # type: ignore[attr-defined]
        for _ in range(4):
            await loop.publish_slot()
        records = [msgspec.json.decode(r.value or b"", type=ForecastRecord) for r in loop.logs[loop.topics.forecasts]]
        return {record.workload: record.source for record in records}

    naive = "seasonal_naive"
    assert asyncio.run(scene()) == {"a": "last_value", "made-up-1": naive, "made-up-2": naive}
