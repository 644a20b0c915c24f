"""Faust's worker with tasks that must not wait for the state to be restored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import faust

from streams.end_process import end_process


class EarlyWorker(faust.Worker):
    """Faust's worker with tasks that run from the first moment on; those of the app wait until state is restored."""

    def __init__(self, app: faust.App, early: Sequence[Callable[[], Awaitable[None]]]) -> None:
        # Its own logging would take the place of ours: no structure, no escapes, no limit.
        super().__init__(app, loglevel="warning", redirect_stdouts=False, quiet=True, override_logging=False)
        self.spinner = None  # it writes to logs as well
        self._early = early
        self._running: list[asyncio.Task[None]] = []

    async def on_first_start(self) -> None:
        await super().on_first_start()
        self._running = [asyncio.create_task(self._guarded(task)) for task in self._early]

    @staticmethod
    async def _guarded(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:  # noqa: BLE001 - without its probes and watchdog a worker must not go on
            end_process("worker", error)
