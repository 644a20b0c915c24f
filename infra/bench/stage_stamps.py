"""Where a decision's time went, by the broker's stamps: read back from the topics once nothing is measured any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple

from agents.planning.codec import slot_of_plan
from infra.lab.bench.live_loop import PARTITIONS, LiveLoop
from infra.lab.bench.report import percentile
from streams.log import LogRecord
from streams.pages.codec import slot_of_page
from streams.runtime.restore import LogReader

Place = tuple[int, int]
"""A partition of the pages, and a slot."""


class StageStamps(NamedTuple):
    """When the broker had the last page of each slot, and its plan, ms since the epoch."""

    pages: Mapping[Place, int]
    plans: Mapping[Place, int]


async def read_stamps(loop: LiveLoop, since_ms: int) -> StageStamps:
    """Those of the records from this stamp on, up to the end of the topics."""
    pages: dict[Place, int] = {}
    plans: dict[Place, int] = {}
    async with LogReader({"bootstrap_servers": loop.brokers}) as reader:
        for partition in range(PARTITIONS):
            async for record in _since(reader, loop.topics.pages, partition, since_ms):
                pages[partition, slot_of_page(record.key)] = record.stamp_ms
        async for record in _since(reader, loop.topics.plans, 0, since_ms):
            assert record.key is not None
            plans[int(record.key), slot_of_plan(record.value, record.offset)] = record.stamp_ms
    return StageStamps(pages, plans)


async def _since(reader: LogReader, topic: str, partition: int, since_ms: int) -> AsyncIterator[LogRecord]:
    start, (_, end) = await reader.offset_at(topic, partition, since_ms), await reader.bounds(topic, partition)
    async for record in reader.read(topic, partition, start, end):
        yield record


def parts_ms(
    decided: Mapping[tuple[str, int], int],
    partition: Mapping[str, int],
    ticks: Mapping[int, Mapping[int, int]],
    stamps: StageStamps,
    origins: Iterable[int],
    step_ms: int,
) -> dict[str, dict[str, float]]:
    """Each decision's way in three parts: from the tick to its page, from there to its plan, from there to itself.

    Args:
        decided: stamps of decisions by workload and origin.
        partition: of each workload.
        ticks: stamps of the ticks that closed a slot, by origin and partition.
        origins: of the slots to look at.

    Returns:
        Median and 99th percentile of each part, ms; empty where there are no such decisions.
    """
    parts: dict[str, list[int]] = {"page": [], "plan": [], "decision": []}
    wanted = set(origins)
    for (name, origin), decision in decided.items():
        place = partition[name], origin // step_ms - 1
        if origin in wanted and place in stamps.pages and place in stamps.plans:
            page, plan = stamps.pages[place], stamps.plans[place]
            parts["page"].append(page - ticks[origin][place[0]])
            parts["plan"].append(plan - page)
            parts["decision"].append(decision - plan)
    return {
        part: {"p50_ms": percentile(found, 0.5), "p99_ms": percentile(found, 0.99)}
        for part, found in parts.items()
        if found
    }
