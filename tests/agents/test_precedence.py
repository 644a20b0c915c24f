"""What nobody waits for lets pass what somebody waits for, and is never forgotten."""

from __future__ import annotations

import asyncio
import gc

import pytest

from agents.priority import PriorityGate
from tests.infra.observability.memory_loop import MemoryLoop
from tests.streams.runtime.lane_bench import Broker


async def test_who_gives_way_goes_on_when_the_last_of_those_ahead_is_done() -> None:
    precedence, done = PriorityGate(), []

    async def ahead(seconds: float) -> None:
        with precedence.urgent():
            await asyncio.sleep(seconds)
            done.append("ahead")

    async def behind() -> None:
        await asyncio.sleep(0)
        await precedence.wait()
        done.append("behind")

    await asyncio.gather(behind(), ahead(0.01), ahead(0.03), behind())
    assert done == ["ahead", "ahead", "behind", "behind"]


async def test_an_error_ahead_and_a_waiter_that_was_cancelled_hold_nobody_up() -> None:
    precedence = PriorityGate()

    async def fails() -> None:
        with precedence.urgent():
            await asyncio.sleep(0.01)
            raise ZeroDivisionError

    failing = asyncio.create_task(fails())
    await asyncio.sleep(0)
    cancelled, waiting = asyncio.create_task(precedence.wait()), asyncio.create_task(precedence.wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(ZeroDivisionError):
        await failing
    await asyncio.wait_for(waiting, 1.0)
    await asyncio.wait_for(precedence.wait(), 1.0)


async def test_a_plan_on_its_way_is_ahead_until_it_is_answered_here() -> None:
    here = True
    precedence, done = PriorityGate(lambda: here), []

    async def behind() -> None:
        await precedence.wait()
        done.append("behind")

    precedence.expect(b"plan")
    waiting = asyncio.create_task(behind())
    for _ in range(10):
        await asyncio.sleep(0)
    assert done == []
    precedence.settle(b"another")
    precedence.settle(None)
    await asyncio.sleep(0)
    assert done == []
    precedence.settle(b"plan")
    await asyncio.wait_for(waiting, 1.0)
    here = False
    precedence.expect(b"of another worker")
    await asyncio.wait_for(precedence.wait(), 0.1)


async def test_a_plan_that_is_answered_elsewhere_after_all_holds_nobody_up_for_long() -> None:
    precedence = PriorityGate(lambda: True)
    precedence.expect(b"plan")
    await asyncio.wait_for(asyncio.gather(precedence.wait(), precedence.wait()), 5.0)
    await asyncio.wait_for(precedence.wait(), 0.1)


async def test_who_waited_for_a_lane_that_is_gone_does_not_wait_for_its_plan_for_ever() -> None:
    precedence = PriorityGate(lambda: True)

    async def leaves() -> None:
        with precedence.urgent():
            await asyncio.sleep(0.01)
            precedence.expect(b"plan")

    leaving = asyncio.create_task(leaves())
    await asyncio.sleep(0)
    await asyncio.wait_for(precedence.wait(), 5.0)
    await leaving


async def test_a_forecast_lane_that_is_closed_while_it_publishes_a_plan_holds_nobody_up() -> None:
    life, next_life = MemoryLoop(), MemoryLoop()
    for _ in range(3):
        await life.publish_slot()
    precedence = PriorityGate()
    kernel = next_life.forecast
    kernel._precedence = precedence
    broker = Broker(permit=asyncio.Event())  # acknowledges nothing
    gc.disable()  # as good as a worker, which collects seldom
    try:
        lane = broker.lane(kernel)
        await lane.put(life.logs[life.topics.pages])
        async with asyncio.timeout(30.0):
            while lane.waits_for != "kafka":  # noqa: ASYNC110 - the lane has no event
                await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(precedence.wait(), 0.01)
        await lane.close()
        await asyncio.wait_for(precedence.wait(), 5.0)
    finally:
        gc.enable()
