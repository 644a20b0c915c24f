"""Ticks: records without content that advance stream time on idle partitions.

Any number of writers may tick, and a paused worker that wakes up does no harm: a tick only says that the broker's clock
has reached an instant. In replays and accelerated runs the publisher ticks instead, and workers must not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import time
from typing import Any

from streams.log import OutRecord
from streams.records.schema import encode_tick

Send = Callable[[Sequence[OutRecord]], Awaitable[list[Any]]]


class Ticker:
    """Ticks every assigned telemetry partition.

    Args:
        send: publishes and returns one metadata object with the broker's `timestamp` (ms) per record.
        assigned: the telemetry partitions that this worker owns now.
        period_s: time between two rounds.
        delay_ms: how far behind the broker's clock a tick stays; must exceed the slowest producer's delay.
    """

    def __init__(
        self,
        send: Send,
        assigned: Callable[[], Sequence[tuple[str, int]]],
        period_s: float,
        delay_ms: int,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
    ) -> None:
        self._send = send
        self._assigned = assigned
        self._period_s = period_s
        self._delay_ms = delay_ms
        self._now_ms = now_ms
        self._stamp_ms: int | None = None

    async def round(self) -> int:
        """Tick once; returns the number of partitions ticked.

        The clock is the broker's last stamp, so that a wrong clock of the worker does no harm. Only the first round
        uses the worker's clock.
        """
        partitions = self._assigned()
        if not partitions:
            return 0
        ts_ms = (self._stamp_ms if self._stamp_ms is not None else self._now_ms()) - self._delay_ms
        value = encode_tick(ts_ms)
        sent = await self._send([OutRecord(topic, None, value, partition) for topic, partition in partitions])
        self._stamp_ms = max(metadata.timestamp for metadata in sent)
        return len(partitions)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self._period_s)
            await self.round()
