"""The machine that the three stages share: order of publishing, back-pressure, crash-only failure."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from faust.exceptions import NotReady

from streams.log import ContractBroken, OutRecord
from streams.runtime.app import ConnectionConfig, StageHost
from tests.streams.runtime.lane_bench import Broker, Echo, Holding, records, until


async def test_outputs_come_before_their_commit_record_and_only_then_the_offset_is_safe() -> None:
    broker = Broker()
    lane = broker.lane(Echo())
    await lane.put(records(0, 10))
    await until(lambda: broker.safe and broker.safe[-1] == 10)
    at = {record: i for i, record in enumerate(broker.log)}
    assert len(at) == len(broker.log) == 30
    for offset in range(10):
        assert at["first", offset] < at["second", offset] < at["commits", offset]
    assert broker.safe == sorted(broker.safe)
    assert [o for t, o in broker.log if t == "commits"] == list(range(10))
    await lane.close()


async def test_an_offset_is_safe_only_after_every_output_up_to_it() -> None:
    broker = Broker()
    lane = broker.lane(Echo())
    safe_then: list[tuple[int, int]] = []
    lane._mark_safe = lambda offset: safe_then.append((offset, sum(t == "second" for t, _ in broker.log)))
    await lane.put(records(0, 9))
    await until(lambda: safe_then and safe_then[-1][0] == 9)
    assert all(published >= offset for offset, published in safe_then)
    await lane.close()


async def test_a_lane_is_full_while_somebody_waits_for_room_in_it() -> None:
    broker = Broker(permit=asyncio.Event())
    lane = broker.lane(Echo())
    for first in range(3):  # one is worked on, two are queued
        await lane.put(records(first, 1))
        await asyncio.sleep(0)
    assert not lane.full
    waiting = asyncio.create_task(lane.put(records(3, 1)))
    await until(lambda: lane.full)
    assert broker.permit is not None
    broker.permit.set()
    await waiting
    assert not lane.full
    await lane.close()


@pytest.mark.parametrize(("refused", "safe"), [("first", 0), ("second", 0), ("commits", 0)])
async def test_what_the_broker_refuses_ends_the_life_with_nothing_safe(refused: str, safe: int) -> None:
    broker = Broker(refuses=refused)
    lane = broker.lane(Echo())
    await lane.put(records(0, 3))
    await until(lambda: broker.failures)
    assert len(broker.safe) == safe
    assert not any(t == "commits" for t, _ in broker.log)
    stage, error = broker.failures[0]
    assert stage == "decide"
    assert isinstance(error, ConnectionError)
    await lane.close()


async def test_a_kernel_that_raises_publishes_nothing_of_its_group() -> None:
    broker = Broker()
    lane = broker.lane(Echo(fails_at=1))
    await lane.put(records(0, 3))
    await until(lambda: broker.failures)
    assert broker.log == []
    assert isinstance(broker.failures[0][1], ZeroDivisionError)
    await lane.close()


async def test_a_full_lane_makes_the_fetcher_wait() -> None:
    broker = Broker(permit=asyncio.Event())
    lane = broker.lane(Echo())
    waiting = [asyncio.create_task(lane.put(records(i, 1))) for i in range(6)]
    for _ in range(50):
        await asyncio.sleep(0)
    done = sum(task.done() for task in waiting)
    assert 2 <= done < 6
    assert broker.permit is not None
    broker.permit.set()
    await asyncio.gather(*waiting)
    await until(lambda: broker.safe and broker.safe[-1] == 6)
    await lane.close()


async def test_a_gap_right_after_the_state_is_refused_with_the_remedy() -> None:
    lane = Broker().lane(Echo(resume_offset=5))
    with pytest.raises(ContractBroken, match=r"wants offset 5 but the log continues at 7.*state reset"):
        await lane.put(records(7, 1))
    await lane.close()


async def test_records_from_before_the_state_are_refused() -> None:
    lane = Broker().lane(Echo(resume_offset=5))
    with pytest.raises(ContractBroken, match="wants offset 5"):
        await lane.put(records(4, 2))
    await lane.close()


async def test_closing_drops_what_is_queued() -> None:
    broker = Broker(permit=asyncio.Event())
    lane = broker.lane(Echo())
    await lane.put(records(0, 2))
    await lane.close()
    assert broker.permit is not None
    broker.permit.set()
    await asyncio.sleep(0)
    assert (broker.log, broker.safe, broker.failures) == ([], [], [])


async def test_closing_lets_go_of_whoever_waits_to_hand_over() -> None:
    """An agent that went on waiting at a closed lane would give nothing to the partition's next lane either."""
    broker = Broker(permit=asyncio.Event())
    lane = broker.lane(Echo())

    async def agent() -> None:
        while not lane._queue.full():
            await lane.put(records(lane.next_offset or 0, 1))
            await asyncio.sleep(0)
        await lane.put(records(lane.next_offset or 0, 1))

    handing_over = asyncio.create_task(agent())
    await until(lane._queue.full)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not handing_over.done()
    await lane.close()
    await until(handing_over.done)


async def test_closing_a_lane_that_publishes_ends_what_its_kernel_had_begun() -> None:
    """Work that others give way to would hold them up until somebody collects garbage, which a worker hardly does."""
    broker = Broker(permit=asyncio.Event())
    kernel = Holding()
    lane = broker.lane(kernel)
    gc.disable()
    try:
        await lane.put(records(0, 9))
        await until(lambda: lane.waits_for == "kafka")
        assert kernel.held == 1
        await lane.close()
        assert kernel.held == 0
    finally:
        gc.enable()


async def test_every_named_point_of_a_lane_is_reached_in_order() -> None:
    broker = Broker()
    lane = broker.lane(Echo())
    await lane.put(records(0, 1))
    await until(lambda: broker.safe == [1])
    outputs = ["decide.before_outputs", "decide.after_outputs"]
    assert broker.points == [*outputs, *outputs, "decide.before_commit", "decide.after_commit"]
    await lane.close()


class Gone:
    async def send(self, *_args: Any) -> Any:
        raise NotReady("Producer service not yet started")


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_producer_that_is_gone_is_a_failure_unless_the_worker_leaves(
    leaving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = StageHost(ConnectionConfig("127.0.0.1:1", "group"), [])
    host.app.producer = Gone()  # type: ignore[assignment]
    monkeypatch.setattr(type(host.app), "should_stop", leaving)
    with pytest.raises(asyncio.CancelledError if leaving else NotReady):
        await host.send([OutRecord("t", None, b"v")])
