"""Stage 2 as a Faust agent: pages into forecast lanes, one micro-batcher for all of a worker's partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents.forecast.commit import CommitBody
from agents.forecast.kernel import STAGE, ForecastKernel
from agents.planning.codec import plan_key
from streams.catalogue import Source
from streams.log import ContractBroken
from streams.pages.page import Page
from streams.runtime.app import StageHost
from streams.runtime.commits import newest_commit
from streams.runtime.restore import LogReader, report_lost_history
from streams.topics import Topics
from streams.windows.coarse import read_coarse_week

_CLOCK_SLACK_MS = 60_000


class ForecastStage:
    """Restores a kernel per pages partition: its commit record, the last L pages, coarse rows, published plans."""

    name = STAGE
    batch_rule = None

    def __init__(self, topics: Topics, new_kernel: Callable[[int], ForecastKernel]) -> None:
        self._topics = topics
        self._new_kernel = new_kernel

    @property
    def input_topics(self) -> tuple[str, ...]:
        return (self._topics.pages,)

    async def restore(self, topic: str, partition: int, reader: LogReader) -> ForecastKernel:
        self._topics.check_partition(topic, partition)
        kernel = self._new_kernel(partition)
        commit = await newest_commit(reader, self._topics.commits, STAGE, partition)
        if commit is None:
            return kernel
        body = kernel.begin_restore(commit)
        start = await self._first_page(topic, partition, reader, kernel, body)
        async for record in reader.read(topic, partition, start, body.resume_offset):
            kernel.restore_page(record)
        coarse = await read_coarse_week(reader, self._topics.pages_coarse, partition, body.newest_coarse)
        since = await reader.offset_at(self._topics.plans, 0, commit.stamp_ms - _CLOCK_SLACK_MS)
        _, end = await reader.bounds(self._topics.plans, 0)
        key = plan_key(partition)
        plans = [r async for r in reader.read(self._topics.plans, 0, since, end) if r.key == key]
        lost_rows = kernel.end_restore(body, coarse, plans)
        if lost_rows and (await reader.bounds(self._topics.pages_coarse, partition))[0] > 0:
            report_lost_history(self._topics.pages_coarse, partition, lost_rows)
        return kernel

    async def _first_page(
        self, topic: str, partition: int, reader: LogReader, kernel: ForecastKernel, body: CommitBody
    ) -> int:
        """Offset from which the rings can be filled; further back than the commit says when L has grown since."""
        context_steps = kernel.table.context_steps
        if context_steps <= body.context_steps:
            return body.pages_from
        begin, _ = await reader.bounds(topic, partition)
        first_slot, stretch = body.slot - context_steps + 1, 4 * context_steps
        while True:
            start = max(begin, body.pages_from - stretch)
            assembler = kernel.new_assembler()
            oldest: dict[Source, Page] = {}
            async for record in reader.read(topic, partition, start, body.resume_offset):
                for stored in assembler.feed(record):
                    oldest.setdefault(stored.page.source, stored.page)
            if all(page.slot <= first_slot or page.prev is None for page in oldest.values()):
                return start
            if start == begin:
                raise ContractBroken(
                    f"{topic}/{partition}: context_steps is {context_steps} now, and the pages before offset {begin} "
                    f"that it needs are gone: go back to {body.context_steps}, or accept a new start with "
                    "`harmony state reset`"
                )
            stretch *= 4


def register_forecast_agent(host: StageHost, stage: ForecastStage) -> Any:
    """Declare the agent over the pages topic."""

    async def forecast(stream: Any) -> None:
        async for batch in stream:
            await host.accept(batch)

    return host.app.agent(host.batch_topic(stage.input_topics[0]), name="forecast")(forecast)
