"""Runs an actuator: the feed in a thread, one task per workload, the newest command of each wins."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import structlog
from kafka import TopicPartition

from agents.decide.records import decode_command
from agents.records import Command
from infra.actuate.controller import CommandController
from infra.kafka.tail import TailRecord, TopicTail
from infra.observability.health import Health

# The commands topic from its beginning and on: what an actuator that starts anew must have read before it acts.


class Batch(NamedTuple):
    """The newest command of each workload among the records of one poll.

    Attributes:
        commands: at most one per workload.
        unreadable: records that are no commands.
        caught_up: everything that was in the topic at the start has been read, even what waited for a transaction.
            Compaction is lazy, so before that an old command may come without the newer one that replaced it, and must
            not be acted upon.
        held_up: a sentence for each partition that an open transaction has held up for long.
    """

    commands: dict[str, Command]
    unreadable: int
    caught_up: bool
    held_up: tuple[str, ...] = ()


def newest_of(records: Iterable[TailRecord]) -> tuple[dict[str, Command], int]:
    """The newest command per workload, by epoch and sequence, and how many records were no commands."""
    newest: dict[str, Command] = {}
    unreadable = 0
    for record in records:
        if record.value is None:
            continue
        try:
            command = decode_command(record.value)
        except msgspec.MsgspecError:
            unreadable += 1
            continue
        previous = newest.get(command.workload)
        if previous is None or (command.epoch, command.sequence) >= (previous.epoch, previous.sequence):
            newest[command.workload] = command
    return newest, unreadable


class CommandFeed(TopicTail):
    """Reads the commands topic outside any group: every actuator sees every command, and nothing is committed."""

    def batches(self) -> Iterator[Batch]:
        """For ever, one per poll (a quarter of a second when nothing comes), empty ones included.

        Raises:
            HarmonyError: the topic cannot be read, or has got partitions that are not read.
        """
        bounds = self.bounds()
        self._position({partition: begin for partition, (begin, _) in bounds.items()})
        behind = {tp: end for tp in self._tps for begin, end in (bounds[tp.partition],) if begin < end}
        first = True
        while True:
            self._refuse_new_partitions()
            # The first batch comes without a poll where there is nothing to read: a new fleet is caught up at once.
            polled = {} if first and not behind else self._poll()
            first = False
            with self._explained():
                behind = {tp: end for tp, end in behind.items() if self._is_before(tp, max(end, self._end(tp)))}
            commands, unreadable = newest_of(
                TailRecord(r.partition, r.offset, r.timestamp, r.key, r.value, ())
                for records in polled.values()
                for r in records
            )
            held_up = tuple(one.sentence(self._brokers) for one in self.open_transactions())
            yield Batch(commands, unreadable, not behind, held_up)

    def _is_before(self, tp: TopicPartition, end: int) -> bool:
        reached = self._reached(tp)
        return reached is None or reached < end

    def _end(self, tp: TopicPartition) -> int:
        return int(self._consumer.highwater(tp) or 0)


_IDLE_S = 1.0
_END_S = 3.0

log = structlog.get_logger()


class Runner:
    """Hands commands to the controller.

    Args:
        once: end when what was in the topic at the start has been handled.
        on_commands: told every command read, newest of each workload, before anything acts on it (simulated clocks).
        on_caught_up: called once, when what was in the topic at the start has been read.
    """

    def __init__(
        self,
        controller: CommandController,
        batches: Iterator[Batch],
        *,
        once: bool = False,
        health: Health | None = None,
        on_commands: Callable[[list[Command]], None] | None = None,
        on_caught_up: Callable[[], None] | None = None,
    ) -> None:
        self._controller, self._batches, self._once, self._health = controller, batches, once, health
        self._on_commands, self._on_caught_up = on_commands, on_caught_up
        self._waiting: dict[str, Command] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._caught_up = self._held_up = False
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """End after what is under way; callable from the loop's signal handlers."""
        self._stop.set()

    def stop_on_signals(self) -> None:
        """End on SIGINT and SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)

    async def run(self) -> None:
        """Until stopped.

        Raises:
            HarmonyError: the topic cannot be read any more, or what must be remembered cannot be written.
        """
        idle_at_s = monotonic()
        try:
            while not self._stop.is_set():
                self._take(await asyncio.to_thread(next, self._batches))
                if self._caught_up and self._once:
                    await asyncio.gather(*self._tasks.values())
                    return
                self._raise_failures()
                if self._caught_up and monotonic() - idle_at_s >= _IDLE_S:
                    idle_at_s = monotonic()
                    self._hold_pins()
                    self._controller.save()
        finally:
            await self._end()

    def _take(self, batch: Batch) -> None:
        if batch.unreadable:
            log.warning("not_a_command", records=batch.unreadable)
        if self._on_commands is not None:
            self._on_commands(list(batch.commands.values()))
        for workload, command in batch.commands.items():
            waiting = self._waiting.get(workload)
            if waiting is None or (command.epoch, command.sequence) >= (waiting.epoch, waiting.sequence):
                self._waiting[workload] = command
        if batch.caught_up and not self._caught_up:
            self._caught_up = True
            if self._on_caught_up is not None:
                self._on_caught_up()
        if self._caught_up:
            for workload, command in self._waiting.items():
                self._controller.admit(command)
                self._start("command", workload, self._serve)
        if self._health is not None:
            self._health.beat("feed", monotonic())
            self._health.set_check("caught_up", self._caught_up, "" if self._caught_up else "reading the topic")
            self._health.set_check("transactions", not batch.held_up, "; ".join(batch.held_up), required=False)
        if batch.held_up and not self._held_up:
            log.warning("open_transaction", detail="; ".join(batch.held_up))
        self._held_up = bool(batch.held_up)

    def _start(self, kind: str, workload: str, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.get((kind, workload))
        if task is None or task.done():
            if task is not None:
                task.result()
            self._tasks[kind, workload] = asyncio.create_task(work(workload))

    async def _serve(self, workload: str) -> None:
        while (command := self._waiting.pop(workload, None)) is not None:
            await self._controller.handle(command)

    async def _hold(self, workload: str) -> None:
        await self._controller.apply_pin(workload)

    def _hold_pins(self) -> None:
        self._controller.refresh_overrides()
        for workload in self._controller.guard.overrides.pins:
            self._start("pin", workload, self._hold)

    def _raise_failures(self) -> None:
        for key, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[key]
                task.result()

    async def _end(self) -> None:
        """Let short work finish; what takes longer is given up, as a crash would."""
        tasks = [task for task in self._tasks.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._controller.save()


# Now, in milliseconds: of the wall, or of the log where event time is not wall time.


def wall_ms() -> int:
    """The clock on the wall."""
    return time.time_ns() // 1_000_000


class LogClock:
    """Event time of an accelerated run: the newest instant at which a command was issued."""

    def __init__(self) -> None:
        self._now_ms = 0

    def __call__(self) -> int:
        return self._now_ms

    def take(self, commands: Iterable[Command]) -> None:
        """Move on to the newest of these; never back."""
        self._now_ms = max([self._now_ms, *(c.issued_ts_ms for c in commands)])
