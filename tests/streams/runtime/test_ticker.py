"""Ticks, which close the slots of silent partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from streams.config import StreamConfig
from streams.log import OutRecord
from streams.records.decode import decode
from streams.records.schema import TickRecord
from streams.runtime.ticker import PastFilter, Progress, Ticker

CONFIG = StreamConfig(step_ms=5_000, grace_ms=5_000, skew_ms=2_000)
BROKER_MS = 340_000_000 * 5_000 + 1_234  # the broker's clock when this process's is at 0


@dataclass
class Stamp:
    timestamp: int


@dataclass
class Broker:
    """Stamps what it is sent, and answers some time later; the worker's own clock is an hour off."""

    answer_s: tuple[float, ...] = (0.005,)
    clock_s: float = 0.0
    stamped: list[tuple[int, OutRecord]] = field(default_factory=list)

    async def send(self, group: Sequence[OutRecord]) -> list[Any]:
        stamp_ms = BROKER_MS + int(self.clock_s * 1000)
        self.stamped += [(stamp_ms, record) for record in group]
        self.clock_s += self.answer_s[len(self.stamped) // len(group) % len(self.answer_s)]
        return [Stamp(stamp_ms) for _ in group]

    def ticker(self) -> Ticker:
        return Ticker(
            self.send,
            lambda: [("telemetry", 0), ("telemetry", 3)],
            CONFIG,
            now_ms=lambda: BROKER_MS - 3_600_000 + int(self.clock_s * 1000),
            monotonic_s=lambda: self.clock_s,
        )

    async def run(self, num_rounds: int) -> list[tuple[int, int]]:
        """(stamp, tick) of the first partition in each round."""
        ticker = self.ticker()
        for _ in range(num_rounds):
            self.clock_s += ticker.next_round_s()
            assert await ticker.round() == 2
        assert [record.partition for _, record in self.stamped] == [0, 3] * num_rounds
        return [(stamp_ms, _time_of(record)) for stamp_ms, record in self.stamped[::2]]


def _time_of(record: OutRecord) -> int:
    tick = decode(record.value, None, "requests")
    assert isinstance(tick, TickRecord)
    return tick.ts_ms


@pytest.mark.parametrize("answer_s", [(0.005,), (0.005, 0.4, 0.09), (0.2,)])
async def test_ticks_stay_skew_behind_the_brokers_clock_however_late_it_answers(answer_s: tuple[float, ...]) -> None:
    ticks = await Broker(answer_s).run(40)
    behind_ms = [stamp_ms - tick_ms for stamp_ms, tick_ms in ticks[1:]]
    assert min(behind_ms) >= CONFIG.skew_ms
    assert max(behind_ms[2:]) <= CONFIG.skew_ms + 210  # by then the soonest answer is known
    assert ticks[0][1] < ticks[0][0] - 3_600_000 + 10  # the first has only the worker's own clock


async def test_a_slot_is_closed_as_soon_as_grace_and_skew_are_over() -> None:
    closed: dict[int, int] = {}
    for stamp_ms, tick_ms in (await Broker().run(40))[2:]:
        closed.setdefault(CONFIG.last_closed(tick_ms), stamp_ms)
    delays = [stamp_ms - CONFIG.slot_end_ms(slot) for slot, stamp_ms in closed.items()][1:]
    assert len(delays) >= 18
    assert all(CONFIG.grace_ms + CONFIG.skew_ms <= d <= CONFIG.grace_ms + CONFIG.skew_ms + 50 for d in delays), delays


async def test_a_worker_without_partitions_does_not_tick() -> None:
    async def send(_group: Sequence[OutRecord]) -> list[Any]:
        pytest.fail("ticked")

    assert await Ticker(send, list, CONFIG).round() == 0


def test_a_partition_that_is_filled_with_the_past_is_not_ticked_until_it_catches_up_or_stands_still() -> None:
    clock_s = [0.0]
    past = PastFilter(CONFIG, lambda: clock_s[0])
    filled, live, silent = ("telemetry", 0), ("telemetry", 1), ("telemetry", 2)

    def ticked(after_s: float, offset: int, behind_ms: int) -> list[tuple[str, int]]:
        clock_s[0] += after_s
        return past.ticked(
            {filled: Progress(offset, behind_ms), live: Progress(offset, 4_000), silent: Progress(None, 0)}
        )

    day_ms = 86_400_000
    assert ticked(0, 10, 7 * day_ms) == [live, silent]
    assert ticked(100, 500, 3 * day_ms) == [live, silent]
    assert ticked(100, 900, day_ms) == [live, silent]  # it moves
    assert ticked(2, 950, 3_000) == [filled, live, silent]  # it has caught up
    assert ticked(2, 951, day_ms) == [live, silent]
    assert ticked(119, 951, day_ms) == [live, silent]
    assert ticked(2, 951, day_ms) == [filled, live, silent]  # whoever filled it is gone
    # What was assigned anew is given the time again.
    past.ticked({})
    assert ticked(1, 951, day_ms) == [live, silent]
