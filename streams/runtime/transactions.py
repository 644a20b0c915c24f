"""Open transactions of publishers, which hold up every consumer that reads committed records only.

Such a consumer reads a partition up to its last stable offset, the first record of the oldest open transaction. All
later records wait for the end of that transaction, committed or not. A transaction whose producer is gone and that no
coordinator ends is called hanging (KIP-664): an administrator must abort it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Final, NamedTuple

# Time after which an open transaction is reported. Kafka's clients end theirs within 60 s by default.
PATIENCE_S: Final = 30.0

Place = tuple[str, int]


class LogEnd(NamedTuple):
    """Where a partition ends.

    Attributes:
        last_stable: end of the records that belong to no open transaction and follow on none.
        high_watermark: offset after the last record.
    """

    last_stable: int
    high_watermark: int

    @property
    def num_unstable(self) -> int:
        """Offsets after the last stable one.

        >>> LogEnd(7, 10).num_unstable
        3
        """
        return max(0, self.high_watermark - self.last_stable)


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a partition.

    Attributes:
        first_offset: of its records; the last stable offset.
        num_waiting: offsets from there to the end of the log, its own records included.
        open_s: time since it was opened, or since it was first seen; NaN where that is not known.
    """

    topic: str
    partition: int
    first_offset: int
    num_waiting: int
    open_s: float

    def cause(self) -> str:
        """What is held up, since when."""
        age = "" if isnan(self.open_s) else f" that has been open for {self.open_s:.0f} s"
        return (
            f"{self.topic}/{self.partition}: {self.num_waiting} records from offset {self.first_offset} on wait for a "
            f"transaction{age}"
        )

    def remedy(self, brokers: str) -> str:
        """What to do; `brokers` as for Kafka's tools."""
        return (
            "its producer must commit or abort it, else abort it with "
            f"`kafka-transactions.sh --bootstrap-server {brokers} abort --topic {self.topic} "
            f"--partition {self.partition} --start-offset {self.first_offset}`"
        )

    def sentence(self, brokers: str) -> str:
        """Cause and remedy, without a full stop."""
        return f"{self.cause()}; {self.remedy(brokers)}"


class TransactionWatch:
    """Remembers since when each partition has been held up at the same offset."""

    def __init__(self) -> None:
        self._since: dict[Place, tuple[int, float]] = {}

    def look(self, ends: Mapping[Place, LogEnd], now_s: float) -> list[OpenTransaction]:
        """The oldest open transaction of each partition that has one, in the order of partitions.

        Args:
            ends: of the partitions of now, by topic and partition.
            now_s: of a clock that only goes forward.
        """
        held = {place: end for place, end in sorted(ends.items()) if end.num_unstable}
        before, self._since = self._since, {}
        for place, end in held.items():
            offset, since_s = before.get(place, (-1, now_s))
            self._since[place] = end.last_stable, since_s if offset == end.last_stable else now_s
        return [
            OpenTransaction(*place, end.last_stable, end.num_unstable, now_s - self._since[place][1])
            for place, end in held.items()
        ]


def overdue(transactions: list[OpenTransaction]) -> list[OpenTransaction]:
    """Those that have been open for longer than `PATIENCE_S`."""
    return [one for one in transactions if one.open_s > PATIENCE_S]
