"""The micro-batcher: nothing lost, nothing doubled, deadlines kept, neighbours unharmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.forecast.batcher import Assembly, Group, MicroBatcher, Ticket
from model.contract import ContextBatch, ForecastBatch
from streams.meter import NullMeter
from tests.model.batches import random_batch

DEADLINE_S = 0.010


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from("ab"), st.integers(1, 8), st.booleans()), max_size=40),
    st.integers(8, 16),
)
def test_assembly_loses_and_doubles_nothing_and_keeps_deadlines(
    steps: list[tuple[int, str, int, bool]], max_rows: int
) -> None:
    """Each step: the clock moves by some ms, one request is offered, and the previous one is perhaps withdrawn."""
    assembly: Assembly[str] = Assembly(max_rows, DEADLINE_S)
    now_ms, waiting, left, withdrawn = 0, {}, [], set()

    def take(groups: list[Group[str]]) -> None:
        for group in groups:
            assert 0 < group.num_rows <= max_rows
            assert [t.token for t in group.tickets] == sorted(t.token for t in group.tickets)
            for ticket in group.tickets:
                assert waiting.pop(ticket.token) == group.key
                left.append(ticket.token)

    for token, (pause_ms, key, num_rows, withdraw) in enumerate(steps):
        for _ in range(pause_ms + 1):
            take(assembly.due(now_ms / 1000))
            deadline_s = assembly.next_deadline_s()
            assert (deadline_s is None) == (not waiting)
            assert deadline_s is None or now_ms / 1000 < deadline_s <= now_ms / 1000 + DEADLINE_S + 1e-9
            now_ms += 1
        waiting[token] = key
        take(assembly.offer(key, Ticket(token, num_rows, now_ms / 1000)))
        if withdraw and token - 1 in waiting:
            assembly.withdraw(waiting.pop(token - 1), token - 1)
            withdrawn.add(token - 1)
    take(assembly.due(now_ms / 1000 + DEADLINE_S))
    assert not waiting
    assert sorted([*left, *withdrawn]) == list(range(len(steps)))


def test_a_full_group_leaves_at_once_and_an_overfull_one_first() -> None:
    assembly: Assembly[str] = Assembly(8, DEADLINE_S)
    assert assembly.offer("a", Ticket(0, 5, 0.0)) == []
    assert assembly.offer("b", Ticket(1, 4, 0.001)) == []
    (group,) = assembly.offer("a", Ticket(2, 4, 0.002))
    assert [t.token for t in group.tickets] == [0]
    (group,) = assembly.offer("b", Ticket(3, 4, 0.003))
    assert [t.token for t in group.tickets] == [1, 3]
    assert assembly.next_deadline_s() == pytest.approx(0.012)
    for size in (0, 9):
        with pytest.raises(ValueError, match=rf"{size} rows does not fit into 1..8"):
            assembly.offer("a", Ticket(4, size, 0.0))


class Echo:
    """Answers every row with its first value; remembers the batches; fails or waits when told to."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, ...]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def __call__(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        self.batches.append(batch.item_ids)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        paths = batch.values[:, :1, :1].expand(-1, num_paths, horizon)[..., None].expand(-1, -1, -1, 4)
        return ForecastBatch(paths.clone(), tuple(f"by-{item}" for item in batch.item_ids), "echo")


class Recorder(NullMeter):
    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.seen.setdefault(name, []).append(value)


def rows(names: str) -> ContextBatch:
    """One row per letter; its values are the letter's number."""
    batch = random_batch(len(names), seed=0, length=16)
    numbers = torch.tensor([float(ord(name)) for name in names])
    return replace(batch, item_ids=tuple(names), values=numbers[:, None, None].expand(-1, 16, 4).contiguous())


def answers(result: ForecastBatch) -> str:
    """The letters that were answered, checked against the sources."""
    names = "".join(chr(int(number)) for number in result.paths[:, 0, 0, 0])
    assert result.sources == tuple(f"by-{name}" for name in names)
    return names


@pytest.fixture
async def echo(virtual_time: Callable[[], float]) -> Echo:
    """On a clock of its own: a machine that stalls for a deadline's time must not change who goes together."""
    return Echo()


async def test_requests_of_several_partitions_share_a_batch(echo: Echo) -> None:
    meter = Recorder()
    batcher = MicroBatcher(echo, max_rows=16, deadline_s=DEADLINE_S, meter=meter)
    results = await asyncio.gather(*(batcher.forecast(rows(names), 3, 5) for names in ("abc", "d", "ef")))
    assert [answers(r) for r in results] == ["abc", "d", "ef"]
    assert echo.batches == [tuple("abcdef")]
    assert meter.seen["batch_rows"] == [6.0]
    assert len(meter.seen["inference_seconds"]) == 1
    assert len(meter.seen["batch_wait_seconds"]) == 3
    assert all(wait >= 0 for wait in meter.seen["batch_wait_seconds"])


async def test_different_shapes_go_apart(echo: Echo) -> None:
    batcher = MicroBatcher(echo, max_rows=16, deadline_s=DEADLINE_S)
    other_step = replace(rows("c"), step_ms=1000)
    asked = ((rows("a"), 3, 5), (rows("b"), 4, 5), (other_step, 3, 5), (rows("d"), 3, 6), (rows("e"), 3, 5))
    results = await asyncio.gather(*(batcher.forecast(*request) for request in asked))
    assert [answers(r) for r in results] == list("abcde")
    assert [r.paths.shape[1:3] for r in results] == [(5, 3), (5, 4), (5, 3), (6, 3), (5, 3)]
    assert sorted(echo.batches) == [("a", "e"), ("b",), ("c",), ("d",)]


