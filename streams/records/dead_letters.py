"""Refused records for the dead-letter topic: all of them while they are few, a sample of them in a flood."""

from __future__ import annotations

from bisect import bisect_left

from streams.log import LogRecord, OutRecord
from streams.records.schema import DeadLetter

# Of every stretch of offsets the first few refused records are published, then one in a hundred, chosen by its offset.
# So equal logs give equal samples, and a flood costs a hundredth of itself.
STRETCH_OFFSETS = 1_000
MAX_LETTERS_PER_STRETCH = 100
SAMPLING_INTERVAL_OFFSETS = 100
# A refused record may be larger than brokers accept: beyond the limit only its first bytes are published.
MAX_LETTER_BYTES = 256 << 10
MAX_CUT_BYTES = 1 << 10


class DeadLetterBox:
    """Collects the dead letters of one partition.

    Args:
        topic: of the dead letters.
        from_topic, partition: where the records were read.
    """

    def __init__(self, topic: str, from_topic: str, partition: int) -> None:
        self.counts: dict[str, int] = {}
        self._topic = topic
        self._origin = (("topic", from_topic.encode()), ("partition", str(partition).encode()))
        self._stretch = -1
        self._in_stretch = 0
        self._waiting: list[OutRecord] = []
        self._offsets: list[int] = []

    def keeps(self, offset: int) -> bool:
        """Whether the record at this offset will be published if it is the next one to be refused."""
        if offset // STRETCH_OFFSETS != self._stretch or self._in_stretch < MAX_LETTERS_PER_STRETCH:
            return True
        return offset % SAMPLING_INTERVAL_OFFSETS == 0

    def add(self, record: LogRecord, letter: DeadLetter, published_before: bool) -> None:
        """Add a refused record; one that an earlier worker has published counts only for the sampling."""
        offset = record.offset
        is_published = self.keeps(offset)
        if offset // STRETCH_OFFSETS != self._stretch:
            self._stretch, self._in_stretch = offset // STRETCH_OFFSETS, 0
        self._in_stretch += 1
        if published_before:
            return
        self.counts[letter.code] = self.counts.get(letter.code, 0) + 1
        if not is_published:
            return
        headers: tuple[tuple[str, bytes], ...] = (
            ("reason", letter.code.encode()),
            ("detail", letter.detail.encode()),
            *self._origin,
            ("offset", str(offset).encode()),
        )
        key, value = record.key, record.value
        size = len(key or b"") + len(value or b"")
        if size > MAX_LETTER_BYTES:
            headers = (*headers, ("cut", str(size).encode()))
            key, value = (part and part[:MAX_CUT_BYTES] for part in (key, value))
        self._waiting.append(OutRecord(self._topic, key, value, headers=headers))
        self._offsets.append(offset)

    def take(self, end_offset: int | None = None) -> list[OutRecord]:
        """The dead letters since the last call, optionally only those below this offset of the log."""
        if not self._waiting:
            return []
        end = len(self._waiting) if end_offset is None else bisect_left(self._offsets, end_offset)
        letters, self._waiting = self._waiting[:end], self._waiting[end:]
        self._offsets = self._offsets[end:]
        return letters
