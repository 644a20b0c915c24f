"""Work that somebody waits for goes ahead of work that nobody waits for, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Precedence:
    """Counts what is ahead; who lets it pass waits until nothing is.

    Whoever waits has nothing ahead itself, so that those who are ahead get done, and nobody waits for ever.
    """

    def __init__(self) -> None:
        self._ahead = 0
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
                waiting, self._waiting = self._waiting, []
                for each in waiting:
                    if not each.done():
                        each.set_result(None)

    async def clear(self) -> None:
        """Wait until nothing is ahead, and give way once more in any case."""
        if self._ahead:
            passed = asyncio.get_running_loop().create_future()
            self._waiting.append(passed)
            await passed
        await asyncio.sleep(0)
