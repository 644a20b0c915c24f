"""Where retention has removed what restored state wants to read next: who goes on, and at which record."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.log import ContractBroken, LogRecord
from streams.meter import NullMeter
from streams.runtime.restore import LogReader, LossReport, check_retention
from tests.streams.runtime.lane_bench import Broker, Echo, until


class Forgiving(Echo):
    def skip_lost(self, first_offset: int) -> None:
        self.resume_offset = first_offset


class Retained:
    """A log from `begin` to `end` with records at these offsets; at the others are markers of transactions."""

    def __init__(self, begin: int, end: int, records: list[int]) -> None:
        self._bounds = begin, end
        self.records = [LogRecord(offset, 0, b"w", b"v") for offset in records]

    async def bounds(self, _topic: str, _partition: int) -> tuple[int, int]:
        return self._bounds

    async def read(self, _topic: str, _partition: int, start: int, end: int) -> AsyncGenerator[LogRecord, None]:
        for record in self.records:
            if start <= record.offset < end:
                yield record


async def check(kernel: Echo, log: Retained) -> int:
    return await check_retention("telemetry", 3, kernel, cast("LogReader", log))


@given(st.sets(st.integers(100, 130)), st.integers(0, 99), st.integers(132, 140))
async def test_telemetry_that_is_lost_is_skipped_to_the_first_record_that_is_left(
    offsets: set[int], resume: int, next_offset: int
) -> None:
    kernel, log, broker = Forgiving(resume), Retained(100, 131, sorted(offsets)), Broker()
    await check(kernel, log)
    lane = broker.lane(kernel)
    left = [r.offset for r in log.records] or [131]
    assert lane.next_offset == left[0]
    for batch in (left, [next_offset]):
        await lane.put([LogRecord(offset, 0, b"w", b"v") for offset in batch])
    await until(lambda: kernel.folded == [*left, next_offset])
    await lane.close()


async def test_what_is_lost_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert await check(Forgiving(7), Retained(100, 102, [101])) == 93
    assert "telemetry is lost: telemetry/3: offsets 7 to 99 were removed by retention" in capsys.readouterr().err


async def test_who_may_skip_nothing_ends_with_the_remedy() -> None:
    with pytest.raises(ContractBroken, match=r"offsets 7 to 99 were removed.*retention\.bytes"):
        await check(Echo(7), Retained(100, 102, [100, 101]))


@pytest.mark.parametrize("kernel", [Echo(None), Echo(100), Forgiving(101), Forgiving(102)])
async def test_state_that_the_log_still_reaches_is_left_alone(kernel: Echo) -> None:
    before = kernel.resume_offset
    assert await check(kernel, Retained(100, 102, [100, 101])) == 0
    assert kernel.resume_offset == before


async def test_a_log_that_ends_before_the_state_is_refused() -> None:
    with pytest.raises(ContractBroken, match="goes on at offset 103 but the log ends at 102"):
        await check(Forgiving(103), Retained(100, 102, [100, 101]))


class Lost(NullMeter):
    """Counts what is lost."""

    def __init__(self) -> None:
        self.offsets = 0.0

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        assert (name, labels) == ("telemetry_lost_total", {})
        self.offsets += value


def batch(*offsets: int) -> list[LogRecord]:
    return [LogRecord(offset, 0, b"w", b"v") for offset in offsets]


@pytest.mark.parametrize("read", [[], [7, 8]])
async def test_what_is_lost_under_a_running_lane_is_skipped_and_counted(read: list[int]) -> None:
    kernel, broker, meter = Forgiving(7), Broker(), Lost()
    lane = broker.lane(kernel)
    if read:
        await lane.put(batch(*read))
        await until(lambda: kernel.folded == read)
    wanted = 7 + len(read)
    LossReport(meter).while_running("telemetry", 3, lane, wanted, 20)
    await lane.put(batch(20, 21))
    await until(lambda: kernel.folded == [*read, 20, 21])
    assert meter.offsets == 20 - wanted
    await lane.close()


async def test_a_log_that_keeps_losing_is_counted_each_time_and_said_once_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lane, meter, now_s = Broker().lane(Forgiving(0)), Lost(), 1000.0
    losses = LossReport(meter, lambda: now_s)
    for second in range(150):
        now_s = 1000.0 + second
        losses.while_running("telemetry", 3, lane, 10 * second, 10 * second + 5)
    said = [line for line in capsys.readouterr().err.splitlines() if "telemetry is lost: telemetry/3" in line]
    assert [int(re.search(r"offsets (\d+)", line)[1]) for line in said] == [0, 600, 1200]  # type: ignore[index]
    assert meter.offsets == 750
    await lane.close()


async def test_a_running_lane_that_may_skip_nothing_ends_with_the_remedy() -> None:
    lane = Broker().lane(Echo(7))
    with pytest.raises(ContractBroken, match=r"plans/3: offsets 9 to 19 were removed.*retention\.bytes"):
        LossReport(NullMeter()).while_running("plans", 3, lane, 9, 20)
    await lane.close()
