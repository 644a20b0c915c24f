"""Joins the requests of several partitions into batches for the one inference thread.

`Assembly` is the pure part: who waits, which requests go together, and when they must go. `MicroBatcher` binds it to
asyncio: it sets the timer, hands a batch over, and gives every waiter its own rows back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from model.contract import ContextBatch, ForecastBatch, join_forecasts, join_rows, slice_forecast, take_rows
from streams.meter import Meter, NullMeter

Forecast = Callable[[ContextBatch, int, int], Awaitable[ForecastBatch]]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request in the assembly; `token` is its number, unique within the assembly."""

    token: int
    num_rows: int
    offered_s: float


@dataclass(frozen=True, slots=True)
class Group(Generic[K]):
    """Requests that go together, in the order in which they were offered."""

    key: K
    tickets: tuple[Ticket, ...]

    @property
    def num_rows(self) -> int:
        return sum(ticket.num_rows for ticket in self.tickets)


@dataclass(slots=True)
class Assembly(Generic[K]):
    """Groups requests by key until a group is full or its oldest request has waited `deadline_s`.

    Time is an argument, any monotonic seconds. Every offered ticket leaves in exactly one group, unless withdrawn.
    """

    max_rows: int
    deadline_s: float
    _open: dict[K, list[Ticket]] = field(default_factory=dict)

    def offer(self, key: K, ticket: Ticket) -> list[Group[K]]:
        """Take in a request of at most `max_rows` rows; returns the groups that are full by it."""
        if not 0 < ticket.num_rows <= self.max_rows:
            raise ValueError(f"a request of {ticket.num_rows} rows does not fit into 1..{self.max_rows}")
        full: list[Group[K]] = []
        waiting = self._open.get(key, [])
        if waiting and sum(t.num_rows for t in waiting) + ticket.num_rows > self.max_rows:
            full.append(self._close(key))
        waiting = self._open.setdefault(key, [])
        waiting.append(ticket)
        if sum(t.num_rows for t in waiting) == self.max_rows:
            full.append(self._close(key))
        return full

    def withdraw(self, key: K, token: int) -> None:
        """Forget a request whose waiter has gone; nothing happens if its group has left."""
        left = [ticket for ticket in self._open.get(key, []) if ticket.token != token]
        if left:
            self._open[key] = left
        else:
            self._open.pop(key, None)

    def due(self, now_s: float) -> list[Group[K]]:
        """The groups whose oldest request has waited long enough."""
        keys = [key for key, waiting in self._open.items() if waiting[0].offered_s + self.deadline_s <= now_s]
        return [self._close(key) for key in keys]

    def next_deadline_s(self) -> float | None:
        """When `due` will next have something; None while nobody waits."""
        return min((waiting[0].offered_s + self.deadline_s for waiting in self._open.values()), default=None)

    def _close(self, key: K) -> Group[K]:
        return Group(key, tuple(self._open.pop(key)))


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """What requests must share to stand in one batch."""

    context_length: int
    num_coarse: int
    indicators: tuple[str, ...]
    step_ms: int
    horizon: int
    num_paths: int


@dataclass(slots=True)
class _Waiter:
    rows: ContextBatch
    answer: asyncio.Future[ForecastBatch]


