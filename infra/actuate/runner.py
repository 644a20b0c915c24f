"""Runs an actuator: the feed in a thread, one task per workload, the newest command of each wins."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from time import monotonic
from typing import Any

import structlog

from agents.records import Command
from infra.actuate.controller import Desk
from infra.actuate.feed import Batch
from infra.observability.health import Health

_IDLE_S = 1.0
_END_S = 3.0

log = structlog.get_logger()


class Runner:
    """Hands commands to the desk.

    Args:
        once: end when what was in the topic at the start has been handled.
        on_commands: told every command read, newest of each workload, before anything acts on it (simulated clocks).
        on_caught_up: called once, when what was in the topic at the start has been read.
    """

    def __init__(
        self,
        desk: Desk,
        batches: Iterator[Batch],
        *,
        once: bool = False,
        health: Health | None = None,
        on_commands: Callable[[list[Command]], None] | None = None,
        on_caught_up: Callable[[], None] | None = None,
    ) -> None:
        self._desk, self._batches, self._once, self._health = desk, batches, once, health
        self._on_commands, self._on_caught_up = on_commands, on_caught_up
        self._waiting: dict[str, Command] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._caught_up = False
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
                    self._desk.save()
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
                self._desk.notice(command)
                self._start("command", workload, self._serve)
        if self._health is not None:
            self._health.beat("feed", monotonic())
            self._health.set_check("caught_up", self._caught_up, "" if self._caught_up else "reading the topic")

    def _start(self, kind: str, workload: str, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.get((kind, workload))
        if task is None or task.done():
            if task is not None:
                task.result()
            self._tasks[kind, workload] = asyncio.create_task(work(workload))

    async def _serve(self, workload: str) -> None:
        while (command := self._waiting.pop(workload, None)) is not None:
            await self._desk.handle(command)

    async def _hold(self, workload: str) -> None:
        await self._desk.hold(workload)

    def _hold_pins(self) -> None:
        self._desk.take_words()
        for workload in self._desk.guard.words.pins:
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
        self._desk.save()
