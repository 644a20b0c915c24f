"""Follows the output topics for the page: recent records first, then as they come, in no consumer group."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, time
from typing import Any, Final

import aiokafka
import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from infra.console.text import printable
from infra.explain.dead_letters import UNUSED, DeadLetterView, Notice, notices, read_letter
from infra.kafka.tail import TailRecord, tail_record
from infra.page.memory import FleetMemory
from streams.runtime.transactions import TransactionWatch, overdue
from streams.runtime.transport import fetched_ends, stop_in_time, tolerate_unreadable_headers
from streams.topics import Topics

# The newest dead letters, as the page shows them: where from and why, never what was in them.


MAX_LETTERS: Final = 200
_MOST_CHARS = 300


class LetterMemory:
    """Keeps the newest letters.

    Attributes:
        note: why none can be read; empty when they can.
    """

    def __init__(self, most: int = MAX_LETTERS) -> None:
        self._letters: deque[DeadLetterView] = deque(maxlen=most)
        self._notices: deque[DeadLetterView] = deque(maxlen=most)
        self.note = ""

    def take(self, record: TailRecord) -> None:
        """A record of the topic; notices are kept apart, since no record was refused."""
        letter = read_letter(record)
        if letter.reason == UNUSED:
            self._notices.append(letter)
        else:
            self._letters.append(letter)

    def notices(self, now_ms: int) -> list[Notice]:
        """What lasts of telemetry that cannot be used."""
        return notices(self._notices, now_ms)

    def __len__(self) -> int:
        return len(self._letters)

    def to_dict(self) -> dict[str, Any]:
        """As sent: how many of each reason, and the letters, newest first."""
        newest: Sequence[DeadLetterView] = sorted(self._letters, key=lambda x: x.stamp_ms, reverse=True)
        return {
            "note": self.note,
            "most": self._letters.maxlen,
            "reasons": dict(Counter(x.reason[:_MOST_CHARS] for x in newest).most_common(30)),
            "letters": [_letter_row(x) for x in newest],
        }


def _letter_row(x: DeadLetterView) -> dict[str, Any]:
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


# Records per partition that are read again at the start: hours of a small fleet, some steps of a large one.
DECISIONS_BACK: Final = 10_000
FORECASTS_BACK: Final = 2_000
PLANS_BACK: Final = 2_000
LETTERS_BACK: Final = MAX_LETTERS
# ... and no more of them than so many bytes: a record of plans holds a workload or thousands.
BACK_BYTES: Final = 64 << 20
_FETCH_BYTES = 1 << 20
_POLL_RECORDS = 400
_SLICE_S = 0.003  # after which folding gives way to the stages of the same event loop
_LONGEST_PAUSE_S = 30.0
_LONGEST_WAIT_S = 0.5  # with what was read, for the stages
_LOOK_S = 0.02
_NOTICES_EVERY_S = 2.0

log = structlog.get_logger()


class PageTail:
    """Keeps a `FleetMemory` up to date.

    Args:
        memory: to fill.
        topics: names and partition counts.
        client_options: bootstrap_servers and security of an aiokafka client.
        letters: to fill with dead letters; a user that may not read those does without.
        busy: whether somebody waits for the stages of the same event loop; then reading waits, a moment at most.

    Attributes:
        state: `reading` (recent history), `live`, or `waiting` (brokers do not answer; it tries again).
        note: why it waits, or which topic an open transaction holds up.
    """

    def __init__(
        self,
        memory: FleetMemory,
        topics: Topics,
        client_options: Mapping[str, Any],
        letters: LetterMemory | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._memory = memory
        self._letters, self._letters_topic = letters, topics.dead_letters
        self._options = dict(client_options)
        self._busy = busy
        back = {topics.decisions: DECISIONS_BACK, topics.forecasts: FORECASTS_BACK, topics.plans: PLANS_BACK}
        if letters is not None:
            back[topics.dead_letters] = LETTERS_BACK
        counts = {spec.name: spec.partitions for spec in topics.specs()}
        self._back = {TopicPartition(name, p): n for name, n in back.items() for p in range(counts[name])}
        self._positions: dict[TopicPartition, int] = {}
        self._transactions = TransactionWatch()
        self._noticed_s = float("-inf")
        self.state = "reading"
        self.note = ""

    async def run(self) -> None:
        """Read for ever; brokers that go away are waited for."""
        pause_s = 1.0
        while True:
            try:
                await self._follow()
            except TopicAuthorizationFailedError as error:
                if not self._done_without_letters():
                    self.note = printable(f"{type(error).__name__}: {error}", 200)
                    self.state = "waiting"
                    log.warning("page_reader_waits", reason=self.note)
            except (KafkaError, OSError) as error:
                was_live, self.state = self.state == "live", "waiting"
                self.note = printable(f"{type(error).__name__}: {error}", 200)
                log.warning("page_reader_waits", reason=self.note)
                pause_s = 1.0 if was_live else min(_LONGEST_PAUSE_S, 2 * pause_s)
            await asyncio.sleep(pause_s)

    def _done_without_letters(self) -> bool:
        """Read no dead letters any more; False when none were read, so that they cannot be what is forbidden."""
        if self._letters is None:
            return False
        self._letters.note = "This worker's Kafka user may not read the dead letters."
        self._letters = None
        self._back = {tp: n for tp, n in self._back.items() if tp.topic != self._letters_topic}
        return True

    async def _follow(self) -> None:
        tolerate_unreadable_headers()
        consumer = aiokafka.AIOKafkaConsumer(
            enable_auto_commit=False,
            # A position that retention has overtaken: go on with the oldest record there is.
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_bytes=4 * _FETCH_BYTES,
            client_id="harmony-page",
            **self._options,
        )
        try:
            await consumer.start()
            await asyncio.sleep(0)  # its coordinator task must have begun before `stop` may cancel it
            ends = await self._place(consumer)
            while True:
                batches = await consumer.getmany(timeout_ms=500, max_records=_POLL_RECORDS)
                if batches:
                    await self._give_way()
                for tp, records in batches.items():
                    nearer = _nearer(records, ends[tp])
                    if nearer is None:
                        await self._fold(tp, records)
                    else:
                        consumer.seek(tp, nearer)
                        self._positions[tp] = nearer
                if self.state != "live" and await _reached(consumer, ends):
                    self.state, self.note = "live", ""
                if self.state == "live":
                    late = overdue(self._transactions.look(fetched_ends(consumer, self._back), monotonic()))
                    self.note = "; ".join(one.sentence(self._options["bootstrap_servers"]) for one in late)
                self._look_at_notices()
                self._memory.sweep()
        finally:
            await stop_in_time(consumer.stop())

    def _look_at_notices(self) -> None:
        now_s = monotonic()
        if self._letters is not None and now_s - self._noticed_s > _NOTICES_EVERY_S:
            self._noticed_s = now_s
            texts: dict[str, str] = {}
            for notice in self._letters.notices(round(time() * 1000)):
                texts[notice.workload] = "; ".join(filter(None, (texts.get(notice.workload), notice.text)))
            self._memory.note(texts)

    async def _give_way(self) -> None:
        deadline = monotonic() + _LONGEST_WAIT_S
        while self._busy() and monotonic() < deadline:  # noqa: ASYNC110 - stages tell nobody when they are done
            await asyncio.sleep(_LOOK_S)

    async def _place(self, consumer: Any) -> dict[TopicPartition, int]:
        """Seek to where reading went on, or so many records before the end; returns the ends."""
        partitions = list(self._back)
        consumer.assign(partitions)
        begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        for tp in partitions:
            position = self._positions.get(tp)
            # A log that is shorter than it was is another log: its records were deleted, or the topic made anew.
            start = position if position is not None and position <= ends[tp] else ends[tp] - self._back[tp]
            consumer.seek(tp, max(begins[tp], start))
        return dict(ends)

    async def _fold(self, tp: TopicPartition, records: list[Any]) -> None:
        fold: Callable[[str, bytes | None], None] = self._memory.fold
        since_s = monotonic()
        for record in records:
            if tp.topic != self._letters_topic:
                fold(tp.topic, record.value)
            elif self._letters is not None:
                self._letters.take(tail_record(record))
            if monotonic() - since_s > _SLICE_S:
                await asyncio.sleep(0)
                since_s = monotonic()
        await asyncio.sleep(0)
        self._positions[tp] = records[-1].offset + 1


async def _reached(consumer: Any, ends: Mapping[TopicPartition, int]) -> bool:
    for tp, end in ends.items():
        if await consumer.position(tp) < end:
            return False
    return True


def _nearer(records: list[Any], end: int) -> int | None:
    """From where reading goes on, where records as large as these are too much up to the end; None = it is not."""
    size = sum(len(record.value or b"") for record in records) // len(records)
    nearest = end - max(1, BACK_BYTES // max(1, size))
    return nearest if records[-1].offset < nearest else None
