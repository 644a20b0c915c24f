"""Reads ends of topics for the command line: no consumer group, nothing committed, bounded in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple, Self, TypeVar

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import AuthorizationError, KafkaError

from infra.console.errors import HarmonyError
from infra.kafka.clients import LoginWatch
from infra.kafka.readable import read_within_bounds
from infra.settings.brokers import OR_START_ONE, bootstrap_servers
from streams.runtime.transactions import LogEnd, OpenTransaction, TransactionWatch, overdue

T = TypeVar("T")

STRETCH = 1_000
POLL_MS = 250
# The client itself hears of new partitions within five minutes.
_COUNTED_EVERY_S = 30.0


class TailRecord(NamedTuple):
    """One record with its place in the log."""

    partition: int
    offset: int
    stamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class TopicTail:
    """Committed records of one topic, read from its end backwards or from now on; use as a context manager.

    Args:
        brokers: `host:port`, several separated by commas.
        topic: full name.
        timeout_s: a read that brings nothing for so long fails.
        security: keyword arguments of kafka-python's clients.
        committed: False = records of open and of aborted transactions as well.

    Raises:
        HarmonyError: no broker answers, the topic does not exist, or it may not be read.
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        timeout_s: float = 20.0,
        security: Mapping[str, Any] | None = None,
        *,
        committed: bool = True,
    ) -> None:
        self._brokers, self._topic, self._timeout_s = brokers, topic, timeout_s
        servers = bootstrap_servers(brokers, security, OR_START_ONE)
        read_within_bounds()
        with LoginWatch(brokers, security) as login, self._explained(login):
            self._consumer = KafkaConsumer(
                bootstrap_servers=servers,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                isolation_level="read_committed" if committed else "read_uncommitted",
                client_id="harmony-operate",
                **(security or {}),
            )
        try:
            with self._explained():
                partitions = self._consumer.partitions_for_topic(topic)
            if not partitions:
                raise HarmonyError(
                    f"There is no topic {topic} at {brokers}. Check the prefix in harmony.yaml, "
                    "or create the topics with `harmony topics create`."
                )
        except BaseException:
            self._consumer.close()
            raise
        self._tps = [TopicPartition(topic, p) for p in sorted(partitions)]
        self._last_count_s = monotonic()
        self._transactions = TransactionWatch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Per partition: first retained offset, and the last stable one, before which no transaction is open."""
        with self._explained():
            begin, end = self._consumer.beginning_offsets(self._tps), self._consumer.end_offsets(self._tps)
        return {tp.partition: (begin[tp], end[tp]) for tp in self._tps}

    def read(self, spans: Mapping[int, tuple[int, int]]) -> Iterator[TailRecord]:
        """Every record with start <= offset < end, partitions interleaved, offsets ascending."""
        open_spans = {p: span for p, span in spans.items() if span[0] < span[1]}
        self._position({p: start for p, (start, _) in open_spans.items()})
        deadline = monotonic() + self._timeout_s
        while open_spans:
            if monotonic() > deadline:
                raise HarmonyError(
                    f"Reading {self._topic} at {self._brokers} made no progress for {self._timeout_s:g} s. "
                    "Check the brokers, or try again."
                )
            for tp, records in self._poll().items():
                deadline = monotonic() + self._timeout_s
                for r in records:
                    if tp.partition in open_spans and r.offset < open_spans[tp.partition][1]:
                        yield tail_record(r)
            for p in list(open_spans):
                # Positions, not records: the last offsets of a log may hold no record (transaction markers).
                if self._consumer.position(TopicPartition(self._topic, p)) >= open_spans[p][1]:
                    del open_spans[p]
                    self._consumer.pause(TopicPartition(self._topic, p))

    def back(self, stretch: int = STRETCH) -> Iterator[list[TailRecord]]:
        """Growing stretches from the end of every partition back to its start, newest stretch first.

        Each stretch is ascending in time. Stop iterating when enough was seen.
        """
        bounds = self.bounds()
        upper = {p: end for p, (_, end) in bounds.items()}
        while any(upper[p] > begin for p, (begin, _) in bounds.items()):
            lower = {p: max(begin, upper[p] - stretch) for p, (begin, _) in bounds.items()}
            records = list(self.read({p: (lower[p], upper[p]) for p in upper}))
            yield sorted(records, key=lambda r: (r.stamp_ms, r.partition, r.offset))
            upper = lower
            stretch *= 4

    def since(self, stamp_ms: int, most: int) -> tuple[list[TailRecord], int]:
        """The newest records since an instant, at most `most` of each partition, and how many offsets before them."""
        with self._explained():
            first = self._consumer.offsets_for_times(dict.fromkeys(self._tps, stamp_ms))
        ends = {partition: end for partition, (_, end) in self.bounds().items()}
        starts = {tp.partition: at.offset if at is not None else ends[tp.partition] for tp, at in first.items()}
        spans = {
            partition: (max(start, ends[partition] - most), ends[partition]) for partition, start in starts.items()
        }
        return list(self.read(spans)), sum(spans[partition][0] - start for partition, start in starts.items())

    def follow(self, *, from_beginning: bool = False, idle_s: float | None = None) -> Iterator[TailRecord]:
        """Records that arrive after this call, for ever.

        Args:
            from_beginning: first those that the topic has.
            idle_s: end when no record came for so long.

        Raises:
            HarmonyError: on the way, also where the topic has got partitions that are not read.
        """
        self._position({p: begin if from_beginning else end for p, (begin, end) in self.bounds().items()})
        return self._following(idle_s)

    def open_transactions(self) -> list[OpenTransaction]:
        """Transactions that have held up the reading for long, as far as calls of this method and of `poll` show."""
        with self._explained():
            ends = {
                (tp.topic, tp.partition): LogEnd(reached, high_watermark)
                for tp in self._tps
                if (high_watermark := self._consumer.highwater(tp)) is not None
                and (reached := self._reached(tp)) is not None
            }
            late = overdue(self._transactions.look(ends, monotonic()))
            tps = [TopicPartition(one.topic, one.partition) for one in late]
            stable = _unless_away(lambda: self._consumer.end_offsets(tps)) if tps else None
        # Reading may stand still for other reasons, too.
        return [one for one, tp in zip(late, tps, strict=True) if stable and stable[tp] == one.first_offset]

    def _following(self, idle_s: float | None) -> Iterator[TailRecord]:
        last_s = monotonic()
        while idle_s is None or monotonic() - last_s < idle_s:
            self._refuse_new_partitions()
            for records in self._poll().values():
                for r in records:
                    yield tail_record(r)
                    last_s = monotonic()

    def _position(self, offsets: Mapping[int, int]) -> None:
        tps = {TopicPartition(self._topic, p): offset for p, offset in offsets.items()}
        self._consumer.assign(list(tps))
        self._consumer.resume(*tps)  # the client keeps the pause of a partition that was assigned before
        for tp, offset in tps.items():
            self._consumer.seek(tp, offset)

    def _refuse_new_partitions(self) -> None:
        """Who reads on for ever must not pass over, without a word, what comes on partitions that there were not."""
        if monotonic() - self._last_count_s < _COUNTED_EVERY_S:
            return
        self._last_count_s = monotonic()
        with self._explained():
            count = len(self._consumer.partitions_for_topic(self._topic) or ())
        if count > len(self._tps):
            raise HarmonyError(
                f"{self._topic} at {self._brokers} has {count} partitions now, {len(self._tps)} when this began to "
                "read them. Start again to read them all."
            )

    def _reached(self, tp: TopicPartition) -> int | None:
        """Offset of the next record; None while brokers are away, as the client asks them for it after a change."""
        return _unless_away(lambda: int(self._consumer.position(tp)))

    def _poll(self) -> dict[Any, list[Any]]:
        with self._explained():
            return dict(self._consumer.poll(timeout_ms=POLL_MS))

    @contextmanager
    def _explained(self, login: LoginWatch | None = None) -> Iterator[None]:
        try:
            yield
        except AuthorizationError as error:
            raise HarmonyError(
                f"The brokers at {self._brokers} refuse to let {self._topic} be read: {error}."
            ) from error
        except (KafkaError, ValueError, OSError) as error:
            login_problem = login.reason() if login is not None else None
            reason = str(error).rstrip(".")
            raise HarmonyError(
                login_problem or f"Reading {self._topic} at {self._brokers} failed: {reason}."
            ) from error


def _unless_away(ask: Callable[[], T]) -> T | None:
    """What brokers answer; None where the client would ask again, as whoever reads on does with the next call."""
    try:
        return ask()
    except KafkaError as error:
        if not error.retriable:
            raise
        return None


def tail_record(r: Any) -> TailRecord:
    """A record of either client library; a header without a value says as much as an empty one."""
    headers = tuple((str(name), bytes(value or b"")) for name, value in (r.headers or ()))
    return TailRecord(r.partition, r.offset, r.timestamp, r.key, r.value, headers)
