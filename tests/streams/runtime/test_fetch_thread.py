"""Records that lie in the fetcher are taken as soon as their partition has room, with the libraries' own code."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from aiokafka.consumer.fetcher import Fetcher, FetchResult
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import TP

from streams.runtime.transport import BatchConsumer, FetchThread

A, B = TP("t", 0), TP("t", 1)


class Taken:
    """A partition's fetched records as `FetchResult` reads them."""

    def __init__(self, records: list[str]) -> None:
        self._records = iter(records)
        self.next_fetch_offset = 0

    def __iter__(self) -> Iterator[str]:
        return self._records


def fetcher_that_holds(tp: TP, records: list[str]) -> Fetcher:
    state = SimpleNamespace(paused=False, position=0, consumed_to=lambda _offset: None)
    assignment = SimpleNamespace(active=True, state_value=lambda _tp: state)
    fetcher = Fetcher.__new__(Fetcher)
    fetcher._loop = asyncio.get_running_loop()
    fetcher._closed = False
    fetcher._wait_consume_future = None
    fetcher._fetch_waiters = set()
    fetcher._subscriptions = SimpleNamespace(reassignment_in_progress=False, is_assigned=lambda _tp: True)
    fetcher._records = {
        tp: FetchResult(tp, assignment=assignment, partition_records=Taken(records), backoff=0),
    }
    return fetcher


def thread_of(fetcher: Fetcher | None) -> FetchThread:
    thread = FetchThread.__new__(FetchThread)
    thread.thread_loop = asyncio.get_running_loop()
    thread._consumer = SimpleNamespace(_fetcher=fetcher) if fetcher is not None else None
    return thread


def consumer_of(thread: Any, active: set[TP], buffered: set[TP]) -> BatchConsumer:
    consumer = BatchConsumer.__new__(BatchConsumer)
    consumer._thread = thread
    consumer._has_room = asyncio.Event()
    consumer._active_partitions, consumer._buffered_partitions = active, buffered
    consumer.flow_active = True
    return consumer


async def test_a_partition_that_has_room_again_is_read_without_a_new_answer_of_the_broker() -> None:
    fetcher = fetcher_that_holds(A, ["first", "second"])
    active = {B}
    consumer = consumer_of(thread_of(fetcher), active, {A})
    waiting = asyncio.create_task(fetcher.fetched_records(active, timeout=3600))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(fetcher._fetch_waiters) == 1
    consumer.on_buffer_drop(A)
    async with asyncio.timeout(60):
        assert await waiting == {A: ["first", "second"]}


async def test_the_fetcher_is_not_asked_while_no_partition_has_room_and_at_once_when_one_has() -> None:
    asked: list[set[TP]] = []
    consumer = consumer_of(SimpleNamespace(wake_fetcher=lambda: None), set(), {A})
    consumer.app = SimpleNamespace(client_only=False)  # type: ignore[assignment]
    consumer.not_waiting_next_records = asyncio.Event()  # type: ignore[assignment]

    async def getmany(active_partitions: set[TP], **_wait: float) -> dict[TP, list[str]]:
        asked.append(set(active_partitions))
        return {A: ["first"]}

    async def wait_first(*waits: Any, **_limit: float) -> None:
        await asyncio.gather(*waits)

    consumer._getmany = getmany  # type: ignore[method-assign]
    consumer.wait_first = wait_first  # type: ignore[method-assign]
    waiting = asyncio.create_task(consumer._next_records())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    consumer.on_buffer_drop(A)
    async with asyncio.timeout(60):
        assert await waiting is None
    assert asked == []
    assert await consumer._next_records() == {A: ["first"]}
    assert asked == [{A}]


async def test_a_thread_that_has_not_started_its_client_has_nobody_to_wake() -> None:
    thread_of(None).wake_fetcher()
    await asyncio.sleep(0)


def test_the_hooks_of_the_fetcher_are_there() -> None:
    source = inspect.getsource(Fetcher)
    assert "fut = self._loop.create_future()\n        self._fetch_waiters.add(fut)" in source
    assert "req = FetchRequest(\n                self._fetch_max_wait_ms," in source
    # Records, and the ends of logs, as this attribute says at the time of each request.
    assert source.count("self._isolation_level,") == 3
    assert "OffsetRequest(-1, self._isolation_level," in source
    # What a buffer that has room again changes is the set that the fetcher was given, not a copy of it.
    assert "active_partitions = self._get_active_partitions()" in inspect.getsource(driver.Consumer.on_buffer_drop)
    assert "active_partitions = self._get_active_partitions()" in inspect.getsource(driver.Consumer._wait_next_records)
