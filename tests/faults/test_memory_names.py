"""A million names: the memory that a partition takes for them is that of its limits, and known workloads are served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.ingest.slots import MAX_SOURCES_PER_WORKLOAD
from streams.log import LogRecord, OutRecord, batched
from streams.pages.codec import PageAssembler
from streams.pages.page import Page
from streams.records.schema import encode_sample, encode_tick
from streams.topics import Topics

CONFIG = StreamConfig(step_ms=5_000, grace_ms=5_000, skew_ms=2_000, context_steps=16)
START = 300_000_000
SLOTS = 10
MOST_MB = 200.0


def flood(kind: str, names: int) -> Iterator[LogRecord]:
    """Per slot so many names that nobody has seen, workloads or sources, around one that is known."""
    offset = 0
    for slot in range(START, START + SLOTS):
        start_ms = slot * CONFIG.step_ms
        for n in range(names):
            name = f"{kind}-{slot}-{n}"
            workload, source = (name, "r") if kind == "workload" else ("known", name)
            if n % (names // 10) == 0:
                workload, source = "known", "r"
            values = {"num_requests_running": 7.0, "requests_started_total": 100.0 * (slot - START) + n / names}
            value = encode_sample("requests", workload, source, start_ms + n * 4_000 // names, values)
            yield LogRecord(offset, start_ms + 4_000, workload.encode(), value)
            offset += 1
        stamp_ms = start_ms + CONFIG.step_ms + CONFIG.grace_ms
        yield LogRecord(offset, stamp_ms, None, encode_tick(stamp_ms))
        offset += 1


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 / 1e6


def newest_page(chunks: list[OutRecord]) -> Page:
    assembler = PageAssembler(CONFIG, Topics().partitions, DEFAULT_CATALOGUE)
    found = [p for n, c in enumerate(chunks) for p in assembler.feed(LogRecord(n, 0, c.key, c.value))]
    return found[-1].page


@pytest.mark.faults
@pytest.mark.parametrize(("kind", "names"), [("workload", 100_000), ("source", 10_000)])
def test_a_million_names_take_no_more_than_the_limits(kind: str, names: int) -> None:
    kernel = IngestKernel(0, "requests", CONFIG, DEFAULT_CATALOGUE, Topics())
    after: list[float] = []
    pages, commits = 0, list[OutRecord]()
    for batch in batched(flood(kind, names), 5_000):
        for emission in kernel.fold(batch):
            pages += len(emission.commits) > 0
            commits = list(emission.commits) or commits
        after.append(resident_mb())
    print(f"{kind}s: {after[0]:.0f} MB after the first batch, {max(after):.0f} MB at most; {kernel.counters}")
    assert max(after) - after[0] < MOST_MB
    assert pages >= SLOTS - 1
    assert newest_page(commits).workloads.count("known") == 1
    least = SLOTS * (names - (2 * CONFIG.max_workloads if kind == "workload" else MAX_SOURCES_PER_WORKLOAD)) - names
    assert kernel.counters.refused >= least
