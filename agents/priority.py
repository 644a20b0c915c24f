"""A priority gate on one event loop: work that somebody waits for goes before work that can wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# Longest time for which a plan holds others up: after a rebalance another worker may be the one that answers it.
_MAX_WAIT_S: Final = 0.25


class PriorityGate:
    """Counts urgent work, and keeps the plans on their way to the stage that decides them.

    Work that can wait calls `wait`, which returns when there is neither. Whoever waits must hold no urgent work, so
    that urgent work gets done and nobody waits for ever.

    Args:
        decides_here: whether plans are decided on this loop at all.
    """

    def __init__(self, decides_here: Callable[[], bool] = lambda: False) -> None:
        self._decides_here = decides_here
        self._num_urgent = 0
        self._expected: set[bytes] = set()
        self._waiting: list[asyncio.Future[None]] = []

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """A block of work that goes first."""
        self._num_urgent += 1
        try:
            yield
        finally:
            self._num_urgent -= 1
            if not self._num_urgent:
                self._wake()  # plans that are expected still hold them up, for a limited time

    def expect(self, plan: bytes) -> None:
        """Count a plan that is about to be published as urgent until it is decided."""
        if self._decides_here():
            self._expected.add(plan)

    def settle(self, plan: bytes | None) -> None:
        """The decisions on a plan are out."""
        if plan is not None:
            self._expected.discard(plan)
            if not self._num_urgent and not self._expected:
                self._wake()

    async def wait(self) -> None:
        """Wait until nothing urgent is left, and give way to other tasks once in any case."""
        while self._num_urgent or self._expected:
            woken = asyncio.get_running_loop().create_future()
            self._waiting.append(woken)
            try:
                async with asyncio.timeout(None if self._num_urgent else _MAX_WAIT_S):
                    await woken
            except TimeoutError:
                self._expected.clear()
                self._wake()
        await asyncio.sleep(0)

    def _wake(self) -> None:
        """Make all who wait look again."""
        waiting, self._waiting = self._waiting, []
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)
