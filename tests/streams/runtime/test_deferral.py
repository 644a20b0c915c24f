"""A kernel defers work without urgency; its lane flushes that when it is idle, or at a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from streams.log import Emission, LogRecord, OutRecord
from tests.streams.runtime.lane_bench import Broker, Echo, records, until


class Deferring(Echo):
    """Writes one commit record for all that it folded, when it is quiet or much was put off."""

    def __init__(self) -> None:
        super().__init__()
        self.is_quiet = asyncio.Event()
        self.unsealed: list[int] = []

    @property
    def num_deferred(self) -> int:
        return len(self.unsealed)

    async def fold(self, batch: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        async for emission in super().fold(batch):
            self.unsealed.append(emission.resume_offset)
            yield emission._replace(commits=())

    async def wait_until_idle(self) -> None:
        await self.is_quiet.wait()

    async def flush_deferred(self) -> AsyncGenerator[Emission, None]:
        newest, self.unsealed = self.unsealed[-1], []
        yield Emission((), (OutRecord("commits", None, b"%d" % (newest - 1)),), newest)


async def test_deferred_work_waits_for_an_idle_moment() -> None:
    broker, kernel = Broker(), Deferring()
    lane = broker.lane(kernel)
    for first in range(3):
        await lane.put(records(first, 1))
        await until(lambda first=first: kernel.num_deferred == first + 1 and lane.waits_for == "")
    assert broker.safe == []
    assert lane.waits_for == ""
    kernel.is_quiet.set()
    await until(lambda: broker.safe == [3])
    assert [o for t, o in broker.log if t == "commits"] == [2]
    assert broker.log.index(("commits", 2)) == len(broker.log) - 1
    await lane.close()


async def test_records_come_before_deferred_work_up_to_a_limit() -> None:
    broker, kernel = Broker(), Deferring()
    lane = broker.lane(kernel)
    for first in range(40):
        await lane.put(records(first, 1))
        await until(lambda first=first: len(kernel.folded) == first + 1 and lane.waits_for == "")
    commits = [o for t, o in broker.log if t == "commits"]
    assert commits == [15, 31]
    assert broker.safe == [16, 32]
    await lane.close()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6))
async def test_no_batch_is_too_large_for_the_bound(sizes: list[int]) -> None:
    broker, kernel = Broker(), Deferring()
    lane = broker.lane(kernel)
    handed = 0
    for size in sizes:
        await lane.put(records(handed, size))
        handed += size
        await until(lambda handed=handed: len(kernel.folded) == handed and lane.waits_for == "")
    await until(lambda: kernel.num_deferred < 16)
    assert broker.safe == list(range(16, handed + 1, 16))
    commits = [at for at, (topic, _) in enumerate(broker.log) if topic == "commits"]
    assert [sum(topic == "first" for topic, _ in broker.log[:at]) for at in commits] == broker.safe
    assert kernel.folded == list(range(handed))
    await lane.close()


async def test_a_lane_with_deferred_work_can_be_closed() -> None:
    broker, kernel = Broker(), Deferring()
    lane = broker.lane(kernel)
    await lane.put(records(0, 1))
    await until(lambda: kernel.num_deferred == 1)
    await lane.close()
    assert (broker.safe, broker.failures) == ([], [])
