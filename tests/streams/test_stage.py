"""The machine that the three stages share: order of publishing, back-pressure, crash-only failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from faust.exceptions import NotReady

from streams.log import ContractBroken, Emission, LogRecord, OutRecord
from streams.meter import NullMeter
from streams.stage import Gathering, Lane
from streams.stage_app import ConnectionConfig, StageHost
from streams.ticker import Ticker


def records(first: int, count: int) -> list[LogRecord]:
    return [LogRecord(first + i, 1_000 + i, b"w", b"v%d" % (first + i)) for i in range(count)]


@dataclass
class Echo:
    """Answers each record with two groups of outputs and a commit record."""

    resume_offset: int | None = None
    folded: list[int] = field(default_factory=list)
    fails_at: int | None = None

    async def fold(self, batch: Sequence[LogRecord]) -> AsyncIterator[Emission]:
        for record in batch:
            if record.offset == self.fails_at:
                raise ZeroDivisionError("fold")
            self.folded.append(record.offset)
            out = b"%d" % record.offset
            yield Emission(
                outputs=((OutRecord("first", None, out),), (OutRecord("second", None, out),)),
                commits=(OutRecord("commits", None, out),),
                resume_offset=record.offset + 1,
            )


@dataclass
class Broker:
    """Remembers what was acknowledged in which order; may refuse a topic or wait for a permit."""

    log: list[tuple[str, int]] = field(default_factory=list)
    safe: list[int] = field(default_factory=list)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    refuses: str | None = None
    permit: asyncio.Event | None = None

    async def send(self, group: Sequence[OutRecord]) -> None:
        if self.permit is not None:
            await self.permit.wait()
        await asyncio.sleep(0)
        if any(r.topic == self.refuses for r in group):
            raise ConnectionError("refused")
        self.log += [(r.topic, int(r.value or b"")) for r in group]

    def lane(self, kernel: Echo) -> Lane:
        return Lane(
            "decide", kernel, self.send, self.safe.append, NullMeter(),
            lambda stage, error: self.failures.append((stage, error)), self.points.append,
        )  # fmt: skip


async def until(condition: Any) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it did not come to that")


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


async def test_every_named_point_of_a_lane_is_reached_in_order() -> None:
    broker = Broker()
    lane = broker.lane(Echo())
    await lane.put(records(0, 1))
    await until(lambda: broker.safe == [1])
    outputs = ["decide.before_outputs", "decide.after_outputs"]
    assert broker.points == [*outputs, *outputs, "decide.before_commit", "decide.after_commit"]
    await lane.close()


# A worker that leaves.


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


# Ticks.


@dataclass
class Stamp:
    timestamp: int


async def test_ticks_follow_the_brokers_clock_and_stay_behind_it() -> None:
    sent: list[OutRecord] = []
    stamps = iter([50_000, 51_000, 49_000])

    async def send(group: Sequence[OutRecord]) -> list[Any]:
        sent.extend(group)
        stamp = next(stamps)
        return [Stamp(stamp - 5), Stamp(stamp)]

    ticker = Ticker(send, lambda: [("telemetry", 0), ("telemetry", 3)], 1.0, 2_000, now_ms=lambda: 99_000_000)
    for _ in range(3):
        assert await ticker.round() == 2
    assert [r.partition for r in sent] == [0, 3] * 3
    told = [b'"ts_ms":%d' % ts_ms in (r.value or b"") for r, ts_ms in zip(
        sent, [98_998_000] * 2 + [48_000] * 2 + [49_000] * 2, strict=True
    )]  # fmt: skip
    assert all(told)


async def test_a_worker_without_partitions_does_not_tick() -> None:
    async def send(_group: Sequence[OutRecord]) -> list[Any]:
        pytest.fail("ticked")

    assert await Ticker(send, list, 1.0, 2_000).round() == 0


class Batches(Echo):
    """Remembers what was folded at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    async def fold(self, batch: Sequence[LogRecord]) -> AsyncIterator[Emission]:
        self.batches.append([record.offset for record in batch])
        async for emission in super().fold(batch):
            yield emission


