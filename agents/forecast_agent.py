"""Stage 2 as a Faust agent: pages into forecast lanes, one micro-batcher for all of a worker's partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents.forecast_kernel import STAGE, ForecastKernel
from streams.commit_codec import CommitAssembler, commit_key
from streams.log_reader import LogReader
from streams.stage_app import StageHost
from streams.topics import Topics
from streams.window_table import COARSE_ROWS

_CLOCK_SLACK_MS = 60_000


class ForecastStage:
    """Restores a kernel per pages partition: its commit record, the last L pages, coarse rows, published plans."""

    name = STAGE

    def __init__(self, topics: Topics, new_kernel: Callable[[int], ForecastKernel]) -> None:
        self._topics = topics
        self._new_kernel = new_kernel

    @property
    def input_topics(self) -> tuple[str, ...]:
        return (self._topics.pages,)

    async def restore(self, topic: str, partition: int, reader: LogReader) -> ForecastKernel:
        kernel = self._new_kernel(partition)
        commit = await newest_commit(reader, self._topics.commits, STAGE, partition)
        if commit is None:
            return kernel
        body = kernel.begin_restore(commit)
        async for record in reader.read(topic, partition, body.pages_from, body.resume_offset):
            kernel.restore_page(record)
        begin, end = await reader.bounds(self._topics.pages_coarse, partition)
        start = max(begin, end - 2 * COARSE_ROWS)
        coarse = [r.value async for r in reader.read(self._topics.pages_coarse, partition, start, end) if r.value]
        since = await reader.offset_at(self._topics.plans, 0, commit.stamp_ms - _CLOCK_SLACK_MS)
        _, end = await reader.bounds(self._topics.plans, 0)
        plans = [r.value async for r in reader.read(self._topics.plans, 0, since, end) if r.value]
        kernel.end_restore(body, coarse, plans)
        return kernel


async def newest_commit(reader: LogReader, topic: str, stage: str, partition: int) -> Any:
    """The newest complete commit record of a stage in its commits partition, or None."""
    last = await reader.last_with_key(topic, partition, commit_key(stage, partition))
    if last is None:
        return None
    begin, _ = await reader.bounds(topic, partition)
    stretch = 64
    while True:
        start = max(begin, last.offset + 1 - stretch)
        assembler = CommitAssembler(stage, partition)
        async for record in reader.read(topic, partition, start, last.offset + 1):
            assembler.feed(record)
        if assembler.newest is not None or start == begin:
            return assembler.newest
        stretch *= 4


def register_forecast_agent(host: StageHost, stage: ForecastStage) -> Any:
    """Declare the agent over the pages topic."""

    async def forecast(stream: Any) -> None:
        async for batch in stream:
            await host.accept(batch)

    return host.app.agent(host.batch_topic(stage.input_topics[0]), name="forecast")(forecast)
