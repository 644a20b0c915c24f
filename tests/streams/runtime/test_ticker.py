"""Ticks, which close the slots of silent partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from streams.log import OutRecord
from streams.runtime.ticker import Ticker


@dataclass
class Stamp:
    timestamp: int


async def test_ticks_follow_the_brokers_clock_and_stay_behind_it() -> None:
    sent: list[OutRecord] = []
    stamps = iter([50_000, 51_000, 49_000])

    async def send(group: Sequence[OutRecord]) -> list[Any]:
        sent.extend(group)
        stamp = next(stamps)
        return [Stamp(stamp - 5), Stamp(stamp)]

    ticker = Ticker(send, lambda: [("telemetry", 0), ("telemetry", 3)], 1.0, 2_000, now_ms=lambda: 99_000_000)
    for _ in range(3):
        assert await ticker.round() == 2
    assert [r.partition for r in sent] == [0, 3] * 3
    told = [b'"ts_ms":%d' % ts_ms in (r.value or b"") for r, ts_ms in zip(
        sent, [98_998_000] * 2 + [48_000] * 2 + [49_000] * 2, strict=True
    )]  # fmt: skip
    assert all(told)


async def test_a_worker_without_partitions_does_not_tick() -> None:
    async def send(_group: Sequence[OutRecord]) -> list[Any]:
        pytest.fail("ticked")

    assert await Ticker(send, list, 1.0, 2_000).round() == 0