class MicroBatcher:
    """One per event loop, shared by all partitions.

    Args:
        forecast: answers a batch, usually `InferenceWorker.forecast`; its back-pressure is ours.
        max_rows: rows of one batch; larger requests are cut.
        deadline_s: longest time a request waits for company.
        idle_at_once: a request that finds nothing under way goes alone and at once, those that come meanwhile go
            together after it. Right where a fuller batch saves little: waiting for company, the forecaster idles first.
        meter: gets `batch_rows`, `batch_wait_seconds` (per request) and `inference_seconds` (handing over to answer).
    """

    def __init__(
        self,
        forecast: Forecast,
        max_rows: int = 256,
        deadline_s: float = 0.010,
        meter: Meter | None = None,
        *,
        idle_at_once: bool = False,
    ) -> None:
        if max_rows < 1 or deadline_s < 0:
            raise ValueError(f"max_rows {max_rows} must be at least 1 and deadline_s {deadline_s} not negative")
        self._forecast = forecast
        self._assembly: Assembly[ShapeKey] = Assembly(max_rows, deadline_s)
        self._meter: Meter = meter or NullMeter()
        self._waiters: dict[int, _Waiter] = {}
        self._next_token = 0
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._idle_at_once = idle_at_once
        self._num_under_way = 0

    async def forecast(self, rows: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """The forecast of these rows, in their order, made together with whoever asks at the same time.

        An error of the forecaster reaches everyone in the batch. Cancelling one caller harms no other.

        Raises:
            ValueError: no rows.
        """
        if len(rows) == 0:
            raise ValueError("there are no rows to forecast")
        limit = self._assembly.max_rows
        if len(rows) <= limit:
            return await self._request(rows, horizon, num_paths)
        parts = [take_rows(rows, range(k, min(k + limit, len(rows)))) for k in range(0, len(rows), limit)]
        answers = await asyncio.gather(*(self._request(part, horizon, num_paths) for part in parts))
        return join_forecasts(answers)

    async def _request(self, rows: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        loop = asyncio.get_running_loop()
        token = self._next_token
        self._next_token += 1
        key = ShapeKey(rows.values.shape[1], rows.coarse.shape[2], rows.indicators, rows.step_ms, horizon, num_paths)
        answer: asyncio.Future[ForecastBatch] = loop.create_future()
        if self._idle_at_once and not self._num_under_way:
            # In this very turn of the loop: the next one may be long in coming while other partitions are prepared.
            self._meter.observe("batch_wait_seconds", 0.0)
            await self._answer(key, [_Waiter(rows, answer)], loop)
            return await answer
        self._waiters[token] = _Waiter(rows, answer)
        self._launch(self._assembly.offer(key, Ticket(token, len(rows), loop.time())), loop)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waiters.pop(token, None) is not None:
                self._assembly.withdraw(key, token)
            raise

    def _launch(self, groups: Sequence[Group[ShapeKey]], loop: asyncio.AbstractEventLoop) -> None:
        """Start the batches and set the timer for the requests that still wait."""
        for group in groups:
            for ticket in group.tickets:
                self._meter.observe("batch_wait_seconds", max(0.0, loop.time() - ticket.offered_s))
            waiters = [self._waiters.pop(ticket.token) for ticket in group.tickets]
            task = loop.create_task(self._answer(group.key, waiters, loop))
            self._running.add(task)  # the loop holds tasks only weakly
            task.add_done_callback(self._running.discard)
        if self._timer is not None:
            self._timer.cancel()
        deadline_s = self._assembly.next_deadline_s()
        self._timer = None if deadline_s is None else loop.call_at(deadline_s, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        # A loop may run a timer up to its clock's resolution early; the deadline it was set for counts.
        planned_s = self._assembly.next_deadline_s()
        now_s = loop.time() if planned_s is None else max(loop.time(), planned_s)
        self._launch(self._assembly.due(now_s), loop)

    async def _answer(self, key: ShapeKey, waiters: list[_Waiter], loop: asyncio.AbstractEventLoop) -> None:
        """Forecast one batch and give every waiter its rows, or the error."""
        started_s = loop.time()
        self._num_under_way += 1
        try:
            batch = join_rows([waiter.rows for waiter in waiters])
            self._meter.observe("batch_rows", float(len(batch)))
            result = await self._forecast(batch, key.horizon, key.num_paths)
            if len(result.sources) != len(batch):
                raise RuntimeError(f"the forecaster answered {len(result.sources)} rows of {len(batch)}")
        except asyncio.CancelledError:
            for waiter in waiters:
                waiter.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who asked
            for waiter in waiters:
                if not waiter.answer.done():
                    waiter.answer.set_exception(error)
            return
        finally:
            self._num_under_way -= 1
            if self._idle_at_once and not self._num_under_way:
                self._launch(self._assembly.due(math.inf), loop)
        self._meter.observe("inference_seconds", loop.time() - started_s)
        start = 0
        for waiter in waiters:
            stop = start + len(waiter.rows)
            if not waiter.answer.done():
                waiter.answer.set_result(slice_forecast(result, start, stop))
            start = stop
