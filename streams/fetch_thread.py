"""The thread that fetches: its records are lean, and it looks again when a partition has room for them.

Private hooks of aiokafka and Faust that we rely on (see `streams/runtime/transport.py`, contract tests pin them all):

| hook | use |
|---|---|
| `Fetcher._records`*, `PartitionRecords._consumer_record`* | records come out as `LogRecord`s |
| `Fetcher._fetch_max_wait_ms`* | no partition waits long behind another that has nothing new |
| `Fetcher._fetch_waiters`*, `_notify`* | whoever waits for new records looks at those that lie there |
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, Protocol, cast

from faust.transport.drivers import aiokafka as driver

from streams.farewell import take_leave
from streams.log import LogRecord
from streams.readable_records import read_any_headers

# aiokafka has one request at a time under way to a broker. One for partitions at their end, asked while what came from
# the others was not taken yet, keeps those waiting for as long as the broker may: Faust says 1.5 s.
_MAX_WAIT_MS: Final = 100


class LeanTopics(Protocol):
    """What the thread asks of its consumer."""

    def lean_topics(self) -> frozenset[str]:
        """Topics whose records the fetcher turns into `LogRecord`s."""
        ...


class _LeanResults(OrderedDict[Any, Any]):
    """What was fetched and not taken yet; its records come out as `LogRecord`s, without a larger object in between."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__()
        self._topics = topics

    def __setitem__(self, tp: Any, result: Any) -> None:
        records = getattr(result, "_partition_records", None)  # an error has none
        if records is not None and tp.topic in self._topics:
            records._consumer_record = _log_record
        super().__setitem__(tp, result)


def _log_record(_tp: Any, record: Any) -> LogRecord:
    return LogRecord(record.offset, record.timestamp, record.key, record.value)


class FetchThread(driver.AIOKafkaConsumerThread):
    """Fetches for one consumer."""

    async def on_start(self) -> None:
        read_any_headers()
        await super().on_start()
        topics = cast("LeanTopics", self.consumer).lean_topics()
        fetcher = self._ensure_consumer()._fetcher
        fetcher._records = _LeanResults(topics)
        fetcher._fetch_max_wait_ms = _MAX_WAIT_MS

    async def on_thread_stop(self) -> None:
        await take_leave(super().on_thread_stop())

    def look_again(self) -> None:
        """Have the fetcher look at what it holds, now that a partition has room; from any thread.

        A fetcher that was asked for the other partitions only waits for the broker's next answer. While what it
        holds is not taken it asks the broker for nothing, so stock Faust slept out its second here.
        """
        self.thread_loop.call_soon_threadsafe(self._wake_fetcher)

    def _wake_fetcher(self) -> None:
        if self._consumer is None:
            return
        fetcher = self._consumer._fetcher
        for waiter in tuple(fetcher._fetch_waiters):
            fetcher._notify(waiter)
