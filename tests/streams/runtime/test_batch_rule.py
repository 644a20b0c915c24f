"""Small batches are folded together, where that is worth waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from streams.log import Emission, LogRecord
from streams.runtime.lane import BatchRule, Lane
from tests.streams.runtime.lane_bench import Broker, Echo, records, until


class Batches(Echo):
    """Remembers what was folded at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    async def fold(self, batch: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        self.batches.append([record.offset for record in batch])
        async for emission in super().fold(batch):
            yield emission


def batching_lane(broker: Broker, kernel: Echo, **rule: Any) -> Lane:
    lane = broker.lane(kernel)
    lane._batch_rule = BatchRule(**({"urgent": lambda record: record.offset % 10 == 9, "max_wait_s": 60.0} | rule))
    return lane


async def test_small_batches_are_folded_together_up_to_what_is_urgent() -> None:
    broker, kernel = Broker(), Batches()
    lane = batching_lane(broker, kernel)
    for first, count in ((0, 3), (3, 1), (4, 6), (10, 2)):
        await lane.put(records(first, count))
        await asyncio.sleep(0.01)
    await until(lambda: broker.safe and broker.safe[-1] == 10)
    assert kernel.batches == [list(range(10))]
    assert lane.waits_for == ""
    await lane.close()


async def test_enough_records_are_not_waited_with_and_few_not_for_long() -> None:
    broker, kernel = Broker(), Batches()
    lane = batching_lane(broker, kernel, urgent=lambda _: False, max_records=5, max_wait_s=0.05)
    for first in (0, 3):
        await lane.put(records(first, 3))
    await until(lambda: broker.safe and broker.safe[-1] == 6)
    assert kernel.batches == [list(range(6))]
    await lane.put(records(6, 1))
    await asyncio.sleep(0.5)  # ten times as long as the first may wait
    assert kernel.batches[-1] == [6]
    await lane.close()


async def test_few_large_records_are_not_waited_with() -> None:
    broker, kernel = Broker(), Batches()
    lane = batching_lane(broker, kernel, max_bytes=9)
    for first in (0, 3, 6):
        await lane.put(records(first, 3))  # two bytes each
    await until(lambda: broker.safe and broker.safe[-1] == 6)
    assert kernel.batches == [list(range(6))]
    await lane.close()


async def test_a_lane_that_gathers_can_be_closed() -> None:
    broker, kernel = Broker(), Batches()
    lane = batching_lane(broker, kernel)
    await lane.put(records(0, 3))
    await asyncio.sleep(0.01)
    await lane.close()
    assert kernel.batches == []
    assert broker.failures == []