async def test_a_request_above_the_maximum_is_cut_and_put_together(echo: Echo) -> None:
    batcher = MicroBatcher(echo, max_rows=4, deadline_s=DEADLINE_S)
    results = await asyncio.gather(batcher.forecast(rows("abcdefghij"), 3, 5), batcher.forecast(rows("xy"), 3, 5))
    assert [answers(r) for r in results] == ["abcdefghij", "xy"]
    assert all(len(batch) <= 4 for batch in echo.batches)


async def test_waits_no_longer_than_the_deadline(echo: Echo, virtual_time: Callable[[], float]) -> None:
    batcher = MicroBatcher(echo, max_rows=16, deadline_s=DEADLINE_S)
    loop = asyncio.get_running_loop()
    started_s = loop.time()

    async def later(names: str, delay_s: float) -> float:
        await asyncio.sleep(delay_s)
        await batcher.forecast(rows(names), 3, 5)
        return loop.time() - started_s

    times = await asyncio.gather(later("a", 0.0), later("b", 0.004), later("c", 0.011))
    assert times == pytest.approx([0.010, 0.010, 0.021])
    assert echo.batches == [("a", "b"), ("c",)]
    assert virtual_time() == loop.time()


async def test_an_error_reaches_every_waiter_and_the_next_batch_is_fine(echo: Echo) -> None:
    batcher = MicroBatcher(echo, max_rows=16, deadline_s=0.001)
    echo.error = RuntimeError("device lost")
    results = await asyncio.gather(*(batcher.forecast(rows(n), 3, 5) for n in "abc"), return_exceptions=True)
    assert [str(r) for r in results] == ["device lost"] * 3
    echo.error = None
    assert answers(await batcher.forecast(rows("d"), 3, 5)) == "d"


async def test_an_answer_of_another_size_is_an_error() -> None:
    async def short(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        return ForecastBatch(torch.zeros(1, num_paths, horizon, 4), ("x",), "x")

    with pytest.raises(RuntimeError, match="answered 1 rows of 2"):
        await MicroBatcher(short, deadline_s=0).forecast(rows("ab"), 3, 5)


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_cancelled_waiter_harms_no_other(echo: Echo, *, flushed: bool) -> None:
    batcher = MicroBatcher(echo, max_rows=3 if flushed else 16, deadline_s=0.001)
    echo.gate = asyncio.Event()
    tasks = [asyncio.create_task(batcher.forecast(rows(n), 3, 5)) for n in "abc"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    echo.gate.set()
    assert tasks[1].cancelled()
    assert [answers(await tasks[k]) for k in (0, 2)] == ["a", "c"]
    assert echo.batches == ([("a", "b", "c")] if flushed else [("a", "c")])


async def test_an_idle_forecaster_is_asked_at_once_and_a_busy_one_for_all_that_came_meanwhile(echo: Echo) -> None:
    batcher = MicroBatcher(echo, max_rows=16, deadline_s=60.0, idle_at_once=True)
    echo.gate = asyncio.Event()
    first = batcher.forecast(rows("ab"), 3, 5)
    first.send(None)  # runs up to its first wait, without a turn of the loop
    assert echo.batches == [("a", "b")]
    first.close()
    tasks = [asyncio.create_task(batcher.forecast(rows(names), 3, 5)) for names in ("ab", "c", "d")]
    await asyncio.sleep(0)
    assert echo.batches[1:] == [("a", "b")]
    echo.gate.set()
    assert [answers(await task) for task in tasks] == ["ab", "c", "d"]
    assert echo.batches[2:] == [("c", "d")]


async def test_an_error_of_a_batch_lets_those_go_that_waited_for_it(echo: Echo) -> None:
    batcher = MicroBatcher(echo, max_rows=16, deadline_s=60.0, idle_at_once=True)
    echo.gate, echo.error = asyncio.Event(), RuntimeError("device lost")
    tasks = [asyncio.create_task(batcher.forecast(rows(names), 3, 5)) for names in "ab"]
    await asyncio.sleep(0)
    echo.gate.set()
    assert [str(r) for r in await asyncio.gather(*tasks, return_exceptions=True)] == ["device lost"] * 2
    assert echo.batches == [("a",), ("b",)]


async def test_refuses_no_rows(echo: Echo) -> None:
    with pytest.raises(ValueError, match="no rows"):
        await MicroBatcher(echo).forecast(rows(""), 3, 5)


@pytest.fixture
async def virtual_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """The running loop's clock jumps to its next timer instead of waiting for it."""
    loop = asyncio.get_running_loop()
    now_s = [loop.time()]
    select = loop._selector.select  # type: ignore[attr-defined]

    def jump(timeout: float | None = None) -> object:
        if timeout is not None and timeout > 0:
            now_s[0] += timeout
        return select(0)

    monkeypatch.setattr(loop, "time", lambda: now_s[0])
    monkeypatch.setattr(loop._selector, "select", jump)  # type: ignore[attr-defined]
    return lambda: now_s[0]
