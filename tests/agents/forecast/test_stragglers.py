"""Pages that come after their slot was planned without them: what operators say in them still reaches a decision."""

from __future__ import annotations

import asyncio

import pytest

from agents.forecast.kernel import STAGE
from agents.planning.codec import decode_plan
from streams.catalogue import Source
from streams.records.facts import Control
from streams.records.schema import encode_control, encode_sample, encode_tick
from streams.runtime.commits import CommitAssembler
from tests.infra.observability.memory_loop import STREAM, MemoryLoop

AHEAD, SLOTS = 6, 10
PAUSE = Control("c-1", 0, "pause", by="op")


async def close_slot(loop: MemoryLoop, source: Source, slot: int) -> None:
    """A sample in the slot, the operator's word in the second one, and the tick that closes it."""
    at_ms = (loop.slot + slot) * STREAM.step_ms + 2_000
    value = {"requests_started_total": 10.0 * slot} if source == "requests" else {"power_w": 400.0}
    await loop.feed(source, b"a", encode_sample(source, "a", source, at_ms, value), at_ms)
    if source == "requests" and slot == 1:
        await loop.feed(source, None, encode_control(PAUSE), at_ms)
    end_ms = (loop.slot + slot + 1) * STREAM.step_ms + STREAM.grace_ms
    await loop.feed(source, None, encode_tick(end_ms), end_ms)


async def gpu_first(ahead: int) -> MemoryLoop:
    """So many slots of GPU telemetry are planned before the first page of requests is read."""
    loop = MemoryLoop(("a",))
    for slot in range(ahead):
        await close_slot(loop, "gpu", slot)
    await loop.follow()
    for slot in range(SLOTS):
        await close_slot(loop, "requests", slot)
        if slot >= ahead:
            await close_slot(loop, "gpu", slot)
    await loop.follow()
    return loop


@pytest.mark.parametrize("ahead", [0, AHEAD])
def test_an_operators_word_in_a_straggler_is_obeyed(ahead: int) -> None:
    loop = asyncio.run(gpu_first(ahead))
    plans = [decode_plan(r.value) for r in loop.logs[loop.topics.plans]]
    assert [plan.slot - loop.slot for plan in plans] == list(range(-1, SLOTS))
    assert [c.control_id for plan in plans for c in plan.controls] == ["c-1"]
    assert loop.decide.kernel.state.paused


def test_after_any_commit_record_the_word_is_told_in_the_same_plan() -> None:
    async def scene() -> None:
        loop = await gpu_first(AHEAD)
        pages, plans = loop.logs[loop.topics.pages], [r.value for r in loop.logs[loop.topics.plans]]
        assembler, restarts = CommitAssembler(STAGE, 0), 0
        for record in loop.logs[loop.topics.commits]:
            before = assembler.newest
            assembler.feed(record)
            commit = assembler.newest
            if commit is None or commit is before:
                continue
            kernel = MemoryLoop(("a",)).forecast
            body = kernel.begin_restore(commit)
            for page in pages[body.pages_from : body.resume_offset]:
                kernel.restore_page(page)
            kernel.end_restore(body, [], [])
            again = [
                out.value
                async for emission in kernel.fold(pages[body.resume_offset :])
                for group in emission.outputs
                for out in group
                if out.topic == loop.topics.plans
            ]
            assert again == plans[len(plans) - len(again) :]
            assert len(again) == loop.slot + SLOTS - 1 - body.slot
            restarts += 1
        assert restarts >= SLOTS

    asyncio.run(scene())
