"""The newest dead letters, as the page shows them: where from and why, never what was in them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from infra.explain.dead_letters import DeadLetterView, read_letter
from infra.kafka.tail import TailRecord

MAX_LETTERS: Final = 200
_MOST_CHARS = 300


class LetterMemory:
    """Keeps the newest letters.

    Attributes:
        note: why none can be read; empty when they can.
    """

    def __init__(self, most: int = MAX_LETTERS) -> None:
        self._letters: deque[DeadLetterView] = deque(maxlen=most)
        self.note = ""

    def take(self, record: TailRecord) -> None:
        """A record of the topic."""
        self._letters.append(read_letter(record))

    def __len__(self) -> int:
        return len(self._letters)

    def told(self) -> dict[str, Any]:
        """As sent: how many of each reason, and the letters, newest first."""
        newest: Sequence[DeadLetterView] = sorted(self._letters, key=lambda x: x.stamp_ms, reverse=True)
        return {
            "note": self.note,
            "most": self._letters.maxlen,
            "reasons": dict(Counter(x.reason[:_MOST_CHARS] for x in newest).most_common(30)),
            "letters": [_told(x) for x in newest],
        }


def _told(x: DeadLetterView) -> dict[str, Any]:
    return {
        "place": x.place,
        "stamp_ms": x.stamp_ms,
        "topic": x.topic[:_MOST_CHARS],
        "partition": x.partition,
        "offset": x.offset,
        "reason": x.reason[:_MOST_CHARS],
        "detail": x.detail[:_MOST_CHARS],
        "key": None if x.key is None else x.key[:_MOST_CHARS].decode("utf-8", "replace"),
        "bytes": None if x.value is None else len(x.value),
    }