def gathering_lane(broker: Broker, kernel: Echo, **rule: Any) -> Lane:
    lane = broker.lane(kernel)
    lane._gathering = Gathering(**({"urgent": lambda record: record.offset % 10 == 9, "longest_s": 60.0} | rule))
    return lane


async def test_small_batches_are_folded_together_up_to_what_is_urgent() -> None:
    broker, kernel = Broker(), Batches()
    lane = gathering_lane(broker, kernel)
    for first, count in ((0, 3), (3, 1), (4, 6), (10, 2)):
        await lane.put(records(first, count))
        await asyncio.sleep(0.01)
    await until(lambda: broker.safe and broker.safe[-1] == 10)
    assert kernel.batches == [list(range(10))]
    assert lane.waits_for == ""
    await lane.close()


async def test_enough_records_are_not_waited_with_and_few_not_for_long() -> None:
    broker, kernel = Broker(), Batches()
    lane = gathering_lane(broker, kernel, urgent=lambda _: False, enough=5, longest_s=0.05)
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
    lane = gathering_lane(broker, kernel, enough_bytes=9)
    for first in (0, 3, 6):
        await lane.put(records(first, 3))  # two bytes each
    await until(lambda: broker.safe and broker.safe[-1] == 6)
    assert kernel.batches == [list(range(6))]
    await lane.close()


async def test_a_lane_that_gathers_can_be_closed() -> None:
    broker, kernel = Broker(), Batches()
    lane = gathering_lane(broker, kernel)
    await lane.put(records(0, 3))
    await asyncio.sleep(0.01)
    await lane.close()
    assert kernel.batches == []
    assert broker.failures == []


# A kernel that puts things off.


class Patient(Echo):
    """Writes one commit record for all that it folded, when it is quiet or much was put off."""

    def __init__(self) -> None:
        super().__init__()
        self.is_quiet = asyncio.Event()
        self.unsealed: list[int] = []

    @property
    def put_off(self) -> int:
        return len(self.unsealed)

    async def fold(self, batch: Sequence[LogRecord]) -> AsyncIterator[Emission]:
        async for emission in super().fold(batch):
            self.unsealed.append(emission.resume_offset)
            yield emission._replace(commits=())

    async def quiet(self) -> None:
        await self.is_quiet.wait()

    async def settle(self) -> AsyncIterator[Emission]:
        newest, self.unsealed = self.unsealed[-1], []
        yield Emission((), (OutRecord("commits", None, b"%d" % (newest - 1)),), newest)


async def test_what_was_put_off_waits_for_a_good_moment() -> None:
    broker, kernel = Broker(), Patient()
    lane = broker.lane(kernel)
    for first in range(3):
        await lane.put(records(first, 1))
        await until(lambda first=first: kernel.put_off == first + 1 and lane.waits_for == "")
    assert broker.safe == []
    assert lane.waits_for == ""
    kernel.is_quiet.set()
    await until(lambda: broker.safe == [3])
    assert [o for t, o in broker.log if t == "commits"] == [2]
    assert broker.log.index(("commits", 2)) == len(broker.log) - 1
    await lane.close()


async def test_records_come_before_what_was_put_off_but_not_for_ever() -> None:
    broker, kernel = Broker(), Patient()
    lane = broker.lane(kernel)
    for first in range(40):
        await lane.put(records(first, 1))
        await until(lambda first=first: len(kernel.folded) == first + 1 and lane.waits_for == "")
    commits = [o for t, o in broker.log if t == "commits"]
    assert commits == [15, 31]
    assert broker.safe == [16, 32]
    await lane.close()


async def test_a_lane_with_something_put_off_can_be_closed() -> None:
    broker, kernel = Broker(), Patient()
    lane = broker.lane(kernel)
    await lane.put(records(0, 1))
    await until(lambda: kernel.put_off == 1)
    await lane.close()
    assert (broker.safe, broker.failures) == ([], [])
