"""Stage 1 as a Faust agent: telemetry batches into ingest lanes, pages as commit records."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Any

from streams.catalogue import Indicator, Source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel, TelemetryProblem
from streams.log import Emission, LogRecord
from streams.pages.codec import PageAssembler
from streams.runtime.app import StageHost
from streams.runtime.lane import BatchRule
from streams.runtime.restore import LogReader
from streams.topics import Topics

FoldObserver = Callable[[IngestKernel], None]


class IngestLane:
    """The ingest kernel as a lane; the observer gets it once when restored, then after each batch."""

    def __init__(self, kernel: IngestKernel, observe: FoldObserver) -> None:
        self.kernel = kernel
        self._observe = observe
        observe(kernel)

    @property
    def resume_offset(self) -> int | None:
        return self.kernel.resume_offset

    def skip_lost(self, first_offset: int) -> None:
        self.kernel.skip_lost(first_offset)

    def closed_slot(self) -> tuple[Source, int | None]:
        """The source, and its newest closed slot; None before the first."""
        return self.kernel.source, self.kernel.last_closed

    @property
    def behind_ms(self) -> int:
        """How far stream time lay behind the broker's stamp of the newest record."""
        return self.kernel.behind_ms

    def problems(self) -> list[TelemetryProblem]:
        """Telemetry that was accepted and cannot be used."""
        return self.kernel.problems()

    async def fold(self, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
        for emission in self.kernel.fold(records):
            yield emission
        self._observe(self.kernel)


class IngestStage:
    """Restores one kernel per (telemetry topic, partition) from the pages of its chain."""

    name = "ingest"
    # A tick closes its slot at once; a slot that samples alone close waits for others of theirs.
    batch_rule = BatchRule(urgent=lambda record: record.key is None)

    def __init__(
        self,
        config: StreamConfig,
        catalogue: tuple[Indicator, ...],
        topics: Topics,
        observe: FoldObserver = lambda _kernel: None,
        declared: Collection[str] = (),
    ) -> None:
        self._config = config
        self._catalogue = catalogue
        self._topics = topics
        self._observe = observe
        self._declared = frozenset(declared)
        self._source_of: dict[str, Source] = {topics.telemetry_gpu: "gpu", topics.telemetry_requests: "requests"}

    @property
    def input_topics(self) -> tuple[str, ...]:
        return tuple(self._source_of)

    async def restore(self, topic: str, partition: int, reader: LogReader) -> IngestLane:
        self._topics.check_partition(topic, partition)
        source = self._source_of[topic]
        begin, end = await reader.bounds(self._topics.pages, partition)
        span = 4 * self._config.context_steps  # pages read back; the chain may need more of them
        while True:
            start = max(begin, end - span)
            where = f"{self._topics.pages}/{partition}"
            assembler = PageAssembler(self._config, self._topics.partitions, self._catalogue, where, sources=(source,))
            pages = []
            async for record in reader.read(self._topics.pages, partition, start, end):
                pages += [(p.page, p.digest) for p in assembler.feed(record)]
            first = pages[0][0].prev is None if pages else False
            if start == begin or first or len(pages) > self._config.context_steps:
                break
            span *= 4
        kernel = IngestKernel.restore(
            partition, source, self._config, self._catalogue, self._topics, pages, self._declared
        )
        return IngestLane(kernel, self._observe)


def register_ingest_agents(host: StageHost, stage: IngestStage) -> list[Any]:
    """Declare one agent per telemetry topic."""

    async def ingest(stream: Any) -> None:
        async for batch in stream:
            await host.accept(batch)

    return [
        host.app.agent(host.batch_topic(topic), name=f"ingest-{topic.rsplit('.', 1)[-1]}")(ingest)
        for topic in stage.input_topics
    ]
