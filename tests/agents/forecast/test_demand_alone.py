"""Demand is forecast from demand; a workload without any is forecast in full."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from agents.forecast.batcher import MicroBatcher
from agents.records import ForecastRecord
from model.contract import ContextBatch, ForecastBatch
from streams.catalogue import DEFAULT_CATALOGUE
from tests.infra.observability.memory_loop import LastValue, MemoryLoop

DEMAND = tuple(i.name for i in DEFAULT_CATALOGUE if i.level == 1)
ALL = tuple(i.name for i in DEFAULT_CATALOGUE)


@pytest.mark.parametrize(
    ("demand_alone", "rate", "told", "drawn"),
    [
        (True, 10.0, DEMAND, "request.arrival_rate"),
        (True, None, ALL, "gpu.power_w"),
        (False, 10.0, ALL, "request.arrival_rate"),  # a forecaster of somebody's own may read whatever there is
    ],
)
def test_what_the_forecaster_is_told(demand_alone: bool, rate: float | None, told: tuple[str, ...], drawn: str) -> None:
    asked: list[tuple[str, ...]] = []

    async def watched(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        asked.append(batch.indicators)
        assert batch.coarse.shape[2] == len(DEMAND)
        assert len(batch.levels) == len(batch.lower) == batch.values.shape[2] == len(batch.indicators)
        return LastValue().forecast(batch, horizon, num_paths)

    async def scene() -> list[ForecastRecord]:
        loop = MemoryLoop(("a", "b"))
        engine = loop.forecast._engine
        engine._batcher = MicroBatcher(watched, deadline_s=0)  # type: ignore[attr-defined]
        engine._demand_alone = demand_alone  # type: ignore[attr-defined]
        for _ in range(4):
            await loop.publish_slot(rate)
        return [msgspec.json.decode(r.value or b"", type=ForecastRecord) for r in loop.logs[loop.topics.forecasts]]

    records = asyncio.run(scene())
    assert asked[-1] == told  # before two samples of a counter there is no demand, and all is told
    assert {record.workload for record in records} == {"a", "b"}
    assert all(drawn in record.targets for record in records[-2:])


def test_states_and_faults_of_devices_are_not_forecast() -> None:
    """Quantiles of an error code say nothing."""
    loop = MemoryLoop(("a",))
    devices = SimpleNamespace(
        refused=None, window=SimpleNamespace(observed_steps=[4 * (i.source == "gpu") for i in DEFAULT_CATALOGUE])
    )
    columns = loop.forecast._engine._target_columns(devices, 4)  # type: ignore[attr-defined]
    assert {ALL[n] for n in columns} == {
        *("gpu.utilization_ratio", "gpu.tensor_active_ratio", "gpu.memory_used_ratio", "gpu.power_w"),
        "gpu.temperature_c",
    }
