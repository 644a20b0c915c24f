"""Where a decision's time went, by the broker's stamps: read back from the topics once nothing is measured any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from agents.plan_codec import slot_of_plan
from infra.bench.live_loop import PARTITIONS, LiveLoop
from infra.bench.report import percentile
from streams.page_codec import slot_of_page

_SOON_MS = 500

Place = tuple[int, int]
"""A partition of the pages, and a slot."""


class StageStamps(NamedTuple):
    """When the broker had the last page of each slot, and its plan, ms since the epoch."""

    pages: Mapping[Place, int]
    plans: Mapping[Place, int]


async def read_stamps(loop: LiveLoop, since_ms: int) -> StageStamps:
    """Those of the records from this stamp on, up to the end of the topics."""
    pages: dict[Place, int] = {}
    async for record in _records(loop.brokers, loop.topics.pages, range(PARTITIONS), since_ms):
        place = record.partition, slot_of_page(record.key)
        pages[place] = max(record.timestamp, pages.get(place, 0))
    plans: dict[Place, int] = {}
    async for record in _records(loop.brokers, loop.topics.plans, (0,), since_ms):
        plans.setdefault((int(record.key), slot_of_plan(record.value, record.offset)), record.timestamp)
    return StageStamps(pages, plans)


async def _records(brokers: str, topic: str, partitions: Iterable[int], since_ms: int) -> AsyncIterator[Any]:
    """Every record of the topic that the broker has stamped since, up to its present end."""
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, enable_auto_commit=False)
    await consumer.start()
    try:
        places = [TopicPartition(topic, p) for p in partitions]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        begins = await consumer.offsets_for_times(dict.fromkeys(places, since_ms))
        for place in places:
            consumer.seek(place, begins[place].offset if begins[place] is not None else ends[place])
        while [p for p in places if await consumer.position(p) < ends[p]]:
            for place, found in (await consumer.getmany(timeout_ms=_SOON_MS)).items():
                for record in found:
                    if record.offset < ends[place]:
                        yield record
    finally:
        await consumer.stop()


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
