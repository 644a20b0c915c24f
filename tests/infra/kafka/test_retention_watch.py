"""A log that keeps too little for the fleet is noticed while it still holds what a restart reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from infra.kafka.retention import RetentionWatch, short_logs
from infra.observability.health import Health
from tests.infra.observability.memory_loop import STREAM, MemoryLoop


async def loop_of(slots: int) -> MemoryLoop:
    loop = MemoryLoop(("a", "b"))
    for _ in range(slots):
        await loop.publish_slot()
    return loop


def test_a_kernel_tells_what_its_logs_hold_and_a_restored_one_the_same() -> None:
    loop = asyncio.run(loop_of(STREAM.context_steps))
    records = loop.logs[loop.topics.pages]
    held = sum(len(r.value or b"") for r in records)
    needed = loop.forecast.needed_bytes()[loop.topics.pages]
    assert held <= needed / 2 * (1 + 1 / STREAM.context_steps)
    assert needed <= 4 * held
    restored = MemoryLoop(("a", "b")).forecast
    for record in records:
        restored.restore_page(record)
    assert restored.needed_bytes()[loop.topics.pages] == needed

    kernels = [(0, loop.forecast), (0, loop.ingest["gpu"])]
    assert short_logs(kernels, loop.topics) == []
    (told,) = short_logs(kernels, replace(loop.topics, pages_retention_bytes=needed - 1))
    assert told.startswith("t.pages/0 should keep")


class NeedsMuch:
    def __init__(self, topic: str) -> None:
        self.topic, self.needed = topic, 1 << 40

    def needed_bytes(self) -> dict[str, int]:
        return {self.topic: self.needed}


def test_readiness_names_the_log_until_it_suffices() -> None:
    loop, health = MemoryLoop(()), Health(0.0, expected=())
    watch, kernel = RetentionWatch(loop.topics, health), NeedsMuch(loop.topics.pages)
    watch.look([(3, kernel)])
    (check,) = health.snapshot(0.0).checks
    assert (check.name, check.ok, check.required) == ("retention", False, False)
    assert "t.pages/3 should keep 1048576 MiB and keeps 16" in check.detail
    kernel.needed = 0
    watch.look([(3, kernel)])
    (check,) = health.snapshot(0.0).checks
    assert check.ok
