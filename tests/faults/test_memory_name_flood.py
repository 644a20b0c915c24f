"""Thousands of undeclared names within a slot, then silence: declared workloads are planned and decided as before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import process_time

import pytest

from agents.planning.codec import decode_plan
from infra.lab.bench.live_loop import spec_of
from infra.lab.bench.scale import Planning
from streams.catalogue import DEFAULT_CATALOGUE, SOURCES
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample, encode_tick
from streams.topics import Topics

STREAM = StreamConfig(step_ms=5_000, grace_ms=1_000, skew_ms=500, context_steps=32)
UNBOUNDED = replace(STREAM, max_undeclared=2 * STREAM.max_workloads)
TOPICS = Topics("flood.", 1)
DECLARED = [f"prod/service-{n}" for n in range(10)]
FIRST_SLOT, FLOOD_SLOT, SLOTS = 350_000_000, 3, 9
SILENT = STREAM.source_silence_steps  # slots until a name counts as silent
NAMES = 1_000


@dataclass
class Slot:
    """What a slot cost after its pages, and the workloads planned, in order."""

    cpu_s: float
    planned: list[str]


class Partition:
    """One partition of all three stages, in memory."""

    def __init__(self, stream: StreamConfig, declared: list[str]) -> None:
        self.stream, self.declared, self.slot = stream, declared, 0
        self.planning = Planning([spec_of(name) for name in declared], stream, TOPICS)
        self.ingest = {s: IngestKernel(0, s, stream, DEFAULT_CATALOGUE, TOPICS, declared) for s in SOURCES}
        self._offsets: dict[str, int] = {}

    def _record(self, log: str, stamp_ms: int, key: bytes | None, value: bytes | None) -> LogRecord:
        self._offsets[log] = offset = self._offsets.get(log, -1) + 1
        return LogRecord(offset, stamp_ms, key, value)

    def sample(self, name: str, end_ms: int) -> LogRecord:
        values: dict[str, float | None] = {"requests_started_total": 100.0 * self.slot, "num_requests_running": 3.0}
        value = encode_sample("requests", name, "r0", end_ms - 100, values)
        return self._record("requests", end_ms, name.encode(), value)

    async def close_slot(self, flood: Iterable[str] = ()) -> Slot:
        """Names that nobody has heard of, then those declared, then silence to the end of the slot."""
        end_ms = (FIRST_SLOT + self.slot + 1) * self.stream.step_ms
        closed_ms = end_ms + self.stream.grace_ms
        records = [self.sample(name, end_ms) for name in flood]
        for name in self.declared:
            records.append(self.sample(name, end_ms))
            fleet = encode_fleet(name, "k8s", FleetFacts(end_ms - 1, 3, 0, 0))
            records.append(self._record("requests", end_ms, name.encode(), fleet))
        emissions = self.ingest["requests"].fold(records)
        for source, kernel in self.ingest.items():
            emissions += kernel.fold([self._record(source, closed_ms, None, encode_tick(closed_ms))])
        pages = [self._record("pages", closed_ms, o.key, o.value) for e in emissions for o in e.commits]
        began = process_time()
        plans = self.planning.plans_of([e async for e in self.planning.forecast.fold(pages)], closed_ms)
        for plan in plans:
            self.planning.decide.fold(plan)
        cpu_s = process_time() - began
        self.slot += 1
        return Slot(cpu_s, [w.workload for plan in plans for w in decode_plan(plan.value).workloads])


@contextmanager
def partition(stream: StreamConfig = STREAM) -> Iterator[Partition]:
    made = Partition(stream, DECLARED)
    try:
        yield made
    finally:
        made.planning.close()


def names(number: int, namespace: str = "flood") -> Iterator[str]:
    return (f"{namespace}/{n:06d}" for n in range(number))


async def flooded(stream: StreamConfig, number: int) -> list[Slot]:
    with partition(stream) as made:
        slots = [await made.close_slot(names(number) if n == FLOOD_SLOT else ()) for n in range(SLOTS)]
        assert len(made.planning.decide.state.workloads) == len(slots[-1].planned)
    return slots


async def test_a_flood_of_names_leaves_room_and_time_for_declared_workloads() -> None:
    slots, unbounded = await flooded(STREAM, NAMES), await flooded(UNBOUNDED, NAMES)
    share = STREAM.max_undeclared // 2
    for slot in slots[FLOOD_SLOT:]:
        assert slot.planned[: len(DECLARED)] == DECLARED  # before the others
        assert len(slot.planned) == len(DECLARED) + share  # a namespace has half of the room for undeclared ones
    # The control arm: without the bound every name is planned and decided in every slot.
    assert [len(slot.planned) for slot in unbounded[FLOOD_SLOT:]] == [len(DECLARED) + NAMES] * (SLOTS - FLOOD_SLOT)
    costs = [min(slot.cpu_s for slot in run[FLOOD_SLOT + SILENT :]) for run in (slots, unbounded)]
    print(f"{costs[0]:.3f} s of CPU per slot, without the bound {costs[1]:.3f} s")
    assert costs[0] < costs[1] / 2


async def test_a_flood_in_one_namespace_costs_only_that_one() -> None:
    with partition() as made:
        await made.close_slot()
        await made.close_slot(names(NAMES))
        others = list(names(50, "other"))
        slot = await made.close_slot(others)
        assert set(others) <= set(slot.planned)


async def test_a_declared_workload_is_admitted_when_the_flood_was_there_first() -> None:
    small = replace(STREAM, max_workloads=20, max_undeclared=20)
    spaces = [f"space-{n}/x" for n in range(200)]
    with partition(small) as made:
        await made.close_slot(spaces)
        slot = await made.close_slot(spaces)
        assert slot.planned[: len(DECLARED)] == DECLARED
        assert len(set(slot.planned)) == small.max_workloads


def test_names_beyond_the_limit_cost_as_little_as_those_within() -> None:
    """The control arm reads singly: each record beyond the limit is judged alone, as all of a flood once were."""
    small = replace(STREAM, max_workloads=1_000)
    costs = []
    for batch in (4_000, 1):
        with partition(small) as made:
            end_ms = FIRST_SLOT * STREAM.step_ms + 1_000
            flood = [made.sample(name, end_ms) for name in names(24_000)]
            kernel = made.ingest["requests"]
            kernel.fold(flood[:4_000])
            began = process_time()
            for at in range(4_000, len(flood), batch):
                kernel.fold(flood[at : at + batch])
            costs.append((process_time() - began) / 20_000)
            assert kernel.counters.refused == len(flood) - 2 * small.max_workloads
    print(f"{1e6 * costs[0]:.1f} us per name, read singly {1e6 * costs[1]:.1f} us")
    assert costs[0] < costs[1]


@pytest.mark.faults
@pytest.mark.parametrize("number", [30_000, 300_000])
async def test_a_flood_of_names_in_full(number: int) -> None:
    """All of them in one partition, four times as many as a fleet of four partitions would get."""
    slots = await flooded(STREAM, number)
    usual = max(slot.cpu_s for slot in slots[1:FLOOD_SLOT])
    after = max(slot.cpu_s for slot in slots[FLOOD_SLOT + SILENT :])
    print(f"{number} names: {usual:.3f} s of CPU per slot before, {after:.3f} s after")
    assert all(slot.planned[: len(DECLARED)] == DECLARED for slot in slots[1:])
    assert after < usual + 0.25
