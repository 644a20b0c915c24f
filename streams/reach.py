"""Whether a log still holds what restored state wants to read next."""

from __future__ import annotations

import sys
from contextlib import aclosing

from streams.log import ContractBroken
from streams.log_reader import LogReader
from streams.stage import ForgivingKernel, Kernel


async def check_reach(topic: str, partition: int, kernel: Kernel, reader: LogReader) -> None:
    """A kernel that may skip what is lost is told to, and the operator hears of it.

    Raises:
        ContractBroken: the log ends before, or has lost what nobody may skip.
    """
    resume = kernel.resume_offset
    if resume is None:
        return
    begin, end = await reader.bounds(topic, partition)
    if resume > end:
        raise ContractBroken(
            f"{topic}/{partition}: the state goes on at offset {resume} but the log ends at {end}: the topic was "
            "emptied or created anew; restore it, or accept a new start with `harmony state reset`"
        )
    if resume >= begin:
        return
    lost = f"offsets {resume} to {begin - 1} were removed by retention before they were read"
    if not isinstance(kernel, ForgivingKernel):
        raise ContractBroken(
            f"{topic}/{partition}: {lost}; raise the topic's retention.bytes, or accept a new start with "
            "`harmony state reset`"
        )
    kernel.skip_lost(await _first_record(topic, partition, reader, begin, end))
    _say(
        f"telemetry is lost: {topic}/{partition}: {lost}; the steps that they belong to stay unobserved. Keep "
        "telemetry longer than workers may be down (retention.ms)"
    )


def say_shorter_past(topic: str, partition: int, lost_rows: int) -> None:
    """The operator hears that forecasts of a partition rest on less than those of a worker that ran on."""
    _say(
        f"history is lost: {topic}/{partition}: {lost_rows} of the ten-minute means of the past week were removed by "
        "retention; forecasts go on with a shorter past. Raise the topic's retention.bytes"
    )


def _say(sentence: str) -> None:
    sys.stderr.write(f"harmony worker: {sentence}\n")
    sys.stderr.flush()


async def _first_record(topic: str, partition: int, reader: LogReader, begin: int, end: int) -> int:
    """Offset of the first record that is left: a log may begin with markers of transactions, which nobody can read."""
    async with aclosing(reader.read(topic, partition, begin, end)) as records:
        async for record in records:
            return record.offset
    return end
