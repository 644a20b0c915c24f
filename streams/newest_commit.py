"""Where a stage stood last: the newest complete commit record of its partition."""

from __future__ import annotations

from streams.log import ContractBroken
from streams.runtime.commits import Commit, CommitAssembler
from streams.runtime.restore import LogReader


async def newest_commit(reader: LogReader, topic: str, stage: str, partition: int) -> Commit | None:
    """The newest complete commit record of a stage in its commits partition, looking back in growing stretches."""
    begin, end = await reader.bounds(topic, partition)
    stretch = 8  # of a large fleet each of them is megabytes
    while True:
        start = max(begin, end - stretch)
        assembler = CommitAssembler(stage, partition, topic)
        try:
            async for record in reader.read(topic, partition, start, end):
                assembler.feed(record)
        except ContractBroken:
            # A stretch that begins with what a paused worker wrote again looks torn; the whole log does not.
            if start == begin:
                raise
        else:
            if assembler.newest is not None or start == begin:
                return assembler.newest
        stretch *= 4
