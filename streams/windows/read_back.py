"""What a restart reads back of the size-bounded logs, held against what they keep: a shortage shows before it bites."""

from __future__ import annotations

from collections.abc import Mapping

from streams.topics import MIB, Topics
from streams.windows.coarse import COARSE_ROWS

_NEWEST = 8


class RecordSizes:
    """Bytes of a log's newest entries: slots of `pages`, rows of `pages.coarse`. Each may be of many records."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, number: int, value: bytes | None) -> None:
        """Count a record of the slot or row of this number."""
        self._bytes[number] = self._bytes.get(number, 0) + len(value or b"")
        if len(self._bytes) > _NEWEST:
            del self._bytes[min(self._bytes)]

    @property
    def largest(self) -> int:
        """Bytes of the largest entry; 0 without any. The newest may still be incomplete."""
        return max(self._bytes.values(), default=0)


class ReadBackSizes:
    """Of one partition, the two logs that are read back by the slot and by the row.

    Args:
        context_steps: L, the slots that a restart reads.
    """

    def __init__(self, topics: Topics, context_steps: int) -> None:
        self._topics = topics
        self._context_steps = context_steps
        self.pages = RecordSizes()
        self.coarse = RecordSizes()

    def needed_bytes(self) -> dict[str, int]:
        """What each topic should keep of the partition: twice L slots, for fleets grow; a week of rows."""
        return {
            self._topics.pages: 2 * self._context_steps * self.pages.largest,
            self._topics.pages_coarse: COARSE_ROWS * self.coarse.largest,
        }


def shortages(partition: int, needed_bytes: Mapping[str, int], kept_bytes: Mapping[str, int]) -> list[str]:
    """One clause per log of a partition that keeps too little.

    Args:
        needed_bytes, kept_bytes: by topic; a topic that is not bounded by size is absent from `kept_bytes`.
    """
    return [
        f"{topic}/{partition} should keep {-(-needed // MIB)} MiB and keeps {kept_bytes[topic] // MIB}"
        for topic, needed in sorted(needed_bytes.items())
        if topic in kept_bytes and needed > kept_bytes[topic]
    ]
