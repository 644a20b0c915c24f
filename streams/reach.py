"""Whether a log still holds what state wants to read next, when it is restored and while its worker runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from time import monotonic

from streams.log import ContractBroken
from streams.meter import Meter
from streams.runtime.lane import ForgivingKernel, Kernel, Lane
from streams.runtime.restore import LogReader

_SAID_EVERY_S = 60.0


class Losses:
    """Telemetry that retention removes before it is read: all of it is counted, and said once a minute at most."""

    def __init__(self, meter: Meter, now_s: Callable[[], float] = monotonic) -> None:
        self._meter = meter
        self._now_s = now_s
        self._said_s: dict[tuple[str, int], float] = {}

    def count(self, num_offsets: int) -> None:
        """Offsets that are lost; those of transaction markers, which are no records, cannot be told apart."""
        self._meter.count("telemetry_lost_total", num_offsets)

    def while_running(self, topic: str, partition: int, lane: Lane, wanted: int, first: int) -> None:
        """The log of a running lane has lost the offsets from `wanted` on and goes on at `first`.

        Raises:
            ContractBroken: nobody may skip them.
        """
        lost = _removed(wanted, first)
        if not isinstance(lane.kernel, ForgivingKernel):
            raise _unforgiven(topic, partition, lost)
        lane.skip_lost(wanted, first)
        self.count(first - wanted)
        now_s = self._now_s()
        if now_s - self._said_s.get((topic, partition), -_SAID_EVERY_S) >= _SAID_EVERY_S:
            self._said_s[topic, partition] = now_s
            _say_lost(topic, partition, lost, "Workers are too slow, or telemetry is kept too short (retention)")


async def check_reach(topic: str, partition: int, kernel: Kernel, reader: LogReader) -> int:
    """A kernel that may skip what is lost is told to, and the operator hears of it.

    Returns:
        How many offsets are lost.

    Raises:
        ContractBroken: the log ends before, or has lost what nobody may skip.
    """
    resume = kernel.resume_offset
    if resume is None:
        return 0
    begin, end = await reader.bounds(topic, partition)
    if resume > end:
        raise ContractBroken(
            f"{topic}/{partition}: the state goes on at offset {resume} but the log ends at {end}: the topic was "
            "emptied or created anew; restore it, or accept a new start with `harmony state reset`"
        )
    if resume >= begin:
        return 0
    lost = _removed(resume, begin)
    if not isinstance(kernel, ForgivingKernel):
        raise _unforgiven(topic, partition, lost)
    kernel.skip_lost(await _first_record(topic, partition, reader, begin, end))
    _say_lost(topic, partition, lost, "Keep telemetry longer than workers may be down (retention.ms)")
    return begin - resume


def say_shorter_past(topic: str, partition: int, lost_rows: int) -> None:
    """The operator hears that forecasts of a partition rest on less than those of a worker that ran on."""
    _say(
        f"history is lost: {topic}/{partition}: {lost_rows} of the ten-minute means of the past week were removed by "
        "retention; forecasts go on with a shorter past. Raise the topic's retention.bytes"
    )


def _removed(wanted: int, begin: int) -> str:
    return f"offsets {wanted} to {begin - 1} were removed by retention before they were read"


def _unforgiven(topic: str, partition: int, lost: str) -> ContractBroken:
    return ContractBroken(
        f"{topic}/{partition}: {lost}; raise the topic's retention.bytes, or accept a new start with "
        "`harmony state reset`"
    )


def _say_lost(topic: str, partition: int, lost: str, remedy: str) -> None:
    _say(f"telemetry is lost: {topic}/{partition}: {lost}; the steps that they belong to stay unobserved. {remedy}")


def _say(sentence: str) -> None:
    sys.stderr.write(f"harmony worker: {sentence}\n")
    sys.stderr.flush()


async def _first_record(topic: str, partition: int, reader: LogReader, begin: int, end: int) -> int:
    """Offset of the first record that is left: a log may begin with markers of transactions, which nobody can read."""
    async with aclosing(reader.read(topic, partition, begin, end)) as records:
        async for record in records:
            return record.offset
    return end
