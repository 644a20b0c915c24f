"""The micro-batcher as hypothesis drives it: requests, pauses, cancellations, failures, a forecaster that hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.forecast.batcher import MicroBatcher
from model.contract import ContextBatch, ForecastBatch
from tests.model.batches import context_batch

MAX_ROWS = 5
DEADLINE_S = 0.010


def numbered(first: int, count: int) -> ContextBatch:
    """Rows that hold their own numbers."""
    numbers = torch.arange(first, first + count, dtype=torch.float32)
    names = tuple(str(n) for n in range(first, first + count))
    return replace(context_batch(numbers[:, None, None].expand(-1, 4, 1).contiguous()), item_ids=names)


@dataclass
class Asked:
    first: int
    count: int
    horizon: int
    at_s: float
    task: asyncio.Task[ForecastBatch]
    cancelled: bool = False


class BatcherMachine(RuleBasedStateMachine):
    """Who asks gets the forecasts of his own rows, in time, or the error of the batch that they were in."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now_s = 0.0
        self.loop.time = lambda: self.now_s  # type: ignore[method-assign]
        self.open = asyncio.Event()
        self.open.set()
        self.broken = False
        self.next_row = 0
        self.asked: list[Asked] = []
        self.seen: Counter[str] = Counter()
        self.failed: set[str] = set()
        self.held: set[str] = set()
        self.batcher = MicroBatcher(self._forecast, MAX_ROWS, DEADLINE_S)

    async def _forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        rows = list(batch.item_ids)
        assert len(set(rows)) == len(rows) <= MAX_ROWS
        self.seen.update(rows)
        self.held |= set(rows)
        await self.open.wait()
        self.held -= set(rows)
        if self.broken:
            self.failed |= set(rows)
            raise RuntimeError("device lost")
        paths = batch.values[:, None, :1].expand(-1, num_paths, horizon, -1) + horizon / 1_024
        return ForecastBatch(paths.clone(), tuple(f"by-{item}" for item in batch.item_ids), "echo")

    def _settle(self) -> None:
        """Run all that is due, without waiting for what is not."""
        for _ in range(8):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    @rule(count=st.integers(1, 2 * MAX_ROWS + 1), horizon=st.sampled_from((1, 1, 2)))
    def ask(self, count: int, horizon: int) -> None:
        task = self.loop.create_task(self.batcher.forecast(numbered(self.next_row, count), horizon, 2))
        self.asked.append(Asked(self.next_row, count, horizon, self.now_s, task))
        self.next_row += count
        self._settle()

    @rule(ms=st.integers(1, 12))
    def time_goes_on(self, ms: int) -> None:
        self.now_s += ms / 1_000
        self._settle()

    @precondition(lambda self: self.asked)
    @rule(back=st.integers(1, 4))
    def somebody_leaves(self, back: int) -> None:
        gone = self.asked[-min(back, len(self.asked))]
        gone.cancelled |= gone.task.cancel()
        self._settle()

    @rule(broken=st.booleans())
    def the_device(self, broken: bool) -> None:
        self.broken = broken

    @rule(hangs=st.booleans())
    def the_forecaster(self, hangs: bool) -> None:
        if hangs:
            self.open.clear()
        else:
            self.open.set()
        self._settle()

    @invariant()
    def every_row_is_forecast_at_most_once(self) -> None:
        assert not [row for row, n in self.seen.items() if n > 1]

    @invariant()
    def who_has_an_answer_has_his_own(self) -> None:
        for a in self.asked:
            rows = [str(n) for n in range(a.first, a.first + a.count)]
            if not a.task.done():
                late = self.now_s > a.at_s + DEADLINE_S + 1e-9
                assert not late or self.held & set(rows), f"rows {rows} wait since {a.at_s}, it is {self.now_s}"
                continue
            if a.task.cancelled():
                assert a.cancelled
                continue
            if a.task.exception() is not None:
                assert self.failed & set(rows), "an error of a batch that the rows were not in"
                continue
            assert not self.failed & set(rows)
            answer = a.task.result()
            assert answer.sources == tuple(f"by-{row}" for row in rows)
            told = answer.paths[:, 0, 0, 0]
            assert torch.equal(told, torch.arange(a.first, a.first + a.count) + a.horizon / 1_024)

    def teardown(self) -> None:
        self.open.set()
        self.now_s += 2 * DEADLINE_S
        self._settle()
        assert all(a.task.done() for a in self.asked)
        assert not self.batcher._waiters
        assert not self.batcher._running
        assert self.batcher._assembly.next_deadline_s() is None
        self.who_has_an_answer_has_his_own()
        self.loop.close()


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
