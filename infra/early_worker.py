"""Faust's worker with tasks that must not wait for the state to be restored."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from threading import Timer
from typing import Final

import faust
import structlog

from streams.runtime.app import end_process

_PATIENCE_S: Final = 5.0

log = structlog.get_logger(__name__)


class EarlyWorker(faust.Worker):
    """Faust's worker with tasks that run from the first moment on; those of the app wait until state is restored.

    Asked to end while it joins its group, Faust may wait for ever for what was never begun. A worker without partitions
    has nothing in hand: it is given some seconds to take its leave, then the process ends, with success.

    Args:
        early: run from the first moment on.
        begun: whether it has partitions, with their state.
    """

    def __init__(
        self, app: faust.App, early: Sequence[Callable[[], Awaitable[None]]], begun: Callable[[], bool]
    ) -> None:
        # Its own logging would take the place of ours: no structure, no escapes, no limit.
        super().__init__(app, loglevel="warning", redirect_stdouts=False, quiet=True, override_logging=False)
        self.spinner = None  # it writes to logs as well
        self._early = early
        self._begun = begun
        self._running: list[asyncio.Task[None]] = []

    async def on_first_start(self) -> None:
        await super().on_first_start()
        self._running = [asyncio.create_task(self._guarded(task)) for task in self._early]

    async def _stop_on_signal(self, signal: signal.Signals) -> None:
        if not self._begun():
            # Of a thread, not of the loop, which may be closed by then and the process still not at its end.
            timer = Timer(_PATIENCE_S, _leave)
            timer.daemon = True
            timer.start()
        await super()._stop_on_signal(signal)

    @staticmethod
    async def _guarded(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:  # noqa: BLE001 - without its probes and watchdog a worker must not go on
            end_process("worker", error)


def _leave() -> None:
    log.info("worker_left", note="asked to end before it had partitions")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
