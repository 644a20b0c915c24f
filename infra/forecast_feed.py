"""Forecasts and pages as they are published, handed to a scorecard: what was said, and what then was observed."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any, Self

import msgspec
import numpy as np
from kafka.errors import KafkaError

from agents.forecast.kernel import STAGE
from agents.records import ForecastRecord
from infra.console.errors import HarmonyError
from infra.demo.lockstep import POLL_MS, reader_from_now
from infra.demo.scores import Scorecard
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.config import StreamConfig
from streams.log import UNREADABLE, ContractBroken, LogRecord
from streams.pages.codec import PageAssembler
from streams.pages.page import Page
from streams.runtime.commits import CommitAssembler
from streams.topics import Topics


class _Committed(msgspec.Struct):
    """Of the body of a commit record, the slot that was answered in full."""

    slot: int


class ForecastFeed:
    """Reads the topics `forecasts`, `pages` and `commits` from now on, in no consumer group, and scores one workload.

    The pages are what the forecast stage itself reads, so a forecast is held against exactly the values that it was
    about. The commit record of a slot comes after its forecasts, as the decision does not.
    """

    def __init__(
        self,
        brokers: str,
        topics: Topics,
        stream: StreamConfig,
        workload: str,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        self._topics, self._workload = topics, workload
        self._consumer = reader_from_now(brokers, _read(topics), topics.partitions, security)
        self._assemblers = [
            PageAssembler(stream, topics.partitions, DEFAULT_CATALOGUE) for _ in range(topics.partitions)
        ]
        self._commits = [CommitAssembler(STAGE, p, topics.commits) for p in range(topics.partitions)]
        # Newest closed slot of each source in each partition; the workload lives in one of them.
        self._closed: dict[tuple[int, Source], int] = {}
        self._home: int | None = None
        self.scorecard = Scorecard(stream.step_ms, stream.context_steps)

    def poll(self, timeout_ms: int = 0) -> None:
        """Take in what has arrived, and score what can be scored."""
        try:
            batches = self._consumer.poll(timeout_ms=timeout_ms)
        except KafkaError as error:
            raise self._complaint(f"{type(error).__name__}: {error}") from error
        for partition, records in batches.items():
            for record in records:
                if partition.topic == self._topics.pages:
                    self._take_page(partition.partition, record)
                elif partition.topic == self._topics.commits:
                    self._take_commit(partition.partition, record)
                elif record.value is not None:
                    self._take_forecast(record.value)
        if (closed := self._closed_at_home()) is not None:
            self.scorecard.settle(closed)

    def closed_everywhere(self) -> bool:
        """Every partition has a page of both sources."""
        return len(self._closed) == len(SOURCES) * self._topics.partitions

    def drain(self, timeout_s: float, *, answered: bool = True) -> None:
        """Read to the present end of the topics, then score every forecast with what has been observed.

        Args:
            answered: first wait until all that is closed by now has been answered, forecasts and all.

        Raises:
            HarmonyError: the end was not reached in time.
        """
        deadline_s = monotonic() + timeout_s
        self._read_to_the_end(deadline_s, timeout_s)
        while answered and not self._answered_at_home():
            if monotonic() > deadline_s:
                raise self._complaint(f"the last slot's forecasts did not come within {timeout_s:g} s")
            self.poll(POLL_MS)
        # Topics are fetched independently: the commit record may be here before the forecasts.
        self._read_to_the_end(deadline_s, timeout_s)
        self.scorecard.settle(None)

    def _read_to_the_end(self, deadline_s: float, timeout_s: float) -> None:
        ends = self._consumer.end_offsets(self._consumer.assignment())
        while any(self._consumer.position(partition) < end for partition, end in ends.items()):
            if monotonic() > deadline_s:
                raise self._complaint(f"the end was not reached within {timeout_s:g} s")
            self.poll(POLL_MS)

    def _closed_at_home(self) -> int | None:
        """Newest slot of which both sources are closed in the workload's partition."""
        if self._home is None:
            return None
        return min(slot for source in SOURCES if (slot := self._closed.get((self._home, source))) is not None)

    def _answered_at_home(self) -> bool:
        closed = self._closed_at_home()
        if self._home is None or closed is None:
            return True
        commit = self._commits[self._home].newest
        return commit is not None and msgspec.msgpack.decode(commit.body, type=_Committed).slot >= closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _take_forecast(self, value: bytes) -> None:
        try:
            forecast = msgspec.json.decode(value, type=ForecastRecord)
        except UNREADABLE as error:
            raise self._complaint(f"a forecast is not as expected: {error}") from None
        if forecast.workload == self._workload:
            self.scorecard.offer(forecast)

    def _take_commit(self, partition: int, record: Any) -> None:
        try:
            self._commits[partition].feed(_log_record(record))
        except ContractBroken as error:
            raise self._complaint(str(error)) from None

    def _take_page(self, partition: int, record: Any) -> None:
        try:
            pages = self._assemblers[partition].feed(_log_record(record))
        except ContractBroken as error:
            raise self._complaint(str(error)) from None
        for stored in pages:
            page = stored.page
            self._closed[partition, page.source] = max(page.slot, self._closed.get((partition, page.source), page.slot))
            if self._workload in page.workloads:
                self._home = partition
                self.scorecard.observe(page.slot, _observed(page, self._workload))

    def _complaint(self, reason: str) -> HarmonyError:
        return HarmonyError(
            f"{', '.join(_read(self._topics))} cannot be read ({reason}); check that the broker and the workers run"
            " and that nothing else writes to these topics."
        )


def _read(topics: Topics) -> tuple[str, ...]:
    return topics.forecasts, topics.pages, topics.commits


def _log_record(record: Any) -> LogRecord:
    return LogRecord(record.offset, record.timestamp, record.key, record.value)


def _observed(page: Page, workload: str) -> dict[str, float]:
    row = page.workloads.index(workload)
    return {page.indicators[n]: float(page.values[row, n]) for n in np.flatnonzero(page.observed[row])}
