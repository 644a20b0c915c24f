"""Turns closed slots into the records of their pages, chained one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from streams.catalogue import Indicator, Source
from streams.config import StreamConfig
from streams.ingest.aggregate import ClosedSlot
from streams.ingest.slots import OpenSlot
from streams.log import OutRecord
from streams.pages.codec import FORMAT, PageHeader, seal_page
from streams.pages.page import Counters
from streams.records.facts import Control
from streams.topics import Topics


@dataclass(slots=True)
class DueSlot:
    """A slot that a record has closed, with the state of the partition at that record.

    `letters` are published before its page; None where the same record closes another slot after this one.
    """

    slot: int
    opened: OpenSlot
    offset: int
    stamp_ms: int
    resume_offset: int
    controls: tuple[Control, ...]
    counters: Counters
    letters: list[OutRecord] | None = None


class PageWriter:
    """Writes the pages of one partition of one source.

    Args:
        partition: of `pages`.
        source: which chain.
        config: slot length and grace, which a page names.
        indicators: columns of the page.
        topics: names and number of partitions.

    Attributes:
        num_pages: written by this process.
    """

    def __init__(
        self, partition: int, source: Source, config: StreamConfig, indicators: Sequence[Indicator], topics: Topics
    ) -> None:
        self.num_pages = 0
        self._partition = partition
        self._source: Source = source
        self._config = config
        self._names = tuple(i.name for i in indicators)
        self._topics = topics
        self._prev: tuple[int, str] | None = None

    def follow(self, slot: int, digest: str) -> None:
        """Continue the chain after this page."""
        self._prev = (slot, digest)

    def page(self, due: DueSlot, closed: ClosedSlot, num_refused: int) -> list[OutRecord]:
        """The records of a page; `num_refused` samples were refused since the counters of the slot were read."""
        counters = due.counters
        if num_refused:
            counters = replace(counters, refused=counters.refused + num_refused)
        header = PageHeader(
            v=FORMAT,
            source=self._source,
            partition=self._partition,
            num_partitions=self._topics.partitions,
            slot=due.slot,
            prev=self._prev[0] if self._prev else None,
            prev_digest=self._prev[1] if self._prev else None,
            end_offset=due.offset,
            end_stamp_ms=due.stamp_ms,
            resume_offset=due.resume_offset,
            step_ms=self._config.step_ms,
            grace_ms=self._config.grace_ms,
            indicators=self._names,
            workloads=closed.workloads,
            facts=closed.facts,
            series=closed.series,
            controls=due.controls,
            counters=counters,
        )
        encoded = seal_page(header, closed.values, closed.observed)
        self.follow(due.slot, encoded.digest)
        self.num_pages += 1
        return [OutRecord(self._topics.pages, key, value, self._partition) for key, value in encoded.records]
