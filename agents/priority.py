"""Work that somebody waits for goes ahead of work that nobody waits for, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# A plan that another worker's stage answers after all, as after a rebalance, holds nobody up for longer.
_LONGEST_S: Final = 0.25


class Precedence:
    """Counts what is ahead, and remembers plans on their way to the stage that answers them; who lets them pass waits
    until there is neither.

    Whoever waits has nothing ahead itself, so that those who are ahead get done, and nobody waits for ever.

    Args:
        answers_here: whether plans are answered on this loop at all.
    """

    def __init__(self, answers_here: Callable[[], bool] = lambda: False) -> None:
        self._answers_here = answers_here
        self._ahead = 0
        self._expected: set[bytes] = set()
        self._waiting: list[asyncio.Future[None]] = []

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """For the time of work that goes first."""
        self._ahead += 1
        try:
            yield
        finally:
            self._ahead -= 1
            if not self._ahead:
                self._wake()  # plans that are expected still hold them up, but no longer than that

    def expect(self, plan: bytes) -> None:
        """A plan is about to be published: between Kafka and its answer it is ahead too."""
        if self._answers_here():
            self._expected.add(plan)

    def answered(self, plan: bytes | None) -> None:
        """What was to be said to a plan is out."""
        if plan is not None:
            self._expected.discard(plan)
            if not self._ahead and not self._expected:
                self._wake()

    async def clear(self) -> None:
        """Wait until nothing is ahead, and give way once more in any case."""
        while self._ahead or self._expected:
            passed = asyncio.get_running_loop().create_future()
            self._waiting.append(passed)
            try:
                async with asyncio.timeout(None if self._ahead else _LONGEST_S):
                    await passed
            except TimeoutError:
                self._expected.clear()
                self._wake()
        await asyncio.sleep(0)

    def _wake(self) -> None:
        """Let all who wait look again."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
