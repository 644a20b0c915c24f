"""Now, in milliseconds: of the wall, or of the log where event time is not wall time."""

from __future__ import annotations

import time
from collections.abc import Iterable

from agents.records import Command


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
