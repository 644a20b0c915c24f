"""Ticks: records without content that advance stream time on idle partitions.

Any number of writers may tick, and a paused worker that wakes up does no harm: a tick only says that the broker's clock
has reached an instant. In replays and accelerated runs the publisher ticks instead, and workers must not. The same
holds while somebody publishes the past: a tick of now would close the slots of all that is still to come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic, time
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from streams.catalogue import Source
from streams.config import StreamConfig
from streams.log import OutRecord
from streams.records.schema import encode_tick

Send = Callable[[Sequence[OutRecord]], Awaitable[list[Any]]]
# A round starts so long after the instant that closes a slot: clocks count whole milliseconds, and a tick that comes
# one too early leaves the slot open until the next round.
_MARGIN_MS: Final = 20
_ROUNDS: Final = 8  # that tell the broker's clock
_PAST_STOPS_S: Final = 120.0  # without a record, after which nobody publishes the past any more


@runtime_checkable
class TimedKernel(Protocol):
    """The kernel of a telemetry partition, as far as ticks depend on it."""

    @property
    def behind_ms(self) -> int:
        """How far stream time lay behind the broker's stamp of the newest record."""
        ...

    def closed_slot(self) -> tuple[Source, int | None]:
        """The source, and its newest closed slot; None before the first."""
        ...


class Progress(NamedTuple):
    """How far a telemetry partition was read: its next offset, and how far stream time lies behind its stamps."""

    next_offset: int | None
    behind_ms: int


class PastFilter:
    """Keeps ticks away from partitions to which somebody publishes the past, until that catches up or stands still.

    Args:
        config: slot length, grace and skew.
        monotonic_s: never goes back.
    """

    def __init__(self, config: StreamConfig, monotonic_s: Callable[[], float] = monotonic) -> None:
        # Telemetry of now lies at most a step and the grace behind its stamp, or it would be late.
        self._most_ms = config.step_ms + config.grace_ms + config.skew_ms
        self._monotonic_s = monotonic_s
        self._moved: dict[tuple[str, int], tuple[int | None, float]] = {}

    def ticked(self, partitions: Mapping[tuple[str, int], Progress]) -> list[tuple[str, int]]:
        """Those of the partitions that are to be ticked now, in order."""
        now_s = self._monotonic_s()
        before, self._moved = self._moved, {}
        for key, progress in partitions.items():
            offset, since_s = before.get(key, (None, now_s))
            self._moved[key] = progress.next_offset, since_s if offset == progress.next_offset else now_s
        return sorted(
            key
            for key, progress in partitions.items()
            if progress.behind_ms <= self._most_ms or now_s - self._moved[key][1] >= _PAST_STOPS_S
        )


class Ticker:
    """Ticks every assigned telemetry partition, at the instants that close a slot and halfway between them.

    The clock is the broker's: the stamp that a tick got, and the time that has passed here since its acknowledgement.
    So a wrong clock of the worker does no harm, only the first round uses it. A stamp is older than its
    acknowledgement, so this clock is never ahead of the broker's. Of the last rounds, the one that was answered soonest
    is the nearest (F. Cristian, Probabilistic clock synchronization, 1989). Ticks stay `skew` behind it, for publishers
    may be ahead.

    Args:
        send: publishes and returns one metadata object with the broker's `timestamp` (ms) per record.
        assigned: the telemetry partitions that this worker owns now.
        config: slot length, grace and skew.
        now_ms: the worker's clock.
        monotonic_s: never goes back.
    """

    def __init__(
        self,
        send: Send,
        assigned: Callable[[], Sequence[tuple[str, int]]],
        config: StreamConfig,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
        monotonic_s: Callable[[], float] = monotonic,
    ) -> None:
        self._send = send
        self._assigned = assigned
        self._config = config
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._offsets_ms: deque[float] = deque(maxlen=_ROUNDS)  # of the broker's clock to `monotonic_s`

    def broker_ms(self) -> int:
        """The broker's clock, by its stamps; before the first, the worker's."""
        if not self._offsets_ms:
            return self._now_ms()
        return int(self._monotonic_s() * 1000 + max(self._offsets_ms))

    def next_round_s(self) -> float:
        """Time until the next round, at most half a step."""
        half_ms = max(1, self._config.step_ms // 2)
        since_ms = self.broker_ms() - self._config.skew_ms - self._config.grace_ms - _MARGIN_MS
        return (half_ms - since_ms % half_ms) / 1000

    async def round(self) -> int:
        """Tick once; returns the number of partitions ticked."""
        partitions = self._assigned()
        if not partitions:
            return 0
        value = encode_tick(self.broker_ms() - self._config.skew_ms)
        sent = await self._send([OutRecord(topic, None, value, partition) for topic, partition in partitions])
        self._offsets_ms.append(max(metadata.timestamp for metadata in sent) - self._monotonic_s() * 1000)
        return len(partitions)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self.next_round_s())
            await self.round()
